"""Hypercube: an all-gather along the dimensions of a hypercube, as nccl-tests measures it."""

from dataclasses import replace

from collectives.specs.allgather import SPEC as ALLGATHER

SPEC = replace(
    ALLGATHER,
    name="hypercube",
    title="all-gather along a hypercube's dimensions (a power of two of ranks)",
    # In nccl-tests the algbw already counts only the n-1 of n parts that a rank receives, so the
    # bus factor is 1.
    alg_factor=lambda n: (n - 1) / n,
    bus_factor=lambda n: 1.0,
)
