"""Build an algorithm's schedule by name, or from the file of an algorithm (``-A FILE``).

A file is MSCCL's XML, an execution plan of MSCCL++ (JSON), or a schedule of Busbar's own (JSON);
how its text begins decides.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from busbar import files
from busbar.errors import MissingFile, ScheduleError, Unsupported
from busbar.terminal import make_printable
from collectives.formats import msccl, mscclpp, mscclpp_prove, own
from collectives.formats.convert import convert, proven
from collectives.formats.msccl import MOST_BYTES, Algorithm, MscclError
from collectives.formats.mscclpp import ExecutionPlan
from collectives.formats.own import StoredSchedule
from collectives.formats.proof import chunk_layout, prove
from collectives.schedule import catalogue
from collectives.schedule.layout import Layout
from collectives.schedule.place import place
from collectives.schedule.schedule import Schedule

# The most kinds of operations that the error about a plan lists.
_MOST_NAMED = 8
# A proof of more steps is announced: 6,000 of MSCCL take a second.
_MANY_STEPS = 30_000


class ProvenFile(NamedTuple):
    """A file's proven algorithm: its layout, its schedule, and lines that describe it.

    ``schedule``: converts the algorithm; raises Unsupported if it has no schedule.
    """

    layout: Layout
    schedule: Callable[[], Schedule]
    summary: list[str]


def _parse(path: Path) -> Algorithm | ExecutionPlan | StoredSchedule:
    """Parse a file. Raises MscclError if it has none of the formats."""
    text = files.read(path, MOST_BYTES, MscclError)
    if own.recognises(text):
        with _naming(path):
            return own.parse(text, str(path))
    if mscclpp.recognises(text):
        return mscclpp.parse(text, str(path))
    return msccl.parse(text, str(path))


@contextmanager
def _naming(path: Path, what: str = "") -> Iterator[None]:
    """A context in which messages of errors begin with the file; of Unsupported also ``what``."""
    try:
        yield
    except (MscclError, MissingFile):
        raise
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from None
    except Unsupported as error:
        raise Unsupported(f"{path}: {what}{error}") from None


def prove_file(path: Path, note: Callable[[str], None] = lambda _: None) -> ProvenFile:
    """Read and prove a file. ``note`` gets a line before a proof that takes more than seconds.

    Raises MscclError for a file of no known format, ScheduleError if the algorithm is wrong, and
    Unsupported if it cannot be proven. All messages name the file.
    """
    parsed = _parse(path)
    if (count := _count_steps(parsed)) > _MANY_STEPS:
        note(f"{path}: proving {count:,} steps, which may take minutes")
    if isinstance(parsed, Algorithm):
        return _proven_algorithm(path, parsed)
    if isinstance(parsed, StoredSchedule):
        return _proven_schedule(path, parsed)
    counts = ", ".join(f"{n} {name}" for name, n in parsed.counts().most_common())
    few = ", ".join(f"{n} {name}" for name, n in parsed.counts().most_common(_MOST_NAMED))
    what = f"an execution plan of MSCCL++ for {parsed.collective} on {parsed.ngpus} gpus ({few}): "
    with _naming(path, what):
        proof = mscclpp_prove.prove(parsed)
    blocks = sum(len(gpu.threadblocks) for gpu in parsed.gpus)
    head = (
        f"{path}: {parsed.name or 'unnamed'}: MSCCL++ plan, {proof.layout.spec.name} on"
        f" {parsed.ngpus} gpus, {proof.layout.nchunks} chunks, {blocks} threadblocks,"
        f" {parsed.protocol}\noperations: {counts}"
    )
    placements = "in place" if parsed.inplace else "out of place"
    summary = _summary(head, placements, proof.notes)
    return ProvenFile(proof.layout, lambda: proof.schedule, summary)


def _count_steps(parsed: Algorithm | ExecutionPlan | StoredSchedule) -> int:
    """The steps, operations or moves that a proof goes through."""
    if isinstance(parsed, Algorithm):
        return sum(1 for _ in parsed.steps())
    if isinstance(parsed, StoredSchedule):
        return sum(step.moves().table.shape[1] for step in parsed.schedule.steps)
    return sum(parsed.counts().values())


def _proven_algorithm(path: Path, algorithm: Algorithm) -> ProvenFile:
    with _naming(path):
        proof = prove(algorithm)
    steps = sum(1 for _ in algorithm.steps())
    blocks = sum(len(gpu.threadblocks) for gpu in algorithm.gpus)
    head = (
        f"{path}: {algorithm.name or 'unnamed'}: {proof.layout.spec.name} on {algorithm.ngpus}"
        f" gpus, {algorithm.nchunksperloop} chunks, {blocks} threadblocks, {steps} steps,"
        f" {algorithm.proto}"
    )
    placements = " and ".join("in place" if p else "out of place" for p in proof.placements)

    def schedule() -> Schedule:
        with _naming(path):
            return convert(algorithm, proof)

    return ProvenFile(proof.layout, schedule, _summary(head, placements, proof.notes))


def _proven_schedule(path: Path, stored: StoredSchedule) -> ProvenFile:
    with _naming(path):
        schedule = proven(*stored)
    what = stored.layout.spec
    head = (
        f"{path}: {schedule.name or 'unnamed'}: schedule of Busbar, {what.name} on"
        f" {schedule.nranks} ranks, {schedule.nchunks} chunks, {len(schedule.steps)} steps"
    )
    placements = "out of place and in place" if what.in_place else "out of place"
    return ProvenFile(stored.layout, lambda: schedule, _summary(head, placements, ()))


def _summary(head: str, placements: str, notes: tuple[str, ...]) -> list[str]:
    proven = f"proven {placements}: the result is right, free of deadlocks and races"
    return [head, proven, *(f"note: {note}" for note in notes)]


def load_layout(path: Path) -> Layout:
    """The layout of the collective that a file states. Raises as `prove_file` does."""
    parsed = _parse(path)
    with _naming(path):
        if isinstance(parsed, StoredSchedule):
            return parsed.layout
        if isinstance(parsed, ExecutionPlan):
            return mscclpp_prove.layout(parsed)
        return chunk_layout(parsed)


def load(path: Path, collective: str, nranks: int, root: int = 0) -> Schedule:
    """A file's algorithm as a placed schedule for a collective.

    Raises as `prove_file` does, and Unsupported if collective, ranks or root are not the file's.
    """
    where = load_layout(path)
    for name, requested, stated_value in (
        ("collective", collective, where.spec.name),
        ("ranks", nranks, where.nranks),
        ("root", root if where.spec.rooted else 0, where.root),
    ):
        if requested != stated_value:
            raise Unsupported(f"{path}: it is for {name} {stated_value}, not {requested}")
    return replace(prove_file(path).schedule(), name=make_printable(path.name))


def is_file(name: str) -> bool:
    """True if a name is a file's: it ends in .xml or .json, or has a slash."""
    return name.endswith((".xml", ".json")) or "/" in name or os.sep in name


def parameters(collective: str, name: str) -> Mapping[str, inspect.Parameter]:
    """The parameters of an algorithm by name; none if ``name`` is a file.

    See `collectives.schedule.catalogue.parameters`.
    """
    return {} if is_file(name) else catalogue.parameters(collective, name)


def draft(collective: str, name: str, nranks: int, *, root: int = 0, **values: object) -> Schedule:
    """An algorithm's schedule in vector form; a file's schedule is already placed in buffers.

    See `collectives.schedule.catalogue.draft`. Raises also as `load` does.
    """
    if not is_file(name):
        return catalogue.draft(collective, name, nranks, root=root, **values)
    if "pack" in values:
        raise Unsupported(f"{name}: a file says itself how messages travel; leave out pack")
    catalogue.check(name, nranks, root, values, {})
    return load(Path(name), catalogue.spec(collective).name, nranks, root)


def build(collective: str, name: str, nranks: int, *, root: int = 0, **values: object) -> Schedule:
    """The schedule of an algorithm, or of a file, for one collective; ``name``: either of both.

    See `collectives.schedule.catalogue.build`.
    """
    schedule = draft(collective, name, nranks, root=root, **values)
    return place(schedule, catalogue.spec(collective), root)
