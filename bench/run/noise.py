"""Noise from other programs during a row: counters read before and after it (`busbar.counters`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

import native
from busbar import counters
from busbar.counters import OTHERS, Look, between, gathered, waiting
from collectives.execution.world import World
from reports.records.measurement import Noise

# Thresholds for a note: share of all cores for steal, and share of a row's time for a rank that
# waited for a core.
_STEAL, _WAITED = 0.02, 0.1
# Threshold for a note: share by which one rank's core is slower than another's.
_SLOWER = 0.1
_QUIET_S = 1.0


def measured_hz() -> float | None:
    """Measure the clock of the caller's core in Hz, in 15 µs. None without the extension.

    It is measured because the kernel of a virtual machine seldom knows it.
    """
    core = native.load()
    return (core.core_hz() or None) if core else None


#: Reads the counters and measures the core's clock; see `busbar.counters.look`.
look = partial(counters.look, clock=measured_hz)


class NoiseCounters:
    """The noise on one rank from creation to `stop`."""

    def __init__(self, world: World) -> None:
        self._world, self._before = world, look()
        self._after = self._before

    def stop(self) -> None:
        """Read the counters at the end."""
        self._after = look()

    def gather(self) -> tuple[Noise | None, tuple[float, ...]]:
        """The noise (None without any), and the share of time that each rank waited for a core.

        All ranks call this together. Only rank 0, which writes the records, gets the result.
        """
        everyone = self._world.collect(between(self._before, self._after))
        if not everyone:
            return None, ()
        waits = tuple(waiting(one) for one in everyone)
        # Ranks that are threads read the CPU time of the whole process.
        if self._world.name == "inproc":
            everyone = [one | {"mine": one["mine"] / len(everyone)} for one in everyone]
        noise = gathered(everyone)
        return (msgspec.convert(noise, Noise) if noise else None), waits


def noted(shares: Sequence[float]) -> str:
    """The note on ranks that waited for a core; empty if none did for a tenth of the time.

    As ``2 ranks waited for a core (rank 1 76 %)``, with the rank that waited most. ``shares``: of
    the time, by rank.
    """
    waited = sum(share >= _WAITED for share in shares)
    if not waited:
        return ""
    most = max(shares)
    rank, share = f"rank {list(shares).index(most)}", f"{100 * most:.0f} %"
    if waited == 1:
        return f"{rank} waited for a core ({share})"
    return f"{waited} ranks waited for a core ({rank} {share})"


def disturbances(shares: Sequence[float], noise: Noise | None) -> str:
    """The note on what disturbed a row: `noted`, then `cause`; empty if nothing did."""
    return "; ".join(filter(None, (noted(shares), "" if noise is None else cause(noise))))


def greatest(noises: Sequence[Noise]) -> Noise:
    """The greatest figures of several placements, for one note on all of them."""
    clocks = [one.hz for one in noises if one.hz]
    return Noise(
        hz=max(clocks, key=lambda hz: max(hz) / min(hz), default=()),
        steal=tuple(share for one in noises for share in one.steal),
        others=tuple(share for one in noises for share in one.others),
    )


def cause(noise: Noise) -> str:
    """The note on a row's noise: likely causes of unsteady times, the greatest first.

    Empty if nothing reached its threshold: steal 2 % of all cores, other programs 5 %, or one core
    10 % slower than another.
    """
    causes: list[tuple[float, str]] = []
    for shares, least, text in (
        (noise.steal, _STEAL, "steal {}"),
        (noise.others, OTHERS, "other programs took {} of all cores"),
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
    """Wait until every host was quiet for a second, but not longer than ``seconds``.

    Ranks sleep meanwhile. Returns a warning if a host was not quiet, else an empty string. All
    ranks call this together.
    """
    for _ in range(max(1, round(seconds / _QUIET_S))):
        before = looking()
        wait(_QUIET_S)
        everyone = world.gather(between(before, looking()))
        why = cause(msgspec.convert(gathered(everyone), Noise))
        if not why:
            return ""
    return f"not quiet after {seconds:g} s: {why}; measuring all the same"
