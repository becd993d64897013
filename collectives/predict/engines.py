"""The engines of the simulator: they compute the times at which ranks enter their steps.

`run_lockstep` goes step by step, for schedules in which no two steps use a link at the same time.
The times of a step depend only on the differences between the times at which ranks enter it, so a
step that is repeated with the same differences takes the same time. If messages of different steps
meet on a link, the engine stops; it returns the last step before which all messages had ended.
`run_free` lets every class of ranks enter its steps at its own time. It is exact for any schedule
and network. Events at the same time, or with a slack at nearly the same time, are handled together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from collectives.predict.flows import Stage
from collectives.predict.fluid import EXACT, Bytes, Fluid, TooMuch, compute_ends
from collectives.predict.machine import Amounts, Numbers

#: The parts of the time of a chain of messages; see `collectives.predict.simulation.Outcome`.
PARTS = ("posting", "latency", "wire", "sharing", "adding")


@dataclass(frozen=True)
class TimedStage:
    """A stage in bytes and seconds; see `collectives.predict.flows.Stage`."""

    stage: Stage
    nbytes: Amounts
    wire: Amounts
    adds: Amounts
    local: Amounts
    post: Amounts

    @classmethod
    def of(cls, stage: Stage, chunk: float, overhead: float, gamma: float) -> TimedStage:
        """A stage with chunks of ``chunk`` bytes; ``adds``: seconds to add a row's messages."""
        nbytes = stage.chunks * chunk
        return cls(
            stage,
            nbytes,
            nbytes / stage.cap,
            stage.added * stage.into * chunk * gamma,
            stage.local * chunk * gamma,
            stage.posts * overhead,
        )

    @cached_property
    def ends(self) -> tuple[Numbers, Numbers, Amounts]:
        """(rank classes, ascending; the rows that each sends or receives; seconds to add them)."""
        stage = self.stage
        rows = np.arange(len(stage.src))
        rank = np.concatenate([stage.dst, stage.src])
        row = np.concatenate([rows, rows])
        adds = np.concatenate([self.adds, np.zeros(len(rows))])
        order = np.argsort(rank, kind="stable")
        return rank[order], row[order], adds[order]

    @cached_property
    def waits(self) -> Numbers:
        """Messages (rows) that each rank class sends or receives; one to itself counts as two."""
        return np.bincount(self.ends[0], minlength=len(self.post)).astype(np.int64)

    def rows_of(self, ranks: Numbers) -> Numbers:
        """The rows that any of these rank classes sends or receives, ascending."""
        if 4 * len(ranks) > len(self.post):
            new = np.zeros(len(self.post), bool)
            new[ranks] = True
            return np.flatnonzero(new[self.stage.src] | new[self.stage.dst])
        count = self.waits[ranks]
        first = np.searchsorted(self.ends[0], ranks)
        place = np.repeat(first - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
        return np.unique(self.ends[1][place])

    @cached_property
    def _sent(self) -> dict[float, Bytes]:
        return {}

    def sent(self, rate: Amounts, slack: float) -> Bytes:
        """The messages for `Fluid`. ``rate``: bytes per second of each link.

        ``slack``: the fraction of its time by which a message may begin and end earlier or later,
        half of it to either side. Its time is the time it takes if all messages of the step flow at
        once.
        """
        s = self.stage
        if slack not in self._sent:
            late = np.zeros(len(self.wire))
            if slack:
                busy = np.bincount(
                    s.links.ravel(), (s.load * self.nbytes[:, None]).ravel(), len(rate) + 1
                ) / np.append(rate, 1.0)
                busy[-1] = 0.0
                late = slack / 2 * np.maximum(self.wire, busy[s.links].max(axis=1, initial=0.0))
            self._sent[slack] = Bytes(self.nbytes, s.cap, s.links, s.load, late)
        return self._sent[slack]

    @cached_property
    def starts(self) -> Numbers:
        """The index in `ends` at which each rank class begins."""
        return np.flatnonzero(np.diff(self.ends[0], prepend=-1))


@dataclass(frozen=True)
class Problem:
    """A simulation's input: stages, the order of steps, link rates, number of rank classes."""

    stages: Sequence[TimedStage]
    steps: Numbers
    rate: Amounts
    nranks: int


@dataclass
class Clocks:
    """The times at which classes of ranks enter their next step, and the parts of these times.

    ``now``: shape (classes,). ``parts``: shape (classes, len(PARTS)), along the chain of messages
    that the class waited for; their sum is ``now``.
    """

    now: Amounts
    parts: Amounts

    @classmethod
    def begin(cls, nranks: int) -> Clocks:
        """Clocks at the start, all 0."""
        return cls(np.zeros(nranks), np.zeros((nranks, len(PARTS))))


_MOST_KEPT = 1 << 26  # bytes of remembered moves


class Checkpoint(NamedTuple):
    """A step before which every message had ended, and the clocks at that step."""

    step: int
    clocks: Clocks


class _Move(NamedTuple):
    """The effect of a step, which depends only on the differences between clocks.

    The earliest clock moves by ``shift``, the differences become ``later``. A class's chain
    continues that of class ``before`` and gains ``parts``; links are busy ``first`` to ``last``.
    """

    shift: float
    later: Amounts
    before: Numbers
    parts: Amounts
    first: Amounts
    last: Amounts


def _both(one: _Move, other: _Move) -> _Move | None:
    """The combined effect of two steps; None if the second needs a link before it is free."""
    if _overlap(other.first + one.shift, one.last):
        return None
    return _Move(
        one.shift + other.shift,
        other.later,
        one.before[other.before],
        one.parts[other.before] + other.parts,
        np.minimum(one.first, other.first + one.shift),
        np.maximum(one.last, other.last + one.shift),
    )


def _repeated(move: _Move, times: int) -> _Move | None:
    """The effect of ``times`` (1 or more) equal moves, by squaring; None as for `_both`."""
    result: _Move | None = None
    while True:
        if times & 1:
            result = move if result is None else _both(result, move)
        times >>= 1
        if not times:
            return result
        square = _both(move, move)
        if square is None:
            return None
        move = square


def _overlap(first: Amounts, busy: Amounts) -> bool:
    """True if any link is needed before it is free."""
    return bool(len(busy) and (first < busy - EXACT * np.abs(busy)).any())


class _Lockstep:
    def __init__(self, problem: Problem, most: float) -> None:
        self.problem, self.most = problem, most
        self.known: dict[tuple[int, bytes], _Move] = {}
        self.remembered_bytes = 0
        self.together: dict[int, Amounts] = {}
        # A power of 2, so that sums of grains are exact and repeated values are equal bit for bit.
        self.grain = 2.0 ** np.floor(np.log2(EXACT * self._shortest()))

    def _shortest(self) -> float:
        """The shortest nonzero time of a message or of a rank's own work."""
        columns = [
            times
            for timed in self.problem.stages
            for times in (timed.wire + timed.stage.latency, timed.local, timed.post)
        ]
        shortest = (float(times[times > 0].min(initial=np.inf)) for times in columns)
        return min((time for time in shortest if time < np.inf), default=1.0)

    def grains(self, times: Amounts) -> Amounts:
        """Round times to multiples of a grain."""
        rounded: Amounts = np.rint(times / self.grain) * self.grain
        return rounded

    def move(self, number: int, later: Amounts) -> _Move:
        """The effect of a stage if clocks differ by ``later``."""
        key = (number, later.tobytes())
        move = self.known.get(key)
        if move is None:
            move = self._move(number, later)
            self.remembered_bytes += 8 * len(later) * (3 + len(PARTS)) + 16 * len(self.problem.rate)
            if self.remembered_bytes > _MOST_KEPT:
                self.known, self.remembered_bytes = {}, 0
            self.known[key] = move
        return move

    def cycle(self, moves: Sequence[_Move], times: int) -> _Move | None:
        """The effect of moves in sequence, ``times`` times; None if they cannot be combined."""
        whole: _Move | None = moves[0]
        for move in moves[1:]:
            whole = whole and _both(whole, move)
        return whole and _repeated(whole, times)

    def _move(self, number: int, later: Amounts) -> _Move:
        timed = self.problem.stages[number]
        stage = timed.stage
        posted = self.grains(later + timed.post)
        sender_last = posted[stage.src] >= posted[stage.dst]
        origin = np.where(sender_last, stage.src, stage.dst)
        begin = posted[origin] + stage.latency
        end = self.grains(self._end_times(number, timed, begin))
        done, before, row = _arrivals(timed, posted, end)
        parts = np.zeros((len(later), len(PARTS)))
        parts[:, 0] = timed.post
        got = row >= 0
        r = row[got]
        before[got] = origin[r]
        parts[got, 0] = timed.post[origin[r]]
        parts[got, 1] = stage.latency[r]
        parts[got, 2] = timed.wire[r]
        parts[got, 3] = end[r] - begin[r] - timed.wire[r]
        parts[got, 4] = done[got] - end[r]
        # Rounding errors must not hide that two steps are equal.
        done = self.grains(done + timed.local)
        parts[:, 4] += timed.local
        first, last = self._busy(timed, begin, end)
        shift = float(done.min())
        return _Move(shift, done - shift, before, parts, first, last)

    def _end_times(self, number: int, timed: TimedStage, begin: Amounts) -> Amounts:
        stage = timed.stage
        if stage.alone or not len(begin):
            return begin + timed.wire
        if (begin == begin[0]).all():
            if number not in self.together:
                self.together[number] = self._flow(timed, np.zeros_like(begin))
            return begin + self.together[number]
        start = float(begin.min())
        return self._flow(timed, begin - start) + start

    def _flow(self, timed: TimedStage, begin: Amounts) -> Amounts:
        rate = self.problem.rate
        ends, work = compute_ends(begin, timed.sent(rate, 0.0), rate, self.most)
        self.most -= work
        return ends

    def _busy(self, timed: TimedStage, begin: Amounts, end: Amounts) -> tuple[Amounts, Amounts]:
        nlinks = len(self.problem.rate)
        first, last = np.full(nlinks + 1, np.inf), np.full(nlinks + 1, -np.inf)
        links = timed.stage.links
        if links.shape[1]:
            np.minimum.at(first, links.ravel(), np.repeat(begin, links.shape[1]))
            np.maximum.at(last, links.ravel(), np.repeat(end, links.shape[1]))
        return first[:-1], last[:-1]


def _arrivals(timed: TimedStage, posted: Amounts, end: Amounts) -> tuple[Amounts, Numbers, Numbers]:
    """When each class has added all messages, the class whose chain it continues, and the row.

    A rank adds messages one after another in the order of arrival. Row −1: it waited for no row.
    """
    done, before = posted.copy(), np.arange(len(posted))
    row = np.full(len(posted), -1)
    rank, rows, adds = timed.ends
    if not len(rank):
        return done, before, row
    ready = end[rows]
    if timed.adds.any():
        order = np.lexsort((ready, rank))
        rows, adds, ready = rows[order], adds[order], ready[order]
        # When a message arrives, it and all later messages are still to be added.
        ahead = np.cumsum(adds)
        last = np.append(timed.starts[1:], len(rank)) - 1
        rest = np.repeat(ahead[last], np.diff(np.append(timed.starts, len(rank)))) - ahead + adds
        ready = ready + np.where(adds > 0, rest, 0.0)
    most = np.maximum.reduceat(ready, timed.starts)
    who = rank[timed.starts]
    # The first of the rows for which a class had to wait.
    hit = ready == np.repeat(most, np.diff(np.append(timed.starts, len(rank))))
    place = np.where(hit, np.arange(len(rank)), len(rank))
    row[who] = rows[np.minimum.reduceat(place, timed.starts)]
    done[who] = most
    return done, before, row


def run_lockstep(problem: Problem, most: float = np.inf) -> Checkpoint:
    """Simulate as many steps as possible; ``most``: the limit of work, as for `compute_ends`."""
    walk = _Walk(problem, _Lockstep(problem, most))
    steps = problem.steps
    # Ranges of steps that have the same stage.
    ends = [*(np.flatnonzero(steps[1:] != steps[:-1]) + 1).tolist(), len(steps)]
    try:
        for end in ends if len(steps) else ():
            walk.until(end)
    except (TooMuch, _OutOfStep):
        return walk.cut
    return Checkpoint(len(steps), walk.clocks())


class _OutOfStep(Exception):
    """Raised if messages of different steps would be on one link at the same time."""


class _Walk:
    """Clocks during the simulation; ``cut``: the last step before which all messages had ended."""

    def __init__(self, problem: Problem, engine: _Lockstep) -> None:
        self._steps, self._engine = problem.steps, engine
        self._base, self._later = 0.0, np.zeros(problem.nranks)
        self._parts = Clocks.begin(problem.nranks).parts
        self._busy, self._latest = np.full(len(problem.rate), -np.inf), -np.inf
        self._number = 0
        self.cut = Checkpoint(0, Clocks.begin(problem.nranks))

    def clocks(self) -> Clocks:
        """The present clocks."""
        return Clocks(self._base + self._later, self._parts.copy())

    def until(self, end: int) -> None:
        """Simulate the steps of one stage up to ``end``. Raises TooMuch and _OutOfStep.

        When a move occurs again, the moves since then are a cycle, applied as one for the rest.
        """
        moves: list[_Move] = []
        seen: dict[int, int] = {}
        while self._number < end:
            move = self._engine.move(int(self._steps[self._number]), self._later)
            again = seen.setdefault(id(move), len(moves))
            if again < len(moves):
                cycle = moves[again:]
                times = (end - self._number) // len(cycle)
                together = self._engine.cycle(cycle, times) if times else None
                moves, seen = [], {}
                if together is not None:
                    self._apply(together, times * len(cycle))
                    continue
            moves.append(move)
            self._apply(move, 1)

    def _apply(self, move: _Move, steps: int) -> None:
        if len(self._busy):
            if self._base >= self._latest:
                self.cut = Checkpoint(self._number, self.clocks())
            if _overlap(move.first + self._base, self._busy):
                raise _OutOfStep
            self._busy = np.maximum(self._busy, move.last + self._base)
            self._latest = float(self._busy.max())
        self._parts = self._parts[move.before] + move.parts
        self._base += move.shift
        self._later = move.later
        self._number += steps


class _Free:
    def __init__(self, problem: Problem, first: int, clocks: Clocks, slack: float) -> None:
        self.problem, self.slack = problem, slack
        self.takes_part = np.array([timed.stage.takes_part for timed in problem.stages])
        n = problem.nranks
        self.entered, self.parts = clocks.now.copy(), clocks.parts.copy()
        self.step = np.full(n, first - 1)
        self.posted, self.done = np.zeros(n), np.zeros(n)
        self.waits = np.zeros(n, np.int64)
        # The parts of the chain that each class's step has waited for so far.
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
        """The next step in which each of the ranks takes part, or the number of steps if none."""
        steps = self.problem.steps
        steps_of = self.step[ranks] + 1
        open_ = np.arange(len(ranks))
        while len(open_ := open_[steps_of[open_] < len(steps)]):
            open_ = open_[~self.takes_part[steps[steps_of[open_]], ranks[open_]]]
            steps_of[open_] += 1
        return steps_of

    def _enter(self, ranks: Numbers) -> None:
        """Let ranks enter their next steps, each when it has completed the one before.

        The time of entry may be later than now: nothing depends on it before its messages begin.
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
        """Let ranks enter a step; returns the ranks that wait for nothing in it."""
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
        """Record that messages have arrived; returns the ranks that thereby complete the step."""
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
        """For ranks that only wait, let these messages be the last of their chain."""
        idle = self.done[ranks] <= now
        rows, ranks, now = rows[idle], ranks[idle], now[idle]
        timed = self.problem.stages[self.problem.steps[step]]
        s = timed.stage
        src, dst = s.src[rows], s.dst[rows]
        origin = np.where(self.posted[src] >= self.posted[dst], src, dst)
        begin = self.posted[origin] + s.latency[rows]
        wire = timed.wire[rows]
        gained = np.stack(
            [timed.post[origin], s.latency[rows], wire, now - begin - wire, np.zeros(len(rows))], 1
        )
        # Written backwards, so that of several messages at one time the first counts, as in
        # lockstep. With a slack, messages are in order of arrival, and the last one counts.
        turn = slice(None, None, None if self.slack else -1)
        self.chain[ranks[turn]] = (self.parts[origin] + gained)[turn]

    def _complete(self, step: int, ranks: Numbers) -> None:
        if not len(ranks):
            return
        timed = self.problem.stages[self.problem.steps[step]]
        done = self.done[ranks] + timed.local[ranks]
        self.entered[ranks] = done
        chain = self.chain[ranks]
        # The rest of the time is additions since the chain's last message.
        chain[:, 4] += done - chain.sum(axis=1)
        self.parts[ranks] = chain


def run_free(problem: Problem, first: int, clocks: Clocks, slack: float = 0.0) -> Clocks:
    """Simulate from the clocks at step ``first``, before which every message has ended.

    ``slack``: the fraction of a message's time by which rates may change earlier or later than it
    begins and ends, so that more events are handled at once (`Fluid`). With 0 the result is exact.
    """
    return _Free(problem, first, clocks, slack).run()
