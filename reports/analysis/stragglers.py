"""Find a slow rank, GPU, node or link, from measured matrices and from ranks' own times. No I/O.

Both kinds of evidence are reported with the ranks' nodes and GPUs, and evidence about the same rank
or unit is merged. docs/reports.md explains the method.

By a P x P matrix: see `topology.model.slow_units`, which decides.

By ranks' own times of a row: a rank's time begins when it leaves the barrier and ends when its part
is done. So it includes the rank's own work *and its waiting*. Which rank waits for which depends on
the collective:

- if every rank needs data of every other (all-reduce, all-gather, all-to-all, barrier, …), no rank
ends before the last one has arrived. A *late* rank (it left the barrier late) has the shortest
time, because the others wait for it. A rank that is slow only at its own end is *last*. A rank that
is slow in between makes all times equally long and cannot be found.
- if every rank sends to the next one, a *slow* rank has a long time. So has the next one, which
waits for it, and perhaps the one before, which cannot send. No other rank need have.
- with a root, the shape of the tree makes some ranks take longer than others: nothing is inferred.

All-reduce algorithms have such shapes too (a tree's root ends first), so evidence from a single
algorithm is only a hint.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from busbar.statistics import interval
from busbar.units import format_count, format_p_value, format_rate, format_seconds
from reports.records.measurement import Measurement, grouped, is_emulated, listed
from reports.records.metrics import named
from reports.statistics.inference import chi_squared_p, holm, likeness
from topology.model.slow_units import MARGIN, Pairs, Worse, cannot_tell, worse

How = Literal["late", "slow", "last"]
Floats = NDArray[np.float64]

#: Least difference that counts, as a share of the row's time.
MARGIN_OF_TIME = 0.1
_RANKS_DIFFER = 0.01
_FEWEST_RANKS, _FEWEST_TIMES = 3, 6
_ALL_WAIT = ("allreduce", "allgather", "reduce_scatter", "alltoall", "alltoallv", "barrier",
             "hypercube")  # fmt: skip


@dataclass(frozen=True)
class Observation:
    """A row whose ranks form two groups, ``low`` and ``high`` times, or none (both sets empty).

    ``seconds``: ranks x iterations. ``p``: of Friedman's test that ranks differ at all, corrected
    for the number of rows (Holm).
    """

    row: Measurement
    seconds: Floats
    low: frozenset[int]
    high: frozenset[int]
    p: float

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.seconds)

    @property
    def all_wait(self) -> bool:
        """True if in this collective no rank can end before every rank has arrived."""
        return self.row.collective in _ALL_WAIT


def observe(rows: Iterable[Measurement], margin: float = MARGIN_OF_TIME) -> list[Observation]:
    """Observations of the rows with times of at least three ranks and six iterations each."""
    observed: list[tuple[Measurement, Floats]] = []
    for row in rows:
        lengths = set(map(len, row.per_rank_s))
        if (
            len(row.per_rank_s) >= _FEWEST_RANKS
            and len(lengths) == 1
            and min(lengths) >= _FEWEST_TIMES
        ):
            observed.append((row, np.asarray(row.per_rank_s, dtype=float)))
    corrected = holm([_friedman(times) for _, times in observed])
    return [
        Observation(row, times, *(_split(times, margin) if p < _RANKS_DIFFER else _NO_SPLIT), p)
        for (row, times), p in zip(observed, corrected, strict=True)
    ]


_NO_SPLIT: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())


def _friedman(times: Floats) -> float:
    """P value of Friedman's test (1937) that ranks keep their order; iterations are the blocks.

    Ties are broken at random. If the orders of successive iterations correlate (r), blocks count
    for less, by (1 − r) / (1 + r). Only the part of r beyond two standard deviations counts.
    """
    k, n = times.shape
    lot = np.random.default_rng(0).random(times.shape)
    places = np.lexsort((lot, times), axis=0).argsort(axis=0) + 1
    squares = float(((places.sum(axis=1) - n * (k + 1) / 2) ** 2).sum())
    r = max(0.0, likeness(list(places.astype(float))) - 2 / sqrt(n * (k - 1)))
    return chi_squared_p(12 * squares / (n * k * (k + 1)) * (1 - r) / (1 + r), k - 1)


def _split(times: Floats, margin: float) -> tuple[frozenset[int], frozenset[int]]:
    """The ranks below and above the widest gap between their medians, or no ranks.

    The gap must be at least half the range of the medians, and ``margin`` of the row's time.
    """
    medians = np.median(times, axis=1)
    order = np.argsort(medians, kind="stable")
    gaps = np.diff(medians[order])
    at = int(np.argmax(gaps)) + 1
    whole = float(medians.max() - medians.min())
    if gaps[at - 1] < max(whole / 2, margin * float(np.median(times.max(axis=0)))):
        return _NO_SPLIT
    return frozenset(order[:at].tolist()), frozenset(order[at:].tolist())


def speaks(o: Observation, ranks: Collection[int], how: How) -> bool | None:
    """True if a row supports that these ranks are ``how``, False if it contradicts; else None."""
    suspects = set(ranks)
    if how == "slow":
        held = _held_up(o, suspects)
        return None if held is None else bool(o.high) and held[0] <= o.high <= held[1]
    if not o.all_wait:
        return None
    group = o.low if how == "late" else o.high
    return suspects <= group and len(group) < o.ranks / 2


def _held_up(o: Observation, suspects: set[int]) -> tuple[set[int], set[int]] | None:
    """The ranks that must, and that may, take longer if these ranks are slow; None if unknown."""
    if o.row.collective == "sendrecv":  # each to the next
        must = suspects | {(s + 1) % o.ranks for s in suspects}
        may = must | {(s - 1) % o.ranks for s in suspects}
    elif o.row.collective == "sendrecv_pairs":  # 0 with 1, 2 with 3, …
        must = may = suspects | {s ^ 1 for s in suspects if s ^ 1 < o.ranks}
    else:
        return None
    return None if len(must) == o.ranks else (must, may)


@dataclass(frozen=True)
class Accused:
    """Suspected ranks (one, a GPU's or a node's) and the rows that support the suspicion.

    ``spoke``: how many rows support or contradict it. ``either``: one of the ranks is slow, but the
    rows do not show which.
    """

    how: How
    ranks: tuple[int, ...]
    rows: tuple[Observation, ...]
    spoke: int
    either: bool = False

    @property
    def algorithms(self) -> set[tuple[str, str]]:
        """The (collective, algorithm) pairs of the rows that support the suspicion."""
        return {(o.row.collective, o.row.algorithm) for o in self.rows}


def accused(
    observations: Sequence[Observation], groups: Iterable[tuple[int, ...]] = ()
) -> list[Accused]:
    """Suspected ranks that at least half of the rows about them support, most rows first.

    ``groups``: ranks that share a GPU or a node. They are suspected together if this explains as
    many rows as suspecting one of them.
    """
    ranks = range(max((o.ranks for o in observations), default=0))
    candidates = [*groups, *((s,) for s in ranks)]
    slow_ranks: list[Accused] = []
    for how in _HOWS:
        proposed = [_accused(observations, c, how) for c in candidates]
        likely = [a for a in proposed if a.rows and len(a.rows) >= a.spoke / 2]
        likely.sort(key=lambda a: (-len(a.rows), -len(a.ranks)))
        remaining: list[Accused] = []
        for a in likely:
            if not any(set(a.ranks) & set(k.ranks) for k in remaining):
                remaining.append(a)
        slow_ranks += _alternatives(remaining)
    return sorted(slow_ranks, key=lambda a: -len(a.rows))


_HOWS: tuple[How, ...] = ("late", "slow", "last")


def _accused(observations: Sequence[Observation], ranks: tuple[int, ...], how: How) -> Accused:
    words = [speaks(o, ranks, how) for o in observations]
    mine = tuple(o for o, word in zip(observations, words, strict=True) if word)
    return Accused(how, ranks, mine, sum(word is not None for word in words))


def _alternatives(remaining: Sequence[Accused]) -> list[Accused]:
    """Merge suspects that exactly the same rows support: one of them suffices as explanation."""
    alternatives: dict[tuple[int, ...], Accused] = {}
    for n, a in enumerate(remaining):
        same = tuple(map(id, a.rows)) if not any(o.all_wait for o in a.rows) else (n,)
        if same in alternatives:
            ranks = (*alternatives[same].ranks, *a.ranks)
            alternatives[same] = Accused(a.how, ranks, a.rows, a.spoke, either=True)
        else:
            alternatives[same] = a
    return list(alternatives.values())


@dataclass(frozen=True)
class Delay:
    """A median delay in seconds with its 95 % interval, and its share of the row's time."""

    observation: Observation
    seconds: float
    low: float
    high: float
    share: float


