"""Shared by both ends of a learner's socket: addresses, whole messages."""

from __future__ import annotations

import select
import socket
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.launch import control_socket
from bench.steps.server.ends import HEADER, MessageHeader

#: A learner that has begun a message and sends nothing for so long is lost.
PATIENCE_S = 30.0
#: Bytes of a description at most, and of a reason.
LONGEST = 1 << 20


def address(name: str, server: int) -> str:
    """The socket of a server."""
    return control_socket.address(f"steps-{name}-{server}")


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


def head(end: socket.socket) -> MessageHeader:
    """Receive a header. Raises as `fill` does."""
    data = bytearray(HEADER.size)
    fill(end, memoryview(data))
    return MessageHeader(*HEADER.unpack(data))


def memory(data: NDArray[Any]) -> memoryview:
    """An array's bytes, for sockets; types that Python's own buffers do not know among them."""
    return memoryview(data.view(np.uint8).data)
