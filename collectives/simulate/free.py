"""Every class of ranks at its own pace: what is to happen next happens next.

Exact for any schedule and machine, and what `lockstep` falls back on. Everything that happens at one
time is done together, in columns.
"""

from __future__ import annotations

import heapq
from itertools import count

import numpy as np
from numpy.typing import NDArray

from collectives.simulate.clocks import PARTS, Clocks, Problem
from collectives.simulate.fluid import EXACT, Fluid

__all__ = ["free"]

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]


class _Free:
    def __init__(self, problem: Problem, first: int, clocks: Clocks) -> None:
        self.problem = problem
        self.takes_part = np.array([timed.stage.takes_part for timed in problem.stages])
        n = problem.nranks
        self.entered, self.parts = clocks.now.copy(), clocks.parts.copy()
        self.step = np.full(n, first - 1)
        self.posted, self.done = np.zeros(n), np.zeros(n)
        self.waits = np.zeros(n, np.int64)
        # The parts of the chain that a class's step waits for so far.
        self.chain = self.parts.copy()
        self.fluid = Fluid(problem.rate)
        self.events: list[tuple[float, int, int, Numbers]] = []
        self.order = count()

    def run(self) -> Clocks:
        everyone = np.arange(self.problem.nranks)
        for at in np.unique(self.entered):
            self._push(float(at), -1, everyone[self.entered == at])
        while self.events or len(self.fluid):
            now = min(self.events[0][0] if self.events else np.inf, self.fluid.next)
            ended = self.fluid.advance(now)
            for step in np.unique(ended[0]).tolist():
                self._arrived(now, step, ended[1][ended[0] == step])
            while self.events and self.events[0][0] <= now * (1 + EXACT):
                self._happens(now)
            self.fluid.settle()
        return Clocks(self.entered, self.parts)

    def _push(self, at: float, step: int, who: Numbers) -> None:
        heapq.heappush(self.events, (at, next(self.order), step, who))

    def _happens(self, now: float) -> None:
        """All events of this time: ranks that have completed a step, messages that set out."""
        ranks = []
        while self.events and self.events[0][0] <= now * (1 + EXACT):
            _, _, step, who = heapq.heappop(self.events)
            if step < 0:
                ranks.append(who)
            else:
                self._set_out(step, who)
        if ranks:
            self._enter(np.concatenate(ranks))

    def _set_out(self, step: int, rows: Numbers) -> None:
        timed = self.problem.stages[self.problem.steps[step]]
        s = timed.stage
        key = np.stack([np.full(len(rows), step), rows])
        self.fluid.add(key, timed.nbytes[rows], s.cap[rows], s.links[rows], s.load[rows])

    def _next_step(self, ranks: Numbers) -> Numbers:
        """The next step in which each of the ranks does something; len(steps) where there is none."""
        steps = self.problem.steps
        found = self.step[ranks] + 1
        open_ = np.arange(len(ranks))
        while len(open_ := open_[found[open_] < len(steps)]):
            open_ = open_[~self.takes_part[steps[found[open_]], ranks[open_]]]
            found[open_] += 1
        return found

    def _enter(self, ranks: Numbers) -> None:
        """Ranks enter their next steps."""
        steps = self._next_step(ranks)
        self.step[ranks] = steps
        for step in np.unique(steps).tolist():
            if step < len(self.problem.steps):
                self._enter_step(step, ranks[steps == step])

    def _enter_step(self, step: int, ranks: Numbers) -> None:
        timed = self.problem.stages[self.problem.steps[step]]
        stage = timed.stage
        here = self.step == step
        new = np.zeros(len(here), bool)
        new[ranks] = True
        self.posted[ranks] = self.entered[ranks] + timed.post[ranks]
        self.done[ranks] = self.posted[ranks]
        self.chain[ranks] = self.parts[ranks]
        self.chain[ranks, 0] += timed.post[ranks]
        waits = np.bincount(timed.ends[0], minlength=len(here))
        self.waits[ranks] = waits[ranks]
        idle = ranks[waits[ranks] == 0]
        if len(idle):
            self._complete(step, idle)
        touched = new[stage.src] | new[stage.dst]
        rows = np.flatnonzero(touched & here[stage.src] & here[stage.dst])
        begin = np.maximum(self.posted[stage.src[rows]], self.posted[stage.dst[rows]])
        begin += stage.latency[rows]
        for at in np.unique(begin):
            self._push(float(at), step, rows[begin == at])

    def _arrived(self, now: float, step: int, rows: Numbers) -> None:
        timed = self.problem.stages[self.problem.steps[step]]
        stage = timed.stage
        src, dst = stage.src[rows], stage.dst[rows]
        both = np.concatenate([dst, src])
        self._lead(now, step, np.concatenate([rows, rows]), both)
        np.maximum.at(self.done, both, now)
        adds = timed.adds[rows]
        if adds.any():
            np.add.at(self.done, dst, adds)
        np.subtract.at(self.waits, both, 1)
        ready = np.unique(both)
        ready = ready[self.waits[ready] == 0]
        if len(ready):
            self._complete(step, ready)

    def _lead(self, now: float, step: int, rows: Numbers, ranks: Numbers) -> None:
        """Whoever has nothing else to do has waited for these messages."""
        idle = self.done[ranks] <= now
        rows, ranks = rows[idle], ranks[idle]
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
        # Written backwards, so that of several messages the first counts, as in lockstep.
        self.chain[ranks[::-1]] = (self.parts[origin] + gained)[::-1]

    def _complete(self, step: int, ranks: Numbers) -> None:
        timed = self.problem.stages[self.problem.steps[step]]
        done = self.done[ranks] + timed.local[ranks]
        self.entered[ranks] = done
        chain = self.chain[ranks]
        # What is left of the time is what was added since the chain's last message.
        chain[:, 4] += done - chain.sum(axis=1)
        self.parts[ranks] = chain
        for at in np.unique(done):
            self._push(float(at), -1, ranks[done == at])


def free(problem: Problem, first: int, clocks: Clocks) -> Clocks:
    """From the clocks at step ``first``, before which everything has ended, to the end."""
    return _Free(problem, first, clocks).run()
