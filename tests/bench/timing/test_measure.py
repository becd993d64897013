"""The timing loop: how many iterations, what ends a row, and what a row's time is."""

from collections.abc import Callable, Iterator
from itertools import chain, cycle, repeat
from itertools import count as forever

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.timing.measure import FEWEST, FunctionAction, Timing, measure
from bench.timing.starts import BarrierStart
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.transport import Spans, Start
from reports.records.measurement import Record
from tests.bench.run.test_pace import Clock


def _measure(
    rules: Timing,
    durations: Callable[[int], Iterator[float]],
    ranks: int = 1,
    seconds: float = float("inf"),
) -> Record:
    """Measure what passes a rank's durations; a clock counts from anywhere.

    ``seconds``: what the row may take, by rank 0's clock; the others know of none.
    """

    def body(world: InprocWorld) -> Record:
        clock, passing = Clock(), durations(world.rank)
        until = clock() + seconds if world.rank == 0 else 0.0

        def plan() -> None:
            clock.now += next(passing)

        how = BarrierStart(world, rules.across, clock=clock, loop=rules.timing == "loop")
        return measure(FunctionAction(plan), world, rules, how, left=lambda: until - clock())

    results = run(ranks, body, deadline=30)
    assert all(result == results[0] for result in results), "ranks must agree"
    return results[0]


def _over_and_over(*seconds: float) -> Callable[[int], Iterator[float]]:
    return lambda rank: cycle(seconds)


_noisy = _over_and_over(1.0, 3.0)


def _by_rank(rank: int) -> Iterator[float]:
    return repeat(rank + 1.0)


@pytest.mark.parametrize("n", [1, 5, 500])
def test_a_given_number_of_iterations_is_that_number(n: int) -> None:
    """Rule: -n 500 means 500, whatever the budget."""
    timed = _measure(Timing(iterations=n, budget=1e-9), _noisy)
    assert (timed.iterations, len(timed.times_s), timed.stopped) == (n, n, "iterations")


@given(
    st.floats(0.5, 100.0),
    st.floats(0.1, 50.0),
    st.integers(0, 1),
    st.sampled_from(["each", "loop"]),
)
def test_a_row_ends_within_its_time(left: float, once: float, warmup: int, timing: str) -> None:
    """Rule: warm-up, iterations and one iteration for the proof keep within what a row may take.

    As far as one iteration at the least allows, and one more to learn what it takes where there is
    no warm-up. Where there is time for six, there are six.
    """
    rules = Timing(warmup=warmup, budget=0.1, timing=timing)
    timed = _measure(rules, _over_and_over(once), ranks=2, seconds=left)
    runs = timed.runs + 1
    assert timed.iterations >= 1 and runs >= 2
    if warmup or timing == "loop":
        least = 1 + warmup + (timing == "loop") + 1
        assert runs * once <= max(left, least * once) + 1e-9
        if left >= (FEWEST + least) * once:
            assert timed.iterations >= FEWEST
    else:
        assert timed.iterations >= FEWEST


@pytest.mark.parametrize(
    ("across", "expected"), [("rank0", 1.0), ("avg", 2.0), ("min", 1.0), ("max", 3.0)]
)
def test_the_time_of_an_iteration_over_ranks(across: str, expected: float) -> None:
    """Rule: -a 0…3 takes rank 0's, the average, the least, the most of the ranks' times.

    --per-rank keeps every rank's times in rank order, and nothing else does.
    """
    for own in (False, True):
        rules = Timing(iterations=4, across=across, per_rank=own)  # type: ignore[arg-type]
        timed = _measure(rules, _by_rank, ranks=3)
        assert timed.times_s == (expected,) * 4
        assert timed.per_rank_s == (((1.0,) * 4, (2.0,) * 4, (3.0,) * 4) if own else ())


def test_all_iterations_are_kept_on_request() -> None:
    """Rule: of short iterations the last of each batch are kept; with ``keep_all`` all are kept."""
    for keep_all in (False, True):
        rules = Timing(warmup=0, budget=30.0, precise=0.0, keep_all=keep_all)
        timed = _measure(rules, _over_and_over(1e-3))
        assert (len(timed.times_s) == timed.runs) is keep_all


def test_a_loop_is_one_mean_over_its_iterations() -> None:
    """Rule: --timing loop reads the clock twice and divides."""
    timed = _measure(Timing(iterations=10, timing="loop"), _noisy)
    assert timed.times_s == (2.0,) and timed.iterations == 10


def test_warm_ups_are_not_timed() -> None:
    """Rule: -w iterations come first and are not timed."""
    timed = _measure(Timing(warmup=2, iterations=5), lambda _: chain([9.0, 9.0], repeat(1.0)))
    assert max(timed.times_s) == 1.0


class _Seen(InprocWorld):
    """A world of one whose barriers stand in one list with what else happens."""

    def __init__(self, world: InprocWorld, events: list[object]) -> None:
        super().__init__(world.rank, world.shared)
        self.events = events

    def barrier(self) -> None:
        super().barrier()
        self.events.append("barrier")

    def arrived(self, iteration: int) -> None:
        self.events.append(iteration)


def _events(rules: Timing, itself: bool = False) -> tuple[Record, list[object]]:
    """What happens, in order: barriers, launches, what the watchdog is told, other times."""
    events: list[object] = []

    class Plan(FunctionAction):
        def spans(self, n: int, start: Start) -> Spans:
            if not itself:
                return super().spans(n, start)
            events.append(("spans", n, start.loop))
            seconds = np.array([2.0 * n] if start.loop else [1.0] * n)
            return Spans(np.zeros(len(seconds)), seconds, absolute=False)

    def body(world: InprocWorld) -> Record:
        seen = _Seen(world, events)
        how = BarrierStart(seen, clock=Clock(), loop=rules.timing == "loop")
        return measure(Plan(lambda: events.append("run")), seen, rules, how, seen.arrived)

    return run(1, body, deadline=30)[0], events


