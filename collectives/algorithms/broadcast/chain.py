"""Chain broadcast, pipelined: the vector goes from rank to rank in segments."""

import math

from busbar.errors import Unsupported
from collectives.schedule.moves import moves
from collectives.schedule.passes import MOST_SEGMENTS, pipeline, rotate
from collectives.schedule.schedule import Schedule, Step

# If costs are unknown: to fill the pipeline then takes (n−2)/16 of the vector's time.
SEGMENTS = 16


def best_segments(n: int, nbytes: float, alpha: float, beta: float) -> int:
    """The segment count s* = √((n−2)·nbytes·β/α) that minimises (n−2+s)(α + β·nbytes/s).

    ``alpha``: seconds per message; ``beta``: seconds per byte.
    """
    if n <= 2:
        return 1
    # A product of square roots, since the product itself might exceed a float.
    best = math.sqrt(n - 2) * math.sqrt(nbytes) * math.sqrt(beta) / math.sqrt(alpha)
    return MOST_SEGMENTS if best > MOST_SEGMENTS else max(1, round(best))


def chain(
    n: int,
    root: int = 0,
    segments: int | None = None,
    nbytes: float | None = None,
    alpha: float | None = None,
    beta: float | None = None,
) -> Schedule:
    """n−2+segments steps; all but the last send the vector once, all but the root receive it.

    Without ``segments``: `best_segments` if ``nbytes``, ``alpha`` and ``beta`` are all given, 16 if
    none of them is. Raises Unsupported for fewer than one segment or invalid values.
    """
    costs = [value for value in (nbytes, alpha, beta) if value is not None]
    if segments is None and costs:
        if len(costs) < 3 or not all(0 < value < math.inf for value in costs):
            raise Unsupported("chain: nbytes, alpha and beta go together, each finite and above 0")
        segments = best_segments(n, *costs)
    if segments is None:
        segments = SEGMENTS
    if segments < 1:
        raise Unsupported(f"chain: segments={segments}; at least 1 is needed")
    hops = tuple(Step.fixed(moves(i, i + 1, 0)) for i in range(n - 1))
    once = Schedule(n, 1, hops)
    return rotate(pipeline(once, segments) if hops else once, root)
