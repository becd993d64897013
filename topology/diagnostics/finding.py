"""A finding of ``check``: something that costs performance, with evidence and remedy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from topology.model.topology import Device, Topology


@dataclass(frozen=True)
class Finding:
    """``harm`` orders findings: a rough share, 0 to 1, of what is lost where it hits (1: broken).

    ``code`` is stable, for scripts; ``subjects`` are device ids, or pairs as ``GPU0-GPU1``.
    """

    code: str
    harm: float
    subjects: tuple[str, ...]
    summary: str
    evidence: str
    remedy: str


def likes(topology: Topology) -> list[list[Device]]:
    """The GPUs in groups of one model; GPUs whose model nobody knows are like no other."""
    models: dict[str, list[Device]] = {}
    for gpu in topology.gpus:
        model = gpu.get("model") or gpu.name
        if model:
            models.setdefault(str(model), []).append(gpu)
    return list(models.values())


def at_work(gpu: Device) -> bool:
    """Whether the GPU is known not to idle; idle ones lower clocks and PCIe generation on purpose.

    A desktop card in P8 may well claim a power cap and no idleness, hence both are asked.
    """
    pstate, idle = gpu.get("pstate"), gpu.get("idle")
    return (
        idle is not True and pstate in ("P0", "P1", "P2", None) and (idle, pstate) != (None, None)
    )


def listing(values: Iterable[tuple[str, str]]) -> str:
    """``1.683 GHz: GPU1, GPU4; 1.771 GHz: GPU0`` out of (device, value) pairs."""
    groups: dict[str, list[str]] = {}
    for device, value in values:
        groups.setdefault(value, []).append(device)
    return "; ".join(f"{value}: {', '.join(groups[value])}" for value in sorted(groups))


def grouped(
    code: str,
    harm: float,
    rows: Sequence[tuple[str, str]],
    summary: str,
    remedy: str,
    subjects: Iterable[str] | None = None,
) -> list[Finding]:
    """One finding out of (subject, what is stated of it) rows; none where there are no subjects.

    ``subjects``: those of the rows that the finding is about, by default all.
    """
    about = tuple(dict.fromkeys((one for one, _ in rows) if subjects is None else subjects))
    return [Finding(code, harm, about, summary, listing(rows), remedy)] if about else []
