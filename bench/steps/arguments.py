"""The options of ``bench.step``: names, defaults and help; `options` has their meaning."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from bench.options.argument_types import at_least, patience, ranks, seconds
from bench.options.arguments import AFFINITIES, TUNING, mpi_threads
from bench.steps.workloads.file import PRECISIONS
from busbar.arguments import Add, Parser, number, program
from busbar.units import MOST_RANKS
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
    _work(p.group("the model"))
    _update(p.group("the update"))
    _training(p.group("real gradients"))
    _ranks(p.group("where it runs"))
    _time(p.group("how long"))
    _output(p.group("what is kept"))
    return p


def _work(add: Add) -> None:
    add(
        "--model NAME|FILE",
        "a model by its name (--model list), or a .csv or .json file (default resnet50)",
        default="resnet50",
    )
    add(
        "--scale F",
        "exchange 1/F of every tensor, as if links were F times as fast (default 1)",
        type=number(1, 1e9, "as scale"),
        default=1.0,
    )
    add(
        "--precision",
        "the gradients' type (default fp32)",
        choices=tuple(PRECISIONS),
        default="fp32",
    )
    add(
        "--batch N",
        "samples per rank and step, for samples/s (default 32)",
        type=at_least(1, "samples"),
        default=32,
    )
    add(
        "--compute LAW",
        "distribution of a rank's compute time per step: none, fixed:MS, exp:MS,"
        " exp:MS,SHIFT, model (the times in the model's file), or a .csv file of milliseconds"
        " with a row for each step and a column for each rank (default: model where its file has"
        " times, else none)",
    )
    add(
        "--compute-by",
        "sleep (default): the core is free, as when an accelerator computes; burn: the core"
        " is busy",
        choices=SPENDING,
        default="sleep",
    )
    add(
        "--straggler RANK:F",
        "a rank whose compute takes F times as long; repeatable",
        action="append",
        default=[],
    )
    add(
        "--seed N", "seed of all random numbers (default 0)", type=at_least(0, "as seed"), default=0
    )


def _update(add: Add) -> None:
    add(
        "--update NAMES",
        "names joined by commas (--update list), such as ring, sharded_ps, library, auto"
        " (default ring,library)",
        default="ring,library",
    )
    add(
        "--fusion HOW",
        "bucket sizes: ddp (default: the first of 1M, the others of 25M), ddp:FIRST,REST,"
        " one SIZE, none or all",
        default="ddp",
    )
    add(
        "--cycle TIME",
        "as Horovod: at this interval, such as 5ms, fill buffers of --fusion SIZE with the"
        " gradients that are ready",
        type=duration,
    )
    add(
        "--overlap",
        "exchange during the backward pass (default), or after it",
        choices=("on", "off"),
        default="on",
    )
    add(
        "--sweep",
        "fusion: try many bucket sizes and name the best; ranks: run 1, 2, 4 … --ranks P and"
        " show the scaling",
        choices=("fusion", "ranks"),
        default="",
    )
    add(
        "--tuning FILE",
        f"the choices for --update auto (default {TUNING})",
        type=Path,
        default=TUNING,
    )
    add("--fit FILE", "predict with these costs (python -m collectives fit)", type=Path)
    add("--topology FILE", "predict for the machine that these files map", nargs="+")


def duration(text: str) -> float:
    """Seconds of ``5ms``, ``200us`` or ``1s``."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)(us|ms|s)", text, re.ASCII)
    value = 0.0 if found is None else float(found[1]) * _UNITS[found[2]]
    if not 1e-6 <= value <= 60:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: write a time such as 5ms, up to 60s")
    return value


def _training(add: Add) -> None:
    add(
        "--problem NAME",
        "train softmax or network (network:hidden=64:features=32:samples=4096) with real"
        " gradients, instead of exchanging those of a --model",
    )
    add(
        "--rule NAME",
        "learning-rate rule: fixed (default), staleness (--rate over the mean staleness),"
        " distance:c=1 (c over the squared distance from the weights that were read, at most"
        " --rate), adagrad",
        default="fixed",
    )
    add("--rate R", "learning rate (default 0.1)", type=number(1e-9, 1e9, "as rate"), default=0.1)
    add(
        "--compress NAME",
        "compression of gradients: none (default), fp16, bf16; for updates that send a"
        " gradient once (one_shot, ps, sharded_ps, parameter servers) also int8, 1bit,"
        " topk:fraction=0.01",
        default="none",
    )
    add("--plot FILE", "draw time per update over K, and loss (.png, .svg, .pdf)", type=Path)


def _ranks(add: Add) -> None:
    add(
        "--transport",
        "what moves the bytes (default auto, as for the other benchmarks)",
        choices=("auto", *transports()),
        default="auto",
    )
    add(
        "--ranks P[,P…]",
        "start this many ranks, without mpirun; several counts run one after the other",
        type=ranks(1),
        default=(),
    )
    add(
        "--threads N",
        "run N ranks as threads of this process",
        type=at_least(1, "threads", MOST_RANKS),
    )
    add(
        "--servers S",
        "with a parameter server (sync, async …): the first S ranks serve a part of the"
        " weights each, the others learn (default 1)",
        type=at_least(1, "servers", MOST_RANKS),
        default=1,
    )
    add(
        "--learners P",
        "serve in this process and start P learners as processes, joined by sockets;"
        " learners may be lost and others may join",
        type=at_least(1, "learners", MOST_RANKS),
        default=0,
    )
    add(
        "--join NAME",
        "join a run with --learners on this host as a learner; that run prints its NAME",
        default="",
    )
    mpi_threads(add)
    add("--affinity", "pin ranks to cores (default none)", choices=AFFINITIES, default="none")


def _time(add: Add) -> None:
    add(
        "-n --iters N",
        "steps (default: until the median is within 2 %% or the budget is spent)",
        type=at_least(1, "steps"),
        dest="iterations",
    )
    add("-w --warmup_iters N", "warm-up steps (default 1)", type=at_least(0, "warm-ups"), default=1)
    add(
        "--budget SECONDS",
        "time limit of an update, without -n (default 5)",
        type=seconds,
        default=5.0,
    )
    add(
        "-T --timeout SECONDS",
        "end an update that makes no progress for so long (default 0: never)",
        type=patience,
    )


def _output(add: Add) -> None:
    add(
        "--out FILE",
        "write records (.jsonl, .jsonl.gz, .json, .csv, .parquet), or a run directory (DIR/)",
        action="append",
        default=[],
    )
    add("--json", "print the records as JSON lines instead of a table", action="store_true")
    add(
        "--trace FILE.json",
        "write a timeline for Perfetto or chrome://tracing; for one --update only",
        type=Path,
    )
    add("--per-rank", "keep every rank's own times in the records", action="store_true")
    # Between us and the launches that --ranks 2,4 starts: the rows of those before.
    add("--after", type=Path)
