"""A search with a bound for more devices than the exact one takes. Knows integers, not devices.

Sets are grown from every device, a beam at a time, always by the devices nearest to the set; rings are
built by nearest neighbour from every start and improved by 2-opt. Time is at most about
WIDTH * n * k**2 for the sets and SWEEPS * k**2 for a ring; on a tree of switches it finds the optimum
in all our tests, and in general nothing is promised but a set that is no worse than its first draft.
"""

from __future__ import annotations

from collections.abc import Sequence

Ranks = Sequence[Sequence[int]]
WIDTH = 48
SWEEPS = 50
_STARTS = 8


def sets(ranks: Ranks, k: int, width: int = WIDTH) -> list[tuple[int, ...]]:
    """Return up to ``width`` good sets of k devices, ascending inside, most compact first.

    Compact is what has the fewest pairs of the worst class of way, then of the second worst, ….
    """
    size = len(ranks)
    classes = max(map(max, ranks), default=0) + 1

    def spread(chosen: tuple[int, ...]) -> tuple[int, ...]:
        counts = [0] * classes
        for at, a in enumerate(chosen):
            for b in chosen[:at]:
                counts[ranks[a][b]] += 1
        return tuple(reversed(counts))

    beam: set[tuple[int, ...]] = {(a,) for a in range(size)}
    for _ in range(k - 1):
        grown: dict[tuple[int, ...], tuple[int, ...]] = {}
        for chosen in beam:
            others = sorted(
                (b for b in range(size) if b not in chosen),
                key=lambda b: (sorted((ranks[a][b] for a in chosen), reverse=True), b),
            )
            for b in others[:3]:
                new = tuple(sorted((*chosen, b)))
                if new not in grown:
                    grown[new] = spread(new)
        beam = set(sorted(grown, key=lambda new: (grown[new], new))[: max(width, size)])
    return sorted(beam, key=lambda chosen: (spread(chosen), chosen))[:width]


def ring(ranks: Ranks, members: Sequence[int]) -> tuple[int, ...]:
    """Return a good ring through the members, starting at the first."""
    drafts = [_nearest(ranks, members, start) for start in members[:_STARTS]]
    best = min((_two_opt(ranks, draft) for draft in drafts), key=lambda r: _classes(ranks, r))
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
    order, left = [start], [m for m in members if m != start]
    while left:
        after = min(left, key=lambda m: (ranks[order[-1]][m], m))
        order.append(after)
        left.remove(after)
    return order


def _two_opt(ranks: Ranks, order: list[int]) -> list[int]:
    """Reverse stretches of the ring while that trades its hops for better ones."""
    size = len(order)
    for _ in range(SWEEPS):
        changed = False
        for i in range(size - 1):
            for j in range(i + 2, size - (i == 0)):
                a, b, c, d = order[i], order[i + 1], order[j], order[(j + 1) % size]
                old = sorted((ranks[a][b], ranks[c][d]), reverse=True)
                if sorted((ranks[a][c], ranks[b][d]), reverse=True) < old:
                    order = order[: i + 1] + order[i + 1 : j + 1][::-1] + order[j + 1 :]
                    changed = True
        if not changed:
            break
    return order
