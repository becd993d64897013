"""The table of formats that schedules are written in, each a function to named files' bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from collectives.formats.export import export
from collectives.formats.msccl import write
from collectives.formats.simulators import chakra, goal, turns
from collectives.schedule.layout import Layout
from collectives.schedule.schedule import Schedule

# What a format's files are called after the name that was asked for, with their bytes, one at a
# time.
Named = Iterator[tuple[str, bytes]]


@dataclass(frozen=True)
class Order:
    """A schedule and how to write it.

    ``nbytes``: the collective's size, for formats that state one. ``in_place``: the placement, for
    formats that know it; None is every placement that there is.
    """

    schedule: Schedule
    layout: Layout
    nbytes: int
    in_place: bool | None = None
    proto: str = "Simple"
    channels: int = 1
    ns_per_byte: float = 0.0


def _msccl(order: Order) -> Named:
    made = export(
        order.schedule,
        order.layout,
        in_place=order.in_place,
        proto=order.proto,
        channels=order.channels,
    )
    yield "", write(made)


def _goal(order: Order) -> Named:
    yield "", goal(turns(order.schedule, order.layout, order.nbytes), order.ns_per_byte)


def _chakra(order: Order) -> Named:
    traces = chakra(turns(order.schedule, order.layout, order.nbytes))
    yield from ((f".{rank}.et", trace) for rank, trace in enumerate(traces))


FORMATS: Mapping[str, Callable[[Order], Named]] = MappingProxyType(
    {"chakra": _chakra, "goal": _goal, "msccl": _msccl}
)
