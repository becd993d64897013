"""Findings about pairs of GPUs: P2P that is refused, and rates below what their links give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from topology.diagnostics.finding import Finding, grouped
from topology.model.topology import Kind, Level, Topology

_P2P_WORDS = {
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "DR": "disabled by registry key",
    "NS": "not supported",
}
_ALLOW = (
    "GeForce drivers refuse it by design; else turn ACS and IOMMU translation off, look at the BIOS"
    " (above 4G decoding, resizable BAR), and at the virtual machine's settings"
)
_WAY = "No source says what connects them: add nvidia-smi topo -m"
_MOST_PAIRS = 12
#: A rate below this share of the expected one is not explained by protocol or size.
_SHARE = 0.5
#: Without P2P data goes twice over PCIe, through the host's memory.
_STAGED = 0.5
_UNLIKE = 0.75


def p2p(topology: Topology) -> list[Finding]:
    """GPU pairs whose P2P the driver refuses, though their path would carry it or is unknown."""
    rows: list[tuple[str, str]] = []
    unknown: list[tuple[str, str]] = []
    for a, b in topology.stated(topology.gpus, "p2p_read", "p2p_access"):
        relation = topology.relation(a, b)
        near = relation.level is not None and Level.LOC < relation.level <= Level.PHB
        if not (relation.nvlinks or near or relation.level is None):
            continue
        found = unknown if relation.level is None and not relation.nvlinks else rows
        words = {topology.pair(x, y, "p2p_read") for x, y in ((a, b), (b, a))}
        refused = sorted(str(word) for word in words if word in _P2P_WORDS)
        if refused:
            found.append((f"{a}-{b}", f"{_P2P_WORDS[refused[0]]} ({refused[0]})"))
        elif any(topology.pair(x, y, "p2p_access") is False for x, y in ((a, b), (b, a))):
            found.append((f"{a}-{b}", "no peer access for CUDA"))
    return [
        *_pairs("p2p-refused", 0.5, rows, "no P2P where the path would allow it", _ALLOW),
        *_pairs("p2p-unavailable", 0.3, unknown, "no P2P between GPUs", f"{_ALLOW}. {_WAY}"),
    ]


def _pairs(
    code: str, harm: float, rows: list[tuple[str, str]], summary: str, remedy: str
) -> list[Finding]:
    """A finding about pairs; of more than a few it names the GPUs and counts the pairs."""
    found = grouped(code, harm, rows, summary, remedy)
    if len(rows) <= _MOST_PAIRS:
        return found
    words = Counter(what for _, what in rows)
    evidence = "; ".join(
        f"{what}: {n} pairs, as {next(pair for pair, said in rows if said == what)}"
        for what, n in words.items()
    )
    gpus = tuple(dict.fromkeys(id for pair, _ in rows for id in pair.split("-", 1)))
    return [replace(one, subjects=gpus, evidence=evidence) for one in found]


class _Short(NamedTuple):
    """A rate over ``link`` that falls short of what is promised, perhaps by a guess."""

    link: str
    subject: str
    rate: float
    promised: float
    guess: str


def measured(topology: Topology) -> list[Finding]:
    """Measured rates of less than half of what the class of the link gives.

    What it gives is `topology.model.rates` of the links that sources state, else of what is
    published of the GPU's model (`topology.model.published`).
    """
    found = [*_slow_pairs(topology), *_slow_copies(topology)]
    if not found:
        return []
    worst = min(found, key=lambda one: one.rate / one.promised)
    links = {one.link: [o for o in found if o.link == one.link] for one in found}
    evidence = "; ".join(
        f"{link}: {_span(o.rate for o in ones)} measured in {len(ones)} direction(s),"
        f" {_span(o.promised for o in ones)} expected{ones[0].guess}"
        for link, ones in links.items()
    )
    subjects = tuple(dict.fromkeys(one.subject for one in found))
    if len(subjects) > _MOST_PAIRS:
        subjects = tuple(dict.fromkeys(id for one in subjects for id in one.split("-", 1)))
    return [
        Finding(
            "slow-link",
            1 - worst.rate / worst.promised,
            subjects,
            "links carry less than half of what their class gives",
            evidence,
            "measure again with nothing else running; look at the link's generation and width under"
            " load (nvidia-smi -q -d PCIE), at risers and splitters, at ACS and IOMMU translation",
        )
    ]


def _slow_pairs(topology: Topology) -> Iterator[_Short]:
    from topology.measured.matrix import expected, matrix  # with numpy, which a map does not need

    for (a, b), cell in matrix(topology, "bandwidth").items():
        ends = (topology.device(a), topology.device(b))
        promised = expected(topology, a, b)
        if a == b or promised is None or not all(end.kind is Kind.GPU for end in ends):
            continue
        guess = " (assumed)" * any(
            hop.assumed for hop in topology.route(a, b) if hop.bandwidth == promised
        )
        promised *= 1 if _peers(topology, a, b) else _STAGED
        if cell.value < _SHARE * promised:
            yield _Short(_class(topology, a, b), f"{a}-{b}", cell.value, promised, guess)


def _slow_copies(topology: Topology) -> Iterator[_Short]:
    """Copies between host and device; over a chip-to-chip link where there is one."""
    for gpu in topology.gpus:
        way = [hop.bandwidth for hop in topology.graph.climb(gpu.id) if hop.kind != "memory"]
        for name, words in (("host_to_device", "from"), ("device_to_host", "to")):
            rate = gpu.number(name)
            if rate and way and rate < _SHARE * min(way):
                yield _Short(f"{words} the host", gpu.id, rate, min(way), "")


def _peers(topology: Topology, a: str, b: str) -> bool:
    """Whether nothing says that the two cannot reach each other's memory."""
    read, access = topology.pair(a, b, "p2p_read"), topology.pair(a, b, "p2p_access")
    return access is not False and read in (None, "OK", "U")


def _class(topology: Topology, a: str, b: str) -> str:
    text = topology.relation(a, b).text
    return "GPU to GPU" if text in ("?", "") else text


def _span(rates: Iterator[float]) -> str:
    ends = sorted(rates)
    low, high = (f"{end / 1e9:.3g}" for end in (ends[0], ends[-1]))
    return f"{low} GB/s" if low == high else f"{low} to {high} GB/s"


def unlike(topology: Topology) -> list[Finding]:
    """Pairs of GPUs that carry less than 3/4 of what the other pairs of their class do."""
    from topology.measured.matrix import matrix, slow

    cells = matrix(topology, "bandwidth")
    gpus = {gpu.id for gpu in topology.gpus}
    between = {pair: cell for pair, cell in cells.items() if {*pair} <= gpus}
    found = [s for s in slow(topology, between, True) if s.found.value < _UNLIKE * s.typical]
    if not found:
        return []
    said = [
        (f"{s.a}-{s.b}", f"{s.found.value / 1e9:.3g} of {s.typical / 1e9:.3g} GB/s ({s.kind})")
        for s in found
    ]
    harm = 1 - min(s.found.value / s.typical for s in found)
    remedy = "look at the two devices' links; measure again with nothing else running"
    return _pairs("pair-slow", harm, said, "pairs slower than others of their class", remedy)


PEER_RULES = (p2p, measured, unlike)
