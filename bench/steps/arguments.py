"""The options of ``bench.step``: names, defaults and help; `options` has their meaning."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from bench.options.argument_types import at_least, patience, ranks, seconds
from bench.options.arguments import AFFINITIES, TUNING, Add
from bench.steps.workloads.file import PRECISIONS
from busbar.arguments import Parser, number, program
from busbar.sizes import MOST_RANKS
from collectives.execution.registry import transports

SPENDING = ("sleep", "burn")
#: Milliseconds of a step at most: an hour.
MOST_MS = 3.6e6
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def parser() -> argparse.ArgumentParser:
    """The parser; it raises Unsupported instead of leaving."""
    p = Parser(
        prog=program("bench.step"),
        description="Measure training steps: a model's gradients exchanged as training exchanges"
        " them, beside the formulas.",
        epilog="Run under mpirun, or with --ranks N to have the launcher started for you. See"
        " docs/steps.md.",
    )
    _work(p.add_argument_group("the model").add_argument)
    _update(p.add_argument_group("the update").add_argument)
    _training(p.add_argument_group("real gradients").add_argument)
    _ranks(p.add_argument_group("where it runs").add_argument)
    _time(p.add_argument_group("how long").add_argument)
    _output(p.add_argument_group("what is kept").add_argument)
    return p


def _work(add: Add) -> None:
    add(
        "--model",
        default="resnet50",
        metavar="NAME|FILE",
        help="a model by its name (--model list), or a .csv or .json file (default resnet50)",
    )
    add(
        "--scale",
        type=number(1, 1e9, "as scale"),
        default=1.0,
        metavar="F",
        help="exchange 1/F of every tensor, as if links were F times as fast (default 1)",
    )
    add(
        "--precision",
        choices=tuple(PRECISIONS),
        default="fp32",
        help="the gradients' type (default fp32)",
    )
    add(
        "--batch",
        type=at_least(1, "samples"),
        default=32,
        metavar="N",
        help="samples per rank and step, for samples/s (default 32)",
    )
    add(
        "--compute",
        metavar="LAW",
        help="distribution of a rank's compute time per step: none, fixed:MS, exp:MS,"
        " exp:MS,SHIFT, model (the times in the model's file), or a .csv file of milliseconds"
        " with a row for each step and a column for each rank (default: model where its file has"
        " times, else none)",
    )
    add(
        "--compute-by",
        choices=SPENDING,
        default="sleep",
        help="sleep (default): the core is free, as when an accelerator computes; burn: the core"
        " is busy",
    )
    add(
        "--straggler",
        action="append",
        default=[],
        metavar="RANK:F",
        help="a rank whose compute takes F times as long; repeatable",
    )
    add(
        "--seed",
        type=at_least(0, "as seed"),
        default=0,
        metavar="N",
        help="seed of all random numbers (default 0)",
    )


def _update(add: Add) -> None:
    add(
        "--update",
        default="ring,library",
        metavar="NAMES",
        help="names joined by commas (--update list), such as ring, sharded_ps, library, auto"
        " (default ring,library)",
    )
    add(
        "--fusion",
        default="ddp",
        metavar="HOW",
        help="bucket sizes: ddp (default: the first of 1M, the others of 25M), ddp:FIRST,REST,"
        " one SIZE, none or all",
    )
    add(
        "--cycle",
        type=duration,
        metavar="TIME",
        help="as Horovod: at this interval, such as 5ms, fill buffers of --fusion SIZE with the"
        " gradients that are ready",
    )
    add(
        "--overlap",
        choices=("on", "off"),
        default="on",
        help="exchange during the backward pass (default), or after it",
    )
    add(
        "--sweep",
        choices=("fusion", "ranks"),
        help="fusion: try many bucket sizes and name the best; ranks: run 1, 2, 4 … --ranks P and"
        " show the scaling",
    )
    add(
        "--tuning",
        type=Path,
        default=TUNING,
        metavar="FILE",
        help=f"the choices for --update auto (default {TUNING})",
    )
    add(
        "--fit",
        type=Path,
        metavar="FILE",
        help="predict with these costs (python -m collectives fit)",
    )
    add(
        "--topology", nargs="+", metavar="FILE", help="predict for the machine that these files map"
    )


def duration(text: str) -> float:
    """Seconds of ``5ms``, ``200us`` or ``1s``."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)(us|ms|s)", text, re.ASCII)
    value = 0.0 if found is None else float(found[1]) * _UNITS[found[2]]
    if not 1e-6 <= value <= 60:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: write a time such as 5ms, up to 60s")
    return value


