"""Costs of the shared-memory executor's operations, from costs measured between pairs.

Three curves are of messages that are read in place (passes), three of eager messages through
mailboxes; `collectives.model.costs.Shared` says which. From them:

- A byte that the rank's own caches hold takes ``warm`` over the two that it moves in a swap of data
  left alone, at the size at which the rank goes through as much memory before it comes back to it.
- A byte whose line another core has had since takes half of what a byte takes to change hands: the
  reader fetches it, and the next who writes it must take it back.
- Adding takes what ``join`` takes beyond ``warm``.

All times are seconds, all sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from collectives.model.costs import Curve, LinkCosts, Shared
from topology.measured.sweep import BURST

_WORD = 8


@dataclass(frozen=True)
class Rates:
    """Costs of one class of link and the cores at its ends."""

    curves: Shared

    @cached_property
    def flag(self) -> float:
        """From a rank's having done a pass until another that waits for it goes on."""
        return max(0.0, self.curves.pull.alpha[0] - self.call)

    @cached_property
    def call(self) -> float:
        """The fixed cost of a pass: a swap with an addition minus one without."""
        both = self.curves.mail_join, self.curves.mail
        return max(0.0, float(both[0](_WORD)) - float(both[1](_WORD)))

    def own(self, distance: float) -> float:
        """Per byte that the rank's caches hold, having gone through ``distance`` bytes since.

        An addition into its own place goes through the same two lines, so the less of the two times
        holds: what disturbs a measurement only makes it longer.
        """
        return min(self._per_byte("warm", distance / 2), self._per_byte("join", distance / 2)) / 2

    def far(self, distance: float) -> float:
        """Per byte of a line that another core has changed, or holds and must give up."""
        return max(self._per_byte("pull", distance) / 2, self.own(distance))

    def added(self, distance: float) -> float:
        """Per byte of each source but the first that a pass joins."""
        nbytes = distance / 2
        return max(0.0, self._per_byte("join", nbytes) - self._per_byte("warm", nbytes))

    def _per_byte(self, name: str, nbytes: float) -> float:
        """The time per byte of a message of that kind and size, without the fixed cost."""
        return _slope(getattr(self.curves, name), max(nbytes, 1.0))

    # -- eager messages

    @cached_property
    def post(self) -> float:
        """The fixed cost of an eager message at each end.

        From a burst, in which every rank posts several and then takes as many; at most half a hop.
        """
        burst = float(self.curves.mail_burst(_WORD)) / (2 * BURST)
        return min(burst, float(self.curves.hop(_WORD)) / 2)

    @cached_property
    def flight(self) -> float:
        """From a message's having been posted until it can be taken."""
        return max(0.0, float(self.curves.hop(_WORD)) - 2 * self.post)

    def eager_message(self, mail: float) -> float:
        """Per byte and end of a message, where an iteration's messages are ``mail`` bytes."""
        return self._per_byte("mail", mail / 2) / 2


@lru_cache(1 << 16)
def _slope(curve: Curve, nbytes: float) -> float:
    return max(0.0, float(curve(nbytes)) - curve.alpha[0]) / nbytes


#: The rates between any two cores, and of each by itself.
Between = Mapping[int, Mapping[int, Rates]]


def rates(links: Sequence[LinkCosts]) -> list[Rates]:
    """The rates of each class; of classes that were not measured over shared memory the first's."""
    known = [link.shared for link in links if link.shared is not None]
    return [Rates(link.shared or known[0]) for link in links] if known else []
