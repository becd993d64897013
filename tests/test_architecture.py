"""The rooms of the house: who may import whom, and that optional libraries stay optional."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent
#: The floors of the house, lowest first: a room, and the rooms that it may import. A row names
#: rooms that stand above it in this list only, so that no arrow can turn.
FLOORS: tuple[tuple[str, str], ...] = (
    ("busbar", ""),
    ("native", ""),
    ("topology.model", "busbar"),
    ("topology.sources", "busbar topology.model"),
    ("topology.diagnostics", "busbar topology.model"),
    ("topology.placement", "busbar topology.model topology.diagnostics"),
    ("topology.exports", "busbar topology.model topology.sources"),
    (
        "topology.views",
        "busbar topology.model topology.diagnostics topology.exports",
    ),
    ("topology", "busbar topology.*"),
    ("collectives.schedule", "busbar"),
    ("collectives.specs", "collectives.schedule"),
    ("collectives.algorithms", "busbar collectives.schedule"),
    ("collectives.formats", "busbar collectives.schedule"),
    ("collectives.execution", "busbar collectives.schedule"),
    ("collectives.execution.inproc", "busbar collectives.schedule collectives.execution"),
    ("collectives.execution.shm", "busbar native collectives.schedule collectives.execution"),
    (
        "collectives.execution.gpu",
        "busbar topology.model collectives.schedule collectives.execution"
        " collectives.execution.inproc"
        " collectives.execution.shm",
    ),
    (
        "collectives.execution.ipc",
        "busbar collectives.schedule collectives.execution collectives.execution.inproc"
        " collectives.execution.shm collectives.execution.gpu",
    ),
    (
        "collectives.execution.mpi",
        "busbar native collectives.schedule collectives.execution collectives.execution.gpu",
    ),
    (
        "collectives.execution.shm_mpi",
        "busbar native collectives.schedule collectives.execution collectives.execution.shm"
        " collectives.execution.mpi",
    ),
    (
        "collectives.execution.nccl",
        "busbar collectives.schedule collectives.execution collectives.execution.gpu",
    ),
    (
        "collectives.predict",
        "busbar topology.model topology.sources collectives.schedule"
        " collectives.formats collectives.execution collectives.execution.shm",
    ),
    (
        "collectives.commands",
        "busbar collectives.schedule collectives.formats collectives.predict",
    ),
    ("collectives", "busbar collectives.commands"),
    ("reports.records", "busbar"),
    ("reports.statistics", "busbar reports.records"),
    ("reports.readers", "busbar reports.records"),
    ("reports.exports", "busbar reports.records reports.statistics reports.readers"),
    (
        "reports.analysis",
        "busbar topology.* collectives.schedule collectives.predict reports.records"
        " reports.statistics reports.readers",
    ),
    ("reports.tables", "busbar reports.records reports.statistics reports.analysis"),
    (
        "reports.figures",
        "busbar topology.model collectives.predict reports.records reports.statistics"
        " reports.analysis",
    ),
    (
        "reports.page",
        "busbar topology.model reports.records reports.statistics reports.analysis reports.figures",
    ),
    ("reports.commands", "busbar collectives.predict reports.*"),
    ("reports", "busbar reports.readers reports.commands"),
    ("bench.launch", "busbar"),
    ("bench.options", "busbar collectives.schedule collectives.formats collectives.execution"),
    (
        "bench.timing",
        "busbar collectives.execution reports.records reports.statistics bench.options",
    ),
    (
        "bench.cluster",
        "busbar topology.* collectives.schedule collectives.predict reports.* bench.launch"
        " bench.options bench.timing",
    ),
    ("bench.links", "busbar topology topology.* collectives.schedule collectives.execution*"),
    (
        "bench.run",
        "busbar native topology.model topology.sources collectives.schedule collectives.formats"
        " collectives.execution* reports.* bench.launch bench.options bench.timing"
        " bench.links",
    ),
    (
        "bench.cli",
        "busbar topology.sources topology.placement collectives.schedule collectives.execution*"
        " reports.* bench.launch bench.options bench.run",
    ),
    (
        "bench.qualify",
        "busbar topology.model topology.sources topology.diagnostics collectives.schedule"
        " collectives.execution* reports.* bench.launch bench.options bench.timing bench.links"
        " bench.run bench.cli",
    ),
    (
        "bench.tuning",
        "busbar collectives.schedule collectives.formats collectives.predict reports.*"
        " bench.launch bench.options bench.run bench.cli",
    ),
    ("bench.steps.training", "busbar collectives.schedule reports.records"),
    (
        "bench.steps",
        "busbar collectives.schedule collectives.formats collectives.execution*"
        " collectives.predict reports.* bench.launch bench.options bench.timing bench.run bench.cli"
        " bench.steps.training",
    ),
    (
        "bench.steps.server",
        "busbar collectives.schedule collectives.execution* reports.* bench.launch bench.run"
        " bench.steps bench.steps.training",
    ),
    (
        "bench.trials",
        "busbar collectives.schedule collectives.execution* reports.* bench.launch bench.options"
        " bench.timing bench.links bench.run bench.cli",
    ),
    (
        "bench.api",
        "busbar topology.* collectives.schedule collectives.formats collectives.predict"
        " reports.* bench.launch bench.options bench.run bench.cli bench.steps",
    ),
    ("bench", "busbar bench.*"),
)
ROOMS = tuple(room for room, _ in FLOORS)
HOUSES = ("busbar", "native", "topology", "collectives", "reports", "bench")
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
    "argcomplete",
}


def _modules() -> dict[str, Path]:
    """Every module of the product by its dotted name."""
    found = {}
    for house in HOUSES:
        for path in sorted((HOME / house).rglob("*.py")):
            name = ".".join(path.relative_to(HOME).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def _imports(tree: ast.AST, modules: Collection[str]) -> set[str]:
    """The modules of ours that a module imports, also in functions and under TYPE_CHECKING."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, "a relative import"
            # `from topology.model import graph` imports topology.model.graph.
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & set(modules) or {node.module}
    return found & set(modules)


