"""An install without a compiler works without the native extension, and says so once."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

import native
from tests.conftest import REPO, Mpi, Run, under

pytest.importorskip("pybind11", reason="pip brings it for a build; here it is not installed")
pytest.importorskip("setuptools", reason="pip brings it for a build; here it is not installed")


# An editable install's finder would go on to serve the extension of the tree under test.
NO_EDITABLE = """import sys
sys.meta_path[:] = [one for one in sys.meta_path if "__editable__" not in str(one)]
"""


@pytest.fixture
def built(tmp_path: Path, run: Run) -> Path:
    """A copy of the project, its extension built where there is no compiler."""
    copy = tmp_path / "busbar"
    ignored = shutil.ignore_patterns("*.so", ".*", "build", "*.egg-info", "__pycache__")
    shutil.copytree(REPO, copy, ignore=ignored)
    missing = str(tmp_path / "no-compiler")
    done = run(
        sys.executable,
        "setup.py",
        "build_ext",
        "--inplace",
        cwd=copy,
        env={"CC": missing, "CXX": missing},
    )
    assert done.returncode == 0, done.stderr
    assert "no-compiler" in done.stdout + done.stderr
    assert not list(copy.glob("native/*.so"))
    (copy / "sitecustomize.py").write_text(NO_EDITABLE)
    return copy


def test_without_a_compiler_mpi_carries_the_ranks(built: Path, mpich: Mpi, run: Run) -> None:
    """Rule: no compiler leaves the install working.

    One line says what is missing, then MPI serves.
    """
    env = {"PYTHONPATH": str(built)}
    done = run(
        *under(mpich, 2, "-m", "bench.allreduce", "-b", "1K", "-e", "1K", "-n", "2"),
        cwd=built,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the native extension is not available") == 1
    assert any(line.split()[:1] == ["1024"] for line in done.stdout.splitlines())


def test_an_extension_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: an extension that does not offer what is asked for is none, and the remedy is said."""
    monkeypatch.setattr("native.import_module", lambda name: ModuleType(name))
    native._load_module.cache_clear()
    try:
        assert native.load() is None and "build it again" in native.why_not()
    finally:
        native._load_module.cache_clear()
