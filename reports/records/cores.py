"""Facts of cores and GPUs in a record: ranks per core, clocks, energy, and warnings. No I/O.

A logical CPU counts as a core, because a rank waits for a logical CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from busbar.cpulist import members
from busbar.units import format_count
from reports.records.measurement import WORKSHARING, GpuSample, Measurement, is_emulated, listed

#: The meaning of the asterisk of `marked`.
SHARED = "*: work of one rank may have been another's, so the time need not be the algorithm's"


class Load(NamedTuple):
    """A number of ranks that share a number of cores.

    ``emulated``: the ranks are on hosts of `busbar cluster`.
    """

    ranks: int
    cores: int
    emulated: bool = False

    @property
    def per_core(self) -> float:
        """Ranks per core; above 1 is oversubscribed."""
        return self.ranks / self.cores

    def remark(self, every: int) -> str:
        """The note on times of ``every`` ranks per core; empty if each has a core."""
        if self.ranks <= self.cores:
            return ""
        whom = (
            format_count(self.ranks, "rank")
            if self.ranks == every
            else f"{self.ranks} of {format_count(every, 'rank')}"
        )
        cores = format_count(self.cores, "core")
        if self.emulated:
            says = "busbar cluster says whether ports or cores were the limit"
            return f"{whom} on emulated hosts share {cores}: {says}"
        return f"{whom} share {cores}: times include ranks waiting for a core"


def busiest(nodes: Sequence[int], cpus: Sequence[Collection[int]]) -> Load | None:
    """The greatest number of ranks per core on any node; None if nothing is known.

    ``nodes`` and ``cpus``: for each rank its node, and the CPUs that it may run on. For each set of
    CPUs that is some rank's affinity, and for the whole node, the ranks confined to the set are
    counted. This finds the greatest load if the sets are nested or disjoint, as they are with
    pinning to cores, pinning to NUMA nodes, or no pinning.
    """
    loads: list[Load] = []
    by_node: dict[int, Counter[frozenset[int]]] = {}
    for node, mine in zip(nodes, cpus, strict=True):
        by_node.setdefault(node, Counter())[frozenset(mine)] += 1
    for _, sets in sorted(by_node.items()):
        for within in {*sets, frozenset[int]().union(*sets)}:
            if within:
                loads.append(
                    Load(sum(n for mine, n in sets.items() if mine <= within), len(within))
                )
    return max(loads, key=lambda one: (one.per_core, one.ranks), default=None)


def of_environment(environment: Mapping[str, Any], ranks: int) -> float:
    """Ranks per core of a run with ``ranks`` ranks, from its environment; 0.0 if not known.

    From the mapping of the ranks if there is one, otherwise from the number of CPUs of rank 0. Not
    known for one of several groups (``--split``), because the other groups ran on the same cores.
    """
    if "group" in environment:
        return 0.0
    mapping = environment.get("mapping")
    if isinstance(mapping, Mapping):
        nodes = listed(mapping.get("node"))
        cpus = [
            members(one) if isinstance(one, str) else None for one in listed(mapping.get("cpus"))
        ]
        if len(nodes) == len(cpus) == ranks and all(cpus) and all(type(n) is int for n in nodes):
            load = busiest(nodes, [one or () for one in cpus])
            return 0.0 if load is None else load.per_core
    each, count = listed(environment.get("ranks_per_node")), environment.get("cpus")
    if type(count) is not int or count < 1 or not all(type(n) is int for n in each):
        return 0.0
    if not each and len(listed(environment.get("hosts"))) > 1:
        return 0.0
    return max(each, default=ranks) / count


def crowding(rows: Iterable[Measurement]) -> str:
    """`per_core_text` of rows, except those of emulated hosts (`Measurement.oversubscribed`)."""
    return per_core_text([r.ranks_per_core for r in rows if not is_emulated(r.run.environment)])


def oversubscription(rows: Sequence[Measurement]) -> str:
    """``oversubscribed: 8 ranks per core``, or a range; empty if no rank waited for a core."""
    text = crowding(rows)
    return f"oversubscribed: {text}" if text else ""


def marked(row: Measurement) -> str:
    """The row's algorithm, with an asterisk if other processes may have done some of its work.

    `SHARED` explains the mark. Rows of the bound ``worksharing`` get none: there it is intended.
    """
    return row.algorithm + "*" * (row.worksharing and row.algorithm != WORKSHARING)


def per_core_text(values: Collection[float | None]) -> str:
    """``8 ranks per core``, or a range; empty if no rank shared a core."""
    known = sorted({one for one in values if one is not None})
    if not known or known[-1] <= 1:
        return ""
    low, high = f"{known[0]:.3g}", f"{known[-1]:.3g}"
    if known[0] <= 1:
        return f"up to {high} ranks per core"
    return f"{high} ranks per core" if low == high else f"{low} to {high} ranks per core"


# Relative differences of clocks, between GPUs or in time, above which a warning is given. Memory
# has a few fixed clocks; SM clocks change all the time.
_STEADY = {"clock_memory_hz": ("memory", 0.01), "clock_sm_hz": ("SM", 0.05)}


def memory_clock(gpus: Sequence[GpuSample]) -> float | None:
    """The lowest of the GPUs' median memory clocks in Hz; None if none is known."""
    return min((gpu.clock_memory_hz[1] for gpu in gpus if gpu.clock_memory_hz), default=None)


def energy(gpus: Sequence[GpuSample]) -> float | None:
    """Joules of all GPUs for one operation, without idle power; None unless known for every GPU."""
    known = [gpu.energy_per_op_j for gpu in gpus if gpu.energy_per_op_j is not None]
    return sum(known) if known and len(known) == len(gpus) else None


def warnings(gpus: Sequence[GpuSample]) -> Iterator[str]:
    """Warnings about GPU clocks that differ between GPUs, that changed, or that were throttled."""
    for name, (what, share) in _STEADY.items():
        sampled = {gpu: clock for gpu in gpus if (clock := getattr(gpu, name))}
        if not sampled:
            continue
        slow, fast = (pick(sampled, key=lambda gpu: sampled[gpu][1]) for pick in (min, max))
        if sampled[fast][1] > (1 + share) * sampled[slow][1]:
            yield (
                f"{what} clocks differ between GPUs: {_called(slow)} {_mhz(sampled[slow][1])},"
                f" {_called(fast)} {_mhz(sampled[fast][1])}"
            )
        for gpu, (low, _, high) in sampled.items():
            if high > (1 + share) * low:
                yield f"the {what} clock of {_called(gpu)} moved from {_mhz(low)} to {_mhz(high)}"
    for gpu in gpus:
        if gpu.throttle:
            yield f"{_called(gpu)} was slowed by {', '.join(gpu.throttle)}"


def _called(gpu: GpuSample) -> str:
    """The name of a GPU in warnings: its first rank and its PCI address."""
    rank = "?" if gpu.rank is None else gpu.rank
    return f"rank {rank} ({gpu.busid or gpu.uuid or '?'})"


def _mhz(clock: float) -> str:
    return f"{clock / 1e6:.0f} MHz"
