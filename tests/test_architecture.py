"""The rooms of the house: who may import whom, and that optional libraries stay optional."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent
#: The ground floor: every room may use it, and it knows none of them.
FLOOR = "busbar"
ROOMS = (FLOOR, "collectives", "topology", "bench", "reports", "native")
# What a room may import of the others: module, and the files that may ("" is any).
ALLOWED: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    FLOOR: (),
    "collectives": (
        (
            "topology.model",
            ("collectives/schedule/cost.py", "collectives/simulate", "collectives/model/"),
        ),
        # Costs are fitted on measured maps, and a machine is read from any file that maps one.
        (
            "topology.sources.gather",
            ("collectives/model/", "collectives/simulate/machines/maps.py"),
        ),
        ("topology.measured.matrix", ("collectives/model/",)),
        # A map that is simulated may have the rate of additions in its sweep.
        (
            "topology.measured.sweep",
            ("collectives/model/", "collectives/simulate/machines/maps.py"),
        ),
        ("native", ("collectives/execution/",)),
    ),
    "topology": (),
    "bench": (("collectives", ("",)), ("topology", ("",)), ("reports", ("",))),
    "reports": (
        ("topology.model", ("",)),
        ("topology", ("reports/analysis/machine.py",)),
        ("collectives.schedule.cost", ("",)),
        # Predictions stand beside measured rows: one door, and the textbook's comparison.
        (
            "collectives.model",
            (
                "reports/analysis/predicted.py",
                "reports/statistics/order.py",
                "reports/figures/series.py",
                "reports/commands/",
            ),
        ),
        (
            "collectives.schedule.catalogue",
            ("reports/analysis/predicted.py", "reports/analysis/model.py"),
        ),
    ),
    "native": (),
}
OPTIONAL = {
    "mpi4py",
    "cupy",
    "pynvml",
    "pandas",
    "pyarrow",
    "matplotlib",
    "plotly",
    "scipy",
    "yaml",
}


def _files(room: str) -> list[Path]:
    return sorted((HOME / room).rglob("*.py"))


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    """The modules that a file imports, wherever in it, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            assert node.module is not None
            yield node.module, node.lineno
            # `from topology import model` imports topology.model.topology.
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def _under(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def _permitted(room: str, file: str, name: str) -> bool:
    return _under(name, FLOOR) or any(
        _under(name, module) and any(file.startswith(prefix) for prefix in files)
        for module, files in ALLOWED[room]
    )


@pytest.mark.parametrize("room", ROOMS)
def test_no_arrow_that_the_table_does_not_allow(room: str) -> None:
    """A room imports of the others only what the architecture's table lists."""
    wrong = []
    for path in _files(room):
        file = path.relative_to(HOME).as_posix()
        lines: dict[int, list[str]] = {}
        for name, line in _imports(path):
            lines.setdefault(line, []).append(name)
        for line, names in lines.items():
            foreign = [n for n in names if n.split(".")[0] in ROOMS and not _under(n, room)]
            # Of `from a import b` both a and a.b were listed; one of them being allowed will do.
            if foreign and not any(_permitted(room, file, name) for name in foreign):
                wrong.append(f"{file}:{line} imports {foreign[0]}")
    assert not wrong, "\n".join(wrong)


def test_the_walk_sees_what_is_forbidden(tmp_path: Path) -> None:
    """The walk finds imports inside functions too, and the table refuses what it should."""
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from bench import main\n    import topology.sources\n")
    assert {name for name, _ in _imports(file)} == {"bench", "bench.main", "topology.sources"}
    assert not _permitted("collectives", "collectives/schedule/moves.py", "bench.cli.main")
    assert not _permitted("collectives", "collectives/schedule/moves.py", "topology.model.graph")
    assert _permitted("collectives", "collectives/schedule/cost.py", "topology.model")
    assert not _permitted("reports", "reports/x.py", "collectives.schedule.verify")
    assert not _permitted("reports", "reports/x.py", "collectives")
    assert _permitted("bench", "bench/x.py", "collectives.schedule.verify")


def test_importing_the_rooms_loads_nothing_optional() -> None:
    """`import collectives, topology, reports, bench` works on a machine with none of the extras."""
    code = (
        "import sys, collectives, topology, reports, bench, collectives.cli\n"
        f"print([m for m in {sorted(OPTIONAL)!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HOME
    )
    assert done.stdout.strip() == "[]"
