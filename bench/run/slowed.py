"""An action slowed by a known share, for the self-check of comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from collectives.execution.transport import Action, Spans, Wrapper


class Slowed(Wrapper):
    """Runs an action, then waits on the clock for a share of the time that this took.

    Where the transport times its actions itself, it waits itself, within what it times.
    """

    def __init__(self, action: Action, share: float, clock: Callable[[], float]) -> None:
        self.action, self._share, self._clock = action, share, clock
        self.divides = action.divides

    def __call__(self) -> None:
        """See `Action.__call__`."""
        clock = self._clock
        start = clock()
        self.action()
        now = clock()
        until = now + self._share * (now - start)
        while now < until:
            now = clock()

    def spans(self, n: int, starts: Sequence[float] = (), slower: float = 0.0) -> Spans | None:
        """See `Action.spans`."""
        return self.action.spans(n, starts, self._share + slower)
