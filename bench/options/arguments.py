"""The options of the command line: names, defaults and help; `options` has their meaning."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.options.argument_types import (
    add_check,
    at_least,
    gpus,
    grid,
    patience,
    ranks,
    root,
    seconds,
    shares,
    split,
)
from bench.options.launching import MOST_SEED, parse_turn
from bench.options.nccl_flags import add_flags
from bench.options.pairs import DEFAULTS, PT2PT, add_options
from bench.options.timing_arguments import timing_options
from busbar.arguments import Add, Parser, program
from busbar.completion import offer
from busbar.mpi import LEVELS, OPTION
from busbar.units import MOST_RANKS, Unsaid
from collectives.execution.registry import transports
from collectives.schedule.catalogue import algorithms
from collectives.schedule.dtypes import DTYPES, FLOAT8
from collectives.schedule.ops import OPS

LAYOUTS = ("auto", "nccl", "compact")
AFFINITIES = ("none", "core", "numa")
TUNING = Path("busbar-tuning.json")


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
    _sweep(p.group("sizes and iterations"), low, high)
    measured = p.group("what is measured")
    if pairs:
        add_options(measured)
    else:
        _work(measured, collective)
    _ranks(p.group("where it runs"), pairs)
    _gpus(p.group("GPUs"))
    timing_options(p.group("what a row's time is"))
    _output(p.group("what is kept"))
    if pairs:
        p.set_defaults(**DEFAULTS)
    return p


def _sweep(add: Add, low: str, high: str) -> None:
    add("-b --minbytes SIZE", f"smallest size (default {low})", default=Unsaid(low))
    add("-e --maxbytes SIZE", f"largest size (default {high})", default=Unsaid(high))
    add("--sizes SIZES", "these sizes, joined by commas, instead of -b, -e, -f, -i")
    add("-f --stepfactor F", "factor between sizes (default 2)", type=float, dest="factor")
    add("-i --stepbytes SIZE", "increment between sizes, instead of a factor")
    add(
        "-n --iters N",
        "iterations (default: until the median is within 2 %% or the budget is spent)",
        type=at_least(1, "iterations"),
        dest="iterations",
    )
    add(
        "-w --warmup_iters N",
        "warm-up iterations (default: one, and without -n all before they were steady)",
        type=at_least(0, "warm-ups"),
    )
    add(
        "-N --run_cycles N",
        "run the whole sweep N times, 0 for ever (default 1)",
        type=at_least(0, "cycles"),
        default=1,
        dest="cycles",
    )
    add(
        "--budget SECONDS",
        "time limit of a row and placement, without -n (default 2)",
        type=seconds,
        default=2.0,
    )
    add(
        "-T --timeout SECONDS",
        "end a row that makes no progress for so long (default 0: never)",
        type=patience,
    )


def _work(add: Add, collective: str) -> None:
    algorithm = add(
        "-A --algorithm NAMES",
        "names joined by commas, each with :key=value if it has parameters; library (MPI's"
        " or NCCL's own); worksharing (all processes share the work of all ranks); auto (as"
        " tuned); all (default"
        " ring,library; on GPUs tree, torus and ps, too)",
    )
    offer(algorithm, (*algorithms(collective), "worksharing", "library", "auto", "all"))
    add(
        "--nonblocking",
        "also measure MPI's non-blocking collective and its overlap with computation",
        action="store_true",
    )
    add(
        "--tuning FILE",
        f"the choices for -A auto, written by python -m bench.tune (default {TUNING})",
        type=Path,
        default=TUNING,
    )
    add("--grid XxY", "the grid of algorithms that have one, such as 4x4", type=grid)
    operation = add("-o --op OP", f"{', '.join(OPS)}, all (default sum)", default="sum")
    offer(operation, (*OPS, "all"))
    kind = add(
        "-d --datatype TYPE",
        f"{', '.join((*DTYPES, *FLOAT8))}, all but the last two (default float)",
        default="float",
    )
    offer(kind, (*DTYPES, *FLOAT8, "all"))
    add(
        "-r --root RANK",
        "root rank of rooted collectives, or all (default 0)",
        type=root,
        default=0,
    )
    if collective == "sendrecv":
        add(
            "--pattern",
            "to the next rank, or between ranks 0-1, 2-3 … (default ring)",
            choices=("ring", "pairs"),
            default="ring",
        )
    if collective == "alltoallv":
        add("--counts FILE.csv", "elements from rank (row) to rank", type=Path)
        add(
            "--spread F",
            "0 even to 1 by distance, as nccl-tests (default 1)",
            type=float,
            default=1.0,
        )
    add(
        "--placement",
        "out of place, in place or both (default both)",
        choices=("out", "in", "both"),
        default="both",
    )
    add_check(add)


def _ranks(add: Add, pairs: bool) -> None:
    usual = "mpi" if pairs else "shm on one host where it is built, else mpi"
    add(
        "--transport",
        f"auto (default): nccl on GPUs, else {usual}",
        choices=("auto", *transports()),
        default="auto",
    )
    add(
        "--ranks P[,P…]",
        "start this many ranks, without mpirun; several counts run one after the other, and"
        " a map of the fastest algorithm by size and count follows",
        type=ranks(1),
        default=(),
    )
    add(
        "--launches N",
        "start the ranks N times, with the rows in another order each time, and show the"
        " interval over launches (default 1)",
        type=at_least(1, "launches"),
        default=1,
    )
    add(
        "--seed N",
        "seed of the order of rows with --launches (default: drawn, and kept in the records)",
        type=at_least(0, "as seed", MOST_SEED),
    )
    mpi_threads(add)
    add(
        "--affinity",
        "pin ranks to a core each, or to the cores of a NUMA node (default none)",
        choices=AFFINITIES,
        default="none",
    )
    add(
        "--split RULE:N",
        "split the ranks into groups that run at the same time, by rank mod N, div N, and N,"
        " or or N; every group has a table of its own",
        type=split,
    )


def mpi_threads(add: Add) -> None:
    """Add the option for MPI's thread level."""
    add(
        OPTION,
        "thread level that MPI is started with (default: the lowest that the run needs, and"
        " multiple where ranks of MPICH share cores)",
        choices=LEVELS,
    )