def _training(add: Add) -> None:
    add("--problem", metavar="NAME",
        help="train softmax or network (network:hidden=64:features=32:samples=4096) with real"
        " gradients, instead of exchanging those of a --model")  # fmt: skip
    add("--rule", default="fixed", metavar="NAME",
        help="learning-rate rule: fixed (default), staleness (--rate over the mean staleness),"
        " distance:c=1 (c over the squared distance from the weights that were read, at most"
        " --rate), adagrad")  # fmt: skip
    add("--rate", type=number(1e-9, 1e9, "as rate"), default=0.1, metavar="R",
        help="learning rate (default 0.1)")  # fmt: skip
    add("--compress", default="none", metavar="NAME",
        help="compression of gradients: none (default), fp16, bf16; for updates that send a"
        " gradient once (one_shot, ps, sharded_ps, parameter servers) also int8, 1bit,"
        " topk:fraction=0.01")  # fmt: skip
    add("--plot", type=Path, metavar="FILE",
        help="draw time per update over K, and loss (.png, .svg, .pdf)")  # fmt: skip


def _ranks(add: Add) -> None:
    add(
        "--transport",
        choices=("auto", *transports()),
        default="auto",
        help="what moves the bytes (default auto, as for the other benchmarks)",
    )
    add(
        "--ranks",
        type=ranks(1),
        default=(),
        metavar="P[,P…]",
        help="start this many ranks, without mpirun; several counts run one after the other",
    )
    add(
        "--threads",
        type=at_least(1, "threads", MOST_RANKS),
        metavar="N",
        help="run N ranks as threads of this process",
    )
    add(
        "--servers",
        type=at_least(1, "servers", MOST_RANKS),
        default=1,
        metavar="S",
        help="with a parameter server (sync, async …): the first S ranks serve a part of the"
        " weights each, the others learn (default 1)",
    )
    add(
        "--learners",
        type=at_least(1, "learners", MOST_RANKS),
        default=0,
        metavar="P",
        help="serve in this process and start P learners as processes, joined by sockets;"
        " learners may be lost and others may join",
    )
    add(
        "--join",
        default="",
        metavar="NAME",
        help="join a run with --learners on this host as a learner; that run prints its NAME",
    )
    add("--affinity", choices=AFFINITIES, default="none", help="pin ranks to cores (default none)")


def _time(add: Add) -> None:
    add(
        "-n",
        "--iters",
        type=at_least(1, "steps"),
        metavar="N",
        help="steps (default: until the median is within 2 %% or the budget is spent)",
    )
    add(
        "-w",
        "--warmup_iters",
        type=at_least(0, "warm-ups"),
        default=1,
        metavar="N",
        help="warm-up steps (default 1)",
    )
    add(
        "--budget",
        type=seconds,
        default=5.0,
        metavar="SECONDS",
        help="time limit of an update, without -n (default 5)",
    )
    add(
        "-T",
        "--timeout",
        type=patience,
        metavar="SECONDS",
        help="end an update that makes no progress for so long (default 0: never)",
    )


def _output(add: Add) -> None:
    add(
        "--out",
        action="append",
        default=[],
        metavar="FILE",
        help="write records (.jsonl, .jsonl.gz, .json, .csv, .parquet), or a run directory (DIR/)",
    )
    add("--json", action="store_true", help="print the records as JSON lines instead of a table")
    add(
        "--trace",
        type=Path,
        metavar="FILE.json",
        help="write a timeline for Perfetto or chrome://tracing; for one --update only",
    )
    add("--per-rank", action="store_true", help="keep every rank's own times in the records")
    # Between us and the launches that --ranks 2,4 starts: the rows of those before.
    add("--after", type=Path, help=argparse.SUPPRESS)
