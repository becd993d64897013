"""What we start ends when we are told to, and does not outlive us."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.launch import child
from bench.launch.child import SOFTLY, run
from bench.launch.launch import Interrupted
from bench.tuning.launches import Launch
from bench.tuning.launches import run as tune
from busbar.errors import Unavailable
from tests.conftest import REPO, environment, popen

# Tells its parent to end, and gives the number of the signal that comes back of it as its status.
ECHO = """
import os, signal, sys
signals = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
os.kill(os.getppid(), int(sys.argv[1]))
sys.exit(signal.sigwait(signals))
"""
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Says when it is ready, waits for the end, and says which signal that was.
WAIT = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("ready", flush=True)
print(signal.sigwait({signal.SIGTERM}).name, flush=True)
"""


@pytest.fixture
def listening() -> Iterator[None]:
    """No signal is ignored, as those of a terminal are by what runs in the background."""
    before = {one: signal.signal(one, signal.SIG_DFL) for one in ENDINGS}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize(
    ("came", "told", "arrives"),
    [
        (signal.SIGINT, None, signal.SIGINT),
        (signal.SIGTERM, None, signal.SIGTERM),
        (signal.SIGHUP, None, signal.SIGTERM),
        (signal.SIGINT, SOFTLY, SOFTLY),
        (signal.SIGTERM, SOFTLY, SOFTLY),
    ],
)
def test_what_tells_us_to_end_tells_the_child(
    came: signal.Signals, told: signal.Signals | None, arrives: signal.Signals
) -> None:
    """Rule: a signal to us reaches the child as it is, or as the child wants to be told."""
    handler = signal.getsignal(came)
    ended = run([sys.executable, "-c", ECHO, str(int(came))], os.environ, told)
    assert ended == (int(arrives), "", came)
    assert signal.getsignal(came) is handler


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize(("told", "arrives"), [(None, signal.SIGINT), (SOFTLY, SOFTLY)])
def test_what_comes_before_there_is_a_child_reaches_it_alike(
    monkeypatch: pytest.MonkeyPatch, told: signal.Signals | None, arrives: signal.Signals
) -> None:
    """Rule: a signal while the child is being started reaches it once, as any later one does."""
    sent, start = list[int](), child.popen

    def interrupted(*args: Any, **streams: Any) -> subprocess.Popen[str]:
        made = start(*args, **streams)
        signal.raise_signal(signal.SIGINT)
        send = made.send_signal
        monkeypatch.setattr(made, "send_signal", lambda number: (sent.append(number), send(number)))
        return made

    monkeypatch.setattr(child, "popen", interrupted)
    ended = run([sys.executable, "-c", "import signal; signal.pause()"], os.environ, told)
    assert sent == [arrives] and ended.interrupted == signal.SIGINT and ended.status != 0


def test_a_child_by_itself_ends_as_it_ends() -> None:
    """Rule: status and standard error are the child's.

    One that a signal ended is as a shell says.
    """
    code = "import os, sys; sys.stderr.write('so'); sys.stderr.flush(); os._exit(3)"
    assert run([sys.executable, "-c", code], os.environ, stderr=subprocess.PIPE) == (3, "so", 0)
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run([sys.executable, "-c", code], os.environ).status == 128 + signal.SIGKILL
    with pytest.raises(Unavailable, match="nosuch: cannot be started"):
        run(["/nosuch"], os.environ)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child")
def test_whoever_is_killed_leaves_nothing_behind() -> None:
    """Rule: a child whose parent is killed outright is told to end."""
    middle = (
        f"import os, sys; from bench.launch.child import run; run([sys.executable, '-c', "
        f"{WAIT!r}], os.environ)"
    )
    with popen([sys.executable, "-c", middle]) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.kill()
        assert process.stdout.read() == "SIGTERM\n"


def test_tuning_that_is_told_to_end_ends_its_run(tmp_path: Path) -> None:
    """Rule: a signal ends the run under way and the tuning, with the signal's own status.

    What is to be done at the signal is done before the run has ended.
    """
    signals = list[int]()
    launcher = f"{sys.executable} -c {shlex.quote(ECHO)} {int(signal.SIGTERM)}"
    with pytest.raises(Interrupted) as told:
        tune(Launch("one", "allreduce", 2, ()), tmp_path, launcher, on_signal=signals.append)
    assert told.value.exit_status == 128 + signal.SIGTERM and signals == [1]


@pytest.mark.parametrize(("parent", "status"), [("os.getppid()", 0), ("os.getpid()", 143)])
def test_a_child_whose_parent_is_gone_does_not_begin(parent: str, status: int) -> None:
    """Rule: a parent killed before its end could be followed is noticed, whatever its number."""
    code = f"import os; from bench.launch.child import _end_with; _end_with({parent})"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), cwd=REPO)
    assert done.returncode == status


# Starts a process of its own, says its number, and stops.
STOPS = """
import os, signal, subprocess, sys
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(below.pid, file=sys.stderr, flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_child_that_stays_stopped_is_ended_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: whoever waits for a stopped child kills it and what it started, and says so."""
    monkeypatch.setattr(child, "STOPPED_S", 0.1)
    ended = run([sys.executable, "-c", STOPS], os.environ, stderr=subprocess.PIPE)
    below, said = ended.err.splitlines()
    assert ended.status == 4 and re.fullmatch(r"busbar: python\S* \(pid \d+\) is stopped", said)
    # The kernel ends a killed process in its own time; one that was not killed meets the time-out.
    while child.state(int(below)) not in ("", "Z"):
        pass


def test_who_was_stopped_as_well_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a scheduler suspends all processes of a job: the time of that does not count."""
    now = [100.0]
    monkeypatch.setattr(child, "stopped", lambda pid: True)
    monkeypatch.setattr(child.time, "monotonic", lambda: now[0])
    look, found = child.StoppedProcesses(), []
    for passed in (0.0, 1.0, 1.0, 600.0, 1.0, 1.0, 1.0, 1.0):
        now[0] += passed
        found.append(look.overdue([7]))
    assert found == [[], [], [], [], [], [], [7], [7]]


@pytest.mark.parametrize(("state", "is_stopped"), [("T", True), ("t", False), ("S", False)])
def test_what_a_debugger_holds_is_not_stopped(
    state: str, is_stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a process that is traced (t) goes on when its debugger says so; it is not ended."""
    monkeypatch.setattr(child, "state", lambda pid: state)
    assert child.stopped(7) == is_stopped