def delay(a: Accused) -> Delay:
    """The suspects' delay in the row in which they differ most from the other ranks.

    For each iteration it is the difference of two medians: the suspects' and that of the other
    group of ranks. Suspects that left the barrier late have the shorter times, otherwise they have
    the longer ones. The interval is over iterations.
    """
    delays = [_delay(o, list(a.ranks), a.how) for o in a.rows]
    return max(delays, key=lambda d: d.share)


def _delay(o: Observation, ranks: list[int], how: How) -> Delay:
    others = sorted((o.high if how == "late" else o.low) - set(ranks))
    own, rest = np.median(o.seconds[ranks], axis=0), np.median(o.seconds[others], axis=0)
    each = (rest - own if how == "late" else own - rest).tolist()
    middle = float(np.median(each))
    low, high = interval(each) or (middle, middle)
    return Delay(o, middle, low, high, middle / float(np.median(o.seconds.max(axis=0))))


_SYMMETRIC = ("sendrecv", "sendrecv_pairs")  # all ranks do the same by definition
_TOLD: Mapping[How, tuple[str, str]] = {
    "late": ("comes late: others wait {} for it", "the others"),
    "slow": ("takes {} longer", "those it does not hold up"),
    "last": ("is done last, {} longer", "the others"),
}
_QUANTITY = {
    "latency": "latency",
    "bandwidth": "bandwidth",
    "bandwidth_both": "bandwidth both ways",
}


