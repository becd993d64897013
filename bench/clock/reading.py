"""What a rank reads as the time of its host, and what an emulated cluster makes of that."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from busbar.errors import Unsupported

Clock = Callable[[], float]
"""Gives seconds since some instant of its own."""

#: Where `bench.cluster` says what its hosts' clocks show: ``host1:2.5:-80 host2:…``, the host, the
#: seconds that it is ahead, and parts in a million that it is fast.
VARIABLE = "BUSBAR_HOST_CLOCKS"
_ONE = re.compile(r"([A-Za-z0-9._-]{1,64}):([-+]?[0-9.]{1,20}):([-+]?[0-9.]{1,20})")


class Skew(NamedTuple):
    """How a host's clock differs from the true one: seconds ahead, and how much faster it goes."""

    offset: float = 0.0
    drift: float = 0.0

    def of(self, true: float) -> float:
        """What the host's clock shows at a true time."""
        return self.offset + true * (1 + self.drift)

    def clock(self, true: Clock = time.perf_counter) -> Clock:
        """The host's clock."""
        return true if self == Skew() else lambda: self.of(true())


def skew(env: Mapping[str, str], host: str) -> Skew | None:
    """What the environment says of this host's clock; None where clocks are what they are.

    Raises Unsupported for text that says nothing of the kind.
    """
    text = env.get(VARIABLE)
    if text is None:
        return None
    found: dict[str, Skew] = {}
    for word in text.split():
        one = _ONE.fullmatch(word)
        try:
            assert one is not None
            found[one[1]] = Skew(float(one[2]), float(one[3]) * 1e-6)
        except (AssertionError, ValueError):
            raise Unsupported(
                f"{VARIABLE}: {word[:40]!r} is no HOST:SECONDS:PPM of bench.cluster --clocks"
            ) from None
    return found.get(host, Skew())
