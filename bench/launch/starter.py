"""Starts the ranks of ``--ranks`` under a launcher and sees the run to its end.

Every rank has a socket to the starter (`bench.launch.line`). So the starter knows which rank was
lost, how far all ranks are, and the rows so far, whatever the launcher does.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex

from bench.launch import child
from bench.launch.line import VARIABLE, Phase, patience
from bench.launch.peers import Callers, Peer
from bench.launch.segments import Segments, remove_session
from busbar.errors import RankFailure

_TICK_S = 0.5
# Seconds for a launcher to end by itself when a rank is lost, for ranks to report, and for ranks to
# close their files when the launcher is gone.
_CLEANS_S, _REPORTS_S, _CLOSES_S = 4.0, 10.0, 1.0
# Seconds for a killed process to disappear; it needs a core for that.
_DIES_S = 5.0
# The ranks end a row that takes too long themselves, and say more of it.
_LATER_S = 7.0
_ORDER = (Phase.STARTING, Phase.ROWS, Phase.ENDING)
# What ranks leave with where a result was wrong: in good order, all of them.
_WRONG, _FAILED = 1, RankFailure.exit_status
EARLY = b"# ended early:"  # see `bench.run.session`


class RankRun:
    """One run of a launcher; `wait` sees it to its end.

    ``why``: what ended it before its time, empty where nothing did; ``came``: the signal that did,
    or 0.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        ranks: int,
        timeout: float | None,
        soft: signal.Signals = signal.SIGTERM,
    ) -> None:
        """``timeout``: seconds that a row may take.

        ``soft``: what tells a launcher to end where no rank has called, as from another host's
        network, which cannot.
        """
        self._soft = soft
        self._command, self._env, self._ranks = command, dict(env), ranks
        self._timeout, self._limit = timeout, patience(timeout, ranks)
        self._selector = selectors.DefaultSelector()
        name = token_hex(16)
        self._peers, self._segments = Callers(name), Segments()
        self._env[VARIABLE] = name
        self.why, self._status, self.came = "", 0, 0
        #: Whether a rank has ended without a word.
        self.lost = False
        self._signals: list[int] = []
        self._end_by = float("inf")
        self._stage, self._since = Phase.STARTING, time.monotonic()
        self._stopped = child.StoppedProcesses()
        # Since the launcher ended nothing has come for a while: no last words are on their way.
        self._silent = False
        self._output_lost: OSError | None = None
        self._early = False  # whether a rank's report of that came by

    @property
    def unreported(self) -> bytes:
        """The rows that no rank has printed a closing report of, as the lines of a record file."""
        told = self._peers.reported or self._early
        return b"" if told else b"".join(self._peers.records)

    def wait(self) -> int:
        """Run it; gives the exit status. Raises OSError where the launcher cannot be started.

        BrokenPipeError and OSError, too, where standard output can no longer be written.
        """
        self._listen(self._peers.listener, self._called)
        with child.handled(lambda number, _: self._signals.append(number)), child.orphans():
            self._launcher = child.popen(self._command, self._env, stdout=subprocess.PIPE)
            pump = threading.Thread(target=self._pump, name="output", daemon=True)
            pump.start()
            try:
                while self._goes_on(pump):
                    over = self._launcher.poll() is not None
                    # In the order in which they came: the first rank that is lost is to blame.
                    # A process that was stopped meanwhile has not looked: its time was over.
                    came = self._selector.select(_TICK_S) or self._selector.select(0)
                    for key, _ in came:
                        key.data()
                    self._silent = over and not came
                    self._look()
                    if time.monotonic() > self._end_by:
                        self._kill()
                        break
                else:
                    self._launcher_ended(time.monotonic())  # perhaps since we looked
            finally:
                self._close(pump)
        return self._verdict()

    def _goes_on(self, pump: threading.Thread) -> bool:
        if self._launcher.poll() is None or pump.is_alive() or self._peers.inside():
            return True
        return bool(self._selector.select(0))  # who called and left has not been heard yet

    # -- what comes

    def _listen(self, whom: socket.socket, action: Callable[[], object]) -> None:
        self._selector.register(whom, selectors.EVENT_READ, action)

    def _called(self) -> None:
        peer = self._peers.accept()
        if peer is not None:
            self._listen(peer.end, lambda: self._hear(peer))
            if self.why:
                peer.say(self._word())

    def _hear(self, peer: Peer) -> None:
        before, end = (peer.stage, peer.row, peer.signs), peer.end
        if not self._peers.hear(peer):
            self._selector.unregister(end)
            end.close()
            if peer.left is None and not self._peers.left():
                self.lost = True
                self._ends(f"{peer.name} was lost while {peer.doing}", _FAILED, _CLEANS_S)
            elif peer.left not in (None, 0, _WRONG):
                # A launcher may not mind; the others wait for it, in MPI's start for ever.
                self._end_by = min(self._end_by, time.monotonic() + _REPORTS_S)
        elif (peer.stage, peer.row, peer.signs) != before:
            if before[0] == Phase.STARTING != peer.stage:
                self._segments.look(peer.pid)
            self._stage, self._since = peer.stage, time.monotonic()
        if peer.signalled:
            name = signal.Signals(peer.signalled).name
            why = f"interrupted by {name} (rank {peer.rank})"
            self._ends(why, 128 + peer.signalled, _REPORTS_S)

    def _pump(self) -> None:
        """Hand on what the ranks print: a launcher does not say that it could not."""
        assert self._launcher.stdout is not None
        source, before = self._launcher.stdout.fileno(), b""
        while data := os.read(source, 1 << 16):
            self._early |= EARLY in before + data
            before = data[-len(EARLY) :]
            try:
                while data and self._output_lost is None:
                    data = data[os.write(1, data) :]
            except OSError as error:
                self._output_lost = error

    # -- what does not come, and what is seen by looking

    def _look(self) -> None:
        now = time.monotonic()
        while self._signals:
            self._interrupted(self._signals.pop(0))
        if self._output_lost is not None:
            self._ends("standard output cannot be written", 2, _CLEANS_S)
        if self._launcher.poll() is not None:
            self._launcher_ended(now)
            return
        self._look_for_stopped()
        rows = self._stage == Phase.ROWS
        allowed = self._timeout if rows else self._limit
        if allowed is not None and now > self._since + allowed + (_LATER_S if rows else 0.0):
            self._ends(f"{self._late()} ({self._stage} for {allowed:g} s; -T)", _FAILED, _CLOSES_S)

    def _look_for_stopped(self) -> None:
        """End the run where its launcher or a rank stays stopped: all others wait for it."""
        inside, pid = self._peers.inside(), self._launcher.pid
        overdue = self._stopped.overdue([pid, *(peer.pid for peer in inside)])
        if pid in overdue:
            self._ends(f"the launcher (pid {pid}) is stopped", _FAILED, _CLOSES_S)
        elif overdue:
            still = [peer for peer in inside if peer.pid in overdue]
            self._ends(f"{_names(still)} stopped", _FAILED, _CLOSES_S)

    def _interrupted(self, number: int) -> None:
        """Have the run end with its report; being told again, without."""
        again, self.came = self.came, self.came or number
        self._ends(f"interrupted by {signal.Signals(number).name}", 128 + number, _REPORTS_S)
        inside = self._peers.inside()
        rows = len(inside) == self._ranks and all(peer.stage == Phase.ROWS for peer in inside)
        if again or not rows:  # nobody has anything to report
            soft = signal.SIGTERM if again or self._peers.all else self._soft
            self._launcher.send_signal(soft)

    def _launcher_ended(self, now: float) -> None:
        left, inside = self._peers.left(), self._peers.inside()
        status = self._launcher.returncode
        # A rank may notice a killed launcher before us and leave; nothing reads its rows then.
        early = left or inside if status < 0 else inside and self._silent and not left
        if early and not self.why:
            why = f"the launcher ended before its ranks ({child.shell(status)})"
            self._ends(why, _FAILED, _CLOSES_S)
        elif self.why or left or not inside:
            self._end_by = min(self._end_by, now + _CLEANS_S)  # what it has left has so long

    def _late(self) -> str:
        """The ranks that all others wait for."""
        inside = self._peers.inside()
        still = [peer for peer in inside if child.stopped(peer.pid)]
        if still:
            return f"{_names(still)} stopped"
        if len(inside) < self._ranks and self._stage == Phase.STARTING:
            return f"{self._ranks - len(inside)} of {self._ranks} ranks have not begun"
        places = [(_ORDER.index(peer.stage), peer.row) for peer in inside]
        behind = [peer for peer, place in zip(inside, places, strict=True) if place == min(places)]
        if len(behind) < len(inside):
            return f"{_names(behind)} behind the others"
        return "all ranks wait for each other"

    # -- the end

    def _ends(self, why: str, status: int, grace: float) -> None:
        """The run ends for this reason, unless it ends already; what is left then is killed."""
        if not self.why:
            self.why, self._status, self._end_by = why, status, time.monotonic() + grace
            for peer in self._peers.inside():
                peer.say(self._word())

    def _word(self) -> str:
        """What a rank is told, see `bench.run.watch`."""
        return f"{self._status} {self.why if self._output_lost is None else ''}"

    def _kill(self) -> None:
        for pid in child.below(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for peer in self._peers.inside():
            peer.kill()

    def _close(self, pump: threading.Thread) -> None:
        """Leave nothing behind: no process, no zombie, no segment, no folder."""
        self._kill()
        self._launcher.wait()
        _reap(time.monotonic() + _DIES_S)
        pump.join(1.0)  # nobody may take what is left of the output
        seen = [peer for peer in self._peers.all if peer.stage != Phase.STARTING]
        self._segments.remove(unseen=len(seen) < self._ranks)
        remove_session(self._launcher.pid, self._env)
        self._selector.close()
        self._peers.close()

    def _verdict(self) -> int:
        if self._output_lost is not None:
            raise self._output_lost
        if self.why:
            return self._status
        status = child.shell(self._launcher.returncode)
        left = self._peers.left()
        if not left and status:
            self.why = f"the launcher ended with {status} after its ranks"
            if len(self._peers.all) < self._ranks:
                self.why = f"the launcher ended with {status} before all ranks had begun"
            return _FAILED
        return left


def _reap(until: float) -> None:
    """Wait for all that was killed below this process."""
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)


def _names(peers: Sequence[Peer]) -> str:
    return ", ".join(peer.name for peer in peers) + (" is" if len(peers) == 1 else " are")
