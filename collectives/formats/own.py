"""Busbar's own schedule files (JSON): a placed schedule as it is, step by step.

MSCCL's XML keeps messages but no steps, so that steps of a pipeline come back as one. This format
keeps everything that a schedule's digest covers.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, Struct

from busbar.terminal import make_printable
from busbar.units import MOST_RANKS
from collectives.formats.msccl import MOST_STEPS, MscclError
from collectives.schedule.catalogue import spec
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Moves
from collectives.schedule.schedule import Schedule, Step
from collectives.schedule.spec import Collective

# The most chunks of a vector, and the most chunks that a step moves or all ranks' scratch has.
_MOST_CHUNKS, _MOST_MOVED = 1 << 20, 1 << 26
# The most steps, and the most moves in all steps together. MSCCL has two steps for a move, a send
# and a receive.
_MOST_MOVES = MOST_STEPS // 2
_Number = Annotated[int, Meta(ge=0, le=_MOST_CHUNKS)]
# Sender, receiver, buffer and first chunk read, buffer and first chunk written, chunks, 1 to add.
_Move = tuple[_Number, _Number, _Number, _Number, _Number, _Number, _Number, _Number]


class StoredSchedule(NamedTuple):
    """A schedule of a file, not yet proven, and the layout of its collective."""

    schedule: Schedule
    layout: Layout


class _Document(Struct, forbid_unknown_fields=True):
    """The content of a file."""

    busbar_schedule: Literal[1]
    name: str
    collective: str
    ranks: Annotated[int, Meta(ge=1, le=MOST_RANKS)]
    root: _Number
    chunks: _Number
    scratch: _Number
    packed: bool
    fusible: bool
    held: list[list[_Number]]
    steps: list[list[_Move]]


# Made at import: ranks that are threads may crash msgspec if they are the first to use a type.
_DOCUMENT = msgspec.json.Decoder(_Document)


def recognises(text: bytes) -> bool:
    """True if a text begins as `write` begins it."""
    return text.lstrip().startswith(b'{"busbar_schedule"')


def write(schedule: Schedule, what: Collective, root: int = 0) -> bytes:
    """A placed schedule as text; `parse` returns the same schedule from it."""
    document = _Document(
        1,
        schedule.name,
        what.name,
        schedule.nranks,
        root,
        schedule.nchunks,
        schedule.scratch,
        schedule.packed,
        schedule.fusible,
        [each.tolist() for each in schedule.held],
        [step.moves().table.T.tolist() for step in schedule.steps],
    )
    return msgspec.json.encode(document) + b"\n"


def parse(text: bytes, name: str = "JSON") -> StoredSchedule:
    """Parse a text. ``name``: the file's name for errors.

    Raises MscclError, and ScheduleError if chunks do not fit the collective. Nothing is proven yet.
    """
    try:
        read = _DOCUMENT.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MscclError(f"{name}: no schedule of Busbar: {error}") from None
    scratch = [len(each) for each in read.held]
    if read.root >= read.ranks:
        raise MscclError(f"{name}: root {read.root} is no rank; there are {read.ranks}, from 0")
    if scratch and (len(scratch) != read.ranks or max(scratch) > read.scratch):
        raise MscclError(f"{name}: held: a list of at most {read.scratch} chunks a rank is needed")
    if any(chunk >= read.chunks for each in read.held for chunk in each):
        raise MscclError(f"{name}: held: there are only chunks 0 to {read.chunks - 1}")
    if read.ranks * (read.chunks + read.scratch) > _MOST_MOVED:
        raise MscclError(f"{name}: more than {_MOST_MOVED} chunks on all ranks")
    if max(len(read.steps), sum(map(len, read.steps))) > _MOST_MOVES:
        raise MscclError(f"{name}: more than {_MOST_MOVES:,} steps or moves; at most so many fit")
    steps = [np.array(step, np.int32).reshape(-1, 8).T for step in read.steps]
    if any(int(table[6].sum(dtype=np.int64)) > _MOST_MOVED for table in steps):
        raise MscclError(f"{name}: a step moves more than {_MOST_MOVED} chunks")
    schedule = Schedule(
        read.ranks,
        read.chunks,
        tuple(Step.fixed(Moves(table)) for table in steps),
        read.scratch,
        vector=False,
        packed=read.packed,
        fusible=read.fusible,
        name=make_printable(read.name),
        held=tuple(np.array(each, np.int64) for each in read.held),
    )
    return StoredSchedule(schedule, Layout.of(schedule, spec(read.collective), read.root))
