"""`busbar.bench` and the other aliases are the packages themselves, by a name of our own."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import busbar
from busbar.aliases import ROOMS
from tests.conftest import REPO

MODULES = (
    "bench", "bench.options.options", "collectives.schedule.catalogue", "native",
    "reports.records.table", "topology.model.topology",
)  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("first", ["alias", "real"])
def test_an_alias_is_the_module_itself(name: str, first: str) -> None:
    """Rule: whichever name is imported first, there is one module, which knows its own name."""
    names = [f"busbar.{name}", name]
    words = names if first == "alias" else names[::-1]
    code = (
        "import importlib, sys\n"
        f"a, b = (importlib.import_module(one) for one in {words!r})\n"
        "assert a is b, (a, b)\n"
        f"assert (a.__name__, a.__spec__.name) == ({name!r},) * 2, a.__spec__\n"
        f"assert sys.modules['busbar.{name}'] is sys.modules[{name!r}] is importlib.reload(a)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPO, check=True, timeout=60)


def test_attributes_and_functions_of_busbar_stay() -> None:
    """Rule: ``busbar.reports`` needs no import; ``busbar.topology`` is a function all the same."""
    for room in ROOMS:
        assert importlib.import_module(f"busbar.{room}") is importlib.import_module(room)
    assert busbar.reports is importlib.import_module("reports")  # type: ignore[attr-defined]
    assert callable(busbar.topology) and callable(busbar.run) and callable(busbar.load)
    matrix = REPO / "tests" / "topology"
    with pytest.raises(Exception, match="none"):
        busbar.topology([matrix / "none"])
    with pytest.raises(ModuleNotFoundError, match=r"busbar\.bench\.nothing"):
        importlib.import_module("busbar.bench.nothing")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("busbar.numpy")


@pytest.mark.parametrize("module", ["bench.allreduce", "reports", "topology"])
def test_python_m_runs_an_alias(module: str) -> None:
    """Rule: python -m runs a module by its alias."""
    found = [
        subprocess.run(
            [sys.executable, "-m", name, "--help"],
            cwd=REPO, capture_output=True, text=True, check=True, timeout=60,
        )
        for name in (f"busbar.{module}", module)
    ]  # fmt: skip
    assert found[0].stdout == found[1].stdout and found[0].stdout


def test_an_alias_never_loads_somebody_elses_module(tmp_path: Path) -> None:
    """Rule: a bench.py in the working directory is named in one line, and not run."""
    (tmp_path / "bench.py").write_text("print('run')")
    alias = [sys.executable, "-m", "busbar.bench.allreduce"]
    done = subprocess.run(alias, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
    assert f"bench is loaded from {tmp_path / 'bench.py'}" in done.stderr


def test_aliases_load_nothing_by_themselves() -> None:
    """Rule: importing busbar loads its aliases' finder, and none of the rooms."""
    code = (
        "import sys; before = set(sys.modules); import busbar;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) - {"__future__"} == {"busbar", "busbar.aliases"}