@dataclass(frozen=True)
class Suspect:
    """A straggler. ``kind``: rank, ranks, gpu, node, link. ``amount``: relative delay, for sorting.

    ``evidence``: one line per source, with amount, compared ranks, number of rows or pairs,
    interval and p. ``sure``: False if only one algorithm shows it, whose shape may be the reason.
    """

    kind: str
    name: str
    evidence: tuple[str, ...]
    amount: float
    sure: bool = True


@dataclass(frozen=True)
class Findings:
    """``suspects``: most certain and worst first. ``notes``: what was compared, and its limits.

    ``unshown``: the line that says that slow ranks would not show here; else empty.
    """

    suspects: tuple[Suspect, ...]
    notes: tuple[str, ...]
    unshown: str = ""


@dataclass(frozen=True)
class Places:
    """Node names and GPUs of all ranks; empty texts if unknown."""

    nodes: tuple[str, ...]
    gpus: tuple[str, ...]

    @staticmethod
    def of(row: Measurement) -> Places:
        """Read the mapping in a record's environment; all texts are empty without one."""
        size, environment = len(row.per_rank_s), row.run.environment
        mapping, hosts = environment.get("mapping"), row.run.hosts
        if not isinstance(mapping, Mapping):
            return Places(("",) * size, ("",) * size)
        numbers, gpus = (listed(mapping.get(name)) for name in ("node", "gpu"))
        inside = (isinstance(n, int) and 0 <= n < len(hosts) for n in numbers)
        nodes = [hosts[n] if known else "" for n, known in zip(numbers, inside, strict=True)]
        if len(set(hosts)) < len(hosts):  # nodes of one name are told apart by number
            nodes = [f"{name}#{n}" for name, n in zip(nodes, numbers, strict=True)]
        return Places(_filled(nodes, size), _filled(list(map(str, gpus)), size))

    def groups(self) -> list[tuple[int, ...]]:
        """Groups of ranks that share a node or a GPU; groups of one rank or of all are left out."""
        groups: dict[tuple[int, ...], None] = {}
        on_gpu = [f"{n} {g}" if g else "" for n, g in zip(self.nodes, self.gpus, strict=True)]
        for names in (self.nodes, on_gpu):
            for name in dict.fromkeys(filter(None, names)):
                ranks = tuple(r for r, n in enumerate(names) if n == name)
                if 1 < len(ranks) < len(names):
                    groups[ranks] = None
        return list(groups)

    def name(self, ranks: Sequence[int]) -> tuple[str, str]:
        """(kind, name) of one rank or a group of ranks."""
        known = [r for r in ranks if r < len(self.nodes)]
        node = {self.nodes[r] for r in known}
        gpu = {self.gpus[r] for r in known}
        where = f"node {node.pop()}" if len(node) == 1 and "" not in node else ""
        card = f"GPU {gpu.pop()}" if len(gpu) == 1 and "" not in gpu else ""
        if len(ranks) == 1:
            more = ", ".join(w for w in (where, card) if w)
            return "rank", f"rank {ranks[0]}" + (f" ({more})" if more else "")
        members = f"ranks {_listing(ranks)}"
        if tuple(ranks) in self.groups():
            if card:
                return "gpu", f"{card} ({', '.join(w for w in (where, members) if w)})"
            return "node", f"{where} ({members})"
        return "ranks", members + (f" ({where})" if where else "")


