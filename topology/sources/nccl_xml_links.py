"""Links between devices in NCCL's topology XML: NVLink, xGMI and chip-to-chip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from busbar.errors import ProbeError
from topology.model.busid import canonical
from topology.model.topology import Kind, LinkKind
from topology.sources.draft import Draft
from topology.sources.xml_text import Node

LINK_TAGS = ("nvlink", "xgmi", "c2c")
_SWITCH, _CPU = "0x068000", "0x068001"


def add_links(
    draft: Draft, gpus: Sequence[tuple[Node, str]], by_bus: Mapping[tuple[str, str], str]
) -> None:
    """Add the links that GPUs state: (<pci>, id); ``by_bus`` has devices by host and bus id.

    Two GPUs state the links between them both; where they differ, the lower number is taken and the
    difference told. Raises ProbeError, with the line, for a count that is none.
    """
    switches: dict[str, str] = {}
    said: dict[tuple[str, str], int] = {}
    lines: dict[tuple[str, str], int] = {}
    for pci, id in gpus:
        # Ranks that share a GPU, and the parts of a split one, all state the links of the whole.
        for gpu in pci.all("gpu")[:1]:
            for node, end, count in _stated(draft, gpu, id, by_bus, switches):
                # Like NCCL, add up what is said of one pair in several elements.
                said[id, end] = said.get((id, end), 0) + count
                lines.setdefault((id, end), node.line)
            _chip_to_chip(draft, gpu, id)
    for (a, b), count in said.items():
        back = said.get((b, a))
        if back is not None and (b, a) < (a, b):
            continue  # the pair's turn was the other way round
        if draft.devices[b].kind is Kind.GPU and back != count:
            why = f"line {lines[a, b]}: {a} states {count} to {b}, which states {back or 0}"
            draft.gap(f"{a} and {b}", "nvlink", why)
        least = count if back is None else min(count, back)
        draft.link(LinkKind.NVLINK, min(a, b), max(a, b), least)


def _stated(
    draft: Draft,
    gpu: Node,
    id: str,
    by_bus: Mapping[tuple[str, str], str],
    switches: dict[str, str],
) -> Iterator[tuple[Node, str, int]]:
    """Each <nvlink> or <xgmi> of a GPU with its other end; switches are added as they are met.

    Hosts share the switches of their NVLink domain.
    """
    for node in gpu.all("nvlink", "xgmi"):
        count = node.number("count", draft.source)
        if count is None or not 0 < count <= 1024:
            said = node.get("count")
            raise ProbeError(draft.source, f"<{node.tag}> has count={said!r}", node.line)
        target, kind = node.get("target").lower(), node.get("tclass").lower()
        bus = canonical(target) or target
        end = by_bus.get((draft.host(id), bus)) or switches.get(bus)
        if kind.startswith(_CPU):
            end = _numa(draft, id)
        elif end is None and kind.startswith(_SWITCH):
            end = switches[bus] = _switch(draft, target)
        if end is None or end == id or end not in draft.devices:
            why = "the GPU itself" if end == id else "no device of this file"
            draft.gap(id, "nvlink", f"line {node.line}: target {target} is {why}")
        else:
            yield node, end, count


def _chip_to_chip(draft: Draft, gpu: Node, id: str) -> None:
    numa = _numa(draft, id)
    for node in gpu.all("c2c"):
        count, rate = node.number("count", draft.source), node.number("bw", draft.source)
        if numa is None or (count is not None and not 0 < count <= 1024):
            draft.gap(id, "c2c", f"line {node.line}: no CPU above the GPU, or no number of links")
        else:
            bandwidth = rate * 1e6 if rate else None
            draft.link(LinkKind.C2C, id, numa, count or 1, rate=bandwidth)


def _switch(draft: Draft, target: str) -> str:
    index = sum(1 for device in draft.devices.values() if device.kind is Kind.SWITCH)
    return draft.add(f"NVS{index}", Kind.SWITCH, index, busid=canonical(target))


def _numa(draft: Draft, id: str) -> str | None:
    """The NUMA node above a device."""
    here = draft.devices[id].parent
    while here is not None and draft.devices[here].kind is not Kind.NUMA:
        here = draft.devices[here].parent
    return here
