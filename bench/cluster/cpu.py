"""Check whether links or CPUs are the bottleneck: all hosts share one machine's cores.

A rank that waits for a message spins, and keeps the core from the rank that would send it. With the
time slices of `short_slices` that wait is short.

As a program inside a cluster this module sends through a control link, which has no rate, and
prints the bytes moved per second of its own CPU time, so other work does not matter.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.cluster.network import Network
from bench.cluster.text import rate_text

MODULE = "bench.cluster.cpu"
# Above this share of the cores' time for moving bytes, ranks and links compete for them.
_CROWDED = 0.5
_SECONDS = 0.25
_PIECE = 1 << 18
#: The time slice of a process of the cluster, in seconds: the least that Linux takes
#: (sched_setattr(2), Linux 6.12 and later). Its default is about 3 ms.
SLICE_S = 1e-4
# sched_setattr's number where the C library has no such function.
_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}
# struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period.
_ATTRIBUTES = struct.Struct("IIQiIQQQ")


def judged(network: Network, moved: float, cores: int) -> str:
    """The line that says what is measured; ``moved``: bytes per second of CPU time."""
    asked = sum(network.rate_of(host) for host in range(network.hosts))
    share, most = asked / (moved * cores), rate_text(_CROWDED * moved * cores)
    what = (
        "links are what is measured"
        if share <= _CROWDED
        else f"the CPU is measured, no longer the links (above {most})"
    )
    return (
        f"CPU: a core moves {rate_text(moved)} between hosts; all links at once ask for"
        f" {rate_text(asked)}, {100 * share:.3g} % of {cores} cores: {what}"
    )


@contextmanager
def short_slices() -> Iterator[None]:
    """While this is open, processes that this thread starts get time slices of `SLICE_S`.

    Kernels before Linux 6.12 ignore the setting. Nothing is set on a machine whose number of the
    system call is not known here, or for a thread of another policy than SCHED_OTHER.
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
    """Set the slice of this thread; 0 is the kernel's own. The nice value stays."""
    number = _SET_ATTRIBUTES.get(platform.machine())
    if number is not None:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        words = (_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, ns, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, _ATTRIBUTES.pack(*words), 0)


def measured(address: str, namespace: str) -> float:
    """Bytes per second of CPU time from here into a network namespace that has this address."""
    with socket.socket() as sender:
        _enter(namespace)
        with socket.socket() as listener:
            listener.bind((address, 0))
            listener.listen(1)
            sender.connect(listener.getsockname())
            receiver, _ = listener.accept()
        with receiver:
            return _flow(sender, receiver)


def _enter(namespace: str) -> None:
    """Enter a network namespace with what this thread opens from now on. Raises OSError."""
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
    print(measured(sys.argv[1], str(Path("/run/netns") / sys.argv[2])))
