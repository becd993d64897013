"""One clock for all ranks: lines through exchanges, and what they recover of clocks."""

from __future__ import annotations

import time
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.timing.clock import (
    VARIABLE,
    ClockModel,
    CommonClock,
    Skew,
    Trip,
    fitted,
    rounds,
    skew,
)
from busbar.errors import Unsupported
from collectives.execution.inproc.world import InprocWorld, run


@given(st.floats(-1e4, 1e4), st.floats(-5e-4, 5e-4), st.floats(0, 1e6), st.integers(2, 40))
def test_a_line_through_exact_trips_is_the_other_clock(
    offset: float, drift: float, begin: float, n: int
) -> None:
    """Rule: through undisturbed trips the line is the other clock, without residual.

    To a nanosecond within the sampled time.
    """
    at = [begin + 0.05 * i for i in range(n)]
    found = fitted([Trip(t, offset + drift * t, 1e-6) for t in at])
    for t in (at[0], at[-1]):
        assert abs(found.other(t) - (t + offset + drift * t)) < 1e-9 * (1 + abs(begin) / 1e3)
    assert found.residual < 1e-9 * (1 + abs(begin) / 1e3)


@given(st.integers(0, 2**32 - 1))
def test_held_up_bursts_do_not_count(seed: int) -> None:
    """Rule: a burst whose trips were all delayed in one direction does not move the line."""
    draw = np.random.default_rng(seed)
    good = [Trip(0.05 * i, 3.0, 5e-5) for i in range(12)]
    bad = [
        Trip(0.05 * i + 0.01, 3.0 + t / 2, 5e-5 + t)
        for i, t in enumerate(draw.uniform(1e-4, 1e-2, 5))
    ]
    mixed = [*good, *bad]
    draw.shuffle(mixed)  # type: ignore[arg-type]
    assert abs(fitted(mixed).offset - 3.0) < 1e-12


def test_the_error_grows_away_from_the_trips() -> None:
    """Rule: the standard error is that of a regression: least in the middle, growing with time."""
    trips = [Trip(float(i), (-1) ** i * 1e-6, 1e-5) for i in range(20)]
    found = fitted(trips)
    assert found.error(found.at) == pytest.approx(found.residual / sqrt(20))
    assert found.error(found.at) < found.error(30.0) < found.error(300.0)


@given(st.integers(1, 70))
def test_every_host_learns_once_from_one_that_knows(hosts: int) -> None:
    """Rule: in log2 P rounds every host but the first asks once, and asks a host that asked before.

    A host that is asked answers in that round, and answers one host only.
    """
    leaders = [3 * h for h in range(hosts)]
    parts = {rank: list(rounds(leaders, rank)) for rank in range(3 * hosts)}
    number = len(parts[0])
    assert 2**number >= hosts > 2 ** (number - 1) or hosts == 1
    knows = {0}
    for i in range(number):
        asked = {rank: p[i].asks for rank, p in parts.items() if p[i].asks is not None}
        answered = {rank: p[i].answers for rank, p in parts.items() if p[i].answers is not None}
        assert {a: r for r, a in asked.items()} == answered and set(asked.values()) <= knows
        assert not knows & set(asked)
        knows |= set(asked)
    assert knows == set(leaders)


def _errors(world: InprocWorld, clock: CommonClock, own: Skew) -> float:
    """How far the ranks' common times are from rank 0's, at one true instant."""
    true = world.broadcast(time.perf_counter())
    everyone = world.gather(clock.line.other(own.of(true)))
    return max(abs(one - everyone[0]) for one in everyone)


@pytest.mark.parametrize("fault", ["its clock jumps", "its line is off"])
def test_hosts_that_are_seconds_off_have_one_clock_again(fault: str) -> None:
    """Rule: five hosts, two ranks each, seconds and 100 ppm off, agree as well as trips allow.

    The next check detects an error above the scatter of trips and fits again, and all
    ranks of the host get the new line. Threads share the interpreter, so the bound is that of their
    trips, not of a network.
    """

    def body(world: InprocWorld) -> tuple[float, float, int, float]:
        hosts = [rank // 2 for rank in range(world.size)]
        host = hosts[world.rank]
        since = world.broadcast(time.perf_counter())
        own = Skew(5.0 * host, (-1) ** host * 25e-6 * host, since)
        clock = CommonClock(world, lambda: own.of(time.perf_counter()), hosts)
        before = _errors(world, clock, own)
        trip = max(one.seconds for one in clock.lines)
        assert clock.exchanged and len(clock.lines) == 5 and "host" in clock.describe()
        if host == 3 and fault == "its clock jumps":  # no line through all trips fits any more
            own = own._replace(offset=own.offset + 0.01)
        elif host == 3:  # its trips still are a line
            clock.line = clock.line._replace(offset=clock.line.offset + 0.01)
        clock.check()
        return before, _errors(world, clock, own), clock.refits, trip

    for before, after, refits, trip in run(10, body, deadline=60):
        assert before < 3 * trip + 1e-4 and after < 3 * trip + 1e-4
        assert refits >= 1


def test_one_host_exchanges_nothing() -> None:
    """Rule: ranks of one host share its clock: there are no trips, and times are not converted."""

    def body(world: InprocWorld) -> None:
        clock = CommonClock(world, lambda: 7.0, [0, 0, 0])
        clock.check()
        assert not clock.exchanged and clock.now() == 7.0 and clock.line == ClockModel()
        assert clock.facts() == {"source": "CLOCK_MONOTONIC of the one host"}

    run(3, body, deadline=30)


@given(st.floats(-1e5, 1e5), st.floats(-1e-2, 1e-2), st.floats(0, 1e6))
def test_common_times_and_local_ones_are_inverse(offset: float, drift: float, at: float) -> None:
    """Rule: a rank finds the local time of an agreed one, and back, to a nanosecond."""

    def body(world: InprocWorld) -> None:
        clock = CommonClock(world, lambda: at, [0])
        clock.line = ClockModel(at, offset, drift)
        times = at + np.array([0.0, 0.001, 10.0])
        assert np.allclose(clock.local(clock.line.other(times)), times, rtol=0, atol=1e-8)

    run(1, body)


def test_what_an_emulated_host_reads() -> None:
    """Rule: the environment variable gives a host's clock error; without it there is none."""
    env = {VARIABLE: "host0:0:0:0 host1:2.5:-80:900"}
    assert skew({}, "host1") is None
    assert skew(env, "host1") == pytest.approx(Skew(2.5, -80e-6, 900.0))
    assert skew(env, "other") == Skew()
    assert Skew(2.5, -80e-6, 900.0).clock(lambda: 1000.0)() == pytest.approx(1002.492)
    for text in ("host1", "host1:a:1:0", "host1:1:1", "host1:..:1:0"):
        with pytest.raises(Unsupported, match="HOST:SECONDS:PPM"):
            skew({VARIABLE: text}, "host1")
