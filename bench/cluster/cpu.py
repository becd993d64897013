"""Check whether links or CPUs are the bottleneck: all hosts share one machine's cores.

A rank that waits for a message spins, and so delays the rank that would send it. With the time
slices of `short_slices` that delay is short.

As a program inside a cluster this module sends through a control link, which has no rate limit. It
prints the bytes moved per second of its own CPU time, and the CPU share of other work meanwhile.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from bench.cluster.network import Network
from busbar.counters import Look, between, gathered, look, waiting
from busbar.units import format_link_rate

MODULE = "bench.cluster.cpu"
# Above this share of the cores' time for moving bytes and for other work, ranks and links compete
# for them: ranks spin, and another program keeps a core for milliseconds.
_CROWDED = 0.5
# From this share on, what other work took is said.
_NOTED = 0.05
_SECONDS = 0.25
_PIECE = 1 << 18
#: The time slice of a process of the cluster, in seconds: the least that Linux takes
#: (sched_setattr(2), Linux 6.12 and later). Its default is about 3 ms.
SLICE_S = 1e-4
# sched_setattr's number where the C library has no such function.
_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}
# struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period.
_ATTRIBUTES = struct.Struct("IIQiIQQQ")


class OtherWork(NamedTuple):
    """What other work took of the cores: shares of all cores that went to other programs
    (``others``) and to a hypervisor's other guests (``steal``). ``waited``: the share of its time
    in which the process that looked was ready without a core.
    """  # noqa: D205

    others: float = 0.0
    steal: float = 0.0
    waited: float = 0.0

    @classmethod
    def between(cls, before: Look, after: Look, mine: float | None = None) -> OtherWork:
        """Other work between two readings. ``mine``: CPU seconds of the cluster itself."""
        seen = between(before, after)
        shares = gathered([seen if mine is None else seen | {"mine": mine}])
        others, steal = (max(shares.get(name, [0.0])) for name in ("others", "steal"))
        return cls(others, steal, waiting(seen) if mine is None else 0.0)

    @property
    def share(self) -> float:
        """The fraction of all cores used outside the cluster; less than `_NOTED` counts as 0."""
        return sum(share for share in self[:2] if share >= _NOTED)

    @property
    def text(self) -> str:
        """A description of the other work; empty if every fraction is below `_NOTED`."""
        parts = [
            f"{what} {100 * share:.0f} %{of}"
            for share, what, of in (
                (self.others, "other programs took", " of all cores"),
                (self.steal, "other guests of the hypervisor", " of all cores"),
                (self.waited, "the check waited for a core", " of its time"),
            )
            if share >= _NOTED
        ]
        return ", ".join(parts)


class CpuCheck(NamedTuple):
    """Bytes moved between hosts per second of CPU time, the number of cores, and other work."""

    moved: float
    cores: int
    taken: OtherWork = OtherWork()

    def asked(self, network: Network) -> float:
        """The fraction of all cores' time needed to move all links' bytes at once."""
        rates = sum(cable.up for cable in network.cables() if cable.host is not None)
        return rates / (self.moved * self.cores)


def judged(network: Network, check: CpuCheck) -> str:
    """The line about whether links or CPUs will be measured."""
    share, taken = check.asked(network), check.taken
    most = format_link_rate(_CROWDED * check.moved * check.cores)
    asked = format_link_rate(share * check.moved * check.cores)
    if share > _CROWDED:
        what = f"the CPU is measured, no longer the links (above {most})"
    elif share + taken.share > _CROWDED:
        what = f"but {taken.text}: until that ends, times may include waiting for a core"
    else:
        what = "links are what is measured" + (f", though {taken.text}" if taken.text else "")
    return (
        f"CPU: a core moves {format_link_rate(check.moved)} between hosts; all links at once ask"
        " for"
        f" {asked}, {100 * share:.3g} % of {check.cores} cores: {what}"
    )


def looked_back(network: Network, check: CpuCheck, taken: OtherWork) -> str:
    """The line about other work during a run; empty if there was hardly any."""
    if not taken.text:
        return ""
    share = check.asked(network)
    enough = share + taken.share <= _CROWDED
    verdict = "links were what was measured" if enough else "times may include waiting for a core"
    return f"CPU, during the run: {taken.text}; links ask for {100 * share:.3g} %: {verdict}"


@contextmanager
def short_slices() -> Iterator[None]:
    """Give processes that this thread starts meanwhile time slices of `SLICE_S`.

    Kernels before Linux 6.12 ignore the setting. Nothing is set on a machine type whose system-call
    number is unknown, or for a thread with another policy than SCHED_OTHER.
    """
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    _set_slice(round(SLICE_S * 1e9))
    try:
        yield
    finally:
        _set_slice(0)


def _set_slice(ns: int) -> None:
    """Set this thread's time slice; 0 means the kernel's default. The nice value is kept."""
    number = _SET_ATTRIBUTES.get(platform.machine())
    if number is not None:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        words = (_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, ns, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, _ATTRIBUTES.pack(*words), 0)


def measured(address: str, namespace: str) -> tuple[float, OtherWork]:
    """Move bytes from here into a network namespace that has this address.

    Returns bytes per second of CPU time, and the other work meanwhile.
    """
    with socket.socket() as sender:
        _enter(namespace)
        with socket.socket() as listener:
            listener.bind((address, 0))
            listener.listen(1)
            sender.connect(listener.getsockname())
            receiver, _ = listener.accept()
        with receiver:
            before = look()
            moved = _flow(sender, receiver)
            return moved, OtherWork.between(before, look())


def _enter(namespace: str) -> None:
    """Enter a network namespace: this thread's new sockets belong to it. Raises OSError."""
    file = os.open(namespace, os.O_RDONLY)
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(file, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)
    os.close(file)


def _flow(sender: socket.socket, receiver: socket.socket) -> float:
    sender.setblocking(False)
    receiver.setblocking(False)
    data, room = bytes(_PIECE), bytearray(_PIECE)
    moved, end = 0, time.monotonic() + 4 * _SECONDS
    start = time.process_time()
    while (spent := time.process_time() - start) < _SECONDS and time.monotonic() < end:
        with suppress(BlockingIOError):
            sender.send(data)
        with suppress(BlockingIOError):
            while True:
                moved += receiver.recv_into(room)
    return moved / max(spent, 1e-9)


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], str(Path("/run/netns") / sys.argv[2]))))
