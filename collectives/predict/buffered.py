"""Simulation with buffered sends, as over sockets: a message counts as sent once it is buffered.

A rank continues with its next step while its buffered messages are still in flight, so messages of
several steps share its links. The receiver need not have reached the step. MPI sends over TCP in
this way: a send is complete when its last byte fits into the socket. Messages of a pair of ranks
follow one another, as the bytes of one connection.

Messages travel as frames, and a link passes frames in the order of their arrival. So a link is not
divided into shares: the frames of several senders alternate in it because they arrive in turn. Each
connection of a sender has at most `QUEUED` bytes in its first link (Linux's TCP small queues,
net/ipv4/tcp_output.c), so short messages leave whole, in the order in which they were posted, and
long ones alternate.

A link may be a token bucket (tbf(8)). It fills at the link's rate while nothing flows, up to its
depth, and as many bytes can pass at once. Iterations of a benchmark follow each other, so buckets
begin in the state in which the iteration before left them.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from collectives.predict.engines import PARTS, Clocks, Problem
from collectives.predict.machine import Amounts

#: Most bytes of one connection in its sender's first link: two segments, each of two frames at the
#: rates of emulated ports (tcp_tso_autosize).
QUEUED = 1 << 15
# Bytes of a frame, and the most frames of a simulation: with more bytes frames are larger.
_FRAME, _MOST_FRAMES = 9000, 200_000


@dataclass
class _Message:
    """A message in flight. ``posted``: the time of posting; ``chain``: the parts of that time.

    ``unsent``: bytes that are not yet in the first link; ``missing``: bytes that have not arrived.
    """

    step: int
    row: int
    src: int
    dst: int
    links: list[int]
    latency: float
    posted: float
    chain: Amounts
    unsent: float
    missing: float


@dataclass
class _Connection:
    """State of one sender and receiver: messages that wait, and bytes handed over so far.

    ``handed``, ``arrived``: bytes since the start. ``held``: messages whose sender waits until they
    fit into the buffer, with the bytes that must have arrived before.
    """

    waiting: deque[_Message] = field(default_factory=deque)
    queued: float = 0.0
    handed: float = 0.0
    arrived: float = 0.0
    flying: float = 0.0
    held: deque[tuple[float, _Message]] = field(default_factory=deque)


class _Buffered:
    def __init__(self, problem: Problem, buffer: float, depth: float, empty: Amounts) -> None:
        self.problem, self.buffer, self.depth = problem, buffer, depth
        n = problem.nranks
        self.step = [-1] * n
        self.entered, self.done = np.zeros(n), np.zeros(n)
        self.waits = [0] * n
        self.parts, self.chain = (np.zeros((n, len(PARTS))) for _ in range(2))
        self.connections: dict[tuple[int, int], _Connection] = {}
        # Messages that arrived before their receiver entered the step, by (step, row).
        self.early: dict[tuple[int, int], tuple[float, Amounts]] = {}
        self.rate = problem.rate.tolist()
        # For each link, when its bucket is empty if all frames so far leave as soon as they may.
        self.empty = empty.tolist()
        total = sum(float(_amounts(problem, step).sum()) for step in range(len(problem.steps)))
        self.frame = max(_FRAME, total / _MOST_FRAMES)
        self.window = max(buffer, QUEUED, self.frame)
        # Events by time: a message is posted, or a frame has left a link of its route.
        self.events: list[tuple[float, int, _Message, float, int]] = []
        self.numbers = count()

    def run(self) -> Clocks:
        for rank in range(self.problem.nranks):
            self._enter(rank)
        while self.events:
            now, _, message, nbytes, hop = heapq.heappop(self.events)
            connection = self.connections[message.src, message.dst]
            if hop < 0:
                connection.waiting.append(message)
            else:
                if hop == 0:
                    connection.queued -= nbytes
                if hop + 1 < len(message.links):
                    self._pass(message, nbytes, hop + 1, now + (0.0 if hop else message.latency))
                else:
                    self._arrived(connection, message, nbytes, now)
            self._fill(connection, now)
        return Clocks(self.entered, self.parts)

    def _enter(self, rank: int) -> None:
        """Let a rank enter its next steps, until it has to wait for a message."""
        for step in range(self.step[rank] + 1, len(self.problem.steps)):
            timed = self.problem.stages[self.problem.steps[step]]
            stage = timed.stage
            if not stage.takes_part[rank]:
                continue
            self.step[rank] = step
            posted = float(self.entered[rank] + timed.post[rank])
            self.done[rank] = posted
            self.chain[rank] = self.parts[rank]
            self.chain[rank, 0] += timed.post[rank]
            sends = np.flatnonzero(stage.src == rank)
            # Start with the next rank's message, as `collectives.execution.mpi` does.
            sends = sends[np.argsort((stage.dst[sends] - rank) % len(self.step), kind="stable")]
            self.waits[rank] = sum(self._post(step, row, posted) for row in sends.tolist())
            for row in np.flatnonzero(stage.dst == rank).tolist():
                self.waits[rank] += 1
                if (step, row) in self.early:
                    self._deliver(rank, step, row, *self.early.pop((step, row)))
            if self.waits[rank]:
                return
            self._complete(rank)
        self.step[rank] = len(self.problem.steps)

    def _post(self, step: int, row: int, posted: float) -> bool:
        """Hand a message over. True if its sender waits until it fits into the buffer."""
        stage = self.problem.stages[self.problem.steps[step]].stage
        src, dst = int(stage.src[row]), int(stage.dst[row])
        links = [link for link in stage.links[row].tolist() if link < len(self.rate)]
        nbytes = float(_amounts(self.problem, step)[row])
        latency, chain = float(stage.latency[row]), self.chain[src].copy()
        message = _Message(step, row, src, dst, links, latency, posted, chain, nbytes, nbytes)
        connection = self.connections.setdefault((src, dst), _Connection())
        connection.handed += nbytes
        self._at(posted, message, 0.0, -1)
        least = connection.handed - self.buffer
        if least > connection.arrived:
            connection.held.append((least, message))
            return True
        return False

    def _at(self, when: float, message: _Message, nbytes: float, hop: int) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), message, nbytes, hop))

    def _fill(self, connection: _Connection, now: float) -> None:
        """Put frames into the first link, up to its limit for one connection."""
        while connection.waiting and connection.queued < QUEUED and connection.flying < self.window:
            message = connection.waiting[0]
            nbytes = min(self.frame, message.unsent)
            message.unsent -= nbytes
            if message.unsent <= 0:
                connection.waiting.popleft()
            connection.queued += nbytes
            connection.flying += nbytes
            self._pass(message, nbytes, 0, now)

    def _pass(self, message: _Message, nbytes: float, hop: int, now: float) -> None:
        """Queue a frame at a link. It leaves after earlier frames, when there are tokens."""
        if not message.links:
            self._at(now + message.latency, message, nbytes, hop)
            return
        link = message.links[hop]
        # Bytes from another link arrive at its rate, so the frame need not be there as a whole.
        depth = max(self.depth, nbytes) if hop else self.depth
        rate = self.rate[link]
        empty = max(self.empty[link], now - depth / rate) + nbytes / rate
        self.empty[link] = empty
        last = message.latency if len(message.links) == 1 else 0.0
        self._at(max(now, empty) + last, message, nbytes, hop)

    def _arrived(
        self, connection: _Connection, message: _Message, nbytes: float, now: float
    ) -> None:
        """Count a frame that has arrived, and continue ranks that waited for it."""
        connection.arrived += nbytes
        connection.flying -= nbytes
        message.missing -= nbytes
        slack = 1e-9 * connection.handed
        while connection.held and connection.held[0][0] <= connection.arrived + slack:
            sent = connection.held.popleft()[1]
            self._waited(sent.src, now, self._parts(sent, now))
            self._resume(sent.src)
        if message.missing > 0:
            return
        step, row, dst = message.step, message.row, message.dst
        chain = self._parts(message, now)
        if self.step[dst] == step:
            self._deliver(dst, step, row, now, chain)
            self._resume(dst)
        else:
            self.early[step, row] = now, chain

    def _resume(self, rank: int) -> None:
        if not self.waits[rank]:
            self._complete(rank)
            self._enter(rank)

    def _parts(self, message: _Message, now: float) -> Amounts:
        """The parts of the time at which a message has arrived or fits into the buffer."""
        timed = self.problem.stages[self.problem.steps[message.step]]
        chain: Amounts = message.chain.copy()
        taken = now - message.posted
        latency = min(message.latency, taken)
        # A message that fits into the buffer, or passes at once, takes less than on the wire.
        wire = min(float(timed.wire[message.row]), taken - latency)
        chain[1:4] += latency, wire, taken - latency - wire
        return chain

    def _deliver(self, rank: int, step: int, row: int, now: float, chain: Amounts) -> None:
        """Deliver a message to a rank, which adds it if it is to be reduced."""
        self._waited(rank, now, chain)
        self.done[rank] += self.problem.stages[self.problem.steps[step]].adds[row]

    def _waited(self, rank: int, now: float, chain: Amounts) -> None:
        if self.done[rank] <= now:
            self.done[rank], self.chain[rank] = now, chain
        self.waits[rank] -= 1

    def _complete(self, rank: int) -> None:
        timed = self.problem.stages[self.problem.steps[self.step[rank]]]
        self.entered[rank] = self.done[rank] + timed.local[rank]
        self.parts[rank] = self.chain[rank]
        # The rest of the time is additions since the chain's last message.
        self.parts[rank, 4] += self.entered[rank] - self.parts[rank].sum()


def _amounts(problem: Problem, step: int) -> Amounts:
    """Bytes of each row of a step, where equal messages of a pair are one row."""
    timed = problem.stages[problem.steps[step]]
    amounts: Amounts = timed.nbytes * timed.stage.into
    return amounts


def run_buffered(problem: Problem, buffer: float, burst: float) -> Clocks:
    """Simulate all steps with buffers; every rank is a class of its own.

    ``buffer``: bytes from one rank to another that count as sent before they have left. ``burst``:
    the depth of every link's bucket in bytes, 0 for none.
    """
    # The first iteration begins with full buckets.
    first = _Buffered(problem, buffer, burst, np.full(len(problem.rate), -np.inf))
    clocks = first.run()
    if not burst:
        return clocks
    left = np.array(first.empty) - float(clocks.now.max())
    return _Buffered(problem, buffer, burst, left).run()
