"""The costs of a server's work and a learner's rounds, as parts of an update's time. Pure."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from bench.steps.server.serving import Served
from bench.steps.server.simulating import ServiceTimes


class RoundCosts(NamedTuple):
    """A learner's mean seconds a round beside computing and the server's work.

    ``noticing``: from the sending of an answer until the learner has begun anew. ``waking``: the
    delay of computations' ends by late timers. ``pushing``: to servers other than this one.
    """

    noticing: float
    waking: float
    pushing: float


def costs(served: Served, servers: int) -> tuple[ServiceTimes, RoundCosts]:
    """Mean times of a server's work and of a learner's round, without computing.

    Of several ``servers`` this is one; pushing to the others is in a learner's round.
    """
    pushed = max(1, sum(one["pushed"] for one in served.learned))
    answered = max(1, sum(one["answers"] for one in served.learned))
    travel = sum(one["travel"] for one in served.learned) / answered
    weights = served.answer_s / max(1, served.answers)
    named = served.gradient_s + served.update_s + served.answer_s
    # Work between them, such as sending the rest of a message.
    rest = max(0.0, served.wall - served.idle - named) / max(1, served.gradients)
    together = served.answers / max(1, served.batches)
    beside = RoundCosts(
        # `weights` has the server's part of it already, once for each learner served before.
        max(0.0, travel - weights * (together + 1) / 2),
        sum(one["late"] for one in served.learned) / pushed,
        sum(one["pushing"] for one in served.learned) / pushed * (servers - 1) / servers,
    )
    made = ServiceTimes(
        gradient=served.gradient_s / max(1, served.gradients) + rest,
        update=served.update_s / max(1, len(served.updates)),
        weights=weights,
        round=sum(beside),
    )
    return made, beside


def split(
    played: Callable[[ServiceTimes], float],
    spent: ServiceTimes,
    beside: RoundCosts,
    predicted: float,
    mean: float,
) -> dict[str, float]:
    """Parts of a measured time per update by what took them, in seconds; their sum is ``mean``.

    The protocol is played with one cost more at a time: each is what it adds to those before it.
    ``played``: the time per update with some costs, infinite where the server cannot keep up: then
    that cost and those after it are left together. ``predicted``: the formula's.
    """
    none = ServiceTimes()
    taking = none._replace(gradient=spent.gradient, update=spent.update)
    answering = taking._replace(weights=spent.weights)
    steps = {
        "chance in the times drawn": none,
        "gradients taken in by the server": taking,
        "weights sent to one after the other": answering,
        "learners that notice them late": answering._replace(round=beside.noticing),
        "gradients that end late": spent,
    }
    found, before = {"computing": predicted}, predicted
    for name, some in steps.items():
        after = played(some)
        if after == inf:
            break
        found[name], before = after - before, after
    return found | {"unexplained": mean - before}
