"""How iterations begin: barriers and windows, arrival patterns, what does not count."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import native
from bench.options.arrival import ZERO, ArrivalPattern, arrivals
from bench.timing.clock import CommonClock
from bench.timing.measure import FEWEST, FunctionAction, Timing, measure
from bench.timing.starts import BarrierStart, WindowStart, fastest
from busbar.errors import Unsupported
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.transport import Spans, Start
from reports.records.measurement import LAST, OPERATION, Record, Window
from tests.conftest import Mpi, Run
from tests.together import together


class _Planned(FunctionAction):
    """An action on its own clock: ``takes`` seconds, from ``late(i)`` after iteration i's start."""

    def __init__(self, takes: float, late: Callable[[int], float] = lambda i: 0.0) -> None:
        super().__init__(self._take)
        self.takes, self.late, self.now, self.seen = takes, late, 0.0, 0
        self.gaps: list[float] = []

    def _take(self) -> None:
        self.now += self.takes

    def spans(self, n: int, start: Start) -> Spans:
        """Begin at the given times plus the delay, but not before the last iteration has ended."""
        begins = list[float]()
        for at in start.at or [self.now] * n:
            begins.append(max(self.now, at) + self.late(self.seen))
            self.now = begins[-1] + self.takes
            self.seen += 1
        self.gaps += np.diff(start.at).tolist()
        return Spans(np.array(begins), np.array(begins) + self.takes)


def _windows(
    rules: Timing,
    takes: Callable[[int], float],
    late: Callable[[int, int], float] = lambda rank, i: 0.0,
    arrival: ArrivalPattern = ZERO,
    ranks: int = 3,
) -> tuple[Record, list[float]]:
    """A row in windows, and rank 0's gaps; ``takes`` by rank, ``late`` by rank and number."""

    def body(world: InprocWorld) -> tuple[Record, list[float]]:
        rank = world.rank
        plan = _Planned(takes(rank), lambda i: late(rank, i))

        def read() -> float:  # hosts are one, so this clock needs no exchange
            return plan.now

        clock = CommonClock(world, read, [0] * world.size)
        how = WindowStart(world, clock, arrival.on(world.size))
        return measure(plan, world, rules, how), plan.gaps

    found = run(ranks, body, deadline=30)
    assert all(one[0].times_s == found[0][0].times_s for one in found), "ranks must agree"
    return found[0]


def test_a_time_is_from_the_earliest_start_to_the_latest_end() -> None:
    """Rule: with windows an iteration lasts from the earliest start to the latest end.

    The longest of the ranks' own durations is kept beside it.
    """
    small = 1e-6  # late, but less than what invalidates
    timed, _ = _windows(Timing(iterations=5), lambda r: 1e-3, lambda r, i: small * (r == 2))
    assert timed.times_s == pytest.approx([1e-3 + small] * 5) and timed.across == OPERATION
    assert timed.also["max"] == pytest.approx([1e-3] * 5)
    assert timed.also[LAST] == pytest.approx([1e-3] * 5)
    assert timed.window and (timed.window.lost, timed.window.begun) == (0, 5)


def test_late_iterations_do_not_count_and_are_counted() -> None:
    """Rule: one late rank invalidates the iteration for all; -n N still means N that count."""
    timed, _ = _windows(
        Timing(iterations=20), lambda r: 1e-3, lambda r, i: 5e-5 * (r == 1 and i == 7)
    )
    assert timed.iterations == len(timed.times_s) == 20 and max(timed.times_s) < 1.01e-3
    assert timed.window and (timed.window.lost, timed.window.begun) == (1, 21)
    assert timed.runs == 1 + 21 and timed.stopped == "iterations"


