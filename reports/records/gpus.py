"""Quantities of a measurement from the samples of its GPUs. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reports.records.measurement import GpuSample

# By how much clocks may differ, between GPUs or in time, before it is said: memory runs at one of a
# few fixed clocks, SMs step up and down all the time.
_STEADY = {"clock_memory_hz": ("memory", 0.01), "clock_sm_hz": ("SM", 0.05)}


def memory_clock(gpus: Sequence[GpuSample]) -> float | None:
    """The lowest of the GPUs' median memory clocks in Hz; None where none is known."""
    return min((gpu.clock_memory_hz[1] for gpu in gpus if gpu.clock_memory_hz), default=None)


def energy(gpus: Sequence[GpuSample]) -> float | None:
    """Joules of all GPUs for one operation, idle power taken off; None unless every GPU says."""
    known = [gpu.energy_per_op_j for gpu in gpus if gpu.energy_per_op_j is not None]
    return sum(known) if known and len(known) == len(gpus) else None


def warnings(gpus: Sequence[GpuSample]) -> Iterator[str]:
    """Warnings about clocks: different between GPUs, moving, throttled."""
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
    """A GPU by its first rank and its address."""
    rank = "?" if gpu.rank is None else gpu.rank
    return f"rank {rank} ({gpu.busid or gpu.uuid or '?'})"


def _mhz(clock: float) -> str:
    return f"{clock / 1e6:.0f} MHz"
