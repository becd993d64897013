"""Files in the place of algorithms: what ``-A FILE.xml`` means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from busbar.errors import ScheduleError, Unsupported
from collectives.formats.convert import convert
from collectives.formats.memory import layout
from collectives.formats.msccl import Algorithm
from collectives.formats.parse import read
from collectives.formats.prove import Proof, prove
from collectives.schedule.schedule import Schedule

__all__ = ["load", "proven"]


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
    """A file's algorithm as a placed schedule for a collective, as `collectives.schedule.catalogue` needs.

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
    return replace(convert(algorithm, proof), name=path.name)