def test_windows_grow_when_a_tenth_is_lost() -> None:
    """Rule: above 10 % lost the next windows are longer; at 10 % and below they are not."""

    def every(k: int) -> Callable[[int, int], float]:
        return lambda r, i: 5e-5 * (i % k == 0)

    def grown(k: int) -> bool:
        _, gaps = _windows(Timing(iterations=40, warmup=1), lambda r: 1e-3, every(k))
        return max(gaps) > 1.5 * gaps[0]

    assert grown(5) and not grown(10)


def test_a_row_without_any_that_count_ends() -> None:
    """Rule: if a rank is always late, the row ends as lost, without times."""
    for rules in (Timing(iterations=10), Timing(budget=1e9)):
        timed, _ = _windows(rules, lambda r: 1e-3, lambda r, i: 1e-4 * (r == 0))
        assert timed.times_s == () and timed.stopped == "lost"
        assert timed.window and timed.window.lost == timed.window.begun >= 20 * FEWEST


@pytest.mark.parametrize("text", ["ramp:300", "late:1:300", "random:300", "zero"])
def test_from_the_last_arrival_and_from_the_first(text: str) -> None:
    """Rule: under a pattern the time is from the last arrival; from the first is kept beside it.

    The two differ by what lies between arrivals, iteration by iteration.
    """
    (arrival,) = arrivals(text)
    timed, _ = _windows(Timing(iterations=4), lambda r: 1e-3, arrival=arrival)
    delays = arrival.delays(3, 4, 0)
    last = timed.times_s if arrival != ZERO else timed.also[LAST]
    first = timed.also[OPERATION] if arrival != ZERO else timed.times_s
    assert last == pytest.approx([1e-3] * 4)
    spread = delays.max(axis=1) - delays.min(axis=1)
    assert np.subtract(first, last) == pytest.approx(spread, abs=1e-9)
    assert (arrival == ZERO) or timed.across == f"last arrival of {text}"


def test_barriers_on_one_host_keep_the_operations_time_too() -> None:
    """Rule: with barriers a row's time is the slowest rank's; the operation's time is kept, too."""

    def body(world: InprocWorld) -> Record:
        plan = _Planned(1e-3, lambda i: 1e-4 * (world.rank == 1))
        how = BarrierStart(world, clock=lambda: plan.now, one_clock=True)
        return measure(plan, world, Timing(iterations=1), how)

    timed = run(2, body, deadline=30)[0]
    assert timed.times_s == pytest.approx([1e-3]) and timed.across == "max"
    assert timed.also[OPERATION] == pytest.approx([1.1e-3]) and not timed.window


def test_patterns_are_read_and_fit_their_ranks(tmp_path: Path) -> None:
    """Rule: every pattern is parsed from its own text; one that does not fit is refused."""
    file = tmp_path / "late.csv"
    file.write_text("# us\n0, 10, 20\n5 0 0\n")
    for text in ("zero", "ramp:10", "late:2:1.5", "random:0.25", str(file)):
        (one,) = arrivals(text)
        assert str(one.on(3)) == text
    (from_file,) = arrivals(str(file))
    assert from_file.delays(3, 3, 1) == pytest.approx(
        np.array([[5, 0, 0], [0, 10, 20], [5, 0, 0]]) * 1e-6
    )
    for text in ("late:3:1", str(file)):
        with pytest.raises(Unsupported):
            arrivals(text)[0].on(2)
    names = [one.on(4, 2e-6) for one in arrivals("all")]
    assert [str(one) for one in names] == ["zero", "ramp:2", "late:0:2", "late:3:2", "random:2"]


def test_random_delays_are_the_same_for_every_rank_and_algorithm() -> None:
    """Rule: the delays of an iteration follow from its number alone."""
    (one,) = arrivals("random:100")
    assert (one.delays(8, 5, 40) == one.delays(8, 5, 40)).all()
    assert (one.delays(8, 5, 40) != one.delays(8, 5, 45)).any()
    assert (one.delays(8, 10, 40)[5:] == one.delays(8, 5, 45)).all()
    assert 0 <= one.delays(8, 50, 0).min() < one.delays(8, 50, 0).max() <= 1e-4


