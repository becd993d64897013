"""The course of a tuning run: told before, kept within its time, and worth something when cut."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.run.tuning_file import load
from bench.tuning.decide import slower
from bench.tuning.launches import Course, Effort, Launch, effort, rounds_within
from reports.statistics.inference import ratio_interval
from tests.bench.test_pace import Clock
from tests.conftest import Mpi, Run, examples, interruptible, popen

_RUNS = st.lists(st.builds(Effort, st.integers(1, 500), st.floats(0.1, 1e4)), min_size=1)


@given(_RUNS, st.floats(0.1, 600), st.lists(st.floats(0, 3), min_size=50, max_size=50))
def test_runs_that_keep_to_their_share_keep_to_the_whole(
    runs: list[Effort], minutes: float, shares: list[float]
) -> None:
    """Rule: whatever share of its time a run takes, all end in time; what one leaves others get."""
    clock, said = Clock(), list[str]()
    begin = clock()
    course = Course(runs, minutes, said.append, clock)
    course.announce()
    for share in shares[: len(runs)]:
        if course.over:
            break
        within, each = course.within(), course.row_seconds()
        assert within is not None and each is not None
        with course.run("a"):
            clock.now += min(share, 1.0) * within
    assert clock.now - begin <= 60 * minutes + 0.1 * len(runs)
    assert f"{len(runs)} run" in said[0] and "within" in said[0]


def test_without_a_limit_it_says_how_long_at_most_and_what_is_left() -> None:
    """Rule: the estimate before is the bound of the rows; that within goes by what they took."""
    clock, said = Clock(), list[str]()
    course = Course([Effort(10, 100.0), Effort(30, 300.0)], None, said.append, clock)
    course.announce()
    assert said == ["2 runs of 40 rows in all, 6 min 40 s at most; --budget MINUTES for less"]
    assert (course.within(), course.row_seconds(), course.over) == (None, None, False)
    with course.run("one") as on_line:
        clock.now += 20
        on_line("busbar: 7 of 10 done, 20 s passed: ring\n")
        on_line("busbar: 8 of 10 done, 20 s passed: ring\n")  # too soon after the one before
    with course.run("two"):
        pass
    assert said[1:] == [
        "1/2 one",
        "1/2 one: 7 of 10 rows, 20 s passed",
        "2/2 two, about 1 min 00 s left in all",
    ]


def test_what_a_run_takes_is_known_before() -> None:
    """Rule: rows are sizes, algorithms, placements and rounds; what cannot run has none."""
    argv = ("-A", "ring,tree,library", "-b", "1K", "-e", "16K", "-f", "4", "--placement", "out")
    once = effort(Launch("x", "allreduce", 2, (*argv, "--budget", "1")))
    assert once.rows == 9 and 9.0 <= once.seconds < 60
    assert effort(Launch("x", "allreduce", 2, (*argv, "-N", "3"))).rows == 27
    assert effort(Launch("x", "allreduce", 3, ("-A", "recursive_doubling"))) == Effort(0, 0.0)


def test_rounds_give_way_to_rows() -> None:
    """Rule: with little time there are fewer rounds, and never none."""
    runs = [Effort(100, 1.0)]
    assert [rounds_within(runs, m, 3) for m in (None, 10.0, 0.4, 0.01)] == [3, 3, 1, 1]


@examples(40)
@given(st.integers(0, 2**32 - 1), st.floats(1.0, 1.4), st.integers(12, 60), st.integers(1, 4))
def test_the_short_way_says_what_the_drawing_says(
    seed: int, factor: float, each: int, rounds: int
) -> None:
    """Rule: what is decided without a bootstrap is what the bootstrap decides."""
    random = np.random.default_rng(seed)
    sides = [
        [(f * random.normal(1, 0.02) * (1 + random.gamma(2, 0.1, each))).tolist()
         for _ in range(rounds)]
        for f in (1.0, factor)
    ]  # fmt: skip
    found = ratio_interval(*sides)
    assert slower(sides[0], sides[1], 0.02) == (found is not None and found[0] > 1.02)


@pytest.mark.thorough
def test_ctrl_c_keeps_what_was_found(mpich: Mpi, tmp_path: Path) -> None:
    """Rule: an interrupted tuning decides on its rows, writes the file, and ends with 130."""
    out = tmp_path / "t.json"
    line = [
        mpich.python, "-m", "bench.tune", "--ranks", "2", "--transport", "inproc,mpi",
        "-A", "ring,one_shot", "-b", "1K", "-e", "1K", "-N", "0", "--rounds", "10000000",
        "--row-budget", "0.05", "--out", str(out),
    ]  # fmt: skip
    with popen(line, preexec_fn=interruptible) as process:
        assert process.stderr is not None
        for said in process.stderr:
            far = re.search(r": (\d+) of \d+ rows, ", said)
            if far and int(far[1]) >= 8:  # each algorithm has some
                break
        process.send_signal(signal.SIGINT)
        text, err = process.communicate()
    assert process.returncode == 130, err
    assert "interrupted: decided on what 1 of 2 runs have" in err
    assert {one.transport for one in load(out)} == {"inproc"} and "allreduce, 2 ranks" in text


def test_a_budget_ends_what_would_not_end(mpich: Mpi, run: Run, tmp_path: Path) -> None:
    """Rule: --budget MINUTES holds for all runs; one whose time is over gives what it has."""
    out = tmp_path / "t.json"
    line = [
        mpich.python, "-m", "bench.tune", "--ranks", "2", "--transport", "inproc",
        "-A", "ring,one_shot", "-b", "1K", "-e", "1K", "-n", "400000", "--rounds", "50",
        "--budget", "0.05", "--out", str(out),
    ]  # fmt: skip
    done = run(*line)
    assert done.returncode in (0, 1), done.stderr
    assert "within 3 s" in done.stderr and "Traceback" not in done.stderr
    assert out.exists() == (done.returncode == 0)
