"""Algorithms by name, or by the MSCCL file that holds one: what ``-A FILE.xml`` means."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from busbar.errors import ScheduleError, Unsupported
from busbar.printable import printable
from collectives.formats.convert import convert
from collectives.formats.memory import layout
from collectives.formats.msccl import Algorithm
from collectives.formats.parse import read
from collectives.formats.prove import Proof, prove
from collectives.schedule import catalogue
from collectives.schedule.place import place
from collectives.schedule.schedule import Schedule


def proven(path: Path) -> tuple[Algorithm, Proof]:
    """A file's algorithm and its proof.

    Raises MscclError for what is no MSCCL XML, ScheduleError for an algorithm that is wrong; both
    name the file.
    """
    algorithm = read(path)
    try:
        return algorithm, prove(algorithm)
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from None
    except Unsupported as error:
        raise Unsupported(f"{path}: {error}") from None


def load(path: Path, collective: str, nranks: int, root: int = 0) -> Schedule:
    """A file's algorithm as a placed schedule for a collective.

    Raises what `proven` does, and Unsupported where the file is for something else.
    """
    algorithm = read(path)
    what = layout(algorithm).spec
    given = (
        ("collective", collective, what.name),
        ("ranks", nranks, algorithm.ngpus),
        ("root", root if what.rooted else 0, algorithm.root),
    )
    for name, asked, has in given:
        if asked != has:
            raise Unsupported(f"{path}: it is for {name} {has}, not {asked}")
    algorithm, proof = proven(path)
    return replace(convert(algorithm, proof), name=printable(path.name))


def from_file(name: str) -> bool:
    """Say whether a name is that of an MSCCL XML file: it ends in .xml or has a slash."""
    return name.endswith(".xml") or "/" in name or os.sep in name


def parameters(collective: str, name: str) -> Mapping[str, inspect.Parameter]:
    """As `collectives.schedule.catalogue.parameters`; a file's algorithm has none."""
    return {} if from_file(name) else catalogue.parameters(collective, name)


def draft(collective: str, name: str, nranks: int, *, root: int = 0, **given: object) -> Schedule:
    """As `collectives.schedule.catalogue.draft`; a file's schedule is a placed one.

    Raises what `load` does beside.
    """
    if not from_file(name):
        return catalogue.draft(collective, name, nranks, root=root, **given)
    if "pack" in given:
        raise Unsupported(f"{name}: a file says itself how messages travel; leave out pack")
    catalogue.check(name, nranks, root, given, {})
    return load(Path(name), catalogue.spec(collective).name, nranks, root)


def build(collective: str, name: str, nranks: int, *, root: int = 0, **given: object) -> Schedule:
    """As `collectives.schedule.catalogue.build`, also for a file."""
    made = draft(collective, name, nranks, root=root, **given)
    return place(made, catalogue.spec(collective), root)
