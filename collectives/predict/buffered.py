"""Simulation with buffered sends, as over sockets: a message counts as sent once it is buffered.

A rank goes on to its next step while its buffered messages are still in flight, so messages of
several steps share its links. The receiver need not have reached the step. MPI sends over TCP in
this way: a send is complete when its last byte fits into the socket. Messages of a pair of ranks
follow one another, as the bytes of one connection. Exact for these rules, message by message.

A link may be a token bucket (tbf(8)). It fills at the link's rate while nothing flows, up to its
depth, and as many bytes of the next message pass at once; over several links it is the least that
one of them lets pass. Iterations of a benchmark follow each other, so buckets begin as the
iteration before left them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from collectives.predict.engines import PARTS, Clocks, Problem
from collectives.predict.fluid import Fluid

Amounts = NDArray[np.float64]


@dataclass(frozen=True)
class _Piece:
    """Bytes of a message that follow each other: what its sender waits for, or the rest.

    ``posted``: when the sender had posted it, with the parts of that time in ``chain``. ``holds``:
    the sender's step lasts until it has left. ``ends``: the message has arrived with it.
    """

    step: int
    row: int
    nbytes: float
    posted: float
    latency: float
    chain: Amounts
    holds: bool
    ends: bool


class _Buffered:
    def __init__(self, problem: Problem, buffer: float, depth: float, tokens: Amounts) -> None:
        self.problem, self.buffer, self.depth = problem, buffer, depth
        n = problem.nranks
        self.step = [-1] * n
        self.entered, self.done = np.zeros(n), np.zeros(n)
        self.waits = [0] * n
        self.parts, self.chain = (np.zeros((n, len(PARTS))) for _ in range(2))
        # By sender and receiver: messages in flight or waiting; the first of them is being sent.
        self.queue: dict[tuple[int, int], deque[_Piece]] = {}
        # By step and row: messages that arrived before their receivers had come to the step.
        self.early: dict[tuple[int, int], tuple[float, Amounts]] = {}
        self.flowing: dict[int, _Piece] = {}
        self.numbers = count()
        self.fluid = Fluid(problem.rate)
        # By link: bytes in its bucket, how many messages flow, and since when none does.
        self.tokens = tokens
        self.users = np.zeros(len(tokens), np.int64)
        self.since = np.zeros(len(tokens))

    def run(self) -> Clocks:
        for rank in range(self.problem.nranks):
            self._enter(rank)
        self.fluid.settle()
        while len(self.fluid):
            (numbers, _), when = self.fluid.advance()
            for number, now in zip(numbers.tolist(), when.tolist(), strict=True):
                self._left(self.flowing.pop(number), now)
            self.fluid.settle()
        return Clocks(self.entered, self.parts)

    def _enter(self, rank: int) -> None:
        """A rank enters its next steps, until one has something to wait for."""
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
            self.waits[rank] = sum(self._post(step, row, posted) for row in sends.tolist())
            for row in np.flatnonzero(stage.dst == rank).tolist():
                self.waits[rank] += 1
                if (step, row) in self.early:
                    self._got(rank, step, row, *self.early.pop((step, row)))
            if self.waits[rank]:
                return
            self._complete(rank)
        self.step[rank] = len(self.problem.steps)

    def _post(self, step: int, row: int, posted: float) -> int:
        """Hand a message over; gives how many of its pieces the sender waits for."""
        timed = self.problem.stages[self.problem.steps[step]]
        stage = timed.stage
        src, dst = int(stage.src[row]), int(stage.dst[row])
        line = self.queue.setdefault((src, dst), deque())
        nbytes = float(timed.nbytes[row])
        over = min(nbytes, max(0.0, sum(p.nbytes for p in line) + nbytes - self.buffer))
        latency = float(stage.latency[row])
        piece = _Piece(
            step, row, nbytes, posted, latency, self.chain[src].copy(), holds=False, ends=True
        )
        head = replace(piece, nbytes=over, holds=True, ends=over == nbytes)
        tail = replace(piece, nbytes=nbytes - over, latency=0.0 if over else latency)
        pieces = ([head] if over else []) + ([tail] if over < nbytes or not nbytes else [])
        idle = not line
        line.extend(pieces)
        if idle:
            self._flow(line[0], posted)
        return int(over > 0)

    def _flow(self, piece: _Piece, now: float) -> None:
        """Let a piece flow, now or when it is there."""
        timed = self.problem.stages[self.problem.steps[piece.step]]
        what = timed.sent(self.problem.rate, 0.0).at(np.array([piece.row]))
        begin = max(now, piece.posted + piece.latency)
        nbytes = piece.nbytes - self._at_once(self._links(piece), begin, piece.nbytes)
        number = next(self.numbers)
        self.flowing[number] = piece
        self.fluid.add(
            np.array([[number], [0]]),
            np.array([begin]),
            replace(what, nbytes=np.array([nbytes])),
        )

    def _links(self, piece: _Piece) -> NDArray[np.int64]:
        stage = self.problem.stages[self.problem.steps[piece.step]].stage
        links: NDArray[np.int64] = stage.links[piece.row]
        return links[links < len(self.tokens)]

    def _at_once(self, links: NDArray[np.int64], begin: float, nbytes: float) -> float:
        """How many of these bytes the buckets of a route let pass when they begin."""
        idle = links[self.users[links] == 0]
        self.tokens[idle] = self.filled(begin)[idle]
        self.users[links] += 1
        passed = min(nbytes, float(self.tokens[links].min(initial=self.depth)))
        self.tokens[links] -= passed
        return passed

    def filled(self, now: float) -> Amounts:
        """What is in the buckets of idle links at a time."""
        idle = np.maximum(now - self.since, 0.0)
        return np.minimum(self.tokens + self.problem.rate * idle, self.depth)

    def _left(self, piece: _Piece, now: float) -> None:
        """A piece has gone through: the next of its pair flows, who waited for it goes on."""
        timed = self.problem.stages[self.problem.steps[piece.step]]
        src, dst = int(timed.stage.src[piece.row]), int(timed.stage.dst[piece.row])
        line = self.queue[src, dst]
        line.popleft()
        links = self._links(piece)
        self.users[links] -= 1
        self.since[links] = now
        if line:
            self._flow(line[0], now)
        chain = piece.chain.copy()
        latency = float(timed.stage.latency[piece.row])
        # A part of a message, or one of which some has passed at once, takes less.
        wire = min(float(timed.wire[piece.row]), now - piece.posted - latency)
        chain[1:4] += latency, wire, now - piece.posted - latency - wire
        if piece.holds:
            self._waited(src, now, chain)
            if not self.waits[src]:
                self._complete(src)
                self._enter(src)
        if piece.ends:
            if self.step[dst] == piece.step:
                self._got(dst, piece.step, piece.row, now, chain)
                if not self.waits[dst]:
                    self._complete(dst)
                    self._enter(dst)
            else:
                self.early[piece.step, piece.row] = now, chain

    def _got(self, rank: int, step: int, row: int, now: float, chain: Amounts) -> None:
        """A rank has a message, and adds what it brings."""
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
        # What is left of the time is what was added since the chain's last message.
        self.parts[rank, 4] += self.entered[rank] - self.parts[rank].sum()


def buffered(problem: Problem, buffer: float, burst: float) -> Clocks:
    """From the start to the end, every rank of a class of its own.

    ``buffer``: bytes from one rank to another that count as sent before they have left. ``burst``:
    the depth of every link's bucket in bytes, 0 for none.
    """
    first = _Buffered(problem, buffer, burst, np.full(len(problem.rate), burst, float))
    clocks = first.run()
    if not burst:
        return clocks
    return _Buffered(problem, buffer, burst, first.filled(float(clocks.now.max()))).run()
