"""A child process that gets the signals which end this process, and is not left behind.

A scheduler or ``timeout`` signals only the process that it started, not the launcher below it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from busbar.errors import Unavailable
from busbar.status import RANK_LOST
from busbar.terminal import print_note

# Open MPI's launcher stops forwarding output when it is interrupted, but passes this signal on.
SOFTLY = signal.SIGUSR1

# Seconds for which a process may be stopped: there is no job control here, because children have a
# session of their own. Seconds between two checks, and seconds after which the checking process
# itself was stopped.
STOPPED_S, _LOOK_S, _AWAY_S = 3.0, 0.5, 2.0

_PF_EXITING = 0x4  # linux/sched.h
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


class Ended(NamedTuple):
    """How a child ended: its status as a shell counts it, and its standard error if it was piped.

    ``interrupted``: the signal to this process that ended the child, or 0.
    """

    status: int
    err: str
    interrupted: int


def run(
    command: Sequence[str],
    env: Mapping[str, str],
    stop_signal: signal.Signals | None = None,
    receiver: Callable[[int], int] | None = None,
    *,
    on_line: Callable[[str], object] | None = None,
    within: float | None = None,
    on_signal: Callable[[int], object] = lambda count: None,
    **streams: Any,
) -> Ended:
    """Start a process and wait for it. Raises Unavailable if it cannot be started.

    ``receiver``: maps the child's process id to the process that gets signals, if the child only
    waits for another process. ``on_line`` is called with every line of its standard error when it
    arrives. ``within``: seconds after which the child gets the signal to end. ``on_signal`` is
    called, within the signal handler, with the number of signals to this process so far.

    A signal that ends this process is forwarded once, as ``stop_signal`` if given. The child has a
    session of its own, so that a terminal, or a signal to our whole process group, does not reach
    it a second time: launchers kill at a second signal. At our second signal the child gets
    SIGTERM. If a handler of another signal raises, the child is ended and the exception passed on.
    A process that stays stopped is killed with all its descendants; its standard error then says
    so, and its status is that of a lost rank.
    """
    received: list[int] = []
    pending, first = deque[int](), iter((True,))
    process: subprocess.Popen[str] | None = None

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        pending.append(number)
        forward_pending()
        on_signal(len(received))

    def forward_pending() -> None:
        with suppress(IndexError):  # also if another signal meanwhile empties the queue
            while process is not None:
                number = pending.popleft()
                as_it_is: int = signal.SIGTERM if number == signal.SIGHUP else number
                again = not next(first, False)
                _send(process, signal.SIGTERM if again else stop_signal or as_it_is, receiver)

    with handled(forward):
        if on_line is not None:
            streams["stderr"] = subprocess.PIPE
        try:
            process = popen(command, env, **streams)
        except OSError as error:
            raise Unavailable(f"{command[0]}: cannot be started: {error.strerror}") from None
        forward_pending()  # signals from before the start
        watch = _StopWatch(process)
        watch.start()
        late = partial(_send, process, stop_signal or signal.SIGINT, receiver)
        timer = threading.Timer(max(0.0, within or 0.0), late)
        if within is not None:
            timer.start()
        try:
            err = _text(process, on_line)
        except BaseException:
            _send(process, stop_signal or signal.SIGTERM, receiver)
            process.communicate()
            raise
        finally:
            timer.cancel()
            watch.over.set()
            watch.join()
    status = shell(process.returncode)
    if watch.killed:
        reason = f"{Path(command[0]).name} (pid {process.pid}) is stopped"
        err, status = f"{err}busbar: {reason}\n", RANK_LOST
        if process.stderr is None:  # its standard error is this process's
            print_note(reason)
    return Ended(status, err, received[0] if received else 0)


class StoppedProcesses:
    """Finds processes that have been stopped for long, as by SIGSTOP, in repeated checks."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._looked = 0.0

    def overdue(self, pids: Iterable[int]) -> list[int]:
        """Check these processes; returns those that have been stopped for `STOPPED_S`.

        May be called often: it checks twice a second.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return []
        if now - self._looked > _AWAY_S:  # this process was stopped, too: a job was suspended
            self._since.clear()
        self._looked = now
        still = [pid for pid in pids if stopped(pid)]
        self._since = {pid: self._since.get(pid, now) for pid in still}
        return [pid for pid in still if now >= self._since[pid] + STOPPED_S]


class _StopWatch(threading.Thread):
    """Kills a child that stays stopped, with all its descendants, until ``over`` is set."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(name="stopped", daemon=True)
        self.over, self.killed = threading.Event(), False
        self._process = process

    def run(self) -> None:
        """Check the child until ``over`` is set."""
        look = StoppedProcesses()
        while not self.over.wait(1.2 * _LOOK_S):
            if look.overdue([self._process.pid]):
                self.killed = True
                for pid in (*below(self._process.pid), self._process.pid):
                    with suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                return


