"""Noise from the rest of the machine during a row: counters read before and after it.

The counters are `busbar.counters`'.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

import native
from busbar import counters
from busbar.counters import Look, between, gathered, waiting
from collectives.execution.world import World
from reports.records.measurement import Noise

# From these shares of all cores on, steal and others' load are named as causes; from this share of
# a row's time on, a rank that waited for a core.
_STEAL, _OTHERS, _WAITED = 0.02, 0.05, 0.1
# A clock that fell so far within a row, or by so much from rank to rank, is named.
_SLOWER = 0.1
_QUIET_S = 1.0


def measured_hz() -> float | None:
    """Measure the clock of the caller's core, in Hz; it takes 15 µs. None without the extension.

    The kernel of a virtual machine seldom knows it.
    """
    core = native.load()
    return (core.core_hz() or None) if core else None


def look(
    proc: Path = Path("/proc"),
    devices: Path = Path("/sys/devices/system/cpu"),
    clock: Callable[[], float | None] = measured_hz,
) -> Look:
    """Count now, the clock of the caller's core measured; see `busbar.counters.look`."""
    return counters.look(proc, devices, clock)


class NoiseCounters:
    """The noise on one rank from creation to `stop`."""

    def __init__(self, world: World) -> None:
        self._world, self._before = world, look()
        self._after = self._before

    def stop(self) -> None:
        """It is over."""
        self._after = look()

    def gather(self) -> tuple[Noise | None, tuple[float, ...]]:
        """The noise, None without any, and each rank's share of time ready without a core.

        All ranks call this together. Rank 0, which writes the records, has the result; the others
        have none.
        """
        everyone = self._world.collect(between(self._before, self._after))
        if not everyone:
            return None, ()
        waits = tuple(waiting(one) for one in everyone)
        # Threads of one process have their CPU time together.
        if self._world.name == "inproc":
            everyone = [one | {"mine": one["mine"] / len(everyone)} for one in everyone]
        noise = gathered(everyone)
        return (msgspec.convert(noise, Noise) if noise else None), waits


def noted(shares: Sequence[float]) -> str:
    """The note on a row that names the ranks with a large share of `waiting`; empty without any."""
    return ", ".join(f"rank {r} {share:.0%}" for r, share in enumerate(shares) if share >= _WAITED)


def cause(noise: Noise) -> str:
    """The note on a row's noise: likely causes of unsteady times, the greatest first.

    Empty where nothing was above its threshold: steal 2 % of all cores, others 5 %, a core 10 %
    slower than another.
    """
    causes: list[tuple[float, str]] = []
    for shares, least, text in (
        (noise.steal, _STEAL, "steal {}"),
        (noise.others, _OTHERS, "other programs took {} of all cores"),
    ):
        share = max(shares, default=0.0)
        if share >= least:
            causes.append((share, text.format(f"{share:.0%}".replace("%", " %"))))
    hz = noise.hz
    if hz and min(hz) < (1 - _SLOWER) * max(hz):
        slow = 1 - min(hz) / max(hz)
        rank = hz.index(min(hz))
        causes.append(
            (slow, f"rank {rank}'s core at {min(hz) / 1e9:.2f} of {max(hz) / 1e9:.2f} GHz")
        )
    return "; ".join(text for _, text in sorted(causes, key=lambda one: -one[0]))


def not_quiet(
    world: World,
    seconds: float,
    looking: Callable[[], Look] = look,
    wait: Callable[[float], object] = time.sleep,
) -> str:
    """Wait until every host was quiet for a second, for so many seconds at most.

    Ranks sleep meanwhile. Gives a sentence where it was not. All ranks call this together.
    """
    for _ in range(max(1, round(seconds / _QUIET_S))):
        before = looking()
        wait(_QUIET_S)
        everyone = world.gather(between(before, looking()))
        why = cause(msgspec.convert(gathered(everyone), Noise))
        if not why:
            return ""
    return f"not quiet after {seconds:g} s: {why}; measuring all the same"
