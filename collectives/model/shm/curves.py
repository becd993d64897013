"""The measurements that give the costs of the shared-memory executor.

Small messages of a sweep are eager and go through mailboxes; larger ones are read in place. The two
have separate curves, since one curve would be wrong around the change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from collectives.execution.shm.fast import EAGER_BYTES, crossing_window_bytes
from collectives.model.costs import Curve, Shared
from topology.measured.sweep import BURST, TRIPS, Swept

#: Messages that a rank sends in an iteration of each kind.
_SENDS = {"trip": TRIPS, "burst": BURST * TRIPS, "still": 1, "sum": 1}
_FEWEST = 2


def shared(
    kinds: Mapping[str, Sequence[Swept]],
    fit: Callable[[Sequence[Swept]], Curve],
    nranks: int,
    cores: int,
) -> Shared | None:
    """The costs of one class of link; None where the sweep lacks sizes on either side.

    ``fit``: a curve through samples. ``nranks`` on ``cores`` took part: it decides the windows.
    """
    small = {kind: _part(kinds.get(kind, ()), each, True) for kind, each in _SENDS.items()}
    large = {kind: _part(kinds.get(kind, ()), each, False) for kind, each in _SENDS.items()}
    large["trip"] = [_alone(one, crossing_window_bytes(nranks, cores)) for one in large["trip"]]
    wanted = (*small.values(), large["trip"], large["still"], large["sum"])
    if any(len({one.nbytes for one in part}) < _FEWEST for part in wanted):
        return None
    mail = (fit(small[kind]) for kind in ("trip", "still", "sum", "burst"))
    return Shared(*mail, *(fit(large[kind]) for kind in ("trip", "still", "sum")))


def _part(samples: Sequence[Swept], each: int, small: bool) -> list[Swept]:
    """The samples whose messages went through mailboxes, or those of the others."""
    return [one for one in samples if (one.nbytes * each <= EAGER_BYTES) is small]


def _alone(one: Swept, window: int) -> Swept:
    """A trip of several windows as it would take if no hop began before the one before had ended.

    In an iteration of h hops over w windows, h + w − 1 rounds follow each other
    (docs/shared-memory.md), in each of which a hop moves one window; alone it would take w.
    """
    hops, windows = 2 * TRIPS, -(-one.nbytes // window)
    share = hops * windows / (hops + windows - 1)
    return one._replace(seconds=tuple(time * share for time in one.seconds))
