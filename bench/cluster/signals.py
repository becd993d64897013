"""Lets ranks of a host crash or stop: sends them signals at a given time after their start."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from pathlib import Path

from bench.cluster.faults import RankSignal
from bench.cluster.network import Network
from busbar.launchers import launched
from busbar.terminal import print_note

# Seconds between two scans of all processes. A process that is no rank yet is scanned again:
# launchers fork, enter a host and execute a rank in one process.
_LOOK_S = 0.03


class RankSignals(threading.Thread):
    """Sends signals to ranks in a cluster, once to each process, until `end`.

    A rank is a process of a host with a launcher's variables; its child processes also get the
    signal. ``first``: the cluster's first process.
    """

    def __init__(self, first: int, faults: list[RankSignal]) -> None:
        super().__init__(name="signals", daemon=True)
        self._over = threading.Event()
        names = {fault.host: Network.name(fault.host) for fault in faults}
        files = {host: Path(f"/proc/{first}/root/run/netns/{name}") for host, name in names.items()}
        self._hosts = {file.stat().st_ino: host for host, file in files.items()}
        self._faults = faults
        self._seen: dict[str, float] = {}
        self._sent = set[tuple[str, RankSignal]]()

    def run(self) -> None:
        """Scan the cluster's processes until `end`, and send ranks the signals that are due."""
        while not self._over.wait(_LOOK_S):
            now = time.monotonic()
            processes = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
            self._seen = {name: self._seen.get(name, now) for name in processes}
            self._sent = {sent for sent in self._sent if sent[0] in self._seen}
            for name, since in self._seen.items():
                with contextlib.suppress(OSError):
                    self._look(name, now - since)

    def _look(self, name: str, age: float) -> None:
        """Send a process the signals that are due, if it is a rank of a host with faults."""
        host = self._hosts.get(Path(f"/proc/{name}/ns/net").stat().st_ino)
        if host is None:
            return
        for fault in self._faults:
            due = fault.host == host and age >= fault.after and (name, fault) not in self._sent
            if due and _is_rank(name):
                self._sent.add((name, fault))
                number = signal.Signals(fault.number)
                resource.prlimit(int(name), resource.RLIMIT_CORE, (0, 0))
                os.kill(int(name), number)
                print_note(f"{Network.name(host)}: a rank was sent {number.name}")

    def end(self) -> None:
        """Stop sending, and wait for the thread."""
        self._over.set()
        self.join()


def _is_rank(name: str) -> bool:
    """True if a launcher has started this process as a rank."""
    words = Path(f"/proc/{name}/environ").read_bytes().decode(errors="replace").split("\0")
    return launched(dict(word.split("=", 1) for word in words if "=" in word)) is not None
