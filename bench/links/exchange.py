"""What moves the bytes that `measure` times: MPI by itself, or a transport that a package provides.

Providers are found by name among the entry points of installed packages, so that this room needs to
know none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Protocol, cast

from busbar.errors import ProbeError
from topology.measured.matrix import Pair

#: The group of entry points; each names a function without parameters that opens an `Exchange`.
GROUP = "busbar.exchanges"
#: The transport that needs no provider.
BUILT_IN = "mpi"


class Exchange(Protocol):
    """One rank's part in moving bytes between pairs; opened by all ranks together."""

    def times(
        self, quantity: str, pairs: Sequence[Pair], nbytes: int, repetitions: int
    ) -> list[float]:
        """Move bytes within disjoint pairs at once, again and again; all ranks call this together.

        ``quantity`` is ``latency`` (nbytes from a pair's first rank to its second and back),
        ``bandwidth`` (from first to second) or ``bandwidth_both`` (both ways at once), or one of
        `topology.measured.sweep.SWEPT`, timed as that says. The first
        rank of a pair gets the seconds of each repetition, for one message (each way); everyone
        else an empty list. Raises ProbeError when the other rank is lost.
        """
        ...

    def close(self) -> None:
        """Free what was opened."""
        ...


def find(name: str) -> Callable[[], Exchange]:
    """Return what opens the exchange of that name.

    Raises ProbeError when no installed package provides it, or what it names cannot be loaded.
    """
    provided = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in provided:
        raise ProbeError(
            f"--transport {name}",
            f"no installed package provides it; there are: {', '.join([BUILT_IN, *sorted(provided)])}"
            " (shm comes with pip install 'busbar[mpi]'; run from files alone it is not registered)",
        )
    try:
        return cast("Callable[[], Exchange]", provided[name].load())
    except (ImportError, AttributeError) as error:
        reason = f"{provided[name].value} cannot be loaded ({error}); pip install its package again"
        raise ProbeError(f"--transport {name}", reason) from None
