"""Differences between two runs, and whether they forbid a comparison. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.analysis.compare import Key, by_key, row_key
from reports.records.cores import per_core_text
from reports.records.measurement import Measurement, flat, level_of

_KINDS = {
    "machine": ("cpu", "cpus", "gpu", "gpus", "devices", "topology", "fingerprint", "nodes"),
    "mapping": ("ranks_per_node", "mapping", "binding", "order"),
    "hosts": ("hosts",),
}
#: Of rows over MPI: its library chooses other algorithms by its thread level.
_LEVEL = "MPI thread level"
# Differs by its nature and explains nothing, or is said of the rows that it matters to.
_OF_ONE_RUN = ("SLURM_JOB_ID", "started", "launch", "mpi_threads")


@dataclass(frozen=True)
class Difference:
    """A fact that two runs do not share: machine, mapping, hosts, versions, cores, work, timing.

    A fact that one side does not know is no difference that is known of; it is said, and forbids
    nothing, as with logs of others and with records of an older format.
    """

    kind: str
    name: str
    base: str
    new: str

    @property
    def forbids(self) -> bool:
        """Whether a ratio would compare two machines and not two states of one."""
        return self.kind in ("machine", "mapping", _LEVEL) and bool(self.base and self.new)

    def __str__(self) -> str:
        """One line."""
        return f"{self.kind}: {self.name} {_short(self.base)} -> {_short(self.new)}"


def _short(text: str) -> str:
    """At most sixty characters of a fact, enough to recognise it by."""
    return (text if len(text) <= 60 else text[:57] + "...") or "unknown"


def differences(base: Sequence[Measurement], new: Sequence[Measurement]) -> list[Difference]:
    """Differences between the runs in machine, mapping and versions.

    And whether, of what both measured, ranks shared cores or each other's work on one side only,
    or times were taken otherwise.
    """
    left, right = _facts(base), _facts(new)
    unlike = []
    for name in dict.fromkeys([*left, *right]):
        if left.get(name, "") != right.get(name, ""):
            unlike.append(Difference(_kind(name), name, left.get(name, ""), right.get(name, "")))
    return unlike + _levels(base, new) + _shared(by_key(base), by_key(new))


def _levels(base: Sequence[Measurement], new: Sequence[Measurement]) -> list[Difference]:
    """Whether rows over MPI that both measured ran at different thread levels."""
    over = [{row_key(r): level_of(r) for r in rows if level_of(r)} for rows in (base, new)]
    shared = [key for key in over[0] if key in over[1]]
    left, right = (", ".join(sorted({side[key] for key in shared})) for side in over)
    what = f"{len(shared)} rows over MPI,"
    return [Difference(_LEVEL, what, left, right)] if left != right else []


def _shared(
    base: Mapping[Key, Sequence[Measurement]], new: Mapping[Key, Sequence[Measurement]]
) -> list[Difference]:
    """Differences in what times include; the unknown is none."""
    pairs = [(rows[0], new[key][0]) for key, rows in base.items() if key in new]
    differing = []
    crowded = [(a, b) for a, b in pairs if None not in (a.ranks_per_core, b.ranks_per_core)]
    crowded = [(a, b) for a, b in crowded if a.oversubscribed != b.oversubscribed]
    if crowded:
        sides = (
            per_core_text([r.ranks_per_core for r in side]) for side in zip(*crowded, strict=True)
        )
        what = f"{len(crowded)} of {len(pairs)} rows are oversubscribed on one side only:"
        differing.append(Difference("cores", what, *(text or "a core a rank" for text in sides)))
    worked = [(a, b) for a, b in pairs if a.worksharing != b.worksharing]
    if worked:
        what = f"{len(worked)} of {len(pairs)} rows: a rank's work was"
        sides = (
            "shared" if any(r.worksharing for r in side) else "its own"
            for side in zip(*worked, strict=True)
        )
        differing.append(Difference("work", what, *sides))
    timed = [(_timed(a), _timed(b)) for a, b in pairs]
    unlike = [(a, b) for a, b in timed if a and b and a != b]
    if unlike:
        what = f"{len(unlike)} of {len(pairs)} rows were timed otherwise:"
        sides = (" and ".join(dict.fromkeys(side)) for side in zip(*unlike, strict=True))
        differing.append(Difference("timing", what, *sides))
    return differing


def _timed(row: Measurement) -> str:
    """How a row came to its times; empty where its log does not say."""
    if not (row.timing and row.across):
        return ""
    # Then an iteration finds in cache what was written for it.
    checked = ", --check timed" if row.checked == "timed" else ""
    return f"--timing {row.timing}, {row.across} over ranks{checked}"


def _facts(rows: Sequence[Measurement]) -> dict[str, str]:
    facts: dict[str, dict[str, None]] = {}
    for run in {id(r.run): r.run for r in rows}.values():
        known: dict[str, Any] = {"library": run.library, "version": run.version}
        known |= {"hosts": run.hosts, "nodes": len(run.hosts) or ""}
        known |= _flat(run.environment)
        if "cpu" not in known:
            known["devices"] = run.devices
        for name, value in known.items():
            facts.setdefault(name, {})[_text(value)] = None
    return {name: ", ".join(v for v in values if v) for name, values in facts.items()}


def _flat(environment: Mapping[str, Any]) -> dict[str, Any]:
    """An environment as flat facts, library variables bare, without what is of one run only."""
    remaining = {name: one for name, one in environment.items() if name not in _OF_ONE_RUN}
    facts = {name.removeprefix("variables "): one for name, one in flat(remaining, " ").items()}
    return {name: one for name, one in facts.items() if name not in _OF_ONE_RUN}


def _text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(v) for v in value if v is not None)
    return "" if value is None else str(value)


def _kind(name: str) -> str:
    for kind, names in _KINDS.items():
        if name.split(" ")[0] in names:
            return kind
    return "versions"