def _room(module: str) -> str:
    """The innermost room that a module stands in."""
    return max((r for r in ROOMS if f"{module}.".startswith(f"{r}.")), key=len)


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.AST]:
    """Every module of ours, parsed."""
    return {name: ast.parse(p.read_text(encoding="utf-8")) for name, p in _modules().items()}


@pytest.fixture(scope="module")
def arrows(trees: dict[str, ast.AST]) -> dict[str, set[str]]:
    """The modules of ours that every module of ours imports."""
    return {name: _imports(tree, trees) for name, tree in trees.items()}


def _wrong(arrows: Mapping[str, set[str]], rooms: Mapping[str, str]) -> list[str]:
    """The arrows between rooms that the table does not allow."""
    allowed = {room: words.split() for room, words in FLOORS}
    return [
        f"{a} ({rooms[a]}) imports {b} ({rooms[b]})"
        for a, found in arrows.items()
        for b in found
        if rooms[a] != rooms[b] and not any(fnmatch(rooms[b], w) for w in allowed[rooms[a]])
    ]


def test_no_arrow_that_the_table_does_not_allow(arrows: dict[str, set[str]]) -> None:
    """A room imports of the others only what the architecture's table lists."""
    wrong = _wrong(arrows, {module: _room(module) for module in _modules()})
    assert not wrong, "\n".join(wrong)


def test_predictors_are_used_through_their_interface(arrows: dict[str, set[str]]) -> None:
    """Rule: outside `collectives.predict` nobody imports a predictor's inner modules."""
    room = "collectives.predict"
    public = "interface|predictor|machine|maps|named|compare|fit|nccl|simulation|draw"
    inner = {m for m in arrows if re.fullmatch(rf"{room}\.(?!({public})$)\w+", m)}
    wrong = {m: found & inner for m, found in arrows.items() if not m.startswith(room)}
    assert inner
    assert not any(wrong.values()), wrong


def test_the_table_lets_no_arrow_turn() -> None:
    """Rule: a row of the table names rooms above it only."""
    for n, (room, words) in enumerate(FLOORS):
        for word in words.split():
            below = [r for r in ROOMS if fnmatch(r, word) and r != room]
            assert below, f"{room} may import {word}, which is no room"
            assert set(below) <= set(ROOMS[:n]), f"{room} may import {word}"


def test_no_circle_of_modules(arrows: dict[str, set[str]]) -> None:
    """Rule: no module leads back to itself, also not inside functions or for types only."""
    assert _circle(arrows) is None


def test_nobody_goes_out_by_the_front_door(arrows: dict[str, set[str]]) -> None:
    """Rule: nobody knows `busbar.cli`.

    `busbar.door` loads it by name, and it the doors of the rooms.
    """
    assert not {m for m, found in arrows.items() if "busbar.cli" in found}


def _circle(arrows: Mapping[str, set[str]]) -> tuple[str, ...] | None:
    try:
        tuple(TopologicalSorter(arrows).static_order())
    except CycleError as error:
        return tuple(error.args[1])
    return None


def test_the_walk_sees_what_is_forbidden() -> None:
    """The walk finds imports inside functions and for types; the table refuses as it should."""
    modules = _modules()
    text = (
        "def f():\n    from bench.cli import main\nif TYPE_CHECKING:\n    import topology.sources\n"
    )
    assert _imports(ast.parse(text), modules) == {"bench.cli.main", "topology.sources"}
    rooms = {module: _room(module) for module in _modules()}
    assert rooms["collectives.schedule.moves"] == "collectives.schedule"
    assert _wrong({"collectives.schedule.moves": {"bench.cli.main"}}, rooms)
    assert _wrong({"collectives.schedule.moves": {"topology.model.graph"}}, rooms)
    assert not _wrong({"collectives.predict.maps": {"topology.sources.gather"}}, rooms)
    assert _circle({"a": {"b"}, "b": {"a"}}) is not None


def test_importing_the_rooms_loads_nothing_optional() -> None:
    """`import collectives, topology, reports, bench` works on a machine with none of the extras."""
    code = (
        "import sys, collectives, topology, reports, bench.cli.main\n"
        "import collectives.commands.costing, topology.cli, reports.commands.tables\n"
        f"print([m for m in {sorted(OPTIONAL)!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HOME
    )
    assert done.stdout.strip() == "[]"


def test_no_text_is_cut_in_two() -> None:
    """Rule: a string on a line of its own is a docstring: help texts lost their ends that way."""
    found = []
    for name, path in _modules().items():
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Expr(ast.Constant(str())) if '"""' not in lines[node.lineno - 1]:
                    found.append(f"{name}:{node.lineno}")
    assert found == []
