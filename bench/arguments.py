"""The command line's grammar: letters, names, defaults and help; what it means is in `options`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from bench.nccl_flags import add_flags
from collectives.dtypes import DTYPES, FLOAT8
from collectives.ops import OPS
from collectives.usage import Parser

__all__ = ["at_least", "parser"]

TRANSPORTS = ("auto", "mpi", "shm", "inproc", "nccl", "ipc")
LIMITS = ("table", "column", "none")
BINDINGS = ("none", "core", "numa")
GRAPHS = ("on", "off", "compare")
EXECUTORS = ("program", "steps", "engine")
SPLITS = ("mod", "div", "and", "or")
TUNING = Path("busbar-tuning.json")


def at_least(low: int, what: str) -> Callable[[str], int]:
    """What turns an option's text into a whole number of at least ``low``; ``what`` are counted."""

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if number < low:
            raise argparse.ArgumentTypeError(f"{number} {what}; at least {low} is needed")
        return number

    return convert


def _patience(text: str) -> float | None:
    """Seconds, or None for 0: nccl-tests' way to say that there is no limit."""
    return None if text == "0" else _seconds(text)


def _check(text: str) -> bool:
    if text not in ("0", "1"):
        raise argparse.ArgumentTypeError(
            f"{text}: write 0 or 1; a row is checked once, every element on every rank"
        )
    return text == "1"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} seconds; more than 0 is needed")
    return value


def _gpus(text: str) -> tuple[int, ...] | None:
    """Numbers, or None for those that the profiler picks."""
    if text == "pick":
        return None
    parts = text.split(",")
    if not all(part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(
            f"{text!r}: write numbers joined by commas, such as 0,3,5, or pick"
        )
    return tuple(map(int, parts))


def _split(text: str) -> tuple[str, int]:
    rule, _, number = text.lower().partition(":")
    try:
        value = int(number, 0)
    except ValueError:
        value = 0
    if rule not in SPLITS or value < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write one of mod:N, div:N, and:MASK, or:MASK, such as and:0x7"
        )
    return rule, value


def _gpu_options(add: Callable[..., object]) -> None:
    add(
        "--gpus",
        type=_gpus,
        default=(),
        metavar="N,N…",
        help="the GPUs of a node for its ranks, in their order, or pick: as topology pick ranks"
        " them (default: by node-local rank)",
    )
    add(
        "--oversubscribe-gpu",
        action="store_true",
        help="let ranks share a GPU, for tests: refused otherwise",
    )
    add(
        "--threads",
        type=at_least(1, "threads"),
        metavar="N",
        help="N ranks as threads of this process, over one GPU or several, or on the host",
    )
    add(
        "-t",
        "--nthreads",
        type=at_least(1, "threads"),
        metavar="N",
        help="with -g, as in nccl-tests: --threads t x g",
    )
    add(
        "-g",
        "--ngpus",
        type=at_least(1, "GPUs"),
        metavar="N",
        help="ranks on N GPUs for each of -t threads: --threads t x g, and on nothing but GPUs",
    )
    add(
        "-G",
        "--cudagraph",
        type=at_least(0, "launches"),
        metavar="N",
        help="0 is --graph off, any other number --graph on",
    )
    add(
        "--graph",
        choices=GRAPHS,
        help="replay plans on GPUs from CUDA graphs (default on, where capture works); compare"
        " shows what that is worth",
    )
    add(
        "--cache",
        choices=("cold", "warm"),
        default="cold",
        help="on GPUs let buffers take turns, so that none is in the cache (default cold)",
    )
    add(
        "--executor",
        choices=EXECUTORS,
        default="program",
        help="with --transport ipc: one kernel for a whole plan (program), one a part of it (steps),"
        " or copies by the copy engines (engine) (default program)",
    )
    add(
        "--buffers",
        choices=("host", "device", "staged"),
        default="host",
        help="with --transport mpi: GPU buffers, handed to an MPI that takes them (device), or"
        " through pinned host memory (staged) (default host)",
    )


def _root(text: str) -> int | None:
    """A rank, or None for all."""
    return None if text == "all" else at_least(0, "as root")(text)


