"""Expected times and staleness of the protocols, without communication.

Dutta, Joshi, Ghosh, Dube, Nagpurkar: Slow and Stale Gradients Can Win the Race (2018), lemmas 1 to
5; Gupta, Zhang, Wang: Model Accuracy and Runtime Tradeoff (2016). Pure; seconds.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from bench.steps.compute import Compute
from bench.steps.server.protocol import UpdateProtocol


class ExpectedPace(NamedTuple):
    """An expected time per update. ``bound``: it is at most that, for laws that age."""

    seconds: float
    bound: bool = False


def per_update(protocol: UpdateProtocol, law: Compute) -> ExpectedPace | None:
    """The expected time per update; None where only a simulation tells."""
    p, k = protocol.learners, protocol.needed
    if protocol.cancels and protocol.repeats:
        if law.memoryless:
            return ExpectedPace(k * law.mean / p)
        if law.constant:
            return ExpectedPace(ceil(k / p) * law.mean)
        return ExpectedPace(law.smallest(1, p)) if k == 1 else None
    if protocol.cancels or (k == p and not protocol.repeats):
        return ExpectedPace(law.smallest(k, p))
    if protocol.repeats or k == 1:  # every learner is always at work: P renewals at a time
        return ExpectedPace(k * law.mean / p)
    return ExpectedPace(law.smallest(k, p), bound=not law.memoryless)


def mean_staleness(protocol: UpdateProtocol) -> float:
    """The mean number of updates between the weights that a gradient is of and its own update.

    Every update takes K gradients. In k-async a learner is always between two updates that it is
    part of, so that the K gradients of an update cover P updates together; in k-batch-async P − 1
    other gradients come, on average, between a learner's own.
    """
    p, k = protocol.learners, protocol.needed
    if protocol.cancels:
        return 0.0
    return (p - 1) / k if protocol.repeats else p / k - 1


def sync_over_async(learners: int, law: Compute) -> float:
    """E[T_sync]/E[T_async] = P·E[X_{P:P}]/E[X]; P·H_P for the exponential."""
    return learners * law.smallest(learners, learners) / law.mean
