"""Recursive halving reduce-scatter, recursive doubling all-gather (Rabenseifner 2004)."""

import numpy as np

from collectives.algorithms.reduce_scatter.halving import halving
from collectives.schedule.moves import Moves, moves
from collectives.schedule.passes import on_groups, reverse, then
from collectives.schedule.schedule import Schedule, Step


def stayers(n: int) -> list[int]:
    """The q ranks that remain after folding; q is the largest power of two that is at most n.

    Ranks 1, 3, 5 … 2(n−q)−1 are folded: they send their vectors to ranks 0, 2, 4 …
    """
    extra = n - (1 << (n.bit_length() - 1))
    return [*range(0, 2 * extra, 2), *range(2 * extra, n)]


def folded_halving(n: int) -> Schedule:
    """Recursive halving on the q ranks of `stayers`, with the others folded: chunk i on stayer i.

    A folded rank first sends the half that its neighbour passes on in the first step of halving,
    and sends the other half in that step. A fold in one message would end late, because it shares
    the neighbour's receiving port with messages of ranks that have no fold and so send early. The
    neighbour's own message would wait for the fold, and its sending port would be idle.
    """
    group = stayers(n)
    q = len(group)
    core = on_groups(halving(q), [group], nranks=n, nchunks=q)
    if q == n:
        return core
    half = q // 2
    place = np.arange(n - q)
    stay = np.array(group)[place]
    passed_on = np.where(place < half, half, 0)

    def fold(first: np.ndarray) -> Moves:
        return moves(stay + 1, stay, first, count=half, reduce=True)

    first, *others = core.steps
    both = Step(lambda: Moves.concat([fold(half - passed_on), first.make()]))
    return Schedule(n, q, (Step.fixed(fold(passed_on)), both, *others))


def halving_doubling(n: int) -> Schedule:
    """2 lg n steps; 2(n−1)/n of the vector each way, when n is a power of two.

    Other n are folded onto the power of two below, which costs 2 steps and one vector each way.
    """
    scatter = folded_halving(n)
    return then(scatter, reverse(scatter))
