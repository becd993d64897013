"""A naive MSCCL runtime for tests: it carries a file out step by step, in a random order.

It shares no code with the proof: multisets are counters, order comes from dice.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import Any

from collectives.formats.msccl import Algorithm, ThreadblockStep
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer

Value = tuple[int, Counter[int]]


class Wrong(AssertionError):
    """An execution that hangs, reads nothing, or ends with the wrong result."""


class Runtime:
    """One execution; ``dice`` decides which threadblock runs next."""

    def __init__(self, algorithm: Algorithm, where: Layout, in_place: bool, dice: random.Random):
        self.algorithm, self.where, self.in_place, self.dice = algorithm, where, in_place, dice
        self.memory: dict[tuple[int, Any], Value] = {}
        self.fifo: dict[tuple[int, int, int], deque[list[Value]]] = {}
        self.at = {(g.id, t.id): 0 for g in algorithm.gpus for t in g.threadblocks}
        self.flag = dict.fromkeys(self.at, -1)
        self.tb = {(g.id, t.id): t for g in algorithm.gpus for t in g.threadblocks}
        for rank in range(algorithm.ngpus):
            for i, chunk in enumerate(where.chunks(rank, Buffer.IN).tolist()):
                self.memory[rank, self.place(rank, "i", i)] = (chunk, Counter({rank: 1}))

    def place(self, rank: int, buffer: str, offset: int) -> Any:
        """The memory of a chunk: in place ``i`` and ``o`` are one vector."""
        if self.in_place and buffer in "io":
            which = Buffer.IN if buffer == "i" else Buffer.OUT
            chunks = self.where.chunks(rank, which)
            if not len(chunks):
                chunks = self.where.chunks(self.where.root, which)
            return int(chunks[offset]) if offset < len(chunks) else (buffer, offset)
        return buffer, offset

    def ready(self, gpu: int, step: ThreadblockStep, recv: int, chan: int) -> bool:
        """Whether a step may run: what it waits for has signalled, and its message is there."""
        if step.depid >= 0 and self.flag.get((gpu, step.depid), -1) < step.deps:
            return False
        takes = step.type in ("r", "rcs", "rrs", "rrc", "rrcs") and step.cnt > 0
        return not takes or bool(self.fifo.get((recv, gpu, chan)))

    def load(self, gpu: int, buffer: str, offset: int) -> Value:
        """What a chunk of memory holds; Wrong where that is nothing."""
        try:
            return self.memory[gpu, self.place(gpu, buffer, offset)]
        except KeyError:
            raise Wrong("reads nothing") from None

    @staticmethod
    def add(one: Value, other: Value) -> Value:
        """The sum of two values of one chunk, contributions counted."""
        if one[0] != other[0]:
            raise Wrong("adds different chunks")
        return one[0], one[1] + other[1]

    def act(self, key: tuple[int, int]) -> None:
        """Carry out the next step of a threadblock."""
        gpu, tb = key[0], self.tb[key]
        step = tb.steps[self.at[key]]
        if step.cnt and step.type != "nop":
            values = []
            if step.type not in ("s", "cpy", "re"):
                values = self.fifo[tb.recv, gpu, tb.chan].popleft()
                if len(values) != step.cnt:
                    raise Wrong("counts differ")
            for i in range(step.cnt):
                if step.type not in ("r", "rcs"):
                    own = self.load(gpu, step.srcbuf, step.srcoff + i)
                    if step.type in ("s", "cpy", "re"):
                        values.append(own)
                    else:
                        values[i] = self.add(values[i], own)
                if step.type == "re":
                    values[i] = self.add(values[i], self.load(gpu, step.dstbuf, step.dstoff + i))
            if step.type not in ("s", "rrs"):
                for i, value in enumerate(values):
                    self.memory[gpu, self.place(gpu, step.dstbuf, step.dstoff + i)] = value
            if step.type in ("s", "rcs", "rrs", "rrcs"):
                self.fifo.setdefault((gpu, tb.send, tb.chan), deque()).append(values)
        if step.hasdep:
            self.flag[key] = self.at[key]
        self.at[key] += 1

    def run(self) -> None:
        """Run to the end; raises Wrong."""
        alive = [key for key, tb in self.tb.items() if tb.steps]
        # Some threadblocks are slow: that is what brings races to light.
        haste = {key: self.dice.random() for key in alive}
        while alive:
            can = [
                key
                for key in alive
                if self.ready(
                    key[0], self.tb[key].steps[self.at[key]], self.tb[key].recv, self.tb[key].chan
                )
            ]
            if not can:
                raise Wrong("hangs")
            key = (
                max(can, key=haste.__getitem__)
                if self.dice.random() < 0.8
                else self.dice.choice(can)
            )
            self.act(key)
            if self.at[key] == len(self.tb[key].steps):
                alive.remove(key)
        self.check()

    def check(self) -> None:
        """Every output holds every contribution once, and no message is left."""
        if any(self.fifo.values()):
            raise Wrong("messages are left")
        holders = self.where.spec.holders(self.where.nranks, self.where.root)
        for rank in range(self.where.nranks):
            for i, chunk in enumerate(self.where.chunks(rank, Buffer.OUT).tolist()):
                want = chunk, Counter(dict.fromkeys(holders[chunk // self.where.split], 1))
                if self.memory.get((rank, self.place(rank, "o", i))) != want:
                    raise Wrong("wrong result")


def always_right(algorithm: Algorithm, where: Layout, tries: int, seed: int = 0) -> bool:
    """Whether so many random executions all end with the right result."""
    dice = random.Random(seed)
    try:
        for _ in range(tries):
            for in_place in algorithm.placements():
                Runtime(algorithm, where, in_place, dice).run()
    except Wrong:
        return False
    return True
