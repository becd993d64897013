"""A bounded search, for more devices than the exact one allows. Knows integers, not devices.

Sets are grown from every device, or from the ``SEEDS`` with the best neighbours, a beam at a time,
always by the devices nearest to the set; rings are built by nearest neighbour from several starts
and improved by 2-opt. Time is at most about SEEDS * n * k for the sets and LOOKS for a ring; on a
tree of switches it finds the optimum in all our tests. In general it only promises a set that is no
worse than its first draft.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ranks = Sequence[Sequence[int]]
Members = tuple[int, ...]
WIDTH = 48
SEEDS = 256
#: Above so many members fewer sets are kept, as each then costs more.
MANY, FEW = 128, 8
SWEEPS = 50
#: Exchanges that are looked at for one ring: 2-opt's sweeps and starts together.
LOOKS = 4_000_000
_STARTS = 8


def sets(ranks: Ranks, k: int, width: int = WIDTH) -> list[tuple[int, ...]]:
    """Return up to ``width`` good sets of k devices, ascending inside, most compact first.

    Compact is what has the fewest pairs of the worst class of route, then of the second worst, ….
    """
    table = np.array(ranks, np.int64)
    size, classes = len(table), int(table.max(initial=0)) + 1
    width = width if k <= MANY else FEW
    most = max(width, min(size, SEEDS)) if k <= MANY else FEW
    near = np.stack([table == c for c in reversed(range(classes))], axis=2).astype(np.int64)
    # A set with its spread, and for every device how many of its members are how near.
    none = (0,) * classes
    beam: dict[Members, tuple[Members, npt.NDArray[np.int64]]]
    beam = {(a,): (none, near[a]) for a in _seeds(near, k)[:most]}
    for _ in range(k - 1):
        grown: dict[Members, tuple[Members, Members, int]] = {}
        for chosen, (spread, counts) in beam.items():
            for b in _nearest_three(counts, chosen):
                new = tuple(sorted((*chosen, b)))
                if new not in grown:
                    more = counts[b].tolist()
                    grown[new] = (tuple(map(sum, zip(spread, more, strict=True))), chosen, b)
        kept = sorted(grown, key=lambda new: (grown[new][0], new))[:most]
        beam = {new: (grown[new][0], beam[grown[new][1]][1] + near[grown[new][2]]) for new in kept}
    return sorted(beam, key=lambda chosen: (beam[chosen][0], chosen))[:width]


def _seeds(near: npt.NDArray[np.int64], k: int) -> list[int]:
    """All devices, those first whose k - 1 nearest are nearest; at first the worst class counts."""
    total = np.cumsum(near.sum(axis=1)[:, ::-1], axis=1)
    # Of the k nearest (itself among them), how many are of each class, best first.
    taken = np.diff(np.minimum(total, k), axis=1, prepend=0)
    return np.lexsort((np.arange(len(near)), *taken.T)).tolist()  # type: ignore[no-any-return]


def _nearest_three(counts: npt.NDArray[np.int64], chosen: tuple[int, ...]) -> list[int]:
    """The three devices nearest to a set, as counts by class (worst first) say; ties by number."""
    left = np.ones(len(counts), np.bool_)
    left[list(chosen)] = False
    at = np.flatnonzero(left)
    order = np.lexsort((at, *counts[at].T[::-1]))
    return at[order[:3]].tolist()  # type: ignore[no-any-return]


def ring(ranks: Ranks, members: Sequence[int]) -> tuple[int, ...]:
    """Return a good ring through the members, starting at the first."""
    looks = max(1, len(members) ** 2 // 2)
    starts = min(_STARTS, max(1, LOOKS // (4 * looks)))
    sweeps = min(SWEEPS, max(1, LOOKS // (starts * looks)))
    drafts = [_nearest(ranks, members, start) for start in members[:starts]]
    best = min(
        (_two_opt(ranks, draft, sweeps) for draft in drafts), key=lambda r: _classes(ranks, r)
    )
    at = best.index(members[0])
    return tuple(best[at:] + best[:at])


def pairing(ranks: Ranks, members: Sequence[int]) -> tuple[int, ...]:
    """Return the members in pairs, one after the other: the nearest two first, and so on."""
    left, found = list(members), []
    while left:
        a, b = min(
            ((a, b) for at, a in enumerate(left) for b in left[at + 1 :]),
            key=lambda pair: (ranks[pair[0]][pair[1]], pair),
        )
        found += [a, b]
        left = [c for c in left if c not in (a, b)]
    return tuple(found)


def _classes(ranks: Ranks, order: Sequence[int]) -> list[int]:
    """The classes of a ring's hops, worst first: what is compared."""
    return sorted((ranks[order[at - 1]][order[at]] for at in range(len(order))), reverse=True)


def _nearest(ranks: Ranks, members: Sequence[int], start: int) -> list[int]:
    order, left = [start], sorted(m for m in members if m != start)
    while left:
        row = ranks[order[-1]]
        at = min(range(len(left)), key=lambda n: row[left[n]])
        order.append(left.pop(at))
    return order


def _two_opt(ranks: Ranks, order: list[int], sweeps: int = SWEEPS) -> list[int]:
    """Reverse stretches of the ring while that trades its hops for better ones."""
    size = len(order)
    for _ in range(sweeps):
        changed = False
        for i in range(size - 1):
            for j in range(i + 2, size - (i == 0)):
                a, b, c, d = order[i], order[i + 1], order[j], order[(j + 1) % size]
                before, after = ranks[a][b], ranks[c][d]
                if not before and not after:
                    continue  # of the best class both
                x, y = ranks[a][c], ranks[b][d]
                new = (x, y) if x > y else (y, x)
                if new < ((before, after) if before > after else (after, before)):
                    order = order[: i + 1] + order[i + 1 : j + 1][::-1] + order[j + 1 :]
                    changed = True
        if not changed:
            break
    return order
