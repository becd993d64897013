"""The options of ``busbar step``."""

from __future__ import annotations

import argparse
import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bench.options.argument_types import at_least
from bench.options.options import TUNING, RunOptions
from bench.steps import buckets
from bench.steps.buckets import Fusion, GradientLayout
from bench.steps.compute import FORWARD, Compute, Exponential, Replay
from bench.steps.training.codecs import Codec, codec
from bench.steps.training.problem import (
    ProblemShape,
    SharedProblem,
    TrainingProblem,
    UpdateRule,
    rule,
    shape,
)
from bench.steps.workloads import MOST_BYTES, MOST_MS, PRECISIONS, Tensor, Workload, model, parse_ms
from busbar.arguments import Parser, number
from busbar.errors import MissingLibrary, Unsupported
from busbar.files import read_text
from busbar.options import Self, option, redefine, switch
from busbar.units import MOST_RANKS, SECONDS, parse_quantity

SPENDING = ("sleep", "burn")
_MOST_ROWS = 100_000


class UpdateChoice(NamedTuple):
    """One kind of gradient exchange from ``--update NAME:VALUE``, such as ``k-sync:4`` or ``ring``.

    ``value``: the text after the colon.
    """

    name: str
    value: str = ""

    @property
    def label(self) -> str:
        """The kind of exchange as written on the command line: ``k-sync:4``."""
        return f"{self.name}:{self.value}" if self.value else self.name


def duration(text: str) -> float:
    """Parse a time such as ``5ms``, ``200us`` or ``1s`` to seconds."""
    value = parse_quantity(text, SECONDS)
    if value is None or not 1e-6 <= value <= 60:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: write a time such as 5ms, up to 60s")
    return value


