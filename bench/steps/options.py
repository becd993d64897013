"""The options of ``bench.step``, checked as far as possible without knowing the ranks."""

from __future__ import annotations

import argparse
import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.options.options import Options, as_given
from bench.steps import buckets
from bench.steps.arguments import MOST_MS, parser
from bench.steps.buckets import Fusion, GradientLayout
from bench.steps.compute import FORWARD, Compute, Exponential, Replay
from bench.steps.training.asked import TrainingOptions
from bench.steps.training.codecs import codec
from bench.steps.training.problem import shape
from bench.steps.training.rules import rule
from bench.steps.workloads.file import MOST_BYTES, PRECISIONS, read
from bench.steps.workloads.models import model
from bench.steps.workloads.workload import Tensor, Workload
from busbar.errors import MissingLibrary, Unsupported
from busbar.files import read_text

# Fields of `StepOptions` that are what the grammar gives under their names.
_AS_GIVEN = (
    "batch", "fit", "join", "json", "learners", "plot", "seed", "servers", "sweep", "trace",
)  # fmt: skip
_MOST_ROWS = 100_000
_MOST_RANKS = 1024


class UpdateChoice(NamedTuple):
    """An update that was asked for: its name, and what stands behind the colon."""

    name: str
    value: str = ""

    @property
    def label(self) -> str:
        """As it was asked for: ``k-sync:4``."""
        return f"{self.name}:{self.value}" if self.value else self.name


@dataclass(frozen=True)
class StepOptions:
    """The options. ``run``: those that every benchmark has (ranks, transport, time, files).

    ``fusions``: those to try one after the other (``--sweep fusion``), of which ``fusion`` is one.
    ``listing``: models or updates, where only their names were asked for. ``servers``: ranks that
    serve, ``learners``: those that are processes of their own, ``join``: the run of which this
    process is one. ``words``: the command line, of which such processes make the same options.
    """

    run: Options
    workload: Workload
    updates: tuple[UpdateChoice, ...]
    compute: Compute
    fusion: Fusion
    training: TrainingOptions
    overlap: bool = True
    fit: Path | None = None
    topology: tuple[str, ...] = ()
    dtype: str = "float"
    batch: int = 32
    burn: bool = False
    seed: int = 0
    json: bool = False
    trace: Path | None = None
    plot: Path | None = None
    sweep: str = ""
    fusions: tuple[Fusion, ...] = ()
    listing: str = ""
    servers: int = 1
    learners: int = 0
    join: str = ""
    words: tuple[str, ...] = ()


def parse(argv: Sequence[str]) -> StepOptions:
    """Options from a command line. Raises Unsupported with one line for whatever is wrong."""
    given = parser().parse_args(argv)
    listing = "models" if given.model == "list" else "updates" if given.update == "list" else ""
    # The launches of a sweep have a file that they go on with, and one rank count each.
    sweeps = given.sweep == "ranks" and given.after is None
    if sweeps and given.threads is not None:
        raise Unsupported("--sweep ranks starts processes; give --ranks, not --threads")
    if sweeps:
        given.ranks = _counts(given.ranks)
    run = Options(
        sizes=(0,),
        factor=None,
        step=None,
        algorithms=(),
        collective="allreduce",
        warmup=given.warmup_iters,
        threads=given.threads,
        **as_given(given) | {"seed": None},
    )
    if given.learners:
        run = _of_processes(run, given.servers)
    training = _training(given)
    workload = _problem(training) or workload_of("toy" if listing else given.model)
    if training.compress != "none" and any(tensor.dtype for tensor in workload.tensors):
        raise Unsupported(f"--compress takes fp32; {workload.name} has tensors of other types")
    updates = tuple(_choice(text) for text in given.update.split(","))
    if given.trace is not None and (len(updates) > 1 or run.rank_counts):
        raise Unsupported("--trace has room for one run; name one --update and one rank count")
    if given.plot is not None and run.rank_counts:
        raise Unsupported("--plot draws one run; name one rank count")
    how = buckets.parse_fusion(given.fusion, given.cycle)
    fusions = [how]
    if given.sweep == "fusion":
        nbytes = GradientLayout.of(workload, PRECISIONS[given.precision]).nbytes
        fusions = buckets.candidate_fusions(nbytes, given.cycle)
    if given.sweep and given.trace is not None:
        raise Unsupported("--trace has room for one run; leave out --sweep")
    return StepOptions(
        run=run,
        workload=workload.scaled(given.scale),
        updates=updates,
        compute=compute(given.compute, workload.backward_s, given.seed, given.straggler),
        training=training,
        fusion=how.scaled(given.scale),
        fusions=tuple(one.scaled(given.scale) for one in fusions),
        overlap=given.overlap == "on",
        topology=tuple(given.topology or ()),
        dtype=training.wire or PRECISIONS[given.precision],
        burn=given.compute_by == "burn",
        listing=listing,
        words=tuple(argv),
        **{name: vars(given)[name] for name in _AS_GIVEN},
    )


def _of_processes(run: Options, servers: int) -> Options:
    """With learners that are processes, servers are threads of this one."""
    if run.ranks is not None or run.rank_counts or run.threads is not None:
        raise Unsupported("--learners starts its own processes; leave out --ranks and --threads")
    if run.transport not in ("auto", "inproc"):
        raise Unsupported(f"--learners are joined by sockets, not by --transport {run.transport}")
    return replace(run, threads=servers, transport="inproc")