_SMALL = ("-b", "1K", "-e", "1K", "-n", "5", "-A", "ring,library", "--placement", "out")


def _records(file: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return [one for one in found if "collective" in one]


def test_windows_and_patterns_on_one_host(mpich: Mpi, run: Run, tmp_path: Path) -> None:
    """Rule: rows say how they were timed, count what does not count, and keep the other readings.

    On one host the shared clock is named; `--arrival all` ends in its table; a sweep behind
    barriers keeps the operation's time, which no rank's own exceeds.
    """
    shm = "shm" if native.load() is not None else "mpi"
    files = {name: tmp_path / f"{name}.jsonl" for name in ("window", "arrival", "barrier")}
    commands = {
        "window": ("--sync", "window", "--transport", shm),
        "arrival": ("--arrival", "all:20", "--transport", "mpi"),
        "barrier": ("--transport", shm, "--wait-quiet", "1s"),
    }
    ended = together(
        run,
        mpich,
        2,
        *(
            ("-m", "bench.allreduce", *_SMALL, *more, "--out", str(files[name]))
            for name, more in commands.items()
        ),
    )
    assert [one.returncode for one in ended] == [0, 0, 0], ended[0].stderr + ended[1].stderr
    window, arrival, _ = ended
    assert "CLOCK_MONOTONIC of this host" in window.stdout
    assert "earliest start to the latest end" in window.stdout
    assert "last rank's arrival to the latest end (--arrival late:1:20)" in arrival.stdout
    timed = 0
    for name in ("window", "arrival"):
        for record in _records(files[name]):
            window_, times = record["window"], record.get("times_s", [])
            assert window_["begun"] - window_.get("lost", 0) == len(times) <= 5
            assert record.get("wrong") == 0
            for reading in record.get("also", {}).values():
                assert len(reading) == len(times)
            if times:
                timed += 1
                first = record["also"].get("operation", times)
                last = record["also"].get("last arrival", times)
                assert all(a >= b - 1e-9 and b > 0 for a, b in zip(first, last, strict=True))
            else:
                assert "some rank began late in each" in record["skipped"]
    patterns = {r["window"]["arrival"] for r in _records(files["arrival"])}
    assert patterns == {"zero", "ramp:20", "late:0:20", "late:1:20", "random:20"}
    assert not timed or _records(files["window"])[0]["across"] == "operation"
    for record in _records(files["barrier"]):
        assert "window" not in record and record["across"] == "max"
        operation = record["also"]["operation"]
        assert all(o >= t - 1e-9 for o, t in zip(operation, record["times_s"], strict=True))


def test_a_delay_is_by_rows_of_the_same() -> None:
    """Rule: `--arrival all` delays by the fastest algorithm of what the row measures.

    Rows of another collective, type, operation, root or placement, and rows with ranks that were
    late, do not count.
    """

    def row(seconds: float, **other: Any) -> Record:
        known = {"collective": "allreduce", "algorithm": "ring", "size": 64, "dtype": "float"}
        known |= {"op": "sum", "root": -1, "placement": "out", "window": Window(arrival="zero")}
        return Record(times_s=(seconds,) * 3, **{**known, **other})

    others: list[dict[str, Any]] = [
        {"collective": "reduce"},
        {"dtype": "int8"},
        {"op": "max"},
        {"root": 0},
        {"placement": "in"},
        {"size": 128},
    ]
    rows = [row(4e-6), row(3e-6, algorithm="tree"), row(1e-6, window=Window(arrival="ramp:5"))]
    rows += [row(2e-6, **other) for other in others]
    assert fastest(rows, row(0.0)) == 3e-6
    assert all(fastest(rows, row(0.0, **other)) == 2e-6 for other in others)
    assert fastest(rows, row(0.0, dtype="half")) == 0
