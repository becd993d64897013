"""Parameter-server protocols as a state machine that does no input or output.

A learner receives weights, computes a gradient and pushes it with the version of the weights. The
server decides how many gradients it takes for an update (one change of the weights), which
computations an update cancels, and when a learner is sent new weights (Dutta et al. 2018; Gupta et
al. 2016). The version is the number of updates so far.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from busbar.errors import RankFailure, Unsupported

#: The names of the protocols. K is the number of gradients that make an update.
PROTOCOLS = ("sync", "k-sync:K", "k-batch-sync:K", "async", "k-async:K", "k-batch-async:K")


class UpdateProtocol(NamedTuple):
    """A parameter-server protocol for ``learners`` learners.

    ``needed``: the number of gradients that the server takes for one update of the weights.
    ``cancels``: True if it is synchronous: an update cancels all computations, and all learners
    start again together. ``repeats``: True if an update may have several gradients of one learner,
    which does not wait for the others.
    """

    name: str
    learners: int
    needed: int
    cancels: bool
    repeats: bool

    @property
    def alike(self) -> bool:
        """True if an update has one gradient of every learner, from the weights that it changes."""
        return self.cancels and not self.repeats and self.needed == self.learners

    @property
    def waits(self) -> bool:
        """True if a learner's next round waits for other learners' gradients."""
        return self.cancels or (self.needed > 1 and not self.repeats)

    @property
    def goes_on(self) -> bool:
        """True if a learner that has pushed begins its next round without new weights."""
        return self.cancels and self.repeats

    def may_deadlock(self, learners: int, servers: int) -> bool:
        """True if learners and servers may deadlock, because servers do not agree on an order.

        In k-async a learner waits until every server has used its gradient. Each of S servers may
        hold back the gradients of at most K − 1 learners, waiting for more. All P learners can wait
        at the same time only if S(K − 1) ≥ P.
        """
        free = self.cancels or self.repeats or not 1 < self.needed < learners
        return not free and servers * (self.needed - 1) >= learners


def update_protocol(text: str, learners: int, servers: int = 1) -> UpdateProtocol:
    """The protocol called ``text``, such as ``k-async:4``. ``servers``: the number of shards.

    Raises Unsupported for an unknown name, for a K that is not from 1 to the number of learners,
    and for a protocol that may deadlock.
    """
    name, colon, digits = text.partition(":")
    kind = name.removeprefix("k-")
    takes = name != kind
    if f"{name}:K" * takes not in PROTOCOLS and (takes or name not in PROTOCOLS):
        raise Unsupported(f"no protocol {text!r}; there are: {', '.join(PROTOCOLS)}")
    if takes != bool(colon):
        how = f"needs its K, as {name}:2" if takes else f"takes no number; there is k-{name}:K"
        raise Unsupported(f"{name} {how}")
    cancels, repeats = kind.endswith("-sync") or kind == "sync", kind.startswith("batch")
    if takes and not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= learners):
        raise Unsupported(f"{text}: K is a number from 1 to {learners}, the number of learners")
    needed = int(digits) if takes else learners if cancels else 1
    protocol = UpdateProtocol(text, learners, needed, cancels, repeats)
    if protocol.may_deadlock(learners, servers):
        fewer = (learners - 1) // (needed - 1)
        raise Unsupported(
            f"{text} on {learners} learners can deadlock over {servers} servers, each of which"
            f" waits for other learners; take at most {fewer}, or k-batch-async:{needed}"
        )
    return protocol


class Actions(NamedTuple):
    """What a server does after an event, in this order.

    ``staleness``: of the received gradient, which is then applied; None: the gradient is dropped.
    ``update``: the number of gradients from which an update is made; 0: no update. ``send``: the
    learners to which the weights are sent afterwards.
    """

    staleness: int | None = None
    update: int = 0
    send: tuple[int, ...] = ()


class Core:
    """The state of one server. Every method returns what the server must do.

    ``taken``: the number of gradients received so far for the next update.
    """

    def __init__(self, protocol: UpdateProtocol, learners: Iterable[int]) -> None:
        self.protocol = protocol
        self.version = 0
        self.learners = dict.fromkeys(learners)  # in the order in which they came
        self.taken = 0
        self._waiting: dict[int, None] = {}  # learners that wait for the next update

    def start(self) -> Actions:
        """Begin; to be called when all learners are connected."""
        return Actions(send=tuple(self.learners))

    def gradient(self, learner: int, version: int) -> Actions:
        """Receive a learner's gradient, computed from the weights of a version.

        Raises RankFailure if there is no such learner or version.
        """
        if learner not in self.learners or not 0 <= version <= self.version:
            raise RankFailure(
                f"learner {learner} pushed a gradient of version {version}; the server is at"
                f" {self.version} and has {len(self.learners)} learners"
            )
        protocol = self.protocol
        if protocol.cancels and version < self.version:
            return Actions()  # new weights have been sent to the learner
        staleness = self.version - version
        self.taken += 1
        if not protocol.repeats:
            self._waiting[learner] = None
        actions = self._update_when_full()
        if not protocol.cancels and protocol.repeats:
            return Actions(staleness, actions.update, (learner,))
        return Actions(staleness, actions.update, actions.send)

    def join(self, learner: int) -> Actions:
        """Add a learner, which begins with the present weights."""
        self.learners[learner] = None
        return Actions(send=(learner,))

    def leave(self, learner: int, why: str = "was lost") -> Actions:
        """Remove a learner, which may allow an update. The gradients that it pushed still count.

        Raises RankFailure if the protocol cannot continue without it, or if no learner is left.
        """
        del self.learners[learner]
        self._waiting.pop(learner, None)
        if self.protocol.cancels:
            raise RankFailure(
                f"learner {learner} {why}; {self.protocol.name} cannot go on without it"
                f" (async, k-async:K and k-batch-async:K can)"
            )
        if not self.learners:
            raise RankFailure(f"learner {learner} {why}, and was the last")
        return self._update_when_full()

    def _update_when_full(self) -> Actions:
        protocol = self.protocol
        # If each learner gives one gradient, there can be no more gradients than learners.
        full = protocol.needed if protocol.repeats else min(protocol.needed, len(self.learners))
        if self.taken == 0 or self.taken < full:
            return Actions()
        count, self.taken = self.taken, 0
        self.version += 1
        waiting, self._waiting = tuple(self._waiting), {}
        return Actions(None, count, tuple(self.learners) if protocol.cancels else waiting)
