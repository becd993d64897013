"""Learners that are processes: some are killed, some come late."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

from tests.conftest import LIMIT_S, environment

RUN = "--learners 2 --model toy --scale 512 --compute exp:2 --budget 600"


@contextmanager
def _started(*words: str) -> Iterator[subprocess.Popen[str]]:
    """``bench.step`` with its words said on standard error; ended when it takes too long."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.step", *words],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    timer = Timer(LIMIT_S, process.kill)
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        process.kill()
        process.communicate()


def _until(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """The first line that is like this."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        if found := re.search(pattern, line):
            return found
        said.append(line)
    raise AssertionError(f"{pattern!r} is not in {said}")


def test_an_asynchronous_run_loses_learners_and_takes_new_ones() -> None:
    """Rule: a killed learner does not stop the others, and one that comes has the server's weights.

    That updates go on is seen by the versions at which learners come.
    """
    with _started(*RUN.split(), "--update", "async") as run:
        name = _until(run, r"--join (\w+)")[1]
        here = _until(run, r"2 learners are here \(pid (\d+), (\d+)\)")
        survivor, victim = map(int, here.groups())
        with _started("--join", name):
            first = int(_until(run, r"learner 2 joins at version (\d+)")[1])
            os.kill(victim, signal.SIGKILL)
            _until(run, rf"learner 1 \(pid {victim}\) was lost; 2 go on")
        _until(run, r"learner 2 \(pid \d+\) was lost; 1 go on")
        with _started("--join", name):
            second = int(_until(run, r"learner 3 joins at version (\d+)")[1])
            assert second > first
            left = os.pidfd_open(survivor)
            run.send_signal(signal.SIGINT)
            assert run.wait(LIMIT_S) == 128 + signal.SIGINT
    assert select.select([left], [], [], LIMIT_S)[0], "a learner outlives who started it"
    os.close(left)


def test_a_synchronous_run_ends_with_the_name_of_who_was_lost() -> None:
    """Rule: a killed learner ends a synchronous run, which names it; nobody new is taken."""
    with _started(*RUN.split(), "--update", "sync") as run:
        name = _until(run, r"--join (\w+)")[1]
        victim = int(_until(run, r"2 learners are here \(pid \d+, (\d+)\)")[1])
        with _started("--join", name) as late:
            _until(late, "sync counts on the 2 learners that it began with")
            assert late.wait(LIMIT_S) == 2
        os.kill(victim, signal.SIGKILL)
        _until(run, rf"learner 1 \(pid {victim}\) was lost; sync cannot go on without it")
        assert run.wait(LIMIT_S) == 4


def test_who_joins_nothing_is_told() -> None:
    """Rule: a name that is no run's is refused in one line."""
    with _started("--join", "nobody") as late:
        _until(late, "no run 'nobody' of yours on this host takes learners")
        assert late.wait(LIMIT_S) == 3
