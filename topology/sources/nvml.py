"""NVML through nvidia-ml-py: GPUs and the links between them.

``read`` queries NVML (``topology.sources.nvml_ask``) and parses the answers. ``snapshot`` returns
the answers as JSON, for ``parse`` on another machine.
"""

from __future__ import annotations

import json
from typing import Any

from busbar.cpulist import listed
from busbar.errors import ProbeError
from topology.model.busid import canonical
from topology.model.facts import Value
from topology.model.topology import Kind, Level, LinkKind, Topology
from topology.sources.draft import Draft
from topology.sources.nvml_ask import CALLS, NAME, P2P, ask
from topology.sources.text import loaded

#: nvmlGpuTopologyLevel_t; INTERNAL is two GPUs on one board, which nvidia-smi prints as PIX.
_LEVELS = {0: Level.PIX, 10: Level.PIX, 20: Level.PXB, 30: Level.PHB, 40: Level.NODE, 50: Level.SYS}
#: nvmlGpuP2PStatus_t, in nvidia-smi's words.
_P2P_STATUS = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
_FABRIC = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
_IDLE = 0x1
#: Bits of the clock event reasons that mean a GPU slower than it could be.
_REASONS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
_GPU_PEER, _NPU_PEER, _SWITCH_PEER = 0, 1, 2
#: Answers that identify a GPU, or are read into facts of other names.
_READ = ("name", "uuid", "busid", "reasons", "cpus", "nodes")
#: Answers that are facts as they stand.
_PLAIN = (*(fact for fact, *_ in CALLS if fact not in _READ), "c2c", "c2c_links")


def read() -> Topology:
    """Ask NVML. Raises ProbeError without nvidia-ml-py or driver, or if it does not start."""
    return parse(snapshot())


def snapshot() -> str:
    """Return NVML's answers as JSON text. Raises as ``read``."""
    return json.dumps(ask(), indent=1) + "\n"


def parse(text: str) -> Topology:
    """Read a snapshot. Raises ProbeError with the line, or with the entry, that is not one."""
    document = loaded(NAME, text)
    if not isinstance(document, dict) or document.get("busbar_nvml") != 1:
        raise ProbeError(NAME, "no 'busbar_nvml': 1, so this is no snapshot of NVML")
    try:
        return _topology(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ProbeError(NAME, f"malformed entry: {type(error).__name__} {error}") from None


def _topology(document: dict[str, Any]) -> Topology:
    draft = Draft(NAME)
    draft.machine(
        **{str(name): _plain(value) for name, value in document.get("machine", {}).items()}
    )
    ids = {gpu["index"]: _gpu(draft, gpu) for gpu in document["gpus"]}
    buses = {device.busid: device.id for device in draft.devices.values() if device.busid}
    for gpu in document["gpus"]:
        _links(draft, ids[gpu["index"]], gpu, buses)
    for pair in document.get("pairs", []):
        a, b = ids[pair["a"]], ids[pair["b"]]
        if pair.get("level") in _LEVELS:
            draft.pair(a, b, level=_LEVELS[pair["level"]].name)
        draft.pair(
            a,
            b,
            **{fact: _P2P_STATUS.get(pair[fact]) for fact in P2P if pair.get(fact) is not None},
        )
    for subject, call, reason in document.get("gaps", []):
        draft.gap(str(subject), str(call), str(reason))
    return draft.build()


def _plain(value: Any) -> Value | None:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"{value!r} is no plain value")


