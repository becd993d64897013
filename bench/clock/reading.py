"""The clock that a rank reads: its host's, or a wrong one in an emulated cluster."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from busbar.errors import Unsupported

Clock = Callable[[], float]
"""Gives seconds since some instant of its own."""

#: Where `bench.cluster` says what its hosts' clocks show: ``host1:2.5:-80:7000 host2:…``, the host,
#: the seconds that it is ahead, parts in a million that it is fast, and the true time since which.
VARIABLE = "BUSBAR_HOST_CLOCKS"
_NUMBER = r"([-+]?[0-9.]{1,20})"
_ONE = re.compile(f"([A-Za-z0-9._-]{{1,64}}):{_NUMBER}:{_NUMBER}:{_NUMBER}")


class Skew(NamedTuple):
    """How a host's clock differs from the true one: seconds ahead, and how much faster it goes.

    It was just so much ahead at the true time ``since``.
    """

    offset: float = 0.0
    drift: float = 0.0
    since: float = 0.0

    def of(self, true: float) -> float:
        """The host's clock at a true time."""
        return true + self.offset + self.drift * (true - self.since)

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
            found[one[1]] = Skew(float(one[2]), float(one[3]) * 1e-6, float(one[4]))
        except (AssertionError, ValueError):
            raise Unsupported(
                f"{VARIABLE}: {word[:40]!r} is no HOST:SECONDS:PPM:SINCE of bench.cluster --clocks"
            ) from None
    return found.get(host, Skew())
