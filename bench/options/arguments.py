"""The options of the command line: names, defaults and help; `options` has their meaning."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from bench.options.argument_types import (
    at_least,
    check,
    gpus,
    patience,
    ranks,
    root,
    seconds,
    shares,
    split,
)
from bench.options.launching import MOST_SEED
from bench.options.nccl_flags import add_flags
from bench.options.pairs import DEFAULTS, PT2PT, add_options
from bench.options.timing_arguments import timing_options
from busbar.arguments import Parser, program
from busbar.completion import offer
from busbar.sizes import MOST_RANKS, Unsaid
from collectives.execution.registry import transports
from collectives.schedule.catalogue import algorithms
from collectives.schedule.dtypes import DTYPES, FLOAT8
from collectives.schedule.ops import OPS

LAYOUTS = ("auto", "nccl", "compact")
AFFINITIES = ("none", "core", "numa")
TUNING = Path("busbar-tuning.json")

Add = Callable[..., object]
"""`ArgumentParser.add_argument`."""


def parser(collective: str, title: str) -> argparse.ArgumentParser:
    """The parser of one benchmark's command line; it raises Unsupported instead of leaving."""
    p = Parser(
        prog=program(f"bench.{collective}"),
        description=f"Measure {collective}: {title}.",
        epilog="Run under mpirun, or with --ranks N to have the launcher started for you. Of"
        " nccl-tests' other flags each says what to use here (docs/nccl-tests.md).",
    )
    add_flags(p.add_argument)
    pairs = collective == PT2PT
    low, high = ("1", "4M") if pairs else ("1M", "1G")
    _sweep(p.add_argument_group("sizes and iterations").add_argument, low, high)
    measured = p.add_argument_group("what is measured").add_argument
    if pairs:
        add_options(measured)
    else:
        _work(measured, collective)
    _ranks(p.add_argument_group("where it runs").add_argument, pairs)
    _gpus(p.add_argument_group("GPUs").add_argument)
    timing_options(p.add_argument_group("what a row's time is").add_argument)
    _output(p.add_argument_group("what is kept").add_argument)
    if pairs:
        p.set_defaults(**DEFAULTS)
    return p


def _sweep(add: Add, low: str, high: str) -> None:
    text = f"smallest size (default {low})"
    add("-b", "--minbytes", default=Unsaid(low), metavar="SIZE", help=text)
    text = f"largest size (default {high})"
    add("-e", "--maxbytes", default=Unsaid(high), metavar="SIZE", help=text)
    add("--sizes", metavar="SIZES", help="these sizes, joined by commas, instead of -b, -e, -f, -i")
    add("-f", "--stepfactor", type=float, metavar="F", help="factor between sizes (default 2)")
    add("-i", "--stepbytes", metavar="SIZE", help="increment between sizes, instead of a factor")
    add(
        "-n",
        "--iters",
        type=at_least(1, "iterations"),
        metavar="N",
        help="iterations (default: until the median is within 2 %% or the budget is spent)",
    )
    add(
        "-w",
        "--warmup_iters",
        type=at_least(0, "warm-ups"),
        metavar="N",
        help="warm-up iterations (default: one, and without -n all before they were steady)",
    )
    add(
        "-N",
        "--run_cycles",
        type=at_least(0, "cycles"),
        default=1,
        metavar="N",
        help="run the whole sweep N times, 0 for ever (default 1)",
    )
    add(
        "--budget",
        type=seconds,
        default=2.0,
        metavar="SECONDS",
        help="time limit of a row and placement, without -n (default 2)",
    )
    add(
        "-T",
        "--timeout",
        type=patience,
        metavar="SECONDS",
        help="end a row that makes no progress for so long (default 0: never)",
    )


def _work(add: Add, collective: str) -> None:
    algorithm = add(
        "-A",
        "--algorithm",
        metavar="NAMES",
        help="names joined by commas, each with :key=value if it has parameters; library (MPI's"
        " or NCCL's own); worksharing (all processes share the work of all ranks); auto (as"
        " tuned); all (default"
        " ring,library; on GPUs tree, torus and ps, too)",
    )
    offer(algorithm, (*algorithms(collective), "worksharing", "library", "auto", "all"))
    add(
        "--nonblocking",
        action="store_true",
        help="also measure MPI's non-blocking collective and its overlap with computation",
    )
    add(
        "--tuning",
        type=Path,
        default=TUNING,
        metavar="FILE",
        help=f"the choices for -A auto, written by python -m bench.tune (default {TUNING})",
    )
    add("--grid", metavar="XxY", help="the grid of algorithms that have one, such as 4x4")
    operation = add(
        "-o", "--op", default="sum", metavar="OP", help=f"{', '.join(OPS)}, all (default sum)"
    )
    offer(operation, (*OPS, "all"))
    kind = add(
        "-d",
        "--datatype",
        default="float",
        metavar="TYPE",
        help=f"{', '.join((*DTYPES, *FLOAT8))}, all but the last two (default float)",
    )
    offer(kind, (*DTYPES, *FLOAT8, "all"))
    add(
        "-r",
        "--root",
        type=root,
        default=0,
        metavar="RANK",
        help="root rank of rooted collectives, or all (default 0)",
    )
    if collective == "sendrecv":
        add(
            "--pattern",
            choices=("ring", "pairs"),
            default="ring",
            help="to the next rank, or between ranks 0-1, 2-3 … (default ring)",
        )
    if collective == "alltoallv":
        add("--counts", type=Path, metavar="FILE.csv", help="elements from rank (row) to rank")
        add(
            "--spread",
            type=float,
            default=1.0,
            metavar="F",
            help="0 even to 1 by distance, as nccl-tests (default 1)",
        )
    add(
        "--placement",
        choices=("out", "in", "both"),
        default="both",
        help="out of place, in place or both (default both)",
    )
    add("-c", "--check", type=check, default=True, metavar="0|1", help="check results (default 1)")


