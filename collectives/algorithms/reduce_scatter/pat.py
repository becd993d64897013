"""PAT reduce-scatter: NCCL's parallel aggregated trees for all-gather, reversed."""

from collectives.algorithms.allgather.pat import pat as allgather_pat
from collectives.schedule.passes import reverse
from collectives.schedule.schedule import Schedule


def pat(n: int, aggregate: int | None = None) -> Schedule:
    """⌈lg n⌉ steps, (n−1)/n of the vector each way.

    Parameters and errors as in the all-gather.
    """
    return reverse(allgather_pat(n, aggregate), reduce=True)
