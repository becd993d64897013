"""A benchmark's options as data: nccl-tests' flags where it has them, and our own."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.options.argument_types import Checks, names
from bench.options.arguments import TUNING, parser
from bench.options.arrival import ZERO, ArrivalPattern
from bench.options.launching import LaunchTurn
from bench.options.pairs import PT2PT, TITLE, TRANSFERS, TWO_SIDED, Pairing
from bench.options.timing_arguments import sync
from busbar.arguments import unknown
from busbar.errors import Unsupported
from busbar.units import MOST_RANKS, Unsaid, parse_size, sweep_sizes
from collectives.execution.registry import transports
from collectives.execution.world import How
from collectives.formats.load import from_file
from collectives.schedule import catalogue
from collectives.schedule.dtypes import DTYPES, FLOAT8, canonical
from collectives.schedule.ops import OPS

NONBLOCKING = "nonblocking"
"""The library's collective in its non-blocking form, with its overlap; only had by name."""
BESIDE = ("worksharing", "library")
"""Contenders that carry no schedule out and stand beside those that do, in this order."""

ACROSS: tuple[How, ...] = ("rank0", "avg", "min", "max")
# Fields of `Options` that are what the grammar gives under their names, where it has them.
_AS_GIVEN = (
    "affinity", "after", "budget", "check", "counts", "cycles", "dry_run", "energy", "factor",
    "gpus", "grid", "inject", "iterations", "launch", "launches", "layout", "limit", "mpi_threads",
    "nccl_json", "oversubscribe_gpu", "per_rank", "root", "seed", "split", "spread", "statistic",
    "timeout", "timing", "transport", "wait_quiet",
)  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """An algorithm and its parameters; or one of `BESIDE`; or ``auto``, as a file says."""

    name: str
    parameters: tuple[tuple[str, object], ...] = ()

    @property
    def label(self) -> str:
        """The name as it was asked for: ``double_tree:segments=4``."""
        return ":".join([self.name, *(f"{k}={_show(v)}" for k, v in self.parameters)])


@dataclass(frozen=True)
class Options:
    """The options of a benchmark, checked as far as possible without knowing the ranks.

    ``usual``: no algorithm was named. ``gpus``: by number, or None for those that are picked;
    ``ngpus``: their number was given, as nccl-tests does. ``ranks``: to start; of several counts
    ``rank_counts`` has them all and ``ranks`` is None. ``launches``: how many of each; ``launch``:
    which of them this is. ``settle``: leave out what came before iterations
    were steady. ``inject``: by what shares plans are slowed, each in every cycle. ``after``: a
    file of records that the files of results begin with. ``pairing``: what pairs of ranks do, where
    that is measured.
    """

    sizes: tuple[int, ...]
    factor: float | None
    step: int | None
    algorithms: tuple[Choice, ...]
    collective: str
    every_algorithm: bool = False
    usual: bool = False
    dtypes: tuple[str, ...] = ("float",)
    ops: tuple[str, ...] = ("sum",)
    root: int | None = 0
    counts: Path | None = None
    spread: float = 1.0
    iterations: int | None = None
    warmup: int = 1
    settle: bool = False
    budget: float = 2.0
    timing: str = "each"
    across: How = "max"
    sync: str = "barrier"
    arrivals: tuple[ArrivalPattern, ...] = (ZERO,)
    wait_quiet: float | None = None
    statistic: str = "median"
    check: Checks = Checks()  # noqa: RUF009  (immutable)
    cycles: int = 1
    timeout: float | None = None
    per_iteration: bool = False
    per_rank: bool = False
    limit: str = "table"
    layout: str = "auto"
    energy: bool = False
    placements: tuple[str, ...] = ("out", "in")
    transport: str = "auto"
    affinity: str = "none"
    mpi_threads: str | None = None
    gpus: tuple[int, ...] | None = ()
    ngpus: bool = False
    oversubscribe_gpu: bool = False
    threads: int | None = None
    chosen: Mapping[str, str] = field(default_factory=dict)
    split: tuple[str, int] | None = None
    grid: tuple[int, ...] | None = None
    ranks: int | None = None
    rank_counts: tuple[int, ...] = ()
    launches: int = 1
    seed: int | None = None
    launch: LaunchTurn | None = None
    inject: tuple[float, ...] = ()
    after: Path | None = None
    dry_run: bool = False
    nccl_json: Path | None = None
    tuning: Path = TUNING
    out: tuple[str, ...] = field(default=())
    pairing: Pairing | None = None

    @property
    def deadline(self) -> float:
        """Seconds that a transport waits for another rank: past the time-out, which says more."""
        return 60.0 if self.timeout is None else 2 * self.timeout

    @property
    def asks_for_gpus(self) -> bool:
        """Whether GPUs were named: then a run without them is not what was asked for."""
        return self.gpus != () or self.ngpus or self.oversubscribe_gpu


