"""The command line of a benchmark: nccl-tests' letters where it has them, ours beside them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from bench.sizes import parse_size, sweep
from collectives import catalogue
from collectives.dtypes import DTYPES
from collectives.errors import Unsupported
from collectives.ops import OPS
from collectives.world import How

__all__ = ["Choice", "Options", "parse"]

ACROSS: tuple[How, ...] = ("rank0", "avg", "min", "max")


@dataclass(frozen=True)
class Choice:
    """An algorithm to run, with its parameters; the name ``library`` is the library's own."""

    name: str
    parameters: tuple[tuple[str, object], ...] = ()

    @property
    def label(self) -> str:
        """The name as it was asked for: ``double_tree:segments=4``."""
        return ":".join([self.name, *(f"{k}={_show(v)}" for k, v in self.parameters)])


@dataclass(frozen=True)
class Options:
    """What was asked for, checked as far as it can be without knowing the ranks."""

    sizes: tuple[int, ...]
    factor: float | None
    step: int | None
    algorithms: tuple[Choice, ...]
    collective: str
    every_algorithm: bool = False
    dtypes: tuple[str, ...] = ("float",)
    ops: tuple[str, ...] = ("sum",)
    root: int | None = 0
    counts: Path | None = None
    spread: float = 1.0
    iterations: int | None = None
    warmup: int = 1
    budget: float = 2.0
    timing: str = "each"
    across: How = "max"
    statistic: str = "median"
    check: bool = True
    cycles: int = 1
    timeout: float | None = None
    per_iteration: bool = False
    placements: tuple[str, ...] = ("out", "in")
    transport: str = "auto"
    grid: tuple[int, ...] | None = None
    ranks: int | None = None
    dry_run: bool = False
    nccl_json: Path | None = None
    out: tuple[Path, ...] = field(default=())


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Unsupported(f"{message}; see --help")


def _show(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def parse_choice(text: str) -> Choice:
    """``double_tree:segments=4`` as a Choice. Raises Unsupported for anything malformed."""
    name, given = catalogue.parse(text.strip())
    return Choice(name, tuple(given.items()))


def _integer(low: int, what: str) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if number < low:
            raise argparse.ArgumentTypeError(f"{number} {what}; at least {low} is needed")
        return number

    return convert


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} seconds; more than 0 is needed")
    return value


def _build(collective: str, title: str) -> _Parser:
    p = _Parser(
        prog=f"python -m bench.{collective}",
        description=f"Measure {collective}: {title}.",
        epilog="Run under mpirun, or with --ranks N to have the launcher started for you.",
        allow_abbrev=False,
    )
    add = p.add_argument
    add("-b", "--minbytes", default="1M", metavar="SIZE", help="smallest size (default 1M)")
    add("-e", "--maxbytes", default="1G", metavar="SIZE", help="largest size (default 1G)")
    add("-f", "--stepfactor", type=float, metavar="F", help="factor between sizes (default 2)")
    add("-i", "--stepbytes", metavar="SIZE", help="increment between sizes, instead of a factor")
    add(
        "-n",
        "--iters",
        type=_integer(1, "iterations"),
        metavar="N",
        help="iterations (default: until the median is within 2 %% or the budget is spent)",
    )
    add(
        "-w",
        "--warmup_iters",
        type=_integer(0, "warm-ups"),
        default=1,
        metavar="N",
        help="warm-up iterations (default 1)",
    )
    add("-c", "--check", type=int, choices=(0, 1), default=1, help="check results (default 1)")
    add("-o", "--op", default="sum", metavar="OP", help=f"{', '.join(OPS)}, all (default sum)")
    add(
        "-d",
        "--datatype",
        default="float",
        metavar="TYPE",
        help=f"{', '.join(DTYPES)}, all (default float)",
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
        type=_integer(0, "cycles"),
        default=1,
        metavar="N",
        help="run the whole sweep N times, 0 for ever (default 1)",
    )
    add("-T", "--timeout", type=_seconds, metavar="SECONDS", help="end a row that is stuck so long")
    add("-I", "--per_iter", action="store_true", help="add columns about single iterations")
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
        help="names joined by commas, each perhaps :key=value; FILE.xml; library; all (default ring,library)",
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
    add("--transport", choices=("auto", "mpi", "inproc"), default="auto", help="default auto")
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
        type=Path,
        default=[],
        metavar="FILE",
        help="write records (.jsonl, .json, .csv), after every row; repeatable",
    )
    add("--ranks", type=_integer(1, "ranks"), metavar="P", help="start this many ranks ourselves")
    add(
        "--dry-run",
        action="store_true",
        help="print what would run, its memory and its bytes, and stop",
    )
    return p


