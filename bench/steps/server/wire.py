"""Shared by both ends of a learner's socket: addresses, the peer's user, whole messages."""

from __future__ import annotations

import os
import select
import socket
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unavailable

#: A learner that has begun a message and sends nothing for so long is lost.
PATIENCE_S = 30.0
#: Bytes of a description at most, and of a reason.
LONGEST = 1 << 20


def address(name: str, server: int) -> str:
    """The socket of a server: an abstract one, of which nothing is left on any disk."""
    return f"\0busbar-steps-{name}-{server}"


def peer(end: socket.socket) -> int:
    """The process at the other end. Raises Unavailable where it is another user's."""
    packed = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", packed)
    if user != os.geteuid():
        raise Unavailable("the other end is another user's")
    return int(pid)


def fill(end: socket.socket, data: memoryview) -> None:
    """Receive all of it. Raises EOFError where the other end is gone, or says nothing for long."""
    while data:
        try:
            got = end.recv_into(data)
        except BlockingIOError:
            if not select.select([end], [], [], PATIENCE_S)[0]:
                raise EOFError from None
            continue
        if not got:
            raise EOFError
        data = data[got:]


def memory(data: NDArray[Any]) -> memoryview:
    """An array's bytes, for sockets; types that Python's own buffers do not know among them."""
    return memoryview(data.view(np.uint8).data)