def _ranks(add: Add, pairs: bool) -> None:
    usual = "mpi" if pairs else "shm on one host where it is built, else mpi"
    add(
        "--transport",
        choices=("auto", *transports()),
        default="auto",
        help=f"auto (default): nccl on GPUs, else {usual}",
    )
    add(
        "--ranks",
        type=ranks(1),
        default=(),
        metavar="P[,P…]",
        help="start this many ranks, without mpirun; several counts run one after the other, and"
        " a map of the fastest algorithm by size and count follows",
    )
    add(
        "--launches",
        type=at_least(1, "launches"),
        default=1,
        metavar="N",
        help="start the ranks N times, with the rows in another order each time, and show the"
        " interval over launches (default 1)",
    )
    add(
        "--seed",
        type=at_least(0, "as seed", MOST_SEED),
        metavar="N",
        help="seed of the order of rows with --launches (default: drawn, and kept in the records)",
    )
    add(
        "--affinity",
        choices=AFFINITIES,
        default="none",
        help="pin ranks to a core each, or to the cores of a NUMA node (default none)",
    )
    add(
        "--split",
        type=split,
        metavar="RULE:N",
        help="split the ranks into groups that run at the same time, by rank mod N, div N, and N,"
        " or or N; every group has a table of its own",
    )


def _gpus(add: Add) -> None:
    add(
        "--gpus",
        type=gpus,
        default=(),
        metavar="N,N…",
        help="the GPUs that a node's ranks take, in this order; pick: those that topology pick"
        " ranks first (default: by node-local rank)",
    )
    add(
        "--oversubscribe-gpu",
        action="store_true",
        help="let ranks share a GPU, for tests; otherwise this is refused",
    )
    add(
        "--threads",
        type=at_least(1, "threads", MOST_RANKS),
        metavar="N",
        help="run N ranks as threads of this process, on one or several GPUs or on the host",
    )
    add(
        "-t",
        "--nthreads",
        type=at_least(1, "threads", MOST_RANKS),
        metavar="N",
        help="with -g, as in nccl-tests: --threads t x g",
    )
    add(
        "-g",
        "--ngpus",
        type=at_least(1, "GPUs", MOST_RANKS),
        metavar="N",
        help="GPUs for each of -t threads: --threads t x g, and an error where there is no GPU",
    )
    add(
        "-G",
        "--cudagraph",
        type=at_least(0, "launches"),
        metavar="N",
        help="0 is --graph off, any other number --graph on",
    )
    for entry in transports().values():
        for option in entry.options:
            add(option.flag, choices=option.choices, help=option.help)


def _output(add: Add) -> None:
    add(
        "--layout",
        choices=LAYOUTS,
        default="auto",
        help="nccl: rows as nccl-tests prints them; compact: one short line for each placement;"
        " auto (default): compact only on a terminal that is too narrow",
    )
    add(
        "--out",
        action="append",
        default=[],
        metavar="FILE",
        help="write records after every row, as .jsonl, .jsonl.gz, .json, .csv or .parquet, or"
        " into a run directory (DIR/); repeatable",
    )
    # Between us and the launches that we start: the rows of those before, and which one it is.
    add("--after", type=Path, help=argparse.SUPPRESS)
    add("--launch", help=argparse.SUPPRESS)
    # For bench.selfcheck: slow what is timed by these shares, a cycle (-N) each.
    add("--inject", type=shares, default=(), help=argparse.SUPPRESS)
    add("--per-rank", action="store_true", help="keep every rank's own times in the records")
    add(
        "-I",
        "--per_iter_timing",
        type=int,
        choices=(0, 1),
        nargs="?",
        const=1,
        default=0,
        metavar="0|1",
        help="add columns of per-iteration statistics (default 0; -I alone is 1)",
    )
    add(
        "-J",
        "--output_file",
        type=Path,
        metavar="FILE.json",
        help="write nccl-tests' JSON after every row",
    )
    add(
        "--dry-run",
        action="store_true",
        help="print what would run, with its memory and bytes, and exit",
    )
