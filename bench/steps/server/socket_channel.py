"""Channels over Unix sockets: a learner may be killed, and another one may join.

A socket closes when its process ends in any way. Both ends accept only processes of the same user.
Server 0 gives a number to a learner that joins (``bench.step --join NAME``). ``--learners`` starts
its learners with the same command.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from bench.launch import child, control_socket
from bench.steps.compute import prompt_timers
from bench.steps.options import StepOptions
from bench.steps.server.endpoint import (
    HEADER_BYTES,
    TICK_S,
    Bytes,
    Channel,
    Header,
    Kind,
    Peers,
    pack_header,
    unpack_header,
)
from bench.steps.server.loops import WorkerLoop
from bench.steps.server.protocol import update_protocol
from bench.steps.server.trainer_hooks import make_trainer
from bench.steps.trace import Trace
from bench.steps.training.problem import parts
from busbar.errors import RankFailure, Unavailable, Unsupported
from busbar.status import RANK_LOST
from busbar.units import format_bytes

#: A process that has begun a message and sends nothing for this time is lost.
PATIENCE_S = 30.0
#: The most bytes of a message other than weights and gradients.
LONGEST = 1 << 20


class _Connection:
    """A server's connection to a learner. ``pid``: the process of the learner."""

    def __init__(self, end: socket.socket, pid: int) -> None:
        end.setblocking(False)
        self.socket, self.pid, self.learner = end, pid, -1
        self.unsent: deque[memoryview] = deque()

    def send(self, *parts: bytes | memoryview) -> None:
        """Send these bytes now, or later by `flush`."""
        self.unsent += [memoryview(part) for part in parts]
        self.flush()

    def flush(self) -> None:
        """Send as many of the unsent bytes as possible without waiting."""
        # A process that has exited is noticed when its socket is read.
        with suppress(OSError):
            while self.unsent:
                sent = self.socket.send(self.unsent[0])
                if sent == len(self.unsent[0]):
                    self.unsent.popleft()
                else:
                    self.unsent[0] = self.unsent[0][sent:]