def _text(process: subprocess.Popen[str], on_line: Callable[[str], object] | None) -> str:
    if on_line is None or process.stderr is None:
        return process.communicate()[1] or ""
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        on_line(line)
    process.wait()
    process.stderr.close()
    return "".join(lines)


def popen(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    orphaned: signal.Signals = signal.SIGTERM,
    **streams: Any,
) -> subprocess.Popen[str]:
    """Start a process in its own session. It gets ``orphaned`` if this process is killed.

    A stopped process ends only by SIGKILL.
    """
    return subprocess.Popen(
        command,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        **owned(orphaned),
        **streams,
    )


def owned(orphaned: signal.Signals = signal.SIGTERM) -> dict[str, Any]:
    """Keywords of `subprocess.Popen`, and of asyncio's, for a process like one from `popen`.

    Call this in the main thread: the kernel sends the signal when the starting thread ends.
    """
    ending = partial(_end_with, os.getpid(), orphaned) if sys.platform == "linux" else None
    return {"start_new_session": True, "preexec_fn": ending}


def shell(status: int) -> int:
    """An exit status as a shell counts it: 128 more than the signal's number."""
    return status if status >= 0 else 128 - status


def _send(
    process: subprocess.Popen[str], number: int, receiver: Callable[[int], int] | None
) -> None:
    """Send a signal to a process that has not been waited for, or to its ``receiver``."""
    if receiver is None or process.poll() is not None:
        process.send_signal(number)
        return
    with suppress(ProcessLookupError):
        os.kill(receiver(process.pid), number)


@contextmanager
def orphans() -> Iterator[None]:
    """Make this process the parent of descendants whose own parents end."""
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: None
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def parents() -> dict[int, int]:
    """The parent of each process, by their ids; including zombies."""
    parent_of: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError, ValueError):
            parent_of[int(stat.parent.name)] = int(_stat(stat)[1])
    return parent_of


def below(pid: int) -> list[int]:
    """The ids of all descendants of a process, including zombies."""
    known, descendants, fresh = parents(), set[int](), {pid}
    while fresh:
        fresh = {child for child, parent in known.items() if parent in fresh} - descendants
        descendants |= fresh
    return sorted(descendants)


def state(pid: int) -> str:
    """The state of a process in the kernel (R, S, D, T, Z); empty if it is gone."""
    with suppress(OSError, IndexError):
        return _stat(Path(f"/proc/{pid}/stat"))[0]
    return ""


def stopped(pid: int) -> bool:
    """True if a process is stopped, as by SIGSTOP, but not if a debugger holds it."""
    return state(pid) == "T"


def cause(pid: int) -> str:
    """How a process that is ending ends: ``Killed (signal 9)``, ``exit status 3``.

    Empty for one that goes on, and for one that its parent has already waited for.
    """
    try:
        words = _stat(Path(f"/proc/{pid}/stat"))
        flags, code = int(words[6]), int(words[49])  # fields 9 and 52 of proc(5)
    except (OSError, ValueError, IndexError):
        return ""
    if not flags & _PF_EXITING and words[0] not in "ZX":
        return ""
    if number := code & 0x7F:
        return f"{signal.strsignal(number) or 'ended'} (signal {number})"
    return f"exit status {code >> 8}" if code else ""


def _stat(path: Path) -> list[str]:
    """The words after a process's name, which may contain spaces: its state, its parent."""
    return path.read_text(errors="replace").rpartition(")")[2].split()


@contextmanager
def handled(handler: Any) -> Iterator[None]:
    """Handle the signals that end a process; signals that are ignored (nohup) stay ignored.

    Does nothing outside of the main thread, because only that can handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for which, old in before.items():
            signal.signal(which, old or signal.SIG_DFL)


def _end_with(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel to send this process a signal when its parent is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent was killed before; in a container its id may be 1
        # The child still has our handlers, so a signal would run them.
        os._exit(128 + number)
