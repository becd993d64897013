"""Runs in which somebody is slow, played by clocks that messages carry along."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from collectives.schedule.catalogue import build

PerRank = tuple[tuple[float, ...], ...]
HOP = 1e-4


def played(
    collective: str,
    algorithm: str,
    ranks: int,
    *,
    late: Mapping[int, float] | None = None,
    slow: Mapping[int, float] | None = None,
    seed: int = 0,
    n: int = 40,
) -> PerRank:
    """Times of every rank by playing a schedule with clocks that the messages carry along.

    ``late``: seconds that a rank leaves the barrier after the others; ``slow``: seconds that it
    takes before its first step, with its clock running.
    """
    random = np.random.default_rng(seed)
    start = 1e-6 * random.random((ranks, n))
    for rank, seconds in (late or {}).items():
        start[rank] += seconds
    now = start.copy()
    for rank, seconds in (slow or {}).items():
        now[rank] += seconds
    for moves in build(collective, algorithm, ranks).all_moves:
        after = now.copy()
        for src, dst in {(m.src, m.dst) for m in moves if m.src != m.dst}:
            hop = HOP * (1 + 0.1 * random.gamma(2, 1, n))
            after[dst] = np.maximum(after[dst], now[src] + hop)
            after[src] = np.maximum(after[src], now[src] + hop / 4)
        now = after
    return tuple(map(tuple, (now - start).tolist()))


ALL_WAIT = [
    ("allreduce", "ring"),
    ("allreduce", "halving_doubling"),
    ("allreduce", "one_shot"),
    ("allgather", "bruck"),
    ("alltoall", "pairwise"),
    ("barrier", "dissemination"),
]
MIXED = [*ALL_WAIT, ("sendrecv", "direct"), ("broadcast", "binomial"), ("reduce", "binomial"),
         ("allreduce", "tree"), ("allreduce", "ps")]  # fmt: skip