def _gpu(draft: Draft, said: dict[str, Any]) -> str:
    index = said["index"]
    if not isinstance(index, int) or f"GPU{index}" in draft.devices:
        raise ValueError(f"GPU index {index!r}")
    name = str(said.get("name") or "")
    uuid = str(said["uuid"]) if said.get("uuid") else None
    id = draft.gpu(index, name, busid=canonical(str(said.get("busid") or "")), uuid=uuid)
    draft.state(id, **{fact: _plain(said.get(fact)) for fact in _PLAIN})
    for fact, key in (("cpu_affinity", "cpus"), ("numa_affinity", "nodes")):
        draft.state(id, **{fact: _set(said.get(key))})
    if said.get("reasons") is not None:
        bits = int(said["reasons"])
        draft.state(id, throttle=slowed_by(bits), idle=bool(bits & _IDLE))
    if said.get("fabric") in _FABRIC:
        draft.state(id, fabric_state=_FABRIC[said["fabric"]])
        if said["fabric"] == 3:
            status = int(said.get("fabric_status") or 0)
            draft.state(id, fabric_status="success" if status == 0 else f"NVML error {status}")
    for mig in said.get("migs", []):
        draft.add(
            f"{id}/MIG{int(mig['index'])}",
            Kind.MIG,
            int(mig["index"]),
            name=str(mig.get("name") or ""),
            uuid=str(mig["uuid"]) if mig.get("uuid") else None,
            parent=id,
            memory=_plain(mig.get("memory")),
            multiprocessors=_plain(mig.get("multiprocessors")),
        )
    return id


def slowed_by(bits: int) -> tuple[str, ...]:
    """The clock event reasons that mean a GPU slower than it could be, in words."""
    return tuple(word for bit, word in _REASONS.items() if bits & bit)


def _set(words: list[int] | None) -> str | None:
    """The list of a bit set in words of 64 bits, lowest first; None for the empty set."""
    if not words or len(words) > 4096:
        return None
    bits = (
        64 * n + bit for n, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1
    )
    return listed(bits) or None


def _links(draft: Draft, id: str, said: dict[str, Any], buses: dict[str, str]) -> None:
    links = said.get("links") or []
    up = [link for link in links if link["up"]]
    down = tuple(int(link["link"]) for link in links if not link["up"])
    if links:
        draft.state(id, nvlinks=len(up), nvlinks_down=down or None)
    rates = [float(link["rate_mb_s"]) * 1e6 for link in up if link.get("rate_mb_s")]
    versions = [int(link["version"]) for link in up if link.get("version")]
    draft.state(
        id, nvlink_rate=min(rates, default=None), nvlink_version=min(versions, default=None)
    )
    peers: dict[str, int] = {}
    for link in up:
        end = _peer(draft, id, link, buses)
        if end is not None and end != id:
            peers[end] = peers.get(end, 0) + 1
    for end, count in peers.items():
        if not any({link.a, link.b} == {id, end} for link in draft.links):
            version, rate = min(versions, default=None), min(rates, default=None)
            draft.link(LinkKind.NVLINK, id, end, count, version=version, rate=rate)
    if said.get("c2c"):
        rate = said.get("c2c_rate_mb_s")
        numa = draft.devices[id].get("numa_affinity")
        if isinstance(numa, str) and numa.isdecimal():
            if f"NUMA{numa}" not in draft.devices:
                draft.add(f"NUMA{numa}", Kind.NUMA, int(numa))
            each = float(rate) * 1e6 if rate else None
            draft.link(LinkKind.C2C, id, f"NUMA{numa}", int(said.get("c2c_links") or 1), rate=each)


def _peer(draft: Draft, id: str, link: dict[str, Any], buses: dict[str, str]) -> str | None:
    busid = canonical(str(link.get("peer_busid") or ""))
    kind = link.get("peer")
    if busid in buses and busid is not None:
        return buses[busid]
    if kind == _SWITCH_PEER:
        index = sum(device.kind is Kind.SWITCH for device in draft.devices.values())
        # Guests see switches without a bus id; then one stands for all of them.
        if busid is None:
            return "NVS" if "NVS" in draft.devices else draft.add("NVS", Kind.SWITCH)
        buses[busid] = draft.add(f"NVS{index}", Kind.SWITCH, index, busid=busid)
        return buses[busid]
    if kind == _NPU_PEER:
        return None  # POWER9's NVLinks to the CPU; counted among those that are up
    draft.gap(
        id, "nvlink", f"link {link.get('link')} leads to {link.get('peer_busid')}, not seen here"
    )
    return None
