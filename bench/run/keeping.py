"""Where a run's results go: rank 0's standard output and the files that were asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.options.options import Options
from bench.run.environment import machine
from bench.run.screen import Screen
from busbar.errors import StoreError, Unavailable, Unsupported
from collectives.execution.world import World
from reports.exports.store import Store, nccl_sink, sink
from reports.readers.own import results
from reports.records.record import Result

__all__ = ["Keeper"]


class Keeper:
    """Prints and keeps results on rank 0, and does nothing on the others.

    All ranks make it together; where a file cannot be written all of them raise Unsupported
    (Unavailable where a library is missing). ``failed``: a file could not be written later on;
    measuring goes on without it then, and the other files go on, too.
    """

    def __init__(self, world: World, screen: Screen, options: Options) -> None:
        self._screen, self.failed = screen, False
        self._stores: list[Store] = []
        problem: list[str | int] = []
        if world.rank == 0:
            try:
                self._stores = _opened(options)
            except StoreError as error:
                problem = [str(error), error.exit_status]
        problem = world.broadcast(problem)
        if problem:
            kind = Unavailable if problem[1] == Unavailable.exit_status else Unsupported
            raise kind(str(problem[0]))

    def keep(self, result: Result) -> None:
        """Put a row on disk."""
        self._each(lambda store: store.add(result))

    def say(self, lines: Sequence[str]) -> None:
        """Print results, and keep the text where a run directory is asked for."""
        self._screen.lines(lines)
        self._each(lambda store: store.say(lines))

    def close(self) -> None:
        """The run is over."""
        self._each(lambda store: store.close())

    def _each(self, action: Callable[[Store], None]) -> None:
        for store in list(self._stores):
            try:
                action(store)
            except StoreError as error:
                self.failed = True
                self._stores.remove(store)
                self._screen.note(f"busbar: {error}; measuring goes on without it")


def _opened(options: Options) -> list[Store]:
    earlier: Sequence[Result] = ()
    if options.after is not None and options.after.exists():
        earlier = results(options.after.read_text())
    sinks = [sink(target, machine, earlier) for target in options.out]
    if options.nccl_json is not None:
        sinks.append(nccl_sink(options.nccl_json))
    return [Store([one]) for one in sinks]
