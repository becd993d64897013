"""What this installation says of itself, what adds to it, and what stands in its way."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from busbar import errors, installation, rooms
from busbar.start import python
from tests.conftest import REPO, Mpi, Run


def _never(name: str) -> str:
    raise PackageNotFoundError(name)


def test_the_version_is_declared_in_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a clone that was never installed knows its version.

    No other project's is taken for it.
    """
    project = REPO / "pyproject.toml"
    declared = re.search(r'^version = "(.+)"$', project.read_text(), re.MULTILINE)
    assert declared is not None
    monkeypatch.setattr(importlib.metadata, "version", _never)
    asked = installation.busbar_version.__wrapped__
    assert asked() == declared.group(1)
    monkeypatch.setattr(installation, "HOME", tmp_path)
    assert asked() == "unknown"
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\nversion = "7"\n')
    assert asked() == "unknown"
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.1")
    assert asked() == "3.1"


def test_the_distribution_has_the_name_that_hints_name() -> None:
    """Rule: nobody is told to install the stranger's package that has our import's name."""
    project = (REPO / "pyproject.toml").read_text()
    assert f'\nname = "{installation.DISTRIBUTION}"\n' in project
    told = re.compile(r"pip install [^\n]*\bbusbar\b")
    pages = [REPO / "README.md", *(REPO / "docs").glob("*.md")]
    sources = [p for house in ("busbar", *rooms.ROOMS) for p in (REPO / house).rglob("*.py")]
    assert not [page for page in (*pages, *sources) if told.search(page.read_text())]