class ListeningChannel(Channel):
    """A server's channel to learners that are processes, which may connect at any time.

    ``about``: the run's options, which are sent to every process with its number. The number of
    learners from the beginning is its ``learners`` (`gather`); later ones have higher numbers.
    """

    def __init__(self, name: str, server: int, about: Mapping[str, Any]) -> None:
        super().__init__()
        self.name, self._about = name, about
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(server_address(name, server))
        self._listener.listen(1024)
        self._connections: dict[int, _Connection] = {}  # by file descriptor
        self._learners: dict[int, _Connection] = {}
        self._founders = self._next = int(about["learners"])
        self._stopped = child.StoppedProcesses()
        # Received headers whose payload has not been read yet.
        self._headers: list[tuple[Header, _Connection]] = []

    def gather(self, check: Callable[[], None]) -> None:
        """Wait until all learners of the beginning are connected.

        ``check`` is called repeatedly and raises if a learner will not connect. Raises RankFailure
        if a learner is lost meanwhile.
        """
        founders = range(self._founders)
        while not all(learner in self._learners for learner in founders):
            check()
            self._select(TICK_S)
            for learner, _ in self.lost:
                if learner in founders:
                    raise RankFailure(f"learner {learner} was lost before it began")

    def poll(self, seconds: float) -> tuple[int, Header] | None:
        """The sender and header of the next message, or None; see `Channel.poll`."""
        until = time.perf_counter() + seconds
        self._select(0.0)
        while not self._headers:
            rest = until - time.perf_counter()
            if self.lost or rest <= 0:
                return None
            self._select(rest)
        self._headers.sort(key=lambda entry: entry[0][3])  # by the time of sending
        header, connection = self._headers.pop(0)
        return connection.learner, header

    def read(self, peer: int, nbytes: int, into: Bytes | None) -> Bytes | None:
        """Receive the payload of the message that `poll` returned; see `Channel.read`."""
        data, connection = self._memory(nbytes, into), self._learners[peer]
        try:
            _receive_into(connection.socket, data.data)
        except (EOFError, OSError):
            self._lose(connection)
            return None
        return data

    def post(self, peers: Peers, kind: int, version: int, data: Bytes, cause: float) -> None:
        """Begin to send a copy of ``data`` to each of the peers, see `Channel.post`."""
        data = data.copy()
        header = pack_header(kind, version, data.nbytes, cause)
        for peer in peers:
            if peer in self._learners:
                self._learners[peer].send(header, data.data)

    def close(self) -> None:
        """See `Channel.close`."""
        for connection in self._connections.values():
            with suppress(OSError):
                connection.socket.settimeout(PATIENCE_S)
                for data in connection.unsent:
                    connection.socket.sendall(data)
            connection.socket.close()
        self._listener.close()

    def _select(self, seconds: float) -> None:
        """Wait for an event, then accept processes, read headers and send unsent bytes.

        A learner that stays stopped counts as lost, since its socket does not close.
        """
        overdue = self._stopped.overdue(one.pid for one in self._connections.values())
        for connection in [one for one in self._connections.values() if one.pid in overdue]:
            self._lose(connection)
        unread = {connection.socket.fileno() for _, connection in self._headers}
        listener = self._listener.fileno()
        reading = [listener, *(n for n in self._connections if n not in unread)]
        writing = [n for n, connection in self._connections.items() if connection.unsent]
        before = time.perf_counter()
        readable, writable = _wait(reading, writing, seconds)
        self.idle += time.perf_counter() - before
        for number in writable:
            self._connections[number].flush()
        for number in readable:
            if number == listener:
                self._accept()
            elif number in self._connections:
                self._receive_header(self._connections[number])

    def _accept(self) -> None:
        end, _ = self._listener.accept()
        pid = control_socket.process(end)
        if pid is None:
            end.close()
        else:
            self._connections[end.fileno()] = _Connection(end, pid)

    def _receive_header(self, connection: _Connection) -> None:
        try:
            header = _receive_header(connection.socket)
        except (EOFError, OSError):
            self._lose(connection)
            return
        kind, version, nbytes, *_ = header
        joins = kind == Kind.JOIN
        longest = {Kind.JOIN: 0, Kind.GRADIENT: int(self._about["bytes"])}.get(kind, LONGEST)
        valid = 0 <= nbytes <= longest and joins == (connection.learner < 0)
        if kind == Kind.HELLO:
            self._describe_run(connection, version)
        elif not valid or (joins and (version < 0 or version in self._learners)):
            self._lose(connection)
        else:
            if joins:
                connection.learner, self._learners[version] = version, connection
            if not joins or version >= self._founders:
                self._headers.append((header, connection))

    def _describe_run(self, connection: _Connection, number: int) -> None:
        """Reply with the run's options, and with a number for a learner that has none."""
        if number < 0:
            number, self._next = self._next, self._next + 1
        text = json.dumps({**self._about, "number": number}).encode()
        connection.send(pack_header(Kind.HELLO, 0, len(text)), text)

    def _lose(self, connection: _Connection) -> None:
        """Close the connection to a process that has exited or sent an invalid message."""
        reason = "is stopped" if child.stopped(connection.pid) else "was lost"
        del self._connections[connection.socket.fileno()]
        connection.socket.close()
        self._headers = [entry for entry in self._headers if entry[1] is not connection]
        if self._learners.pop(connection.learner, None) is not None:
            self.lost.append((connection.learner, f"(pid {connection.pid}) {reason}"))


class CallingChannel(Channel):
    """A learner's channel to the servers to which it has connected (`connect_to_run`)."""

    def __init__(self, servers: Sequence[socket.socket], number: int) -> None:
        super().__init__()
        self._servers, self._ended = servers, set[int]()
        for end in servers:
            end.sendall(pack_header(Kind.JOIN, number, 0))

    def poll(self, seconds: float) -> tuple[int, Header] | None:
        """The sender and header of the next message, or None; see `Channel.poll`."""
        ends = {
            end.fileno(): server
            for server, end in enumerate(self._servers)
            if server not in self._ended
        }
        readable, _ = _wait(ends, (), seconds)
        if not readable:
            self.looked = time.perf_counter()
            return None
        server = ends[readable[0]]
        with _lost(server):
            header = _receive_header(self._servers[server])
        if header[0] == Kind.STOP:  # then the server closes its end
            self._ended.add(server)
        return server, header

    def read(self, peer: int, nbytes: int, into: Bytes | None) -> Bytes | None:
        """Receive the payload of the message that `poll` returned; see `Channel.read`."""
        data = self._memory(nbytes, into)
        with _lost(peer):
            _receive_into(self._servers[peer], data.data)
        return data

    def post(self, peers: Peers, kind: int, version: int, data: Bytes, cause: float) -> None:
        """Begin to send a copy of ``data`` to each of the servers that have not exited."""
        for peer in peers:
            with suppress(RankFailure):
                self.push(peer, kind, version, data)

    def push(self, peer: int, kind: int, version: int, data: Bytes) -> None:
        """Send a message; ``data`` may be used again afterwards, see `Channel.push`."""
        with _lost(peer):
            self._servers[peer].sendall(pack_header(kind, version, data.nbytes))
            self._servers[peer].sendall(data.data)

    def close(self) -> None:
        """See `Channel.close`."""
        for end in self._servers:
            end.close()


