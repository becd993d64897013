"""The starter's ends of its ranks' sockets (`bench.launch.line`), and what ranks have sent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket

from bench.launch.line import Phase, address, process

# A record has the times of every iteration of every rank, where that is asked for.
_LONGEST = 1 << 28


class Peer:
    """A rank, as far as it has told."""

    def __init__(self, end: socket.socket, pid: int) -> None:
        self.end, self.pid = end, pid
        self.rank, self.stage, self.row = -1, Phase.STARTING, -1
        #: Grows with every progress that the rank makes.
        self.signs = 0
        #: Its exit status, once it has said that it leaves; whether its process is gone.
        self.left: int | None = None
        self.gone = False
        #: A signal to this rank alone that tells it to end, or 0.
        self.signalled = 0
        self._heard = bytearray()
        # Kept, so that no other process gets a signal that was meant for this one.
        self._process: int | None = None
        self._by_number = not hasattr(os, "pidfd_open")
        if not self._by_number:
            with contextlib.suppress(ProcessLookupError):  # gone; its words are still there
                self._process = os.pidfd_open(pid)

    @property
    def name(self) -> str:
        """For messages."""
        return f"{f'rank {self.rank}' if self.rank >= 0 else 'a rank'} (pid {self.pid})"

    @property
    def doing(self) -> str:
        """How far it is, for messages."""
        rows = self.stage == Phase.ROWS and self.row >= 0
        return f"in row {self.row + 1}" if rows else self.stage

    def hear(self) -> list[bytes] | None:
        """Complete lines that have arrived, or None when the socket has closed with its process."""
        try:
            data = self.end.recv(1 << 16)
        except OSError:
            data = b""
        if not data or len(self._heard) > _LONGEST:
            self.gone = True
            return None
        self._heard += data
        *lines, rest = bytes(self._heard).split(b"\n") if b"\n" in data else [self._heard]
        self._heard = bytearray(rest)
        return [bytes(line) for line in lines]

    def say(self, text: str) -> None:
        """Have it end."""
        with contextlib.suppress(OSError):
            self.end.sendall(text.encode() + b"\n")

    def kill(self) -> None:
        """End it, whatever it does."""
        with contextlib.suppress(OSError):
            if self._process is not None:
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            elif self._by_number:
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Forget it."""
        self.end.close()
        if self._process is not None:
            os.close(self._process)


class Callers:
    """The ranks that have called, and what they have told together."""

    def __init__(self, name: str) -> None:
        """``name``: of the socket, hard to guess; only this user's processes are listened to."""
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(address(name))
        self.listener.listen(1024)
        self.all: list[Peer] = []
        #: The rows so far, as the lines of a record file; whether a rank has reported them.
        self.records: list[bytes] = []
        self.reported = False

    def accept(self) -> Peer | None:
        """A rank that calls; None for who is none of ours."""
        end, _ = self.listener.accept()
        pid = process(end)
        if pid is None:
            end.close()
            return None
        try:
            peer = Peer(end, pid)
        except OSError:  # we have no descriptor left to watch it by
            end.close()
            return None
        self.all.append(peer)
        return peer

    def hear(self, peer: Peer) -> bool:
        """Take what a rank tells; whether there may be more."""
        lines = peer.hear()
        for line in lines or ():
            self._take(peer, line)
        return lines is not None

    def _take(self, peer: Peer, line: bytes) -> None:
        if line.startswith(b'{"record":'):
            self.records.append(line[len(b'{"record":') : -1] + b"\n")
            return
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            word = json.loads(line)
            peer.rank = int(word.get("rank", peer.rank))
            peer.stage = str(word.get("stage", peer.stage))
            peer.row = int(word.get("row", peer.row))
            peer.signs = int(word.get("signs", peer.signs))
            peer.signalled = int(word.get("signalled", peer.signalled))
            self.reported |= bool(word.get("reported"))
            if "left" in word and peer.left is None:
                peer.left = int(word["left"])

    def left(self) -> int:
        """The exit status of the first rank that left with one that is not 0; else 0."""
        return next((peer.left for peer in self.all if peer.left), 0)

    def inside(self) -> list[Peer]:
        """Ranks that have not gone."""
        return [peer for peer in self.all if not peer.gone]

    def close(self) -> None:
        """Listen no more."""
        self.listener.close()
        for peer in self.all:
            peer.close()
