"""How long a sweep takes is said before it begins, kept to, and shown while it goes on."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from math import inf
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.launch.launch import parse_progress
from bench.options.options import parse
from bench.run.contenders import RankSetup, jobs
from bench.run.memory import Pool
from bench.run.pace import Pace, all_work, limits, order, planned
from bench.run.screen import Screen
from busbar.units import format_duration
from tests.conftest import REPO, Mpi, environment, on_threads, under

Seconds = st.floats(0.1, 100.0)
GIB = 2**30


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1e5

    def __call__(self) -> float:
        """The time now."""
        return self.now


@given(st.lists(st.tuples(Seconds, st.floats(0.0, 1.0)), min_size=1, max_size=30))
def test_rows_that_keep_to_their_time_make_a_sweep_that_does(
    rows: list[tuple[float, float]],
) -> None:
    """Rule: whatever share of what it may take each row takes, the whole keeps within the sum.

    A row has its own limit at the least, and never more than all up to it have together.
    """
    clock = Clock()
    pace = Pace([limit for limit, _ in rows], clock=clock)
    start, sums = clock(), list(accumulate(limit for limit, _ in rows))
    for (limit, share), most in zip(rows, sums, strict=True):
        pace.begin()
        assert limit - 1e-6 <= pace.left() <= most + 1e-6
        clock.now += share * pace.left()
        assert clock() - start <= most + 1e-6
    assert clock() - start <= pace.total + 1e-6


def test_what_is_left_is_told_as_rows_have_gone() -> None:
    """Rule: a sweep that takes half of its time so far will; a slow one is told as slow.

    An estimate that was wrong grows while its row goes on.
    """
    for share in (0.5, 3.0):
        clock = Clock()
        pace = Pace([10.0, 20.0, 30.0], clock=clock)
        assert pace.remaining() is None
        pace.begin()
        assert pace.remaining() is None
        clock.now += 10 * share
        pace.begin()
        assert pace.remaining() == pytest.approx(50 * share)
        clock.now += 5 * share  # within a row
        assert pace.remaining() == pytest.approx(45 * share)
        clock.now += 15 * share  # all that the row before it let hope
        assert pace.remaining() == pytest.approx(30 * share)
        clock.now += 16 * share  # 28 s of limits, of which the last one fades, took 44 shares
        assert pace.remaining() == pytest.approx((16 + 30 * 44 / 28) * share)
        pace.begin()
        late = []
        for _ in range(3):
            clock.now += 60 * share
            late.append(pace.remaining() or 0.0)
        assert late == sorted(late) and late[0] < late[-1] - 100 * share


def test_a_given_number_of_iterations_is_not_limited() -> None:
    """Rule: with -n there is no limit; what is left is told all the same."""
    clock = Clock()
    pace = Pace([1.0, 3.0], bounded=False, clock=clock)
    pace.begin()
    clock.now += 50
    assert pace.left() == float("inf")
    pace.begin()
    assert pace.remaining() == pytest.approx(150)


def test_by_size_all_algorithms_come_together() -> None:
    """Rule: --order size measures every row once, one size after the other, as listed in each."""
    options = parse(shlex.split("-A ring,ps -b 1K -e 4K --order size"), "allreduce")
    work = all_work(jobs([options], RankSetup(2, "inproc")), 2)
    rows = [(work[at].line.size, work[at].chosen.label) for at in order(options, work, 0)]
    assert rows == [(size, name) for size in (1024, 2048, 4096) for name in ("ring", "ps")]


def test_cycles_without_end_begin_anew() -> None:
    """Rule: with -N 0 every cycle has its time."""
    clock = Clock()
    pace = Pace([1.0, 3.0], clock=clock)
    for _ in range(3):
        pace.begin()
        assert pace.left() == pytest.approx(1.0)
        pace.begin()
        clock.now += 4.0
        assert pace.left() == pytest.approx(0.0)


def _limits(*argv: str, gib: int = 24, nranks: int = 16) -> list[float]:
    seen: Sequence[Sequence[Pool]] = [[Pool("n", "on node 0", gib * GIB)]] * nranks
    return limits(jobs([parse(argv, "allreduce")], RankSetup(nranks, "shm")), nranks, seen)


def test_the_mission_ends_in_under_a_quarter_of_an_hour() -> None:
    """Rule: 16 ranks from 1 MB to 1 GB, ring and library, on 24 GB: 15 minutes at most."""
    found = _limits()
    assert len(found) == 44 and sum(found) < 15 * 60
    # The last row out of place needs 32 GiB, the library's in place as well.
    assert [n for n, seconds in enumerate(found) if not seconds] == [20, 40, 42, 43]


def test_limits_follow_budgets_and_sizes() -> None:
    """Rule: a row's limit grows with its buffers and its budget; a copy's is as long."""
    one, two = _limits("-e", "64M"), _limits("-e", "64M", "--budget", "3.5")
    assert [b - a for a, b in zip(one, two, strict=True)] == pytest.approx([1.5] * len(one))
    out = one[:14:2]
    assert out == sorted(out) and all(a > b for a, b in zip(out, one[1:14:2], strict=True))
    ring, tree = (_limits("-e", "2M", "-A", name) for name in ("ring", "tree"))
    assert _limits("-e", "2M", "-A", "ring,tree") == ring + tree


def test_a_sweep_keeps_within_its_total(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: --total shortens every row by the same share, and lengthens none."""
    # `rows` reads the clock several times for one row.
    monkeypatch.setattr("bench.run.pace.Pace", partial(Pace, clock=Clock()))
    world, room = SimpleNamespace(rank=0, size=2), SimpleNamespace(seen=lambda: [[]] * 2)

    def rows(*argv: str) -> list[float]:
        options = parse(["-b", "1M", "-e", "4M", "-N", "2", *argv], "allreduce")
        pace = planned(jobs([options], RankSetup(2, "shm")), cast("Any", world), cast("Any", room))
        found, before = [], 0.0
        for _ in range(2 * 2 * 2 * 3):  # cycles, algorithms, placements, sizes
            pace.begin()
            found.append(pace.left() + pace.elapsed - before)
            before += found[-1]
        assert before == pytest.approx(pace.total)
        return found

    whole = rows()
    assert rows("--total", "10m") == pytest.approx(whole)
    share = 30 / sum(whole)
    assert rows("--total", "30s") == pytest.approx([share * one for one in whole])
    for more in ("-n 5", "-N 0"):
        assert on_threads("allreduce", "--total 5m", more)[0] == 2


