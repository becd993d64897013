"""`busbar.topology` and `busbar.pick`, for programs and notebooks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from html import escape
from pathlib import Path
from typing import Literal

from bench.api.public import public
from busbar.arguments import unknown
from busbar.errors import Unsupported, rewording
from topology.diagnostics import Finding, check
from topology.model.topology import Topology
from topology.placement import text as pick_text
from topology.placement.pick import Objective, Pick, Ranking, available
from topology.placement.pick import pick as ranked
from topology.sources.gather import gather
from topology.views import terminal

_WIDTH = 100
ObjectiveName = Literal["ring", "pairs", "all-to-all"]
# What options of the commands are called here, for messages.
_NAMES = {
    "--from FILE": 'busbar.topology("FILE")',
    "--from": 'busbar.topology("FILE")',
    "--busy": "busy=True",
    "-k": "k",
    "python -m reports show FILE": 'busbar.load("FILE")',
    "busbar reports show FILE": 'busbar.load("FILE")',
    "python -m topology": "busbar topology",
}
_FLAG = re.compile("|".join(rf"(?<!\S){re.escape(flag)}(?!\S)" for flag in _NAMES))


def map_names() -> AbstractContextManager[None]:
    """A context in which messages of errors have what stands here in place of options."""
    return rewording(lambda text: _FLAG.sub(lambda flag: _NAMES[flag[0]], text))


class MachineMap:
    """A machine: ``topology`` has devices and links with their sources; ``notes``: missing sources.

    ``str()`` gives the text that ``busbar topology`` prints. A notebook also shows the findings.
    """

    def __init__(self, topology: Topology, notes: Sequence[str] = ()) -> None:
        self.topology, self.notes = topology, tuple(notes)

    @property
    def findings(self) -> Sequence[Finding]:
        """Problems that cost performance, worst first."""
        return check(self.topology)

    @public
    def pick(
        self,
        k: int,
        *,
        objective: ObjectiveName = "ring",
        exclude: str | int | Sequence[str | int] = (),
        busy: bool = False,
        alternatives: int = 5,
    ) -> Picked:
        """The best k GPUs: see `busbar.pick`."""
        known = [one.value for one in Objective]
        if objective not in known:
            raise unknown("objective", objective, known)
        _check_count(k)
        if not isinstance(alternatives, int) or alternatives < 0:
            raise Unsupported(f"alternatives is a number of sets from 0, not {alternatives!r}")
        named = [exclude] if isinstance(exclude, (str, int)) else exclude
        with map_names():
            pool = available(self.topology, list(map(str, named)), busy)
            return Picked(ranked(self.topology, k, Objective(objective), pool, alternatives))

    def __repr__(self) -> str:
        gpus = len(self.topology.gpus)
        return f"<MachineMap: {len(self.topology.devices)} devices, {gpus} of them GPUs>"

    def __str__(self) -> str:
        # Without a GPU the CPUs are what there is to see.
        return (
            terminal.matrix_text(self.topology)
            if self.topology.gpus
            else terminal.tree_text(self.topology, 100)
        )

    def _repr_html_(self) -> str:
        problems = terminal.findings_text(self.topology, self.findings, _WIDTH)
        return f"<pre>{escape(str(self))}</pre><pre>{escape(problems)}</pre>"


class Picked:
    """GPUs for a job: ``best`` and ``alternatives``; ``str()`` includes the reasons.

    ``ranking``: all ranked sets, see `topology.placement.pick.Ranking`.
    """

    def __init__(self, ranking: Ranking) -> None:
        self.ranking = ranking

    @property
    def best(self) -> Pick:
        """The best set."""
        return self.ranking.picks[0]

    @property
    def alternatives(self) -> Sequence[Pick]:
        """The next best sets, best first."""
        return self.ranking.picks[1:]

    @property
    def order(self) -> tuple[str, ...]:
        """The GPUs of the best set in the order of its ring."""
        return self.best.order

    def __repr__(self) -> str:
        return f"<Picked: {' '.join(self.order)}>"

    def __str__(self) -> str:
        return pick_text.text(self.ranking, _WIDTH)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


@public
def topology(*files: str | Path) -> MachineMap:
    """The map of this machine, or of one from files that ``busbar topology --from`` reads.

    Each file is an argument. If files contradict each other, the first one counts. Raises
    MissingFile and ProbeError.
    """
    return _map(files, "busbar.topology")


def _map(files: Sequence[str | Path], of: str) -> MachineMap:
    """As `topology`; ``of``: the beginning of messages."""
    for one in files:
        if not isinstance(one, (str, Path)):
            raise Unsupported(f"{of}: each file is an argument, not {one!r}")
    with map_names():
        machine, notes = gather(map(str, files))
    return MachineMap(machine, notes)


def _check_count(k: object) -> None:
    """Raise Unsupported for what is no number of GPUs."""
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise Unsupported(
            f"k is a number of GPUs from 1, not {k!r}; files follow it: busbar.pick(2, FILE)"
        )


@public
def pick(
    k: int,
    *files: str | Path,
    objective: ObjectiveName = "ring",
    exclude: str | int | Sequence[str | int] = (),
    busy: bool = False,
    alternatives: int = 5,
) -> Picked:
    """The best k GPUs of this machine, or of the machine that ``files`` describe.

    ``objective``: ring, pairs or all-to-all. ``exclude``: GPUs to leave out, by index, id, UUID or
    bus id. ``busy``: True to leave out GPUs in use. Raises MissingFile, ProbeError, and Unsupported
    for another objective or for more GPUs than there are.
    """
    _check_count(k)
    return _map(files, "busbar.pick").pick(
        k, objective=objective, exclude=exclude, busy=busy, alternatives=alternatives
    )