def _training(given: argparse.Namespace) -> TrainingOptions:
    """The options of real gradients. Raises Unsupported for options that exclude each other."""
    if given.problem is not None:
        for name in ("model", "scale", "precision"):
            if getattr(given, name) != parser().get_default(name):
                raise Unsupported(f"--{name} is of a model; --problem {given.problem} is trained")
    if given.compress != "none" and given.precision != "fp32":
        raise Unsupported("--compress turns fp32 into what travels; leave --precision out")
    if given.plot is not None and given.plot.suffix not in (".png", ".svg", ".pdf"):
        raise Unsupported(f"--plot {given.plot}: its name ends with .png, .svg or .pdf")
    if given.plot is not None and find_spec("matplotlib") is None:
        raise MissingLibrary("matplotlib")  # before anything is measured
    return TrainingOptions(
        None if given.problem is None else shape(given.problem, given.batch),
        given.problem or "",
        given.rule,
        given.rate,
        rule(given.rule, given.rate),
        given.compress,
        codec(given.compress),
    )


def _problem(training: TrainingOptions) -> Workload | None:
    """The tensors of the problem that is trained."""
    if training.problem is None:
        return None
    tensors = [Tensor(name, sizes, prod(sizes)) for name, sizes in training.problem.tensors]
    return Workload(training.problem_text, tuple(tensors[::-1]))


def _counts(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """The rank counts of ``--sweep ranks``: 1, then doubled up to the one that was given."""
    if len(ranks) > 1:
        return tuple(sorted({1, *ranks}))
    if not ranks:
        raise Unsupported("--sweep ranks: say how far with --ranks P, or which with --ranks 2,4,8")
    doubled = {1 << n for n in range(ranks[0].bit_length())}
    return tuple(sorted({*doubled, ranks[0]}))


def _choice(text: str) -> UpdateChoice:
    name, _, value = text.strip().partition(":")
    if not name:
        raise Unsupported("--update: a name is missing; --update list has them")
    return UpdateChoice(name, value)


def workload_of(name: str) -> Workload:
    """The model of a name or of a file. Raises Unsupported."""
    if name.endswith((".csv", ".json")):
        return read(Path(name))
    return model(name)


def compute(
    given: str | None,
    backward: float | None = None,
    seed: int = 0,
    stragglers: Sequence[str] = (),
) -> Compute:
    """The law that ``--compute`` names. ``backward``: a model's own seconds. Raises Unsupported."""
    slow = dict(map(_straggler, stragglers))
    text = ("none" if backward is None else "model") if given is None else given
    if text == "model":
        if backward is None:
            raise Unsupported("--compute model: the model has no times (a file's backward_ms)")
        return Exponential(text, 0.0, backward / (1 - FORWARD), slow=slow)
    kind, _, rest = text.partition(":")
    if text == "none":
        return Exponential(text, 0.0, slow=slow)
    if kind == "fixed":
        return Exponential(text, 0.0, _ms(text, rest), slow=slow)
    if kind == "exp":
        mean, comma, shift = rest.partition(",")
        moved = _ms(text, shift) if comma else 0.0
        return Exponential(text, _ms(text, mean), moved, seed, slow)
    if text.endswith(".csv"):
        return Replay(Path(text).name, _table(Path(text)), slow)
    raise Unsupported(
        f"--compute {text[:40]!r}: write none, fixed:MS, exp:MS[,SHIFT], model, FILE.csv"
    )


def _ms(text: str, number: str) -> float:
    """Seconds of milliseconds in a law."""
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MOST_MS:
        raise Unsupported(f"--compute {text[:40]!r}: milliseconds from 0 to {MOST_MS:g}")
    return value / 1e3


def _straggler(text: str) -> tuple[int, float]:
    found = re.fullmatch(r"([0-9]{1,4}):([0-9]*\.?[0-9]+)", text, re.ASCII)
    if found is None or not 0 < float(found[2]) <= 1e6:
        raise Unsupported(f"--straggler {text[:40]!r}: write RANK:FACTOR, such as 3:2.5")
    return int(found[1]), float(found[2])


def _table(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Seconds from a file of milliseconds: a row a step, a column a rank."""
    rows: list[list[float]] = []
    for number, cells in enumerate(csv.reader(io.StringIO(read_text(path, MOST_BYTES))), 1):
        if not cells or (number == 1 and not _number(cells[0])):
            continue
        if not all(map(_number, cells)) or not all(0 <= float(c) <= MOST_MS for c in cells):
            raise Unsupported(f"{path}:{number}: milliseconds from 0 to {MOST_MS:g} are needed")
        rows.append([float(c) / 1e3 for c in cells])
        if len(cells) != len(rows[0]) or len(cells) > _MOST_RANKS:
            raise Unsupported(f"{path}:{number}: {len(cells)} columns, but {len(rows[0])} before")
        if len(rows) > _MOST_ROWS:
            raise Unsupported(f"{path}: more than {_MOST_ROWS} steps")
    if not rows:
        raise Unsupported(f"{path}: no times; a row a step and a column a rank are needed")
    return np.array(rows)


def _number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
