"""Algorithms by name, or by the file that holds one: what ``-A FILE`` means.

A file is MSCCL's XML or an execution plan of MSCCL++ (JSON); its first character says which.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from busbar import files
from busbar.errors import ScheduleError, Unsupported
from busbar.terminal import make_printable
from collectives.formats import mscclpp, mscclpp_prove
from collectives.formats.convert import convert
from collectives.formats.msccl import MOST_BYTES, Algorithm, MscclError, read
from collectives.formats.mscclpp import ExecutionPlan
from collectives.formats.mscclpp_prove import PlanProof
from collectives.formats.proof import Proof, chunk_layout, prove
from collectives.schedule import catalogue
from collectives.schedule.layout import Layout
from collectives.schedule.place import place
from collectives.schedule.schedule import Schedule

# Operations of a plan that is not proven, which its error names.
_MOST_NAMED = 8


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


def plan_of(path: Path) -> ExecutionPlan | None:
    """The plan of a file in MSCCL++'s JSON; None for any other file. Raises MscclError."""
    text = files.read(path, MOST_BYTES, MscclError)
    return mscclpp.parse(text, str(path)) if mscclpp.recognises(text) else None


def proven_plan(path: Path, plan: ExecutionPlan) -> PlanProof:
    """The proof of a plan. Raises ScheduleError and Unsupported, which name the file."""
    try:
        return mscclpp_prove.prove(plan)
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from None
    except Unsupported as error:
        counts = ", ".join(f"{n} {name}" for name, n in plan.counts().most_common(_MOST_NAMED))
        what = f"an execution plan of MSCCL++ for {plan.collective} on {plan.ngpus} gpus ({counts})"
        raise Unsupported(f"{path}: {what}: {error}") from None


def stated(path: Path) -> Layout:
    """The layout of a file's collective: what it is for. Raises as `proven` does."""
    plan = plan_of(path)
    try:
        return chunk_layout(read(path)) if plan is None else mscclpp_prove.layout(plan)
    except MscclError:
        raise
    except (ScheduleError, Unsupported) as error:
        raise type(error)(f"{path}: {error}") from None


def load(path: Path, collective: str, nranks: int, root: int = 0) -> Schedule:
    """A file's algorithm as a placed schedule for a collective.

    Raises what `proven` does, and Unsupported where the file is for something else.
    """
    where = stated(path)
    given = (
        ("collective", collective, where.spec.name),
        ("ranks", nranks, where.nranks),
        ("root", root if where.spec.rooted else 0, where.root),
    )
    for name, asked, has in given:
        if asked != has:
            raise Unsupported(f"{path}: it is for {name} {has}, not {asked}")
    plan = plan_of(path)
    made = convert(*proven(path)) if plan is None else proven_plan(path, plan).schedule
    return replace(made, name=make_printable(path.name))


def from_file(name: str) -> bool:
    """Say whether a name is that of a file: it ends in .xml or .json, or has a slash."""
    return name.endswith((".xml", ".json")) or "/" in name or os.sep in name


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
