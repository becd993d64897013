"""Reduce-scatter inside each group, all-reduce across the groups, all-gather inside; any depth.

BlueConnect (Cho et al. 2019) and PowerAI DDL (Cho et al. 2017) do so over the levels of a network.
"""

from collections.abc import Callable, Sequence
from math import prod

from busbar.errors import Unsupported
from collectives.algorithms.allgather.ring import ring as allgather_ring
from collectives.algorithms.reduce_scatter.ring import ring as reduce_scatter_ring
from collectives.schedule.passes import on_groups, then
from collectives.schedule.schedule import Schedule


def _levels(dims: Sequence[int], n: int) -> list[tuple[int, list[list[int]], list[int], int]]:
    """The groups of ranks of each dimension, from the innermost: (size, groups, offsets, scale).

    ``offsets``: the first chunk of each group's share; ``scale``: chunks per part of it. Before
    dimension i a rank is responsible for a share of n / (d₀…dᵢ₋₁) chunks, which its places in
    the inner dimensions determine. The groups of dimension i cut that share into dᵢ parts.
    """
    levels = []
    inner = 1
    for d in dims:
        scale = n // (inner * d)
        groups, offsets = [], []
        for base in range(n):
            if (base // inner) % d == 0:
                groups.append([base + i * inner for i in range(d)])
                offsets.append(_share(base, dims, inner, n))
        levels.append((d, groups, offsets, scale))
        inner *= d
    return levels


def _share(rank: int, dims: Sequence[int], inner: int, n: int) -> int:
    """The first chunk of a rank's share after the levels inside groups of ``inner`` ranks."""
    start, width, below = 0, n, 1
    for d in dims:
        if below == inner:
            break
        width //= d
        start += (rank // below) % d * width
        below *= d
    return start


def checked_dims(n: int, dims: Sequence[int] | None) -> tuple[int, ...]:
    """The sizes of nested groups, innermost first; without ``dims`` two as equal as possible.

    Raises Unsupported if the product of ``dims`` is not n.
    """
    if dims is None:
        side = next(d for d in range(int(n**0.5), 0, -1) if n % d == 0)
        return n // side, side
    if prod(dims) != n or any(d < 1 for d in dims):
        shape = "x".join(map(str, dims))
        raise Unsupported(f"{shape} levels make {prod(dims)} ranks, not {n}")
    return tuple(dims)


def hierarchical(n: int, dims: Sequence[int] | None = None) -> Schedule:
    """2Σ(dᵢ−1) steps; 2(n−1)/n of the vector each way.

    ``dims``: group sizes dᵢ, innermost first.

    Without ``dims`` there are two sizes as equal as possible. Raises Unsupported as `checked_dims`
    does.
    """
    dims = checked_dims(n, dims)
    levels = _levels(dims, n)

    def phase(of: Callable[[int], Schedule]) -> list[Schedule]:
        return [
            on_groups(of(d), groups, nranks=n, nchunks=n, offsets=offsets, scale=scale)
            for d, groups, offsets, scale in levels
        ]

    return then(*phase(reduce_scatter_ring), *reversed(phase(allgather_ring)))
