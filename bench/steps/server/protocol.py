"""Parameter-server protocols as a state machine without input or output. Pure.

A learner reads the weights of a version, computes a gradient of them and pushes it, stamped with
that version. The server decides how many gradients an update needs, whom an update cancels, and who
gets the new weights when (Dutta et al. 2018; Gupta et al. 2016). Versions count updates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from busbar.errors import RankFailure, Unsupported

#: The protocols by name; those with ``:K`` take the number of gradients that make an update.
PROTOCOLS = ("sync", "k-sync:K", "k-batch-sync:K", "async", "k-async:K", "k-batch-async:K")


class UpdateProtocol(NamedTuple):
    """A rule for so many learners: when the server updates, and what its learners do then."""

    name: str
    learners: int
    #: Gradients that an update takes.
    needed: int
    #: Synchronous: an update cancels whoever still computes, and all begin anew together.
    cancels: bool
    #: A learner may give one update several gradients: it goes on without waiting for others.
    repeats: bool

    @property
    def alike(self) -> bool:
        """Whether every update takes one gradient of every learner, of the same weights."""
        return self.cancels and not self.repeats and self.needed == self.learners

    @property
    def waits(self) -> bool:
        """Whether a learner's next round waits for other learners' gradients."""
        return self.cancels or (self.needed > 1 and not self.repeats)

    @property
    def goes_on(self) -> bool:
        """Whether a learner begins anew with the weights that it has, once it has pushed."""
        return self.cancels and self.repeats

    def may_deadlock(self, learners: int, servers: int) -> bool:
        """Whether so many learners and servers, which keep no common order, may deadlock.

        In k-async a learner waits for the updates that its gradient is part of. Once everyone
        waits, all servers have had as many gradients, so that each keeps as many back: at most
        K − 1 learners. Only with S(K − 1) ≥ P can those be all learners, of every server others.
        """
        free = self.cancels or self.repeats or not 1 < self.needed < learners
        return not free and servers * (self.needed - 1) >= learners


def update_protocol(text: str, learners: int, servers: int = 1) -> UpdateProtocol:
    """The protocol of a name, such as ``k-async:4``, for so many learners and servers (shards).

    Raises Unsupported for another name, a K that is no number from 1 to the number of learners, and
    for what may deadlock.
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
    made = UpdateProtocol(text, learners, needed, cancels, repeats)
    if made.may_deadlock(learners, servers):
        fewer = (learners - 1) // (needed - 1)
        raise Unsupported(
            f"{text} on {learners} learners can deadlock over {servers} servers, each of which"
            f" waits for other learners; take at most {fewer}, or k-batch-async:{needed}"
        )
    return made


class Actions(NamedTuple):
    """A server's actions after an event, in this order."""

    #: The staleness of the gradient that came, which is to be taken; None: it is thrown away.
    staleness: int | None = None
    #: The number of gradients that now become an update; 0 for none.
    update: int = 0
    #: The learners that get the weights as they are then.
    send: tuple[int, ...] = ()


class Core:
    """One server's count of gradients. Every method gives what is to be done.

    Raises RankFailure where a learner was lost that the protocol cannot do without, and where all
    are.
    """

    def __init__(self, protocol: UpdateProtocol, learners: Iterable[int]) -> None:
        self.protocol = protocol
        self.version = 0
        self.learners = dict.fromkeys(learners)  # in the order in which they came
        #: Gradients that the next update has so far; below, the learners that wait for it.
        self.taken = 0
        self._waiting: dict[int, None] = {}

    def start(self) -> Actions:
        """All learners are here."""
        return Actions(send=tuple(self.learners))

    def gradient(self, learner: int, version: int) -> Actions:
        """A learner's gradient of the weights of that version has come."""
        if learner not in self.learners or not 0 <= version <= self.version:
            raise RankFailure(
                f"learner {learner} pushed a gradient of version {version}; the server is at"
                f" {self.version} and has {len(self.learners)} learners"
            )
        protocol = self.protocol
        if protocol.cancels and version < self.version:
            return Actions()  # the new weights are on their way to it
        staleness = self.version - version
        self.taken += 1
        if not protocol.repeats:
            self._waiting[learner] = None
        done = self._update_when_full()
        if not protocol.cancels and protocol.repeats:
            return Actions(staleness, done.update, (learner,))
        return Actions(staleness, done.update, done.send)

    def join(self, learner: int) -> Actions:
        """A learner comes while the others work. It begins with the server's weights."""
        self.learners[learner] = None
        return Actions(send=(learner,))

    def leave(self, learner: int, why: str = "was lost") -> Actions:
        """A learner is gone. Its gradients count; others may have waited for it."""
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
        # Where each gives one gradient, no more will come than there are learners.
        full = protocol.needed if protocol.repeats else min(protocol.needed, len(self.learners))
        if self.taken == 0 or self.taken < full:
            return Actions()
        count, self.taken = self.taken, 0
        self.version += 1
        waiting, self._waiting = tuple(self._waiting), {}
        return Actions(None, count, tuple(self.learners) if protocol.cancels else waiting)