@pytest.mark.parametrize("more", ["", "-n 5", "--order size", "-N 3", "-A ring,ps"])
def test_the_start_says_which_sizes_are_too_large(
    more: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: the largest size that fits is named before the first row; nothing if all or none fit.

    Two ranks in place need 2 GiB for rows of 1 GiB, and 85 % of the free memory may be used.
    """
    for free, largest in ((3 * GIB, "1 GiB"), (100 << 40, ""), (1000, "")):
        pools = [[Pool("node 0", "on node 0", free)]] * 2
        options = parse(["-b", "256M", "-e", "10T", *more.split()], "allreduce")
        world, room = SimpleNamespace(rank=0, size=2), SimpleNamespace(seen=lambda p=pools: p)
        pace = planned(jobs([options], RankSetup(2, "shm")), cast("Any", world), cast("Any", room))
        Screen(0).start(9, pace)
        said = [line for line in capsys.readouterr().err.splitlines() if "memory" in line]
        assert said == [f"busbar: sizes above {largest} do not fit in memory"] * bool(largest)


def test_time_before_the_first_row_does_not_count() -> None:
    """Rule: a wait for a quiet machine takes nothing from the rows' time, nor from --total."""
    clock = Clock()
    pace = Pace([2.0, 2.0], most=3.0, clock=clock)
    clock.now += 600.0
    assert pace.elapsed == 0 and not pace.is_over()
    pace.begin()
    assert pace.left() == 2.0
    clock.now += 3.0
    assert pace.is_over()


@pytest.mark.parametrize("more", ["", "--order size", "--split mod:2 -t 4"])
def test_no_row_begins_after_the_total(
    more: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rule: --total leaves out rows that have not begun, on all ranks, and the run says so."""
    monkeypatch.setattr(Pace, "is_over", lambda pace: pace._at >= 0)  # after the first row
    file = tmp_path / "a.jsonl"
    argv = f"-t 2 -b 1K -e 4K -A ring,tree --budget 0.05 --total 1h --out {file} {more}"
    status, out, err = on_threads("allreduce", argv)
    assert status == 0, err
    assert "# ended early: the time of --total is over\n" in out
    assert "# rows measured: ring 1 of 3, tree 0 of 3" in out
    assert "busbar: the time of --total is over\n" in err
    kept = next(tmp_path.glob("a*.jsonl")).read_text().splitlines()
    assert '"end":"early"' in kept[-1] and sum('"placement"' in line for line in kept) == 1


def test_the_time_left_ends_at_the_total() -> None:
    """Rule: the estimate of the remaining time is no longer than --total leaves."""
    clock = Clock()
    pace = Pace([1.0] * 10, most=10.0, clock=clock)
    pace.begin()
    clock.now += 6.0
    pace.begin()
    assert pace.remaining() == pytest.approx(4.0) and not pace.is_over()
    clock.now += 4.0
    assert pace.remaining() == 0.0 and pace.is_over()


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (59.4, "59 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")]
)
def test_durations_are_for_people(seconds: float, said: str) -> None:
    """Rule: two units at most."""
    assert format_duration(seconds) == said


def _shown(
    steps: Sequence[float], each: float, *, rank: int = 0, bounded: bool = True, **more: bool
) -> str:
    """The progress lines in a pipe, of rows that take the seconds ``steps``, at most ``each``."""
    clock, err = Clock(), io.StringIO()
    with contextlib.redirect_stderr(err):
        pace, screen = Pace([each] * len(steps), bounded=bounded, clock=clock), Screen(rank)
        screen.start(len(steps), pace, **more)
        for number, seconds in enumerate(steps):
            pace.begin()
            screen.advance(f"row {number}")
            for _ in range(int(seconds * 10)):  # as a watching thread does
                clock.now += 0.1
                screen.tick()
        screen.close()
        clock.now += 1e3
        screen.tick()
    return err.getvalue()


def test_a_pipe_gets_a_line_every_few_seconds() -> None:
    """Rule: row, elapsed and remaining, at most every 5 s, also within a long row; rank 0 alone."""
    said = _shown([4.0, 3.0, 12.0, 1.0], 10.0).splitlines()
    assert said[0].startswith("busbar: 4 rows and placements, 40 s at most (--budget is for each")
    assert said[1] == "busbar: 1 of 4 done, 5 s passed, about 11 s left: row 1"
    assert [line.split(", ")[1] for line in said[2:]] == [
        "10 s passed",
        "15 s passed",
        "20 s passed",
    ]
    assert all("row 2" in line for line in said[2:4])
    assert not _shown([40.0], 10.0, rank=1)
    # Within a row that is late an estimate would rise.
    assert "this row takes longer than expected: row 2" in said[3]
    # An estimate for the last row would rise from 0.
    last = _shown([4.0, 3.0, 20.0], 20.0).splitlines()[-1]
    assert "left" not in last and "the last row takes longer than expected: row 2" in last


def test_a_screen_may_leave_out_the_time_and_the_progress() -> None:
    """Rule: later launches do not say the time again; a quiet run prints no line of progress."""
    steps = [4.0, 3.0, 12.0]
    whole = _shown(steps, 10.0).splitlines()
    assert _shown(steps, 10.0, limit=False).splitlines() == whole[1:]
    assert _shown(steps, 10.0, progress=False).splitlines() == whole[:1]


def test_the_time_left_does_not_rise_without_a_reason() -> None:
    """Rule: an estimate above the one printed before it says that rows take longer."""
    risen = late = 0
    for seed in range(20):
        random, last = Random(seed), inf
        steps = [random.uniform(0.5, 4.0) * (8 if random.random() < 0.2 else 1) for _ in range(12)]
        for line in _shown(steps, 10.0).splitlines()[1:]:
            if match := re.search(r"about (?:(\d+) min )?(\d+) s left(.*): row", line):
                seconds = 60 * int(match[1] or 0) + int(match[2])
                reason = match[3] == ", as rows take longer than before"
                assert seconds <= last or reason, line
                risen += reason
                last = seconds
            elif "row 0" not in line:  # before which nothing is known
                assert "row takes longer than expected" in line
                late += 1
    assert risen and late


def test_a_run_without_end_has_no_whole_and_no_rest() -> None:
    """Rule: with `-N 0` the placements so far are counted, of no number, and nothing is left."""
    clock = Clock()
    pace, screen = Pace([10.0, 20.0, 30.0], clock=clock), Screen(0)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        screen.start(3, pace, endless=True)
        for _ in range(8):
            pace.begin()
            screen.advance("ring 8 B float sum out")
            clock.now += 10.0
    lines = said.getvalue().splitlines()
    assert lines and lines[-1].startswith("busbar: 7 done, ")
    assert not any(" of " in line or "left" in line or "at most" in line for line in lines)
    assert all(parse_progress(line) is not None for line in lines)


def test_short_runs_are_quiet() -> None:
    """Rule: what is over in a few seconds says nothing, nor what has no limit before it begins."""
    assert not _shown([1.0, 3.0], 10.0)
    assert "at most" not in _shown([40.0], 50.0, bounded=False)


def test_a_launchers_pipe_gets_progress(mpich: Mpi) -> None:
    """Rule: under mpirun, where rank 0's standard error is a pipe, progress is seen in time."""
    argv = ["-m", "bench.allreduce", "-b", "1K", "-e", "1K", "-N", "0", "-A", "ring"]
    process = subprocess.Popen(
        under(mpich, 2, *argv), cwd=REPO, env=environment(), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    with process.stderr as lines:
        first = next(line for line in lines if " done, " in line)
    process.terminate()
    process.wait(60)
    assert first.startswith("busbar: ") and " s passed" in first and "ring 1024 B" in first