class StepOptions(RunOptions):
    """The options of ``busbar step``, checked as far as possible without knowing the ranks.

    ``tried``: with ``--sweep fusion``, the fusion that is being measured.
    """

    tried: Fusion | None = None
    # The seed is what is measured: the drawn times.
    not_recorded: ClassVar = tuple(name for name in RunOptions.not_recorded if name != "--seed")
    not_repeated: ClassVar = (*RunOptions.not_repeated, "--plot")  # which is recorded
    titles = ("the model", "the update", "real gradients", "where it runs", "how long")
    grid: tuple[int, ...] | None = None
    root: int | None = 0
    model: str = option(
        "--model NAME|FILE  a model by its name (--model list), or a .csv or .json file",
        "resnet50",
        title="the model",
    )
    scale: float = option(
        "--scale F  exchange 1/F of every tensor, as if links were F times as fast",
        1.0,
        number(1, 1e9, "as scale"),
    )
    precision: str = option("--precision  the gradients' type", "fp32", choices=tuple(PRECISIONS))
    batch: int = option(
        "--batch N  samples per rank and step, for samples/s", 32, at_least(1, "samples")
    )
    law: str | None = option(
        "--compute LAW  distribution of a rank's compute time per step: none, fixed:MS, exp:MS,"
        " exp:MS,SHIFT, model (the times in the model's file), or a .csv file of milliseconds with"
        " a row for each step and a column for each rank (default: model where its file has times,"
        " else none)"
    )
    compute_by: str = option(
        "--compute-by  sleep (default): the core is free, as when an accelerator computes; burn:"
        " the core is busy",
        "sleep",
        choices=SPENDING,
    )
    stragglers: tuple[str, ...] = option(
        "--straggler RANK:F  a rank whose compute takes F times as long; repeatable",
        (),
        action="append",
    )
    seed: int = option("--seed N  seed of all random numbers", 0, at_least(0, "as seed"))

    update: str = option(
        "-A --update NAMES  names joined by commas (--update list), such as ring, sharded_ps,"
        " library, auto",
        "ring,library",
        title="the update",
    )
    buckets: str = option(
        "--fusion HOW  bucket sizes: ddp (default) as PyTorch's DistributedDataParallel, the first"
        " of 1M and the others of 25M; ddp:FIRST,REST, one SIZE, none or all",
        "ddp",
    )
    cycle: float | None = option(
        "--cycle TIME  as Horovod: at this interval, such as 5ms, fill buffers of --fusion SIZE"
        " with the gradients that are ready",
        parse=duration,
    )
    overlapping: str = option(
        "--overlap HOW  on (default): exchange during the backward pass; off: after it; on,off:"
        " measure both, and say how much overlap buys",
        "on",
        choices=("on", "off", "on,off"),
    )
    sweep: str = option(
        "--sweep  fusion: try many bucket sizes and name the best; ranks: run 1, 2, 4 … --ranks P"
        " and show the scaling",
        "",
        choices=("fusion", "ranks"),
    )
    tuning: Path = option("--tuning FILE  the choices for --update auto", TUNING)
    fit: Path | None = option("--fit FILE  predict with these costs (busbar collectives fit)")
    topology: tuple[str, ...] = option(
        "--topology FILE  predict for the machine that these files map", (), nargs="+"
    )

    problem: str | None = option(
        "--problem NAME  train softmax or network (network:hidden=64:features=32:samples=4096) with"
        " real gradients, instead of exchanging those of a --model",
        title="real gradients",
    )
    rule: str = option(
        "--rule NAME  learning-rate rule: fixed (default), staleness (--rate over the mean"
        " staleness), distance:c=1 (c over the squared distance from the weights that were read, at"
        " most --rate), adagrad",
        "fixed",
    )
    rate: float = option("--rate R  learning rate", 0.1, number(1e-9, 1e9, "as rate"))
    compress: str = option(
        "--compress NAMES  compressions of gradients, joined by commas: none (default), fp16, bf16;"
        " for updates that send a gradient once (one_shot, ps, sharded_ps, parameter servers) also"
        " int8, 1bit, topk:fraction=0.01",
        "none",
    )
    plot: Path | None = option(
        "--plot FILE  draw time per update over K, and loss (.png, .svg, .pdf)"
    )

    servers: int = option(
        "--servers S  with a parameter server (sync, async …): the first S ranks serve a part of"
        " the weights each, the others learn",
        1,
        at_least(1, "servers", MOST_RANKS),
        title="where it runs",
    )
    learners: int = option(
        "--learners P  serve in this process and start P learners as processes, joined by sockets;"
        " learners may be lost and others may join (default: none)",
        0,
        at_least(1, "learners", MOST_RANKS),
    )
    join: str = option(
        "--join NAME  join a run with --learners on this host as a learner; that run prints its"
        " NAME",
        "",
    )
    warmup: int = option(
        "-w --warmup_iters N  warm-up steps", 1, at_least(0, "warm-ups"), title="how long"
    )
    budget: float = redefine(
        RunOptions,
        "budget",
        5.0,
        text="--budget SECONDS|10m  time limit of an update's steps, at least 6, without -n",
    )

    json: bool = switch(
        "--json  print the records as JSON lines instead of a table", title="what is kept"
    )
    trace: Path | None = option(
        "--trace FILE.json  write a timeline for Perfetto or chrome://tracing; for one --update"
        " only"
    )

    @classmethod
    def parse(cls, argv: Sequence[str], parser: Parser, **more: Any) -> Self:
        """The options of a command line, see `RunOptions.parse`; ``--plot`` is recorded, too.

        Only its file's name is, without a folder.
        """
        options = super().parse(argv, parser, **more)
        name = "" if options.plot is None else options.plot.name
        if not options.recorded or not re.fullmatch(r"[\w.-]+", name, re.ASCII):
            return options
        return options.replace(recorded=f"{options.recorded} --plot {name}")

    @property
    def listing(self) -> str:
        """``models``, or ``updates`` (kinds of exchange), if only a list is requested, or empty."""
        return "models" if self.model == "list" else "updates" if self.update == "list" else ""

    @cached_property
    def shape(self) -> ProblemShape | None:
        """The size of the problem that is trained; None without ``--problem``."""
        return None if self.problem is None else shape(self.problem, self.batch)

    @cached_property
    def cases(self) -> tuple[Self, ...]:
        """A copy of these options for each value of ``--compress``, and of ``--overlap``."""
        return tuple(
            self.replace(compress=name.strip(), overlapping=when)
            for name in self.compress.split(",")
            for when in self.overlapping.split(",")
        )

    @cached_property
    def codec(self) -> Codec:
        """The codec that ``--compress`` names, in one of the `cases`."""
        return codec(self.compress)

    @cached_property
    def make_rule(self) -> Callable[[], UpdateRule]:
        """A function that makes the rule (``--rule``) by which gradients change the weights."""
        return rule(self.rule, self.rate)

    def shared_problem(self, learners: int) -> SharedProblem | None:
        """The problem with its data for ``learners`` learners; None without ``--problem``."""
        if self.shape is None:
            return None
        return SharedProblem(TrainingProblem.of(self.shape, self.seed), self.make_rule, learners)

    @property
    def training_facts(self) -> dict[str, object]:
        """The options of real gradients, as fields of a record."""
        facts: dict[str, object] = {}
        if self.problem is not None:
            facts = {"problem": self.problem, "rule": self.rule, "rate": self.rate}
        return facts if self.compress == "none" else facts | {"compress": self.compress}

    @cached_property
    def _whole(self) -> Workload:
        """The model before ``--scale``: a problem's own tensors, or those of a name or a file."""
        if self.shape is None:
            return model("toy" if self.listing else self.model)
        tensors = [Tensor(name, sizes, prod(sizes)) for name, sizes in self.shape.tensors]
        return Workload(self.problem or "", tuple(tensors[::-1]))

    @cached_property
    def workload(self) -> Workload:
        """The model whose gradients are exchanged."""
        return self._whole.scaled(self.scale)

    @cached_property
    def updates(self) -> tuple[UpdateChoice, ...]:
        """The kinds of gradient exchange to measure, one after the other."""
        return tuple(_choice(text) for text in self.update.split(","))

    @cached_property
    def fusion(self) -> Fusion:
        """Which gradients are exchanged together."""
        return self.tried or buckets.parse_fusion(self.buckets, self.cycle).scaled(self.scale)

    @cached_property
    def fusions(self) -> tuple[Fusion, ...]:
        """The fusions to try one after the other."""
        if self.sweep != "fusion":
            return (self.fusion,)
        nbytes = GradientLayout.of(self._whole, PRECISIONS[self.precision]).nbytes
        tried = buckets.candidate_fusions(nbytes, self.cycle)
        return tuple(one.scaled(self.scale) for one in tried)

    @cached_property
    def compute(self) -> Compute:
        """The law of the ranks' compute times."""
        return compute(self.law, self._whole.backward_s, self.seed, self.stragglers)

    @property
    def overlap(self) -> bool:
        """True if gradients are exchanged during the backward pass, in any of the `cases`."""
        return self.overlapping != "off"

    @property
    def dtype(self) -> str:
        """The element type in which gradients are exchanged.

        It is float for compressed gradients whose encoding cannot be added, such as signs.
        """
        trained = self.problem is not None or self.compress != "none"
        return (self.codec.adds or "float") if trained else PRECISIONS[self.precision]

    @property
    def burn(self) -> bool:
        """True if a rank that computes keeps its core busy."""
        return self.compute_by == "burn"

    def checked(self) -> Self:
        """These options, checked; with the rank counts of ``--sweep ranks`` or with server threads.

        Raises Unsupported if an option is wrong or excludes another one.
        """
        # Each launch of a sweep has one rank count, and continues a file of records.
        counts = self.rank_list
        if self.sweep == "ranks" and self.after is None:
            if self.threads is not None:
                raise Unsupported("--sweep ranks starts processes; give --ranks, not --threads")
            counts = _counts(self.rank_list)
        super().checked()
        options = replace(self, rank_list=counts)
        if self.learners:
            options = options._of_processes()
        options._check_training()
        if self.compress != "none" and any(tensor.dtype for tensor in options._whole.tensors):
            raise Unsupported(
                f"--compress takes fp32; {options._whole.name} has tensors of other types"
            )
        several = len(options.updates) * len(options.cases) > 1 or options.rank_counts
        if self.trace is not None and several:
            raise Unsupported(
                "--trace has room for one run; name one --update, one rank count, and one value of"
                " --overlap and --compress"
            )
        if self.plot is not None and options.rank_counts:
            raise Unsupported("--plot draws one run; name one rank count")
        _ = options.updates, options.fusion, options.fusions
        if self.sweep and self.trace is not None:
            raise Unsupported("--trace has room for one run; leave out --sweep")
        _ = options.workload, options.compute
        return options

    def _of_processes(self) -> Self:
        """The options of a run with ``--learners``, whose servers are threads of this process."""
        if self.rank_list or self.threads is not None:
            raise Unsupported(
                "--learners starts its own processes; leave out --ranks and --threads"
            )
        if self.transport not in ("auto", "inproc"):
            raise Unsupported(
                f"--learners are joined by sockets, not by --transport {self.transport}"
            )
        return replace(self, thread_count=self.servers, transport="inproc")

    def _check_training(self) -> None:
        """Raise Unsupported if an option of real gradients excludes another option."""
        for name in ("model", "scale", "precision") if self.problem is not None else ():
            if name in self.given:
                raise Unsupported(f"--{name} does not go with --problem, which has its own model")
        if self.compress != "none" and self.precision != "fp32":
            raise Unsupported("--compress compresses fp32 gradients; leave --precision out")
        if self.plot is not None and self.plot.suffix not in (".png", ".svg", ".pdf"):
            raise Unsupported(f"--plot {self.plot}: its name ends with .png, .svg or .pdf")
        if self.plot is not None and find_spec("matplotlib") is None:
            raise MissingLibrary("matplotlib")  # before anything is measured
        _ = self.shape, self.make_rule, [case.codec for case in self.cases]