def _show(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def parse_choice(text: str) -> Choice:
    """``double_tree:segments=4`` as a Choice. Raises Unsupported for anything malformed."""
    name, given = catalogue.parse(text.strip())
    return Choice(name, tuple(given.items()))


def _canonical(types: str) -> str:
    return ",".join(map(canonical, types.split(",")))


def _choices(text: str | None, collective: str) -> tuple[Choice, ...]:
    if collective == PT2PT:
        return tuple(map(Choice, names(text or TWO_SIDED, TRANSFERS, "transfer")))
    known = catalogue.algorithms(collective)
    if text == "all":
        return tuple(map(Choice, (*known, *BESIDE)))
    if text is None:
        return (Choice(catalogue.usual(collective)), Choice("library"))
    chosen = tuple(parse_choice(part) for part in text.split(","))
    for choice in chosen:
        listed = choice.name in (*BESIDE, NONBLOCKING, "auto") or choice.name in known
        if not (listed or "+" in choice.name or from_file(choice.name)):
            theirs = dict.fromkeys(("nccl", "mpi", "rccl"), "library")
            every = [*known, *BESIDE, "auto", "all"]
            raise unknown("algorithm", choice.name, every, elsewhere=theirs)
    return chosen


def on_gpus(options: Options) -> Options:
    """The same where no algorithm was named, but with more of ours beside the library's on GPUs.

    Those that cannot serve the ranks are left out with a note.
    """
    if not options.usual or options.collective != "allreduce":
        return options
    named = tuple(Choice(name) for name in ("ring", "tree", "torus", "ps", "library"))
    return replace(options, algorithms=named, every_algorithm=True)


def _threads(given: argparse.Namespace) -> int | None:
    """Ranks that are threads of this process: ``--threads``, or nccl-tests' ``-t`` times ``-g``."""
    threads: int | None = given.threads
    product = int(given.nthreads or 1) * int(given.ngpus or 1)
    if product == 1:
        return threads
    if product > MOST_RANKS:
        raise Unsupported(f"-t x -g makes {product} ranks; at most {MOST_RANKS} are threads")
    if threads not in (None, product):
        raise Unsupported(f"--threads {threads}, but -t x -g makes {product}; give one of them")
    return product


def _chosen(given: argparse.Namespace) -> dict[str, str]:
    """Values of transports' own options that were given, by name; -G is nccl-tests' --graph."""
    names = (option.name for entry in transports().values() for option in entry.options)
    chosen = {name: value for name in names if (value := vars(given)[name]) is not None}
    if given.cudagraph is not None:
        if "graph" in chosen:
            raise Unsupported("-G and --graph exclude each other; give one of them")
        chosen["graph"] = "on" if given.cudagraph else "off"
    return chosen


def _check_gpus(made: Options) -> None:
    """Raise Unsupported where GPUs are named for a transport that takes none."""
    entry = transports().get(made.transport)
    if entry is None or entry.on_gpu:
        return
    without, option = "", entry.on_gpu_with
    if option is not None:
        if option.of(made.chosen) != option.default:
            return
        values = " or ".join(value for value in option.choices if value != option.default)
        without = f"without {option.flag} {values}, "
    if made.asks_for_gpus:
        named = "--gpus" if made.gpus != () else "-g" if made.ngpus else "--oversubscribe-gpu"
        raise Unsupported(f"{without}{named} has no effect with --transport {made.transport}")


def _check_launches(made: Options) -> None:
    """Raise Unsupported for what cannot be had of several launches in one command."""
    several = []
    if made.rank_counts:
        several.append(f"--ranks {','.join(map(str, made.rank_counts))}")
        if made.threads is not None:
            raise Unsupported(
                f"{several[0]} and --threads (-t x -g) exclude each other; give one of them"
            )
    if made.launches > 1:
        several.append(f"--launches {made.launches}")
        if not made.cycles:
            raise Unsupported(f"{several[-1]}: with -N 0 the first would never end")
    for what in several:
        if made.nccl_json is not None:
            raise Unsupported(f"{what}: -J has room for one launch; --out FILE for all")
        if made.split is not None:
            raise Unsupported(f"{what} and --split exclude each other; give one of them")


def _sizes(given: argparse.Namespace, step: int | None) -> tuple[int, ...]:
    """The sizes to measure, rising, each of them once."""
    if given.sizes is None:
        low, high = parse_size(given.minbytes), parse_size(given.maxbytes)
        return tuple(sweep_sizes(low, high, factor=given.factor, step=step))
    ends = (given.minbytes, given.maxbytes, given.factor, given.stepbytes)
    if not all(end is None or isinstance(end, Unsaid) for end in ends):
        raise Unsupported("--sizes excludes -b, -e, -f and -i; give the one or the others")
    return tuple(sorted({parse_size(part) for part in given.sizes.split(",")}))


def as_given(given: argparse.Namespace) -> dict[str, Any]:
    """The fields of `Options` that a grammar gives under their names.

    Raises Unsupported for a file without a name.
    """
    if "" in given.out:
        raise Unsupported("--out '' names no file; ./ is this folder")
    return {
        **{name: vars(given)[name] for name in _AS_GIVEN if name in given},
        "ranks": given.ranks[0] if len(given.ranks) == 1 else None,
        "rank_counts": given.ranks if len(given.ranks) > 1 else (),
        "tuning": given.tuning or TUNING,
        "out": tuple(given.out),
    }


def parse(argv: Sequence[str], collective: str) -> Options:
    """Options from a command line. Raises Unsupported with one line for whatever is wrong.

    ``--help`` prints and leaves through SystemExit, as argparse does.
    """
    pairs = collective == PT2PT
    title = TITLE if pairs else catalogue.spec(collective).title
    given = parser(collective, title).parse_args(argv)
    step = None if given.stepbytes is None else parse_size(given.stepbytes)
    if step is not None and given.factor is not None:
        raise Unsupported("-f and -i exclude each other; give one of them")
    if getattr(given, "pattern", "ring") == "pairs":
        collective = "sendrecv_pairs"
    made = Options(
        sizes=_sizes(given, step),
        step=step,
        algorithms=_choices(given.algorithm, collective)
        + (Choice(NONBLOCKING),) * given.nonblocking,
        collective=collective,
        every_algorithm=given.algorithm == "all",
        usual=given.algorithm is None,
        dtypes=names(_canonical(given.datatype), DTYPES, "data type", FLOAT8),
        ops=names(given.op, OPS, "operation"),
        warmup=1 if given.warmup_iters is None else given.warmup_iters,
        settle=given.warmup_iters is None and given.iterations is None,
        across=ACROSS[given.average],
        sync=sync(given),
        arrivals=given.arrival or (ZERO,),
        per_iteration=bool(given.per_iter_timing),
        placements=("out", "in") if given.placement == "both" else (given.placement,),
        ngpus=given.ngpus is not None,
        threads=_threads(given),
        chosen=_chosen(given),
        pairing=Pairing(given.tests, given.window, given.pairs) if pairs else None,
        **as_given(given),
    )
    _check_gpus(made)
    _check_launches(made)
    if made.check.timed and made.timing == "loop":
        raise Unsupported(
            "--check timed looks at a result between two iterations; leave out --timing loop"
        )
    return made
