"""hwloc's matrices (``distances2``): NVLinks and xGMI, and latencies between NUMA nodes.

hwloc states bandwidths in MB/s, summed over the links of a pair, each at the rate of its version:
20,000 for NVLink 1, 50,000 for NVLink 5, 25,000 between them (its ``topology-nvml.c``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from busbar.errors import ProbeError
from topology.model.rates import MAX_NVLINKS
from topology.model.topology import Kind, LinkKind
from topology.sources.draft import Draft
from topology.sources.xml_text import Node

_BANDWIDTH = 8  # of hwloc_distances_kind_e
MAX_OBJECTS = 1024
_NVLINK_1, _NVLINK_2_TO_4, _NVLINK_5 = 20_000, 25_000, 50_000
_VERSIONS = {_NVLINK_1: 1, _NVLINK_5: 5}


@dataclass(frozen=True)
class _Matrix:
    """A matrix with the key of each row (as in ``ends``) and the line that it starts on."""

    name: str
    kind: int
    keys: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]
    line: int

    def pairs(self) -> Iterator[tuple[str, str, int, int]]:
        """Each pair of rows with its value both ways."""
        for (n, a), (m, b) in combinations(enumerate(self.keys), 2):
            yield a, b, self.values[n][m], self.values[m][n]


def add_links(draft: Draft, root: Node, ends: Mapping[str, str]) -> None:
    """Add what the matrices state; ProbeError, with the line, for one that is not square.

    ``ends`` has the device of ``OSDev:802`` (by gp) or ``NUMANode@0`` (by os).
    """
    matrices = [_read(draft, node) for node in root.all("distances2", "distances2hetero")]
    hops = next((m for m in matrices if m.name == "XGMIHops"), None)
    for matrix in matrices:
        if matrix.name == "NVLinkBandwidth":
            _nvlinks(draft, matrix, ends)
        elif matrix.name == "XGMIBandwidth":
            _xgmi(draft, matrix, hops, ends)
        elif matrix.name == "NUMALatency":
            _latencies(draft, matrix, ends)
        elif matrix.kind & _BANDWIDTH:
            count = sum(1 for *_, there, back in matrix.pairs() if there or back)
            draft.gap("links", matrix.name, f"line {matrix.line}: {count} pairs that are not read")


def _read(draft: Draft, node: Node) -> _Matrix:
    size, kind = (node.number(name, draft.source) or 0 for name in ("nbobjs", "kind"))
    words = [word for child in node.all("indexes") for word in child.text.split()]
    if node.tag == "distances2":
        sign = "@" if node.get("indexing") == "os" else ":"
        words = [f"{node.get('type')}{sign}{word}" for word in words]
    values = [word for child in node.all("u64values") for word in child.text.split()]
    wrong = next((v for v in values if not (v.isascii() and v.isdecimal() and len(v) < 20)), None)
    if wrong is not None or len(words) != size or len(values) != size**2 or size > MAX_OBJECTS:
        reason = f"a matrix of {size} objects has {len(words)} indexes and {len(values)} values"
        if wrong is not None:
            reason = f"a matrix has {wrong[:40]!r}, which is no number"
        raise ProbeError(draft.source, reason, node.line)
    rows = tuple(tuple(map(int, values[n * size : (n + 1) * size])) for n in range(size))
    return _Matrix(node.get("name"), kind, tuple(words), rows, node.line)


def _linked(
    draft: Draft, matrix: _Matrix, ends: Mapping[str, str]
) -> Iterator[tuple[str, str, int]]:
    """The ends and the lower value of each pair that has one; the others become gaps."""
    lost: list[str] = []
    for a, b, there, back in matrix.pairs():
        if not (there or back):
            continue
        first, second = ends.get(a), ends.get(b)
        if first is None or second is None or first == second:
            lost.append(f"{a} and {b}")
            continue
        if there != back:
            why = f"line {matrix.line}: {there} one way, {back} the other; the lower is taken"
            draft.gap(f"{first} and {second}", matrix.name, why)
        if min(there, back):
            yield first, second, min(there, back)
    if lost:
        why = f"line {matrix.line}: {len(lost)} pairs of other objects, as {lost[0]}"
        draft.gap("links", matrix.name, why)


def _nvlinks(draft: Draft, matrix: _Matrix, ends: Mapping[str, str]) -> None:
    each = _each(matrix, draft, ends)
    for a, b, value in _linked(draft, matrix, ends):
        count = value // each
        if value % each or not 0 < count <= 1024:
            why = f"line {matrix.line}: {value} MB/s is no number of links of {each} MB/s"
            draft.gap(f"{a} and {b}", matrix.name, why)
        if 0 < count <= 1024:
            rate, version = each * 1e6, _VERSIONS.get(each)
            draft.link(LinkKind.NVLINK, min(a, b), max(a, b), count, version=version, rate=rate)
    _planes(draft, matrix)


def _planes(draft: Draft, matrix: _Matrix) -> None:
    """Tell where NVSwitches stand in several groups: hwloc knows no links from switch to switch."""
    switches: list[set[str]] = []
    for gpu in (device.id for device in draft.devices.values() if device.kind is Kind.GPU):
        ends = {end for link in draft.links if gpu in (link.a, link.b) for end in (link.a, link.b)}
        mine = {end for end in ends if draft.devices[end].kind is Kind.SWITCH}
        apart = [group for group in switches if not group & mine]
        joined = mine.union(*(group for group in switches if group & mine))
        switches = [*apart, joined] if joined else apart
    if len(switches) > 1:
        why = f"{len(switches)} groups of NVSwitches; the file tells no links between them"
        draft.gap("NVSwitches", matrix.name, f"line {matrix.line}: {why}")


def _each(matrix: _Matrix, draft: Draft, ends: Mapping[str, str]) -> int:
    """MB/s of one link: by what divides all values, and by what a GPU can have at most."""
    values = [value for *_, there, back in matrix.pairs() for value in (there, back)]
    if any(value % _NVLINK_2_TO_4 for value in values):
        return _NVLINK_1
    sums = [
        sum(row) - row[n]
        for n, (key, row) in enumerate(zip(matrix.keys, matrix.values, strict=True))
        if key in ends and draft.devices[ends[key]].kind is Kind.GPU
    ]
    most = MAX_NVLINKS * _NVLINK_2_TO_4
    return _NVLINK_5 if max(sums, default=0) > most else _NVLINK_2_TO_4


def _xgmi(draft: Draft, matrix: _Matrix, hops: _Matrix | None, ends: Mapping[str, str]) -> None:
    """One link a pair: hwloc writes the same figure for every pair, however many links it has."""
    far = set()
    if hops is not None:
        far = {frozenset((a, b)) for a, b, *counts in hops.pairs() if max(counts) > 1}
    direct = 0
    apart = {frozenset(ends.get(key, key) for key in pair) for pair in far}
    for a, b, _ in _linked(draft, matrix, ends):
        if frozenset((a, b)) not in apart:
            direct += 1
            draft.link(LinkKind.NVLINK, min(a, b), max(a, b))
    if direct:
        why = (
            f"line {matrix.line}: {direct} pairs, each taken as one link; hwloc does not count them"
        )
        draft.gap("links", matrix.name, why)


def _latencies(draft: Draft, matrix: _Matrix, ends: Mapping[str, str]) -> None:
    for a, b, there, back in matrix.pairs():
        if a in ends and b in ends:
            draft.pair(ends[a], ends[b], numa_distance=there)
            draft.pair(ends[b], ends[a], numa_distance=back)