def server_address(name: str, server: int) -> str:
    """The address of a server's socket in the run called ``name``."""
    return control_socket.address(f"steps-{name}-{server}")


def connect_to_run(name: str, number: int = -1) -> tuple[dict[str, Any], list[socket.socket]]:
    """Connect to the servers of a run; returns the run's options and the connections.

    ``number``: the learner's, if it takes part from the beginning; -1 if it joins later. Raises
    Unavailable if there is no such run of this user.
    """
    ends = [_connect(name, 0)]
    try:
        ends[0].sendall(pack_header(Kind.HELLO, number, 0))
        nbytes = _receive_header(ends[0])[2]
        if not 0 < nbytes <= LONGEST:
            raise EOFError
        text = bytearray(nbytes)
        _receive_into(ends[0], memoryview(text))
        about = dict(json.loads(text))
    except (EOFError, OSError, ValueError):
        raise Unavailable(f"the run {name!r} has ended") from None
    ends += [_connect(name, server) for server in range(1, int(about["servers"]))]
    return about, ends


def _connect(name: str, server: int) -> socket.socket:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(OSError):
        end.connect(server_address(name, server))
        if control_socket.process(end) is not None:
            return end
    end.close()
    raise Unavailable(
        f"no run {name!r} of yours on this host takes learners; it prints its name at first"
    )


def _wait(
    reading: Iterable[int], writing: Iterable[int], seconds: float
) -> tuple[list[int], list[int]]:
    """Wait until a file descriptor can be read or written; returns those of either kind.

    Both are empty after ``seconds``. select(2) refuses descriptors above 1023.
    """
    events = dict.fromkeys(reading, selectors.EVENT_READ)
    for number in writing:
        events[number] = events.get(number, 0) | selectors.EVENT_WRITE
    with selectors.PollSelector() as selector:
        for number, wanted in events.items():
            selector.register(number, wanted)
        ready = [(key.fd, mask) for key, mask in selector.select(seconds)]
    return (
        [number for number, mask in ready if mask & selectors.EVENT_READ],
        [number for number, mask in ready if mask & selectors.EVENT_WRITE],
    )


def _receive_into(end: socket.socket, data: memoryview) -> None:
    """Fill ``data``. Raises EOFError if the other process exits, or is silent for `PATIENCE_S`."""
    while data:
        try:
            nbytes = end.recv_into(data)
        except BlockingIOError:
            if not _wait([end.fileno()], (), PATIENCE_S)[0]:
                raise EOFError from None
            continue
        if not nbytes:
            raise EOFError
        data = data[nbytes:]


def _receive_header(end: socket.socket) -> Header:
    """Receive a header. Raises as `_receive_into` does."""
    data = bytearray(HEADER_BYTES)
    _receive_into(end, memoryview(data))
    return unpack_header(data)


@contextmanager
def _lost(server: int) -> Iterator[None]:
    """A context that turns errors of a connection into a RankFailure that names the server."""
    try:
        yield
    except (OSError, EOFError):
        raise RankFailure(f"server {server} is gone") from None


def join(name: str) -> int:
    """Learn until the servers end the run; returns the exit status.

    ``name``: the run's; after a colon the number of a learner that takes part from the beginning.
    Raises Unavailable if there is no such run, RankFailure if this learner or a server fails.
    """
    run, _, digits = name.partition(":")
    about, servers = connect_to_run(run, int(digits) if digits.isdecimal() else -1)
    options = StepOptions.parse(list(map(str, about["words"])), StepOptions.make_parser())
    number, founders = int(about["number"]), int(about["learners"])
    protocol = update_protocol(str(about["update"]), founders, len(servers))
    if protocol.cancels and number >= founders:
        raise Unsupported(
            f"{protocol.name} counts on the {founders} learners that it began with;"
            " async, k-async:K and k-batch-async:K take new ones"
        )
    trainer = make_trainer(options, founders)
    try:
        weights = np.empty(trainer.elements, trainer.dtype)
    except MemoryError:
        need = format_bytes(trainer.nbytes)
        raise Unavailable(f"no memory for a learner's {need} of weights") from None
    worker = WorkerLoop(
        CallingChannel(servers, number),
        weights,
        parts(trainer.elements, len(servers)),
        protocol,
        trainer,
        number,
        lambda n: options.compute.seconds(len(servers) + number, n),
        burn=options.burn,
        trace=Trace(on=options.trace is not None),
        sends_trace=True,
        warmup=options.warmup,
    )
    try:
        with prompt_timers():
            log = worker.run()
    except RankFailure:  # a server has exited
        if number < founders:  # the process that started this one reports the reason
            return RANK_LOST
        raise
    if log.failed:
        raise RankFailure(f"learner {number}: {log.failed}")
    return 0
