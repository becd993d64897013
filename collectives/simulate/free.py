"""The event-driven engine: every class of ranks proceeds at its own pace.

It is exact for any schedule and machine, and `lockstep` falls back on it. Events of one time are
handled together, in columns. With a slack above 0, events of nearly the same time are too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from collectives.simulate.clocks import PARTS, Clocks, Problem
from collectives.simulate.fluid import Fluid

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]


class _Free:
    def __init__(self, problem: Problem, first: int, clocks: Clocks, slack: float) -> None:
        self.problem, self.slack = problem, slack
        self.takes_part = np.array([timed.stage.takes_part for timed in problem.stages])
        n = problem.nranks
        self.entered, self.parts = clocks.now.copy(), clocks.parts.copy()
        self.step = np.full(n, first - 1)
        self.posted, self.done = np.zeros(n), np.zeros(n)
        self.waits = np.zeros(n, np.int64)
        # The parts of the chain that a class's step waits for so far.
        self.chain = self.parts.copy()
        self.fluid = Fluid(problem.rate)

    def run(self) -> Clocks:
        self._enter(np.arange(self.problem.nranks))
        self.fluid.settle()
        while len(self.fluid):
            (steps, rows), when = self.fluid.advance()
            ready = [
                self._arrived(when[steps == step], step, rows[steps == step])
                for step in dict.fromkeys(steps.tolist())
            ]
            if ready:
                self._enter(np.concatenate(ready))
            self.fluid.settle()
        return Clocks(self.entered, self.parts)

    def _next_step(self, ranks: Numbers) -> Numbers:
        """The next step in which each of the ranks does something, or the number of steps."""
        steps = self.problem.steps
        found = self.step[ranks] + 1
        open_ = np.arange(len(ranks))
        while len(open_ := open_[found[open_] < len(steps)]):
            open_ = open_[~self.takes_part[steps[found[open_]], ranks[open_]]]
            found[open_] += 1
        return found

    def _enter(self, ranks: Numbers) -> None:
        """Let ranks enter their next steps, each when it has completed the one before.

        That may be later than now, since nothing depends on it before its messages begin.
        """
        while len(ranks):
            steps = self._next_step(ranks)
            self.step[ranks] = steps
            idle = [
                self._enter_step(step, ranks[steps == step])
                for step in dict.fromkeys(steps.tolist())
                if step < len(self.problem.steps)
            ]
            ranks = np.concatenate(idle) if idle else ranks[:0]

    def _enter_step(self, step: int, ranks: Numbers) -> Numbers:
        """Let ranks enter a step; return those that have nothing to wait for."""
        timed = self.problem.stages[self.problem.steps[step]]
        stage = timed.stage
        self.posted[ranks] = self.entered[ranks] + timed.post[ranks]
        self.done[ranks] = self.posted[ranks]
        self.chain[ranks] = self.parts[ranks]
        self.chain[ranks, 0] += timed.post[ranks]
        self.waits[ranks] = timed.waits[ranks]
        rows = timed.rows_of(ranks)
        src, dst = stage.src[rows], stage.dst[rows]
        rows = rows[(self.step[src] == step) & (self.step[dst] == step)]
        if len(rows):
            begin = np.maximum(self.posted[stage.src[rows]], self.posted[stage.dst[rows]])
            key = np.stack([np.full(len(rows), step), rows])
            what = timed.sent(self.problem.rate, self.slack).at(rows)
            self.fluid.add(key, begin + stage.latency[rows], what)
        idle: Numbers = ranks[self.waits[ranks] == 0]
        self._complete(step, idle)
        return idle

    def _arrived(self, when: Amounts, step: int, rows: Numbers) -> Numbers:
        """Note that messages have arrived; return the ranks that completed the step with them."""
        timed = self.problem.stages[self.problem.steps[step]]
        stage = timed.stage
        if self.slack:
            order = np.argsort(when, kind="stable")
            rows, when = rows[order], when[order]
        src, dst = stage.src[rows], stage.dst[rows]
        both, now = np.concatenate([dst, src]), np.concatenate([when, when])
        self._lead(now, step, np.concatenate([rows, rows]), both)
        np.maximum.at(self.done, both, now)
        adds = timed.adds[rows]
        if adds.any():
            np.add.at(self.done, dst, adds)
        np.subtract.at(self.waits, both, 1)
        ready: Numbers = np.unique(both[self.waits[both] == 0])
        self._complete(step, ready)
        return ready

    def _lead(self, now: Amounts, step: int, rows: Numbers, ranks: Numbers) -> None:
        """Attribute the waiting of ranks that have nothing else to do to these messages."""
        idle = self.done[ranks] <= now
        rows, ranks, now = rows[idle], ranks[idle], now[idle]
        timed = self.problem.stages[self.problem.steps[step]]
        s = timed.stage
        src, dst = s.src[rows], s.dst[rows]
        origin = np.where(self.posted[src] >= self.posted[dst], src, dst)
        begin = self.posted[origin] + s.latency[rows]
        gained = np.zeros((len(rows), len(PARTS)))
        gained[:, 0], gained[:, 1], gained[:, 2] = (
            timed.post[origin],
            s.latency[rows],
            timed.wire[rows],
        )
        gained[:, 3] = now - begin - timed.wire[rows]
        # Written backwards, so that of several messages at one time the first counts, as in
        # lockstep; with a slack they stand as they arrive, and the last counts.
        turn = slice(None, None, None if self.slack else -1)
        self.chain[ranks[turn]] = (self.parts[origin] + gained)[turn]

    def _complete(self, step: int, ranks: Numbers) -> None:
        if not len(ranks):
            return
        timed = self.problem.stages[self.problem.steps[step]]
        done = self.done[ranks] + timed.local[ranks]
        self.entered[ranks] = done
        chain = self.chain[ranks]
        # What is left of the time is what was added since the chain's last message.
        chain[:, 4] += done - chain.sum(axis=1)
        self.parts[ranks] = chain


def free(problem: Problem, first: int, clocks: Clocks, slack: float = 0.0) -> Clocks:
    """From the clocks at step ``first``, before which everything has ended, to the end.

    ``slack``: the share of its time by which a message may begin and end earlier or later than it
    would, so that more happens at once; see `Timed.sent`. With 0 all is exact.
    """
    return _Free(problem, first, clocks, slack).run()
