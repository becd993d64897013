"""Stragglers: a slow rank, GPU, node or link, by ranks' own times and by measured matrices.

The evidence is weighed in ``reports.analysis.stragglers_ranks`` and
``reports.analysis.stragglers_matrix``; this module names what they found by the ranks' nodes and
GPUs, and merges findings about the same thing. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from busbar.units import format_p_value, format_rate, format_seconds
from reports.analysis.stragglers_matrix import MARGIN, Pairs, Worse, worse
from reports.analysis.stragglers_ranks import Accused, How, Observation, accused, delay, observe
from reports.records.measurement import Measurement, grouped, listed
from reports.records.shown import named

_SYMMETRIC = ("sendrecv", "sendrecv_pairs")  # all ranks have the same part, by what is computed
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
    """A straggler. ``kind``: rank, ranks, gpu, node, link. ``amount``: relative, for sorting.

    ``evidence``: a line a source: how much, against whom, in how many rows or pairs, interval, p.
    ``sure``: False where the shape of the one algorithm that shows it may explain it as well.
    """

    kind: str
    name: str
    evidence: tuple[str, ...]
    amount: float
    sure: bool = True


@dataclass(frozen=True)
class Findings:
    """``suspects``: surest and worst first. ``notes``: what was looked at, what cannot be seen."""

    suspects: tuple[Suspect, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Places:
    """The places of ranks: node names, and GPUs (empty texts without)."""

    nodes: tuple[str, ...]
    gpus: tuple[str, ...]

    @staticmethod
    def of(row: Measurement) -> Places:
        """Read the mapping in a record's environment; nothing is known without one."""
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
        """Ranks that share a node, and ranks that share a GPU, where that is some but not all."""
        groups: dict[tuple[int, ...], None] = {}
        on_gpu = [f"{n} {g}" if g else "" for n, g in zip(self.nodes, self.gpus, strict=True)]
        for names in (self.nodes, on_gpu):
            for name in dict.fromkeys(filter(None, names)):
                ranks = tuple(r for r, n in enumerate(names) if n == name)
                if 1 < len(ranks) < len(names):
                    groups[ranks] = None
        return list(groups)

    def name(self, ranks: Sequence[int]) -> tuple[str, str]:
        """(kind, name) of a group of ranks, or of one."""
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
    """``4-7`` or ``2, 5``."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))


def culprits(
    rows: Sequence[Measurement], matrices: Sequence[Pairs] = (), margin: float = MARGIN
) -> Findings:
    """Stragglers, slow by more than ``margin`` (relative), with the evidence.

    Rows count when they have times of every rank; those of different mappings are looked at apart.
    """
    settings = grouped(
        (row for row in rows if row.per_rank_s),
        lambda r: (r.run.hosts, str(r.run.environment.get("mapping")), len(r.per_rank_s)),
    )
    suspects: dict[str, Suspect] = {}
    notes, places = [], Places((), ())
    for group in settings.values():
        places = Places.of(group[0])
        observed = observe(group, margin)
        notes.append(_looked_at(group, observed, bool(matrices)))
        for a in accused(observed, places.groups()):
            _put(suspects, _by_times(a, places))
    if len(settings) > 1:
        places = Places((), ())  # whose ranks the matrix shows is then unknown
    for pairs in matrices:
        known = places if len(places.nodes) == len(pairs.ids) else Places((), ())
        for w in worse(pairs, margin):
            _put(suspects, _by_matrix(w, pairs, known))
        notes.append(f"matrix of {_QUANTITY[pairs.name]}: {len(pairs.compared)} pairs compared")
    ordered = sorted(suspects.values(), key=lambda s: (not s.sure, -s.amount))
    return Findings(tuple(ordered), tuple(n for n in notes if n))


def _put(suspects: dict[str, Suspect], new: Suspect) -> None:
    """Evidence of one thing from several sources stands together."""
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
        f" {shown(w.typical)} of the others, {format_p_value(w.p)}"
    )
    return Suspect(kind, name, (text,), w.times - 1)


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


def _looked_at(rows: Sequence[Measurement], observed: Sequence[Observation], matrix: bool) -> str:
    size = len(rows[0].per_rank_s)
    if not observed:
        return (
            f"{len(rows)} rows of {size} ranks: ranks are compared from 3 ranks and 6 iterations on"
        )
    text = f"{len(observed)} rows of {size} ranks compared"
    crowd = max(row.ranks_per_core or 0.0 for row in rows)
    if crowd > 1:
        text += f"; {crowd:.3g} ranks share a core, so the scheduler is seen as well"
    if all(o.all_wait for o in observed) and not matrix:
        text += (
            "; in these collectives everybody waits for everybody, so they show who comes late but"
            " not who is slow inside: measure sendrecv with --per-rank too, or give --matrix"
        )
    return text
