"""Starts the ranks of ``--ranks`` under a launcher and supervises the run until its end.

Every rank has a socket to this process (`bench.launch.control_socket`). So this process knows which
rank was lost, the progress of all ranks, and the rows so far, whatever the launcher does.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex

from bench.launch import child
from bench.launch.control_socket import VARIABLE, Phase, address, patience, process
from bench.launch.segments import Segments, remove_session
from busbar.errors import RankFailure
from busbar.status import BY_SIGNAL, EARLY

# A record may have the times of every iteration of every rank.
_LONGEST = 1 << 28
_TICK_S = 0.5
# Seconds for a launcher to end by itself when a rank is lost, for ranks to report, and for ranks to
# close their files when the launcher is gone.
_CLEANS_S, _REPORTS_S, _CLOSES_S = 4.0, 10.0, 1.0
# Seconds for a killed process to disappear; it needs a core for that.
_DIES_S = 5.0
# The ranks themselves end a row that takes too long, with a better message, so wait longer.
_LATER_S = 7.0
_ORDER = (Phase.STARTING, Phase.ROWS, Phase.ENDING)
# The exit status of ranks with wrong results, which still exit normally.
_WRONG, _FAILED = 1, RankFailure.exit_status
# Lines of MPICH's report on ranks that were killed, with the empty line above it: HYD_pmcd_pmi in
# its src/pm/hydra. A frame has 83 signs.
_BANNER = re.compile(
    rb"^(?:\n?={83}"
    rb"|=   (?:BAD TERMINATION OF|PID \d+ RUNNING AT|EXIT CODE: |KILLED BY SIGNAL: "
    rb"|CLEANING UP REMAINING|YOU CAN IGNORE THE BELOW).*"
    rb"|YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .*"
    rb"|This typically refers to a problem with your application\."
    rb"|Please see the FAQ page for debugging suggestions)\n",
    re.MULTILINE,
)


class Peer:
    """State of one rank, from the messages on its control socket."""

    def __init__(self, end: socket.socket, pid: int) -> None:
        self.end, self.pid = end, pid
        self.rank, self.stage, self.row = -1, Phase.STARTING, -1
        #: What the row measures, for messages; empty if the rank has not sent it.
        self.what = ""
        #: A count that grows with each progress of the rank.
        self.signs = 0
        #: The exit status that the rank sent before it leaves; whether its process has ended.
        self.left: int | None = None
        self.gone = False
        #: The signal that this rank alone received to end, or 0.
        self.signalled = 0
        self._received = bytearray()
        # Kept open, so that no other process with the same number gets this rank's signal.
        self._process: int | None = None
        self._by_number = not hasattr(os, "pidfd_open")
        if not self._by_number:
            with contextlib.suppress(ProcessLookupError):  # gone; its messages are still there
                self._process = os.pidfd_open(pid)

    @property
    def name(self) -> str:
        """The rank and its process, for messages."""
        return f"{f'rank {self.rank}' if self.rank >= 0 else 'a rank'} (pid {self.pid})"

    @property
    def doing(self) -> str:
        """The row or phase of the rank, for messages: ``in row 7 (allreduce ring 64M out)``."""
        if self.stage != Phase.ROWS or self.row < 0:
            return f"while {self.stage}"
        return f"in row {self.row + 1}" + (f" ({self.what})" if self.what else "")

    def receive(self) -> list[bytes] | None:
        """The lines that the rank has sent; None when it is gone."""
        try:
            data = self.end.recv(1 << 16)
        except OSError:
            data = b""
        if not data or len(self._received) > _LONGEST:
            self.gone = True
            return None
        self._received += data
        *lines, rest = bytes(self._received).split(b"\n") if b"\n" in data else [self._received]
        self._received = bytearray(rest)
        return [bytes(line) for line in lines]

    def request_stop(self, text: str) -> None:
        """Ask the rank to stop."""
        with contextlib.suppress(OSError):
            self.end.sendall(text.encode() + b"\n")

    def kill(self) -> None:
        """Kill the rank's process."""
        with contextlib.suppress(OSError):
            if self._process is not None:
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            elif self._by_number:
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the socket."""
        self.end.close()
        if self._process is not None:
            os.close(self._process)


class Peers:
    """All ranks that have connected, and the rows that they have sent."""

    def __init__(self, name: str) -> None:
        """``name``: the socket's name, hard to guess; only this user's processes are accepted."""
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(address(name))
        self.listener.listen(1024)
        self.all: list[Peer] = []
        #: The rows so far, as the lines of a record file; whether a rank has reported them.
        self.records: list[bytes] = []
        self.reported = False

    def accept(self) -> Peer | None:
        """Accept a connection from one of our ranks. Returns None for any other process."""
        end, _ = self.listener.accept()
        pid = process(end)
        if pid is None:
            end.close()
            return None
        try:
            peer = Peer(end, pid)
        except OSError:  # no file descriptor is left to watch the process
            end.close()
            return None
        self.all.append(peer)
        return peer

    def receive(self, peer: Peer) -> bool:
        """Handle the messages of a rank. Returns whether there may be more."""
        lines = peer.receive()
        for line in lines or ():
            self._handle_line(peer, line)
        return lines is not None

    def _handle_line(self, peer: Peer, line: bytes) -> None:
        if line.startswith(b'{"record":'):
            self.records.append(line[len(b'{"record":') : -1] + b"\n")
            return
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            word = json.loads(line)
            peer.rank = int(word.get("rank", peer.rank))
            peer.stage = str(word.get("stage", peer.stage))
            peer.row = int(word.get("row", peer.row))
            peer.what = str(word.get("what", peer.what))
            peer.signs = int(word.get("signs", peer.signs))
            peer.signalled = int(word.get("signalled", peer.signalled))
            self.reported |= bool(word.get("reported"))
            if "left" in word and peer.left is None:
                peer.left = int(word["left"])

    def left(self) -> int:
        """The first nonzero exit status with which a rank left; else 0."""
        return next((peer.left for peer in self.all if peer.left), 0)

    def inside(self) -> list[Peer]:
        """The ranks whose processes have not ended."""
        return [peer for peer in self.all if not peer.gone]

    def close(self) -> None:
        """Close all sockets."""
        self.listener.close()
        for peer in self.all:
            peer.close()


class RankRun:
    """One run of a launcher; `wait` supervises it.

    ``why``: the reason for an early end, or empty; ``came``: the signal that caused it, or 0.
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

        ``soft``: the signal that asks a launcher to end if no rank has connected, for example
        because ranks are on another host's network.
        """
        self._soft = soft
        self._command, self._env, self._ranks = command, dict(env), ranks
        self._timeout, self._limit = timeout, patience(timeout, ranks)
        self._selector = selectors.DefaultSelector()
        name = token_hex(16)
        self._peers, self._segments = Peers(name), Segments()
        self._env[VARIABLE] = name
        self.why, self._status, self.came = "", 0, 0
        #: Whether a rank has ended without sending its exit status.
        self.lost = False
        self._signals: list[int] = []
        self._end_by = float("inf")
        self._stage, self._since = Phase.STARTING, time.monotonic()
        self._stopped = child.StoppedProcesses()
        # True if no message has arrived for a while since the launcher ended.
        self._silent = False
        self._output_lost: OSError | None = None
        self._early = False  # whether a rank's report of an early end has passed through

    @property
    def unreported(self) -> bytes:
        """The measured rows as a record, if no rank printed the closing report; else empty."""
        reported = self._peers.reported or self._early
        return b"" if reported else b"".join(self._peers.records)

    def wait(self) -> int:
        """Run the launcher; returns the exit status. Raises OSError if it cannot be started.

        Also raises BrokenPipeError or OSError if standard output can no longer be written.
        """
        self._listen(self._peers.listener, self._accept)
        with child.handled(lambda number, _: self._signals.append(number)), child.orphans():
            self._launcher = child.popen(self._command, self._env, stdout=subprocess.PIPE)
            pump = threading.Thread(target=self._pump, name="output", daemon=True)
            pump.start()
            try:
                while self._goes_on(pump):
                    over = self._launcher.poll() is not None
                    # Handle events in the order of arrival: the error names the first lost rank.
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
        return bool(self._selector.select(0))  # messages of ranks that have left

    # -- messages

    def _listen(self, whom: socket.socket, action: Callable[[], object]) -> None:
        self._selector.register(whom, selectors.EVENT_READ, action)

    def _accept(self) -> None:
        peer = self._peers.accept()
        if peer is not None:
            self._listen(peer.end, lambda: self._receive(peer))
            if self.why:
                peer.request_stop(self._stop_message())

    def _receive(self, peer: Peer) -> None:
        before, end = (peer.stage, peer.row, peer.signs), peer.end
        if not self._peers.receive(peer):
            self._selector.unregister(end)
            end.close()
            if peer.left is None and not self._peers.left():
                self.lost = True
                cause = child.cause(peer.pid)  # its launcher has mostly not waited for it yet
                how = f": {cause}" if cause else ""
                self._end(f"{peer.name} was lost {peer.doing}{how}", _FAILED, _CLEANS_S)
            elif peer.left not in (None, 0, _WRONG):
                # A launcher may ignore this, but other ranks wait for it, some without limit.
                self._end_by = min(self._end_by, time.monotonic() + _REPORTS_S)
        elif (peer.stage, peer.row, peer.signs) != before:
            if before[0] == Phase.STARTING != peer.stage:
                self._segments.look(peer.pid)
            self._stage, self._since = peer.stage, time.monotonic()
        if peer.signalled:
            name = signal.Signals(peer.signalled).name
            why = f"{BY_SIGNAL} {name} (rank {peer.rank})"
            self._end(why, 128 + peer.signalled, _REPORTS_S)

    def _pump(self) -> None:
        """Copy the ranks' output to standard output; a launcher hides errors of that.

        Only whole lines are written: standard error may be the same terminal. After a signal
        MPICH's report on killed ranks is left out.
        """
        assert self._launcher.stdout is not None
        source, rest, data = self._launcher.stdout.fileno(), b"", b"\n"
        while data:
            data = os.read(source, 1 << 16)
            lines, end, rest = (rest + data).rpartition(b"\n") if data else (rest, b"", b"")
            self._early |= EARLY.encode() in lines
            lines += end
            if self.came:
                lines = _BANNER.sub(b"", lines)
            try:
                while lines and self._output_lost is None:
                    lines = lines[os.write(1, lines) :]
            except OSError as error:
                self._output_lost = error

    # -- missing messages, and checks of processes

    def _look(self) -> None:
        now = time.monotonic()
        while self._signals:
            self._interrupted(self._signals.pop(0))
        if self._output_lost is not None:
            self._end("standard output cannot be written", 2, _CLEANS_S)
        if self._launcher.poll() is not None:
            self._launcher_ended(now)
            return
        self._look_for_stopped()
        rows = self._stage == Phase.ROWS
        allowed = self._timeout if rows else self._limit
        if allowed is not None and now > self._since + allowed + (_LATER_S if rows else 0.0):
            self._end(f"{self._late()} ({self._stage} for {allowed:g} s; -T)", _FAILED, _CLOSES_S)

    def _look_for_stopped(self) -> None:
        """End the run if its launcher or a rank stays stopped, because all others wait for it."""
        inside, pid = self._peers.inside(), self._launcher.pid
        overdue = self._stopped.overdue([pid, *(peer.pid for peer in inside)])
        if pid in overdue:
            self._end(f"the launcher (pid {pid}) is stopped", _FAILED, _CLOSES_S)
        elif overdue:
            still = [peer for peer in inside if peer.pid in overdue]
            self._end(f"{_names(still)} stopped", _FAILED, _CLOSES_S)

    def _interrupted(self, number: int) -> None:
        """End the run with its report; at a second signal without a report."""
        again, self.came = self.came, self.came or number
        self._end(f"{BY_SIGNAL} {signal.Signals(number).name}", 128 + number, _REPORTS_S)
        inside = self._peers.inside()
        rows = len(inside) == self._ranks and all(peer.stage == Phase.ROWS for peer in inside)
        if again or not rows:  # no rank has anything to report
            soft = signal.SIGTERM if again or self._peers.all else self._soft
            self._launcher.send_signal(soft)

    def _launcher_ended(self, now: float) -> None:
        left, inside = self._peers.left(), self._peers.inside()
        status = self._launcher.returncode
        # A rank may notice a killed launcher before this process and leave; its rows are then lost.
        early = left or inside if status < 0 else inside and self._silent and not left
        if early and not self.why:
            why = f"the launcher ended before its ranks ({child.shell(status)})"
            self._end(why, _FAILED, _CLOSES_S)
        elif self.why or left or not inside:
            self._end_by = min(self._end_by, now + _CLEANS_S)  # time for remaining ranks to exit

    def _late(self) -> str:
        """Name the ranks for which all others wait."""
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

    # -- ending

    def _end(self, why: str, status: int, grace: float) -> None:
        """End the run, unless it is ending; after ``grace`` seconds kill what remains."""
        if not self.why:
            self.why, self._status, self._end_by = why, status, time.monotonic() + grace
            for peer in self._peers.inside():
                peer.request_stop(self._stop_message())

    def _stop_message(self) -> str:
        """The message that asks a rank to stop: the exit status, then the reason."""
        return f"{self._status} {self.why if self._output_lost is None else ''}"

    def _kill(self) -> None:
        for pid in child.below(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for peer in self._peers.inside():
            peer.kill()

    def _close(self, pump: threading.Thread) -> None:
        """Clean up: processes, zombies, segments, and the launcher's session folder."""
        self._kill()
        self._launcher.wait()
        _reap(time.monotonic() + _DIES_S)
        pump.join(1.0)  # the reader of our output may have stopped reading
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
    """Wait for killed processes below this one, until the time ``until``."""
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)


def _names(peers: Sequence[Peer]) -> str:
    return ", ".join(peer.name for peer in peers) + (" is" if len(peers) == 1 else " are")