def test_every_iteration_starts_behind_a_barrier_and_is_told() -> None:
    """Rule: barrier, iteration, barrier, iteration …, each announced; warm-ups are iteration -1."""
    timed, events = _events(Timing(warmup=2, iterations=3))
    assert events[:4] == [-1, "run", -1, "run"]
    timed_part = [e for e in events[4:] if e != 0]
    assert events[4:6] == [0, 0], "the batch and its first iteration"
    assert timed_part[:8] == ["barrier", "run", 1, "barrier", "run", 2, "barrier", "run"]
    assert timed.runs == 2 + 3 == events.count("run")


def test_a_loop_has_one_barrier() -> None:
    """Rule: --timing loop runs back to back behind one barrier."""
    timed, events = _events(Timing(warmup=1, iterations=4, timing="loop"))
    seen = [event for event in events if event != 0]
    assert seen[:7] == [-1, "run", "barrier", *["run"] * 4] and timed.runs == 1 + 4
    timed, events = _events(Timing(warmup=0, budget=1e-7, timing="loop"))
    assert timed.iterations == FEWEST and timed.runs == FEWEST + 1 == events.count("run")


@pytest.mark.parametrize(("how", "seconds"), [("each", 1.0), ("loop", 2.0)])
def test_what_takes_its_own_times_is_asked_for_them(how: str, seconds: float) -> None:
    """Rule: times of a transport are used unchanged; a loop's time is the sum of its iterations."""
    timed, events = _events(Timing(warmup=0, iterations=7, timing=how), itself=True)
    assert ("spans", 7, how == "loop") in events and "run" not in events
    assert set(timed.times_s) == {seconds}


@pytest.mark.parametrize(("more", "stopped"), [(1.03, "precise"), (1.05, "budget"), (3, "budget")])
def test_precise_is_two_per_cent(more: float, stopped: str) -> None:
    """Rule: half of the interval's width, relative to the median, is what ends a row.

    The budget ends what never becomes precise; the last batch is no longer than it.
    """
    timed = _measure(Timing(budget=500.0), _over_and_over(1.0, more))
    assert timed.stopped == stopped
    assert stopped != "budget" or 500 <= sum(timed.times_s) <= 530


def test_a_row_leaves_out_its_warm_up_where_it_may() -> None:
    """Rule: without -w and -n the iterations before the steady state are not timed.

    With -n or -w the given numbers hold.
    """

    def settling(rank: int) -> Iterator[float]:
        random = np.random.default_rng(0)
        for at in forever():
            yield (1.0 + 0.3 * (at < 40)) * (1 + 0.02 * float(random.standard_normal()))

    timed = _measure(Timing(warmup=0, budget=300.0, settle=True, precise=0.0), settling, ranks=2)
    assert 36 <= len(timed.warm_up_s) <= 60 and min(timed.warm_up_s[:30]) > 1.15
    assert np.median(timed.times_s) == pytest.approx(1, abs=0.02)
    assert timed.runs == len(timed.warm_up_s) + timed.iterations
    assert timed.iterations == len(timed.times_s)
    for rules in (
        Timing(warmup=0, budget=300.0, precise=0.0),
        Timing(warmup=0, iterations=200, settle=True),
    ):
        found = _measure(rules, settling)
        assert not found.warm_up_s and found.runs == found.iterations


def test_iterations_that_resemble_the_one_before_are_not_enough_so_soon() -> None:
    """Rule: if ten iterations in a row are alike, a row needs several times as many."""

    def alike(many: int) -> Callable[[int], Iterator[float]]:
        def durations(rank: int) -> Iterator[float]:
            random = np.random.default_rng(1)
            for _ in forever():
                level = 1 + 0.1 * float(random.standard_normal())
                yield from level * (1 + 0.001 * random.standard_normal(many))

        return durations

    soon, late = (_measure(Timing(budget=1e9), alike(many)) for many in (1, 10))
    assert soon.stopped == late.stopped == "precise"
    assert late.iterations > 3 * soon.iterations


_SERIES: dict[str, Callable[[int], float]] = {
    "scattered": lambda i: 1e-3 * (1 + 0.4 * (i * 0.6180339887 % 1)),
    "two levels": lambda i: 1e-3 * (1 + 0.3 * (i % 200 < 40)),
    "settling": lambda i: 1e-3 * (1 + 0.3 * 0.98**i + 0.02 * (i * 0.6180339887 % 1)),
    "short": lambda i: 2e-6 * (1 + 0.2 * (i * 0.6180339887 % 1)),
}


@pytest.mark.parametrize(
    ("name", "stopped", "kept", "runs"),
    [
        ("scattered", "precise", 422, 423),
        ("two levels", "budget", 1881, 1882),
        ("settling", "budget", 1966, 1967),
        ("short", "precise", 1306, 113639),
    ],
)
def test_a_recorded_series_ends_where_it_did(name: str, stopped: str, kept: int, runs: int) -> None:
    """Rule: when a row ends and which times it keeps depends only on its times."""
    timed = _measure(Timing(), lambda rank: map(_SERIES[name], forever()))
    assert (timed.stopped, timed.iterations, timed.runs) == (stopped, kept, runs)