def test_a_hint_is_the_command_for_this_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a checkout is installed again with the extra, a wheel by its distribution's name.

    Where the shell's pip is another environment's (`make` does not activate its own), Python says
    which.
    """
    beside = Path(sys.prefix) / "bin" / "pip"
    monkeypatch.setattr("shutil.which", lambda name: str(beside))
    monkeypatch.chdir(REPO)
    assert installation.extra("reports") == "pip install -e '.[reports]'"
    monkeypatch.chdir(tmp_path)
    assert installation.extra("reports") == f"pip install -e '{REPO}[reports]'"
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/pip")
    assert installation.extra("mpi") == f"{sys.executable} -m pip install -e '{REPO}[mpi]'"
    monkeypatch.setattr(installation, "HOME", tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert installation.extra("mpi") == f"{sys.executable} -m pip install 'busbw[mpi]'"
    monkeypatch.setattr(installation, "busbar_version", lambda: "7")
    for origin, words in (
        (None, "--no-binary busbw 'busbw'"),
        ("file:///a%20b/busbw-7-cp311-linux.whl", "'/a b/busbw-7.tar.gz'"),
        ("file:///a/busbw-7.tar.gz", "/a/busbw-7.tar.gz"),
    ):
        text = json.dumps({} if origin is None else {"url": origin, "archive_info": {}})
        copy = SimpleNamespace(read_text=lambda name, text=text: text)
        monkeypatch.setattr(importlib.metadata, "distribution", lambda name, copy=copy: copy)
        assert installation.reinstall().endswith(f"--force-reinstall --no-deps {words}")


def test_what_is_packed_knows_its_revision(run: Run, tmp_path: Path) -> None:
    """Rule: a wheel's modules say which revision they are of, as the checkout does."""
    pytest.importorskip("setuptools")
    there = installation.revision()
    if there is None:
        pytest.skip("not a checkout of git")
    work = ["egg_info", "--egg-base", str(tmp_path), "build_py", "--build-lib", str(tmp_path)]
    done = run(sys.executable, "setup.py", "-q", *work)
    assert done.returncode == 0, done.stderr
    code = "from busbar.installation import HOME, revision; print(HOME, revision())"
    asked = run(sys.executable, "-c", code, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert asked.stdout.split() == [str(tmp_path.resolve()), there]


START = str(REPO / "busbar" / "start.py")
SMALL = ("-b", "8", "-e", "8", "-n", "2", "-A", "ring")
SIDE = ("--", "allreduce", "--threads", "2", "-b", "8", "-e", "8", "-n", "2", "-A")
TURNS = (*SIDE, "ring", *SIDE, "ps")


class TestRooms:
    """Names as common as ours have other owners, too."""

    def test_ours_are_ours(self) -> None:
        """Rule: the check passes here, or nothing would start."""
        rooms.check_rooms()

    @pytest.mark.parametrize("file", ["bench.py", "reports/__init__.py"])
    def test_a_file_in_the_way_is_named(
        self, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rule: what would be loaded in a room's place is named, with the folder to leave."""
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("raise AssertionError('was loaded')")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(errors.Unavailable) as refused:
            rooms.check_rooms()
        said = (
            f"is loaded from {tmp_path / file} and not from {REPO}: rename it, or work in another"
        )
        assert said in str(refused.value) and f"folder than {tmp_path}" in str(refused.value)

    @pytest.mark.skipif(sys.version_info < (3, 11), reason="PYTHONSAFEPATH is of Python 3.11")
    def test_a_safe_path_is_advised_where_it_helps(self, tmp_path: Path, run: Run) -> None:
        """Rule: beside a script called bench.py, the error names PYTHONSAFEPATH, which helps.

        It is not named where PYTHONPATH has the folder, since it does not help there.
        """
        (tmp_path / "bench.py").write_text("raise AssertionError('was loaded')")
        script = tmp_path / "script.py"
        script.write_text("import busbar\nprint(busbar.load.__name__)")
        refused = run(sys.executable, str(script))
        assert "or set PYTHONSAFEPATH=1, so that" in refused.stderr
        helped = run(sys.executable, str(script), env=os.environ | {"PYTHONSAFEPATH": "1"})
        assert (helped.returncode, helped.stdout) == (0, "load\n"), helped
        both = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(tmp_path)}
        still = run(sys.executable, str(script), env=os.environ | both)
        assert "bench is loaded from" in still.stderr and "SAFEPATH" not in still.stderr

    def test_another_distribution_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rule: a distribution that owns the name of a room is named, with what to do."""
        site = tmp_path / "site-packages"
        (site / "topology").mkdir(parents=True)
        (site / "topology" / "__init__.py").write_text("")
        info = site / "stranger-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
        (info / "RECORD").write_text("topology/__init__.py,,\nstranger-1.0.dist-info/METADATA,,\n")
        monkeypatch.syspath_prepend(site)
        with pytest.raises(errors.Unavailable, match="pip uninstall stranger"):
            rooms.check_rooms()

    def test_it_is_said_at_the_start(self, tmp_path: Path, run: Run) -> None:
        """Rule: a command says so in one line before it loads anything that is not ours."""
        (tmp_path / "reports.py").write_text("raise AssertionError('was loaded')")
        done = run(sys.executable, "-m", "busbar", "allreduce", "--help", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1), done
        assert done.stderr.startswith(f"busbar: reports is loaded from {tmp_path / 'reports.py'}")

    @pytest.mark.parametrize(
        "words",
        [
            ["allreduce", "--ranks", "2", *SMALL],
            ["allreduce", "--threads", "2", "--launches", "2", *SMALL],
            ["step", "--learners", "1", "--model", "toy", "--update", "async", "-n", "3"],
            ["ab", "--most", "1", *TURNS],
        ],
        ids=["ranks", "launches", "learners", "ab"],
    )
    def test_what_lies_in_the_working_directory_is_never_run(
        self, words: list[str], tmp_path: Path, run: Run, mpich: Mpi
    ) -> None:
        """Rule: no process of ours takes a module from the working directory, on any Python.

        Nor do those that these start: rooms and the standard library's names alike.
        """
        for name in ("bench", "busbar", "json", "numpy", "statistics"):
            (tmp_path / f"{name}.py").write_text(f"print('ran {name}'); raise SystemExit(9)")
        done = run(mpich.python, START, "busbar", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "ran " not in done.stdout + done.stderr

    def test_pythonpath_counts(self, tmp_path: Path, run: Run) -> None:
        """Rule: folders that PYTHONPATH names are searched, as by any Python, in their order."""
        (tmp_path / "mine.py").write_text("import sys; print(__name__, *sys.argv[1:])")
        env = {"PYTHONPATH": str(tmp_path)}
        done = run(*python("mine", "a", "b"), cwd=tmp_path.parent, env=env)
        assert done.stdout == "__main__ a b\n", done.stderr
        missing = run(*python("mine"), cwd=tmp_path, env={"PYTHONPATH": ""})
        assert missing.returncode != 0 and "No module named mine" in missing.stderr
