"""Hypercube: an all-gather along the dimensions of a hypercube, as nccl-tests measures it."""

from dataclasses import replace

from collectives.specs.allgather import SPEC as ALLGATHER

SPEC = replace(
    ALLGATHER,
    name="hypercube",
    title="all-gather along a hypercube's dimensions (a power of two of ranks)",
    # nccl-tests counts in algbw only the n-1 parts of n that a rank receives, so that nothing is
    # left for the bus factor to take away.
    alg_factor=lambda n: (n - 1) / n,
    bus_factor=lambda n: 1.0,
)
