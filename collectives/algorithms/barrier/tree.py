"""Tree barrier: tokens go up a binomial tree to rank 0, and the word to go on comes down."""

from collectives.algorithms.allreduce.tree import tree

__all__ = ["tree"]