def _filled(names: Sequence[str], size: int) -> tuple[str, ...]:
    return tuple(names) if len(names) == size else ("",) * size


def _listing(ranks: Sequence[int]) -> str:
    """Rank numbers as text, such as ``4-7`` or ``2, 5``."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))


def culprits(
    rows: Sequence[Measurement], matrices: Sequence[Pairs] = (), margin: float = MARGIN
) -> Findings:
    """Stragglers, slow by more than ``margin`` (relative), with the evidence.

    Only rows with times of every rank count. Rows of different mappings are compared separately.
    """
    settings = grouped(
        (row for row in rows if row.per_rank_s),
        lambda r: (r.run.hosts, str(r.run.environment.get("mapping")), len(r.per_rank_s)),
    )
    suspects: dict[str, Suspect] = {}
    notes, places, every = [], Places((), ()), list[Observation]()
    for group in settings.values():
        places = Places.of(group[0])
        observed = observe(group, margin)
        every += observed
        notes.append(_looked_at(group, observed, bool(matrices)))
        for a in accused(observed, places.groups()):
            _put(suspects, _by_times(a, places))
    if len(settings) > 1:
        places = Places((), ())  # it is unknown which mapping the matrix was measured with
    for pairs in matrices:
        known = places if len(places.nodes) == len(pairs.ids) else Places((), ())
        for w in worse(pairs, margin):
            _put(suspects, _by_matrix(w, pairs, known))
        count = format_count(len(pairs.compared), "pair")
        notes.append(f"matrix of {_QUANTITY[pairs.name]}: {count} compared")
    disturbances = dict.fromkeys(pairs.disturbance for pairs in matrices)
    notes += [f"matrix: {text}" for text in disturbances if text]
    ordered = sorted(suspects.values(), key=lambda s: (not s.sure, -s.amount))
    few = list(filter(None, map(cannot_tell, matrices)))
    unshown = f"cannot tell: {few[0]}" if few else "" if matrices else _unshown(every)
    return Findings(tuple(ordered), tuple(n for n in notes if n), unshown)


def _unshown(observed: Sequence[Observation]) -> str:
    """That rows cannot show which rank is slow; empty if one of them can."""
    if any(o.row.collective in _SYMMETRIC for o in observed):
        return ""
    if any(o.all_wait for o in observed):
        return "cannot tell: nobody comes late, and these rows do not show who is slow inside"
    return "cannot tell: these rows do not show who is slow"


def _put(suspects: dict[str, Suspect], new: Suspect) -> None:
    """Add a suspect; evidence about the same name is merged."""
    old = suspects.get(new.name)
    if old is not None:
        new = replace(
            old,
            evidence=(*old.evidence, *new.evidence),
            amount=max(old.amount, new.amount),
            sure=old.sure or new.sure,
        )
    suspects[new.name] = new


def _by_times(a: Accused, places: Places) -> Suspect:
    kind, name = places.name(a.ranks)
    if a.either:
        kind, name = "ranks", f"rank {' or '.join(map(str, a.ranks))}"
    worst = delay(a)
    by = (
        f"{format_seconds(worst.seconds)} [{format_seconds(worst.low)},"
        f" {format_seconds(worst.high)}]"
    )
    sure = len(a.algorithms) > 1 or any(c in _SYMMETRIC for c, _ in a.algorithms)
    phrase, against = _TOLD[a.how]
    text = (
        f"by ranks' times it {phrase.format(by)}, {100 * worst.share:.0f} % of the time of "
        f"{named(worst.observation.row)},"
        f" against the median of {against}; {len(a.rows)} of {a.spoke} rows say so,"
        f" {format_p_value(max(o.p for o in a.rows))}"
    )
    if a.how == "slow" and not a.either and all(o.row.collective == "sendrecv" for o in a.rows):
        text += "; a slow link from it to the next rank would look alike, which a matrix tells"
    if not sure:
        only = " ".join(w for w in next(iter(a.algorithms)) if w)
        text += f"; only {only} shows it, whose own shape may do so"
    return Suspect(kind, name, (text,), worst.share, sure)


def _by_matrix(w: Worse, pairs: Pairs, places: Places) -> Suspect:
    kind, name = _unit_name(w, pairs, places)
    shown = format_seconds if pairs.name == "latency" else (lambda v: f"{format_rate(v)} GB/s")
    text = (
        f"by the matrix of {_QUANTITY[pairs.name]} {w.pairs} of {w.of} pairs are {w.times:.3g}"
        f" times [{w.low:.3g}, {w.high:.3g}] worse: {shown(w.value)} against"
        f" {shown(w.typical)} of the others{_of_kind(w)}, {format_p_value(w.p)}"
    )
    return Suspect(kind, name, (text,), w.times - 1)


def _of_kind(w: Worse) -> str:
    """The class whose pairs are compared, in brackets; empty if the map does not tell it."""
    return "" if w.of_kind == "?" else f" ({w.of_kind})"


def _unit_name(w: Worse, pairs: Pairs, places: Places) -> tuple[str, str]:
    unit, ends = w.unit, [_end(pairs.ids[e]) for e in w.unit.ends]
    if unit.kind == "link":
        nodes = list(dict.fromkeys(pairs.nodes[e] for e in unit.ends if pairs.nodes[e]))
        where = f" (node{'s' * (len(nodes) > 1)} {', '.join(nodes)})" if nodes else ""
        joined = f"from {ends[0]} to {ends[1]}" if unit.one_way else f"{ends[0]} to {ends[1]}"
        return "link", f"link {joined}{where}"
    if unit.kind in ("node", "within"):
        inside = " inside" if unit.kind == "within" else " to the others"
        return "node", f"node {unit.node}{inside}"
    if pairs.ids[unit.ends[0]].startswith("RANK"):
        if not places.nodes:
            places = Places(pairs.nodes, ("",) * len(pairs.nodes))
        kind, name = places.name(unit.ends)
    else:
        kind, name = "gpu", ends[0]
    return kind, name if unit.kind == "rank" else f"{name}, {unit.kind}"


def _end(id: str) -> str:
    """``rank 3`` for RANK3, ``GPU 2`` for GPU2; other ids as they are."""
    for prefix, word in (("RANK", "rank"), ("GPU", "GPU")):
        if id.startswith(prefix) and id[len(prefix) :].isdecimal():
            return f"{word} {id[len(prefix) :]}"
    return id


def measure_ranks(command: str, rows: Sequence[Measurement], file: str) -> str:
    """The line for a shell that measures the times of ranks where these rows were measured.

    ``command``: ``busbar`` with a benchmark and its options, without hosts. ``file``: its records.
    """
    environment = rows[0].run.environment if rows else {}
    hosts = list(map(str, listed(environment.get("hosts"))))
    if len(hosts) > 1 and not is_emulated(environment):
        command += f" --host {shlex.quote(','.join(hosts))}"
    measured = f"{command} --per-rank --out {file}"
    if is_emulated(environment):
        return f"busbar cluster OPTIONS -- {measured}, with this cluster's OPTIONS"
    return measured


def _looked_at(rows: Sequence[Measurement], observed: Sequence[Observation], matrix: bool) -> str:
    size = len(rows[0].per_rank_s)
    if not observed:
        return (
            f"{format_count(len(rows), 'row')} of {size} ranks: ranks are compared from 3 ranks and"
            " 6 iterations on"
        )
    text = f"{format_count(len(observed), 'row')} of {size} ranks compared"
    crowd = max(row.ranks_per_core or 0.0 for row in rows)
    if crowd > 1:
        text += f"; {crowd:.3g} ranks share a core, so the scheduler is seen as well"
    if all(o.all_wait for o in observed) and not matrix:
        text += (
            "; in these collectives everybody waits for everybody, so they show who comes late but"
            " not who is slow inside: give --matrix, or add the file of "
            + measure_ranks(f"busbar sendrecv --ranks {size}", rows, "sr.jsonl")
        )
    return text