def _names(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    if text == "all":
        return tuple(known)
    for name in text.split(","):
        if name not in known:
            raise Unsupported(f"no {what} {name!r}; there are: {', '.join(known)}, all")
    return tuple(text.split(","))


def _choices(text: str | None, collective: str) -> tuple[Choice, ...]:
    known = catalogue.algorithms(collective)
    if text == "all":
        return (*(Choice(name) for name in known), Choice("library"))
    if text is None:
        return (Choice(catalogue.usual(collective)), Choice("library"))
    chosen = tuple(parse_choice(part) for part in text.split(","))
    for choice in chosen:
        other = choice.name == "library" or "+" in choice.name or catalogue.from_file(choice.name)
        if not other and choice.name not in known:
            raise Unsupported(
                f"no algorithm {choice.name!r}; there are: {', '.join([*known, 'library', 'all'])}"
            )
    return chosen


def _grid(text: str) -> tuple[int, ...]:
    parts = text.split("x")
    if len(parts) < 2 or not all(part.isdigit() for part in parts):
        raise Unsupported(f"--grid {text}: write a grid such as 4x4")
    return tuple(int(part) for part in parts)


def _root(text: str) -> int | None:
    """A rank, or None for all."""
    return None if text == "all" else _integer(0, "as root")(text)


def parse(argv: Sequence[str], collective: str) -> Options:
    """Options from a command line. Raises Unsupported with one line for whatever is wrong.

    ``--help`` prints and leaves through SystemExit, as argparse does.
    """
    given = _build(collective, catalogue.spec(collective).title).parse_args(argv)
    step = None if given.stepbytes is None else parse_size(given.stepbytes)
    if step is not None and given.stepfactor is not None:
        raise Unsupported("-f and -i exclude each other; give one of them")
    if getattr(given, "pattern", "ring") == "pairs":
        collective = "sendrecv_pairs"
    low, high = parse_size(given.minbytes), parse_size(given.maxbytes)
    return Options(
        sizes=tuple(sweep(low, high, factor=given.stepfactor, step=step)),
        factor=given.stepfactor,
        step=step,
        algorithms=_choices(given.algorithm, collective),
        collective=collective,
        every_algorithm=given.algorithm == "all",
        dtypes=_names(given.datatype, DTYPES, "data type"),
        ops=_names(given.op, OPS, "operation"),
        root=given.root,
        iterations=given.iters,
        warmup=given.warmup_iters,
        budget=given.budget,
        timing=given.timing,
        across=ACROSS[given.average],
        statistic=given.statistic,
        check=bool(given.check),
        cycles=given.run_cycles,
        timeout=given.timeout,
        per_iteration=given.per_iter,
        placements=("out", "in") if given.placement == "both" else (given.placement,),
        transport=given.transport,
        grid=None if given.grid is None else _grid(given.grid),
        counts=getattr(given, "counts", None),
        spread=getattr(given, "spread", 1.0),
        ranks=given.ranks,
        dry_run=given.dry_run,
        nccl_json=given.output_file,
        out=tuple(given.out),
    )