def parser(collective: str, title: str) -> argparse.ArgumentParser:
    """The parser of one benchmark's command line; it raises Unsupported instead of leaving."""
    p = Parser(
        prog=f"python -m bench.{collective}",
        description=f"Measure {collective}: {title}.",
        epilog="Run under mpirun, or with --ranks N to have the launcher started for you. Of"
        " nccl-tests' other flags each says what to use here (docs/nccl-tests.md).",
        allow_abbrev=False,
    )
    add = p.add_argument
    add_flags(add)
    add("-b", "--minbytes", default="1M", metavar="SIZE", help="smallest size (default 1M)")
    add("-e", "--maxbytes", default="1G", metavar="SIZE", help="largest size (default 1G)")
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
        default=1,
        metavar="N",
        help="warm-up iterations (default 1)",
    )
    add("-c", "--check", type=_check, default=True, metavar="0|1", help="check results (default 1)")
    add("-o", "--op", default="sum", metavar="OP", help=f"{', '.join(OPS)}, all (default sum)")
    add(
        "-d",
        "--datatype",
        default="float",
        metavar="TYPE",
        help=f"{', '.join((*DTYPES, *FLOAT8))}, all but the last two (default float)",
    )
    add(
        "-r",
        "--root",
        type=_root,
        default=0,
        metavar="RANK",
        help="root, where there is one, or all (default 0)",
    )
    add(
        "-a",
        "--average",
        type=int,
        choices=(0, 1, 2, 3),
        default=3,
        help="time of an iteration: 0 rank 0's, 1 the average, 2 the least, 3 the most (default 3)",
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
        "-T",
        "--timeout",
        type=_patience,
        metavar="SECONDS",
        help="end a row that is stuck so long (default 0: never)",
    )
    add(
        "-I",
        "--per_iter_timing",
        type=int,
        choices=(0, 1),
        nargs="?",
        const=1,
        default=0,
        metavar="0|1",
        help="add columns about single iterations (default 0; -I alone is 1)",
    )
    add(
        "-J",
        "--output_file",
        type=Path,
        metavar="FILE.json",
        help="write nccl-tests' JSON shape, after every row",
    )
    add(
        "-A",
        "--algorithm",
        metavar="NAMES",
        help="names joined by commas, each perhaps :key=value; library; auto; all (default"
        " ring,library; on GPUs tree, torus and ps, too)",
    )
    add(
        "--tuning",
        type=Path,
        default=TUNING,
        metavar="FILE",
        help=f"what -A auto goes by, as python -m bench.tune wrote it (default {TUNING})",
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
    add("--grid", metavar="XxY", help="the grid of algorithms that have one, such as 4x4")
    add(
        "--transport",
        choices=TRANSPORTS,
        default="auto",
        help="auto (default): nccl on GPUs, else shm on one host where it is built, else mpi",
    )
    _gpu_options(add)
    add(
        "--split",
        type=_split,
        metavar="RULE:N",
        help="groups at once, by rank mod N, div N, and N, or or N; every group has its table",
    )
    add("--bind", choices=BINDINGS, default="none", help="pin ranks (default none)")
    add("--placement", choices=("out", "in", "both"), default="both", help="default both")
    add(
        "--timing",
        choices=("each", "loop"),
        default="each",
        help="time each iteration, or N back to back as nccl-tests does (default each)",
    )
    add(
        "--statistic",
        choices=("median", "mean"),
        default="median",
        help="a row's time from its iterations (default median)",
    )
    add(
        "--budget",
        type=_seconds,
        default=2.0,
        metavar="SECONDS",
        help="time for a row and placement, without -n (default 2)",
    )
    add(
        "--out",
        action="append",
        default=[],
        metavar="FILE",
        help="write records (.jsonl, .jsonl.gz, .json, .csv, .parquet), after every row, or a run"
        " directory (DIR/); repeatable",
    )
    add(
        "--limit",
        choices=LIMITS,
        default="table",
        help="%% of what memory allows (shm): in the closing table (default), also in a last"
        " column, or none, without the probe",
    )
    add(
        "--energy",
        action="store_true",
        help="on GPUs: keep every row going for 2 s, untimed, so that its joules can be told",
    )
    add("--per-rank", action="store_true", help="keep every rank's own times in the records")
    add("--ranks", type=at_least(1, "ranks"), metavar="P", help="start this many ranks ourselves")
    add(
        "--dry-run",
        action="store_true",
        help="print what would run, its memory and its bytes, and stop",
    )
    return p
