"""All-to-all with a count for every pair of ranks (see `collectives.schedule.counts`)."""

from dataclasses import replace

from collectives.specs.alltoall import SPEC as ALLTOALL

# The bus factor stays (n-1)/n, as in nccl-tests, so that results are comparable with all-to-all. In
# an uneven exchange the share that a rank keeps for itself depends on the counts.
SPEC = replace(
    ALLTOALL,
    name="alltoallv",
    title="all-to-all in which every pair of ranks has its own count",
)
