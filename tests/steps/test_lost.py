"""Learners that are processes: some are killed, some come late."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Timer

import pytest

from bench.launch import child
from bench.steps.server import run
from busbar.errors import RankFailure
from reports.readers.codec import measurements
from tests.conftest import LIMIT_S, Mpi, Run, environment, thorough, under
from tests.reports.runs import step_of

RUN = "--learners 2 --model toy --scale 512 --compute exp:2 --budget 600"


@contextmanager
def _started(
    *words: str, command: Sequence[str] = (sys.executable, "-m", "bench.step")
) -> Iterator[subprocess.Popen[str]]:
    """``bench.step`` with its words said on standard error; ended when it takes too long."""
    process = subprocess.Popen(
        [*command, *words],
        env=environment(),
        stdout=subprocess.PIPE,
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
    """Rule: a killed learner does not stop the others, and a new one gets the server's weights.

    The versions at which learners join show that updates continue.
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
    """Rule: a killed learner ends a synchronous run, which names it; no new learner can join."""
    with _started(*RUN.split(), "--update", "sync") as run:
        name = _until(run, r"--join (\w+)")[1]
        victim = int(_until(run, r"2 learners are here \(pid \d+, (\d+)\)")[1])
        with _started("--join", name) as late:
            _until(late, "sync counts on the 2 learners that it began with")
            assert late.wait(LIMIT_S) == 2
        os.kill(victim, signal.SIGKILL)
        _until(run, rf"learner 1 \(pid {victim}\) was lost; sync cannot go on without it")
        assert run.wait(LIMIT_S) == 4


@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_learner_that_stays_stopped_is_lost(update: str) -> None:
    """Rule: a stopped learner is named, without -T; the others continue if their update can.

    It does not outlive its run, even if the run is killed.
    """
    with _started(*RUN.split(), "--update", update) as run:
        found = _until(run, r"2 learners are here \(pid (\d+), (\d+)\)")
        other, victim = map(int, found.groups())
        there = [os.pidfd_open(other), os.pidfd_open(victim)]
        os.kill(victim, signal.SIGSTOP)
        if update == "sync":
            _until(run, rf"learner 1 \(pid {victim}\) is stopped; sync cannot go on without it")
            assert run.wait(LIMIT_S) == 4
        else:
            _until(run, rf"learner 1 \(pid {victim}\) is stopped; 1 go on")
            os.kill(other, signal.SIGSTOP)
            run.kill()
    for process in there:
        assert select.select([process], [], [], LIMIT_S)[0], "a stopped learner outlives its run"
        os.close(process)


DIES = """
import os, signal, sys
from bench.launch.control_socket import ControlSocket
from bench.steps.main import main
from bench.steps.server.loops import WorkerLoop
once = WorkerLoop._round
def round_(self):
    once(self)
    if self.log.number == 1 and self.log.pushed == 5:
        os.kill(os.getpid(), signal.SIGKILL)
WorkerLoop._round = round_
sys.exit(main(sys.argv[1:], ControlSocket()))
"""


@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize("mpi", ["openmpi"], indirect=True)
@pytest.mark.parametrize("update", thorough("async", "k-async:2", "sync"))
def test_where_mpi_goes_on_without_a_rank_so_do_the_others(mpi: Mpi, run: Run, update: str) -> None:
    """Rule: under ULFM a killed rank does not stop an asynchronous run; a synchronous one ends."""
    ulfm = mpi._replace(flags=(*mpi.flags, "--with-ft", "ulfm"))
    step = ("--model", "toy", "--scale", "512", "--compute", "exp:2", "-n", "1000", "--json")
    done = run(*under(ulfm, 4, "-c", DIES, *step, "--update", update))
    assert "learner 1 (rank 2) was lost" in done.stderr
    if update == "sync":
        assert done.returncode == 4 and "sync cannot go on without it" in done.stderr
        return
    (one,) = measurements(done.stdout.partition("#")[0])
    ((when, learner, _),) = step_of(one).lost
    assert done.returncode == 0 and "; 2 go on" in done.stderr and learner == 1
    # Updates were made afterwards, and as many as were asked for.
    assert len(step_of(one).update_s) == 1000 and when < sum(step_of(one).update_s)
    assert f"# ended after {update}, with 1 ranks less" in done.stdout


# Ends when a learner has come and has been there for a while.
TAKES = DIES.replace(
    "sys.exit",
    """
from bench.steps.server.loops import ServerLoop
from bench.steps.server.run import _ServerRun
join, came = ServerLoop._join, []
def join_(self, learner):
    join(self, learner)
    came.append(self._core.version)
ServerLoop._join = join_
_ServerRun._enough = lambda self, updates, spent: bool(came) and updates >= came[0] + 100
sys.exit""",
)


@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize("mpi", ["openmpi"], indirect=True)
@pytest.mark.parametrize("servers", thorough(1, 2))
def test_a_new_learner_joins_ranks_that_have_lost_one(mpi: Mpi, servers: int) -> None:
    """Rule: under ULFM a process may take the place of a lost rank, with the servers' weights."""
    ulfm = mpi._replace(flags=(*mpi.flags, "--with-ft", "ulfm"))
    step = "--model toy --scale 512 --compute exp:2 --json --update async --servers"
    words = under(ulfm, 3 + servers, "-c", TAKES, *step.split(), str(servers))
    with _started(command=words) as run:
        name = _until(run, r"--join (\w+)")[1]
        _until(run, r"learner 1 \(rank \d\) was lost; 2 go on")
        with _started("--join", name) as late:
            version = int(_until(run, r"learner 3 joins at version (\d+)")[1])
            assert late.wait(LIMIT_S) == 0
        assert run.stdout is not None
        (one,) = measurements(run.stdout.read().partition("#")[0])
    assert version > 0 and [who for _, who in step_of(one).joined] == [3]
    assert len(step_of(one).update_s) >= 100 and [who for _, who, _ in step_of(one).lost] == [1]


def test_who_joins_nothing_is_told() -> None:
    """Rule: an unknown name of a run is refused in one line."""
    with _started("--join", "nobody") as late:
        _until(late, "no run 'nobody' of yours on this host takes learners")
        assert late.wait(LIMIT_S) == 3


@pytest.mark.timeout(60)
def test_a_learner_that_stops_before_it_began_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a server that waits for its learners reports one that is stopped."""
    monkeypatch.setattr(child, "STOPPED_S", 0.1)
    stops = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    process, look = child.popen([sys.executable, "-c", stops], os.environ), child.StoppedProcesses()
    try:
        with pytest.raises(RankFailure, match=rf"pid {process.pid}\) is stopped before it began"):
            while True:
                run._check_running([process], look)
    finally:
        process.kill()
        process.wait()
