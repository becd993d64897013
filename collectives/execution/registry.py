"""The registry of transports: each subfolder with a module ``entry`` is a transport.

Entries are small: the transport itself is imported only when it is opened.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, NamedTuple

from busbar.errors import Unavailable, Unsupported
from collectives import execution

if TYPE_CHECKING:
    from collectives.execution.transport import Transport
    from collectives.execution.world import World


@dataclass(frozen=True)
class Option:
    """A command-line option of transports.

    ``parse`` checks and normalises a value if there are no ``choices``; it raises Unsupported.
    ``title``: the option's heading in the help. ``absent``: a value that says what a transport
    without this option does anyway.
    """

    flag: str
    choices: tuple[str, ...]
    default: str
    help: str
    parse: Callable[[str], str] = str
    title: str = "GPUs"
    absent: str | None = None

    @property
    def name(self) -> str:
        """The name as an identifier: ``add_order`` for ``--add-order``."""
        return self.flag.removeprefix("--").replace("-", "_")

    def of(self, chosen: Mapping[str, str]) -> str:
        """The option's value in ``chosen``, or its default."""
        return chosen.get(self.name, self.default)


@dataclass(frozen=True)
class TransportRequest:
    """A run's requirements on its transports.

    ``name``: a transport, or ``auto``. ``deadline``: seconds until a rank that waits gives up.
    ``chosen``: values of transports' own options that were given, by name. ``gpus``: CUDA's numbers
    of the GPUs to use; empty for all, None for the best ones. ``best_gpus(n)``: PCI addresses of
    the best n GPUs. ``asks_for_gpus``: the run fails if it can use no GPUs. ``pairs``: pairs of
    ranks are measured; ``reached``: by put and get, too.
    """

    name: str
    deadline: float
    chosen: Mapping[str, str]
    best_gpus: Callable[[int], list[str]]
    gpus: tuple[int, ...] | None = ()
    asks_for_gpus: bool = False
    oversubscribe_gpu: bool = False
    pairs: bool = False
    reached: bool = False


class OpenTransports(NamedTuple):
    """A run's transport, and the transport whose library is the baseline (maybe the same)."""

    transport: Transport
    baseline: Transport


def suits_every_run(world: World, request: TransportRequest) -> bool:
    """True: the transport suits every run."""
    return True


@dataclass(frozen=True)
class Entry:
    """The properties of a transport that are known without loading it.

    - ``worlds``: whether it connects MPI's ranks, threads or both: values of `World.name`.
    - ``open``: opens it, on all ranks together; all raise the same Unavailable or Unsupported.
    - ``on_gpu``: it moves the memory of GPUs. ``on_gpu_with``: it does if this option does not
      have its default value.
    - ``turn``: its place in the order in which ``auto`` tries transports; None: never.
    - ``suits``: whether ``auto`` uses it for a run, the same on all ranks.
    - ``between``: opens it to time pairs of ranks (`topology measure`).
    - ``maps_memory``: ranks use each other's buffers in place, so that times between pairs also say
      what its copies and mailboxes cost (`collectives.predict.maps`).
    """

    name: str
    worlds: tuple[str, ...]
    open: Callable[[World, TransportRequest], OpenTransports]
    on_gpu: bool = False
    on_gpu_with: Option | None = None
    options: tuple[Option, ...] = ()
    turn: int | None = None
    suits: Callable[[World, TransportRequest], bool] = suits_every_run
    between: Callable[[World], Transport] | None = None
    maps_memory: bool = False

    @property
    def makes_ranks(self) -> bool:
        """True if the ranks of the transport are threads of one process, which it starts."""
        return self.worlds == ("inproc",)


def transports() -> Mapping[str, Entry]:
    """All transports, by the name that ``--transport`` accepts."""
    entries: dict[str, Entry] = {}
    for folder in iter_modules(execution.__path__):
        place = f"{execution.__name__}.{folder.name}"
        if folder.ispkg and find_spec(f"{place}.entry"):
            entry: Entry = import_module(f"{place}.entry").ENTRY
            entries[entry.name] = entry
    return entries


def auto_order(world: str, *, on_gpu: bool = True) -> list[Entry]:
    """The transports in the order in which ``auto`` tries them.

    ``world``: what the ranks are, processes of MPI (``mpi``) or threads (``inproc``). ``on_gpu``:
    include those of GPUs.
    """
    fitting = (one for one in transports().values() if world in one.worlds)
    order = [(one.turn, one) for one in fitting if one.turn is not None]
    return [one for _, one in sorted(order, key=lambda pair: pair[0]) if on_gpu or not one.on_gpu]


def check_chosen(entry: Entry, chosen: Mapping[str, str]) -> None:
    """Raise Unsupported if an option was given that only other transports have."""
    for one in (own for other in transports().values() for own in other.options):
        if chosen.get(one.name) not in (None, one.absent) and one not in entry.options:
            raise Unsupported(f"{one.flag} has no effect with --transport {entry.name}")


def open_transports(world: World, request: TransportRequest) -> OpenTransports:
    """Open the transports of a run, on all ranks together.

    Raises Unsupported for a transport of another kind of ranks, and what its ``open`` raises. A
    transport that ``auto`` cannot open, or on which a given option has no effect, is skipped with a
    note, unless GPUs were asked for.
    """
    if request.name != "auto":
        named = transports().get(request.name)
        if named is None or world.name not in named.worlds:
            raise Unsupported(f"--transport {request.name} joins other ranks than {world.name}'s")
        return named.open(world, request)
    order = auto_order(world.name)
    for entry in order:
        try:
            if entry.suits(world, request):
                check_chosen(entry, request.chosen)
                return entry.open(world, request)
        except (Unsupported, Unavailable) as error:
            if (entry.on_gpu and request.asks_for_gpus) or entry is order[-1]:
                raise
            if world.rank == 0:
                print(f"busbar: not over {entry.name}: {error}", file=sys.stderr)
    raise Unsupported(f"no transport joins ranks of {world.name}")
