"""A slow reading of what a simulation means: every message by itself, one event after the other."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from collectives.predict.machine import Network
from collectives.schedule.schedule import Schedule

INFINITY = float("inf")


@dataclass
class Message:
    """One message: when it may begin, what is left of it, and the links of its route."""

    step: int
    src: int
    dst: int
    nbytes: float
    added: float
    links: list[int]
    latency: float
    begin: float = INFINITY
    left: float = 0.0
    arrived: float = INFINITY


@dataclass
class Rank:
    """Where a rank is: its step, when it had posted everything, until when it adds."""

    step: int = -1
    posted: float = 0.0
    done: float = 0.0
    entered: list[float] = field(default_factory=list)
    finished: bool = True  # with its step


def messages(schedule: Schedule, machine: Network, chunk: float) -> list[Message]:
    """Everything that is sent."""
    found = []
    for number, moves in enumerate(schedule.all_moves):
        sent = [(m.src, m.dst, m.from_slot.count, m.reduce) for m in moves.remote().joined()]
        if schedule.packed:
            pairs = dict.fromkeys((src, dst) for src, dst, _, _ in sent)
            sent = [
                (*pair, sum(count for *ends, count, _ in sent if tuple(ends) == pair), reduce)
                for pair in pairs
                for reduce in {reduce for *ends, _, reduce in sent if tuple(ends) == pair}
            ]
        for src, dst, count, reduce in sent:
            route = machine.routes(np.array([src]), np.array([dst])).table()
            links = [int(link) for link in route[0] if link >= 0]
            latency = sum(float(machine.links.latency[link]) for link in links)
            size = count * chunk
            found.append(Message(number, src, dst, size, size * reduce, links, latency, left=size))
    return found


def fair(active: list[Message], machine: Network) -> list[float]:
    """Max-min fair rates by filling one link after the other, the tightest first."""
    free = {link: float(machine.links.rate[link]) for m in active for link in m.links}
    rate = [0.0] * len(active)
    open_ = set(range(len(active)))
    while open_:
        share = {
            link: free[link] / sum(link in active[i].links for i in open_)
            for link in {link for i in open_ for link in active[i].links}
        }
        tightest = min(share, key=lambda link: share[link])
        for i in [i for i in open_ if tightest in active[i].links]:
            rate[i] = share[tightest]
            open_.remove(i)
            for link in active[i].links:
                free[link] = max(0.0, free[link] - share[tightest])
    return rate


def reference(schedule: Schedule, machine: Network, chunk: float) -> list[float]:
    """When every rank is through."""
    every = messages(schedule, machine, chunk)
    ranks = [Rank() for _ in range(schedule.nranks)]
    local = [
        [
            sum(m.from_slot.count for m in moves if m.src == m.dst == r and m.reduce) * chunk
            for r in range(schedule.nranks)
        ]
        for moves in schedule.all_moves
    ]
    now = 0.0
    while True:
        for number, rank in enumerate(ranks):
            while rank.finished and rank.done <= now and rank.step < len(schedule.steps):
                _enter(rank, number, every, local, machine, len(schedule.steps))
        active = [m for m in every if m.begin <= now and m.arrived == INFINITY]
        rates = fair(active, machine)
        times = [now + m.left / rate for m, rate in zip(active, rates, strict=True)]
        times += [m.begin for m in every if now < m.begin < INFINITY]
        times += [rank.done for rank in ranks if rank.finished and rank.done > now]
        for m in every:
            ends = ranks[m.src], ranks[m.dst]
            if m.begin == INFINITY and all(end.step == m.step for end in ends):
                m.begin = max(end.posted for end in ends) + m.latency
                times.append(m.begin)
        if not times:
            return [rank.done for rank in ranks]
        later = min(times)
        for m, rate in zip(active, rates, strict=True):
            m.left -= rate * (later - now)
            if m.left <= 1e-12 * m.nbytes + 1e-13 * rate * later:
                m.arrived = later
                _arrive(m, ranks, every, local, machine)
        now = later


def _enter(
    rank: Rank,
    number: int,
    every: list[Message],
    local: list[list[float]],
    machine: Network,
    steps: int,
) -> None:
    rank.step += 1
    if rank.step == steps:
        return
    mine = [m for m in every if m.step == rank.step and number in (m.src, m.dst)]
    rank.posted = rank.done = rank.done + len(mine) * machine.overhead
    rank.finished = not mine
    if not mine:
        rank.done += local[rank.step][number] * machine.gamma


def _arrive(
    m: Message, ranks: list[Rank], every: list[Message], local: list[list[float]], machine: Network
) -> None:
    for number in (m.src, m.dst):
        rank = ranks[number]
        rank.done = max(rank.done, m.arrived)
        if number == m.dst:
            rank.done += m.added * machine.gamma
        mine = [o for o in every if o.step == m.step and number in (o.src, o.dst)]
        if all(o.arrived < INFINITY for o in mine):
            rank.finished = True
            rank.done += local[m.step][number] * machine.gamma