def _gpus(add: Add) -> None:
    add(
        "--gpus N,N…",
        "the GPUs that a node's ranks take, in this order; pick: those that topology pick"
        " ranks first (default: by node-local rank)",
        type=gpus,
        default=(),
    )
    add(
        "--oversubscribe-gpu",
        "let ranks share a GPU, for tests; otherwise this is refused",
        action="store_true",
    )
    add(
        "--threads N",
        "run N ranks as threads of this process, on one or several GPUs or on the host",
        type=at_least(1, "threads", MOST_RANKS),
    )
    add(
        "-t --nthreads N",
        "with -g, as in nccl-tests: --threads t x g",
        type=at_least(1, "threads", MOST_RANKS),
    )
    add(
        "-g --ngpus N",
        "GPUs for each of -t threads: --threads t x g, and an error where there is no GPU",
        type=at_least(1, "GPUs", MOST_RANKS),
    )
    add(
        "-G --cudagraph N",
        "0 is --graph off, any other number --graph on",
        type=at_least(0, "launches"),
    )
    for entry in transports().values():
        for option in entry.options:
            add(option.flag, option.help, choices=option.choices)


def _output(add: Add) -> None:
    add(
        "--layout",
        "nccl: rows as nccl-tests prints them; compact: one short line for each placement;"
        " auto (default): compact only on a terminal that is too narrow",
        choices=LAYOUTS,
        default="auto",
    )
    add(
        "--out FILE",
        "write records after every row, as .jsonl, .jsonl.gz, .json, .csv or .parquet, or"
        " into a run directory (DIR/); repeatable",
        action="append",
        default=[],
    )
    # Between us and the launches that we start: the rows of those before, and which one it is.
    add("--after", type=Path)
    add("--launch", type=parse_turn)
    # For bench.selfcheck: slow what is timed by these shares, each in every cycle (-N).
    add("--inject", type=shares, default=())
    add("--per-rank", "keep every rank's own times in the records", action="store_true")
    add(
        "-I --per_iter_timing 0|1",
        "add columns of per-iteration statistics (default 0; -I alone is 1)",
        type=int,
        choices=(0, 1),
        nargs="?",
        const=1,
        default=0,
    )
    add(
        "-J --output_file FILE.json",
        "write nccl-tests' JSON after every row",
        type=Path,
        dest="nccl_json",
    )
    add(
        "--dry-run",
        "print what would run, with its memory and bytes, and exit",
        action="store_true",
    )
