"""AMD's link tables: ``rocm-smi --showtopo`` and ``amd-smi topology``, as text or JSON.

Both print what the kernel's KFD knows about pairs of GPUs: whether they may access each other's
memory, weight, hops and kind of link. xGMI of one hop and of less than two hops' weight is a
direct link. PCIe of two hops meets at a CPU, anywhere between a switch and the NUMA node; of more
hops it crosses CPUs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import Any

from busbar.errors import ProbeError
from topology.model.device import canonical
from topology.model.topology import Kind, LinkKind, Topology
from topology.sources.draft import Draft
from topology.sources.text import bounded, lines, loaded

NAME = "amd-smi"
MAX_GPUS = 1024
#: Tables by the words of their titles: rocm-smi's, then amd-smi's.
_TITLES: Mapping[str, str] = {
    "link accessibility": "access", "weight": "weight", "hops": "hops", "link type": "type",
    "access": "access", "numa bw": "rate",
}  # fmt: skip
_TITLE = re.compile(
    r"=+ *(Link accessibility|Weight|Hops|Link Type) between two GPUs *=+|([A-Z][A-Z -]*) TABLE:"
)
_NUMA = re.compile(r"GPU\[([0-9]{1,4})\]\s*:\s*\(Topology\) Numa (Node|Affinity):\s*(-?[0-9]{1,4})")
_PAIR = re.compile(
    r"\(Topology\) (Link accessibility|Weight|Hops|Link type) between DRM devices ([0-9]{1,4}) "
    r"and ([0-9]{1,4})"
)
_CARD = re.compile(r"card([0-9]{1,4})")
_LABEL = re.compile(r"GPU([0-9]{1,4})|[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")
_NOTHING = ("N/A", "XXXX", "UNKNOWN", "None")
_RANGE = re.compile(r"[0-9]{1,9}-([0-9]{1,9})")
#: The same tables in amd-smi's JSON.
_KEYS = {
    "weight": "weight", "link_status": "access", "link_type": "type", "num_hops": "hops",
    "bandwidth": "rate",
}  # fmt: skip
_XGMI, _PCIE = "XGMI", "PCIE"
#: What each physical xGMI hop adds to a weight (amd-smi's documentation).
_XGMI_WEIGHT = 15


def _count(word: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", word):
        raise ValueError(word)
    return int(word)


def _allowed(word: str) -> bool:
    return {"enabled": True, "true": True, "disabled": False, "false": False}[word.lower()]


def _kind(word: str) -> str:
    return {_XGMI: _XGMI, _PCIE: _PCIE}[word.upper()]


def _rate(word: str) -> float | None:
    """Bytes per second from ``least-most`` in MB/s; None for 0-0, which states nothing."""
    most = _RANGE.fullmatch(word)
    if most is None:
        raise ValueError(word)
    return float(most[1]) * 1e6 or None


_READ: Mapping[str, Callable[[str], Any]] = {
    "access": _allowed, "weight": _count, "hops": _count, "type": _kind, "rate": _rate,
}  # fmt: skip


@dataclass
class _Tables:
    """Values of pairs of GPUs, by table and labels: ``cells["hops"]["GPU0", "GPU1"]``."""

    labels: list[str] = field(default_factory=list)
    cells: dict[str, dict[tuple[str, str], Any]] = field(default_factory=dict)
    numa: dict[str, str] = field(default_factory=dict)

    def of(self, what: str, a: str, b: str) -> Any:
        """The value of a table for two GPUs, or None."""
        return self.cells.get(what, {}).get((a, b))

    def take(self, what: str, a: str, b: str, word: str, line: int | None) -> None:
        """Store the value of two GPUs in the table ``what``.

        Raises ProbeError for a word that this table cannot have.
        """
        if a == b or word in _NOTHING:
            return
        try:
            value = _READ[what](word)
        except (ValueError, KeyError):
            reason = f"{a} and {b} have {word[:40]!r} in the table of {what}"
            raise ProbeError(NAME, reason, line) from None
        if value is not None:
            self.cells.setdefault(what, {})[a, b] = value


def parse(text: str) -> Topology:
    """Parse text or JSON of one machine. Raises ProbeError, with the line, if incomplete."""
    tables = _Tables()
    if re.match(r"\s*[\[{]", bounded(NAME, text)):
        _json(tables, loaded(NAME, text))
    else:
        _text(tables, lines(NAME, text))
    if not tables.labels or (not tables.cells and len(tables.labels) > 1):
        raise ProbeError(NAME, "no table of weights, hops or kinds of link between GPUs")
    return _map(tables)


def _text(tables: _Tables, rows: list[str]) -> None:
    at = 0
    while at < len(rows):
        title, numa = _TITLE.search(rows[at]), _NUMA.search(rows[at])
        at += 1
        if numa:
            label = f"GPU{int(numa[1])}"
            if numa[2] == "Affinity" or label not in tables.numa:
                tables.numa[label] = numa[3]
        elif title:
            what = _TITLES.get((title[1] or title[2]).lower())
            if what is not None:
                at = _table(tables, what, rows, at)


def _table(tables: _Tables, what: str, rows: list[str], at: int) -> int:
    """Read a header of labels and a row for each; returns the line after the table."""
    at = next((n for n in range(at, len(rows)) if rows[n].strip()), at)
    header = rows[at].split() if at < len(rows) else []
    place = min(at, len(rows) - 1) + 1
    if not header or not all(_LABEL.fullmatch(label) for label in header):
        raise ProbeError(NAME, f"no GPUs named below the title of the table of {what}", place)
    labels = [_plain(label) for label in header]
    if len(set(labels)) < len(labels) or len(labels) > MAX_GPUS:
        raise ProbeError(NAME, f"{len(labels)} GPUs, some of them twice, or too many", place)
    if tables.labels and labels != tables.labels:
        raise ProbeError(NAME, f"the table of {what} has other GPUs than the one above it", place)
    tables.labels = labels
    for label in labels:
        at += 1
        words = rows[at].split() if at < len(rows) else []
        place = min(at, len(rows) - 1) + 1
        if not words or _plain(words[0]) != label:
            raise ProbeError(NAME, f"expected the row of {label}; the table is cut short", place)
        if len(words) != len(labels) + 1:
            reason = f"row {label} has {len(words) - 1} of {len(labels)} cells"
            raise ProbeError(NAME, reason, place)
        for other, word in zip(labels, words[1:], strict=True):
            tables.take(what, label, other, word, place)
    return at + 1


def _plain(label: str) -> str:
    """A label in its canonical form: ``GPU0``, or a canonical bus id."""
    number = re.fullmatch(r"GPU([0-9]{1,4})", label)
    return f"GPU{int(number[1])}" if number else canonical(label) or label


def _json(tables: _Tables, document: Any) -> None:
    try:
        if isinstance(document, dict) and isinstance(document.get("topology"), list):
            document = document["topology"]
        if isinstance(document, dict):
            _rocm(tables, document)
        else:
            _amd(tables, document)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"not the JSON of rocm-smi or amd-smi: {type(error).__name__} {error}"
        raise ProbeError(NAME, reason[:200]) from None


def _rocm(tables: _Tables, document: dict[str, Any]) -> None:
    numbers = {int(card[1]) for name in document if (card := _CARD.fullmatch(name))}
    pairs = []
    for name, value in document.get("system", {}).items():
        if pair := _PAIR.fullmatch(name):
            a, b = int(pair[2]), int(pair[3])
            numbers |= {a, b}
            pairs.append((_TITLES[pair[1].lower()], f"GPU{a}", f"GPU{b}", str(value)))
    if len(numbers) > MAX_GPUS:
        raise ProbeError(NAME, f"{len(numbers)} GPUs; at most {MAX_GPUS} are read")
    tables.labels = [f"GPU{n}" for n in sorted(numbers)]
    for what, one, other, word in pairs:
        tables.take(what, one, other, word, None)
        tables.take(what, other, one, word, None)
    for name, facts in document.items():
        if card := _CARD.fullmatch(name):
            numa = facts.get("(Topology) Numa Affinity", facts.get("(Topology) Numa Node"))
            if numa is not None:
                tables.numa[f"GPU{int(card[1])}"] = str(numa)


def _amd(tables: _Tables, document: Any) -> None:
    if not isinstance(document, list) or len(document) > MAX_GPUS:
        raise ProbeError(NAME, "not the JSON of amd-smi topology")
    tables.labels = [_plain(str(gpu["bdf"])) for gpu in document]
    if len(set(tables.labels)) < len(tables.labels):
        raise ProbeError(NAME, "a GPU appears twice")
    for gpu, label in zip(document, tables.labels, strict=True):
        others = [_plain(str(link["bdf"])) for link in gpu["links"]]
        if sorted(others) != sorted(tables.labels):
            reason = f"{label} has links to {len(others)} of {len(tables.labels)} GPUs"
            raise ProbeError(NAME, reason)
        for link, other in zip(gpu["links"], others, strict=True):
            for key, what in _KEYS.items():
                if key in link:
                    tables.take(what, label, other, str(link[key]), None)


def _map(tables: _Tables) -> Topology:
    """The map that the tables describe. Raises ProbeError for a pair that contradicts itself."""
    draft = Draft(NAME)
    for place, label in enumerate(tables.labels):
        index = int(label[3:]) if label.startswith("GPU") else place
        busid = None if label.startswith("GPU") else canonical(label)
        draft.add(f"GPU{index}", Kind.GPU, index, busid=busid)
        node = tables.numa.get(label)
        draft.state(f"GPU{index}", numa_affinity=node if node and node.isdecimal() else None)
    ids = dict(zip(tables.labels, draft.devices, strict=True))
    for what in ("type", "hops"):
        for (a, b), value in tables.cells.get(what, {}).items():
            back = tables.cells[what].get((b, a), value)
            if back != value:
                reason = f"{what}: {ids[a]} to {ids[b]} is {value}, the other way {back}"
                raise ProbeError(NAME, f"{reason}: the text was edited or cut")
    for what in ("type", "hops"):
        if what not in tables.cells and len(ids) > 1:
            draft.gap("GPUs", what, "the text has no such table: relations stay unknown")
    for a, b in permutations(tables.labels, 2):
        draft.pair(
            ids[a],
            ids[b],
            p2p_access=tables.of("access", a, b),
            link_weight=tables.of("weight", a, b),
            link_hops=tables.of("hops", a, b),
        )
    for a, b in combinations(tables.labels, 2):
        _link(draft, tables, (a, b), (ids[a], ids[b]))
    return draft.build()


def _link(draft: Draft, tables: _Tables, labels: tuple[str, str], ends: tuple[str, str]) -> None:
    """Add a direct xGMI link, or state that two GPUs have none, and where PCIe connects them.

    Both programs print one hop for all xGMI, also over other GPUs; the weight counts these hops.
    """
    kind, hops = tables.of("type", *labels), tables.of("hops", *labels)
    weight = tables.of("weight", *labels)
    if kind == _PCIE:
        draft.pair(*ends, nvlinks=0, level="SYS" if hops is not None and hops > 2 else None)
    elif kind == _XGMI and (hops or 0) <= 1 and (weight or 0) < 2 * _XGMI_WEIGHT:
        draft.link(LinkKind.NVLINK, *ends, rate=tables.of("rate", *labels))