def _counts(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """The rank counts of ``--sweep ranks``: 1, 2, 4 … P for one number P, or 1 and those listed."""
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


def compute(
    law: str | None,
    backward: float | None = None,
    seed: int = 0,
    stragglers: Sequence[str] = (),
) -> Compute:
    """The law of ``--compute``. ``backward``: seconds in the model's file. Raises Unsupported."""
    slow = dict(map(_straggler, stragglers))
    text = ("none" if backward is None else "model") if law is None else law
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
    meant = f"; did you mean fixed:{text}?" if re.fullmatch(r"[0-9.]+", text[:40]) else ""
    raise Unsupported(
        f"--compute {text[:40]!r}: write none, fixed:MS, exp:MS[,SHIFT], model, FILE.csv{meant}"
    )


def _ms(text: str, number: str) -> float:
    """Parse ``number``, milliseconds, to seconds. Raises Unsupported, citing ``--compute text``."""
    seconds = parse_ms(number)
    if seconds is None:
        such = f"such as {text.partition(':')[0]}:50"
        raise Unsupported(f"--compute {text[:40]!r}: write milliseconds, 0 to {MOST_MS:g}, {such}")
    return seconds


def _straggler(text: str) -> tuple[int, float]:
    match = re.fullmatch(r"([0-9]{1,4}):([0-9]*\.?[0-9]+)", text, re.ASCII)
    if match is None or not 0 < float(match[2]) <= 1e6:
        raise Unsupported(f"--straggler {text[:40]!r}: write RANK:FACTOR, such as 3:2.5")
    return int(match[1]), float(match[2])


def _table(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Read a .csv file of milliseconds to seconds: a row for each step, a column for each rank."""
    rows: list[list[float]] = []
    for line, cells in enumerate(csv.reader(io.StringIO(read_text(path, MOST_BYTES))), 1):
        if not cells or (line == 1 and not _number(cells[0])):
            continue
        rows.append([seconds for seconds in map(parse_ms, cells) if seconds is not None])
        if len(rows[-1]) < len(cells):
            raise Unsupported(f"{path}:{line}: milliseconds from 0 to {MOST_MS:g} are needed")
        if len(cells) != len(rows[0]) or len(cells) > MOST_RANKS:
            raise Unsupported(f"{path}:{line}: {len(cells)} columns, but {len(rows[0])} before")
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
