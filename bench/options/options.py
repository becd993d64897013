"""The options of a benchmark: nccl-tests' flags where they exist, and Busbar's own.

Each option is one field of a class. Values that follow from several options are properties.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any, ClassVar

from bench.options import argument_types as types
from bench.options.argument_types import Checks, at_least, names
from bench.options.arrival import ZERO, ArrivalPattern, arrivals
from bench.options.launching import MOST_SEED, LaunchTurn, parse_turn
from bench.options.nccl_flags import add_flags
from busbar.arguments import JoinLists, Parser, program, unknown
from busbar.completion import offer
from busbar.errors import MissingFile, Unsupported
from busbar.mpi import LEVELS, OPTION
from busbar.options import OptionGroup, Self, option, redefine, switch
from busbar.units import MOST_RANKS, parse_size, sweep_sizes
from collectives.execution.registry import check_chosen, transports
from collectives.execution.world import How
from collectives.formats.load import is_file
from collectives.schedule import catalogue
from collectives.schedule.dtypes import DTYPES, FLOAT8, canonical
from collectives.schedule.ops import OPS

TUNING = Path("busbar-tuning.json")
AFFINITIES = ("none", "core", "numa")
NONBLOCKING = "nonblocking"
"""The library's collective in its non-blocking form, with its overlap; only had by name."""
BESIDE = ("worksharing", "library")
"""Contenders that carry no schedule out and stand beside those that do, in this order."""
ACROSS: tuple[How, ...] = ("rank0", "avg", "min", "max")

PT2PT = "pt2pt"
TITLE = "latency, bandwidth and message rate between pairs of ranks"
ALL = "all"
ALL_TITLE = "all collectives, one after the other, in one launch"
TESTS = ("latency", "bandwidth", "bidirectional_bandwidth")
TWO_SIDED = "two_sided"
TRANSFERS = (TWO_SIDED, "put", "get")
"""How bytes travel in a pair: as messages, or one rank reaches into the other's memory."""


@dataclass(frozen=True)
class Choice:
    """One of what a run compares: an algorithm with parameters, one of `BESIDE`, or ``auto``.

    `BESIDE` has the library and the bound ``worksharing``; ``auto`` takes the algorithm that a
    tuning file has for the size. ``shown``: what rows of a file are called, if not by the file's
    name.
    """

    name: str
    parameters: tuple[tuple[str, object], ...] = ()
    shown: str = ""

    @property
    def label(self) -> str:
        """The name in rows, as on the command line: ``double_tree:segments=4``."""
        return self.shown or ":".join([self.name, *(f"{k}={_show(v)}" for k, v in self.parameters)])


@dataclass(frozen=True)
class Pairing:
    """The pair tests to run, messages per window, and number of pairs at once (None: all)."""

    tests: tuple[str, ...]
    window: int = 64
    pairs: int | None = None


def transport_names() -> tuple[str, ...]:
    """The possible values of ``--transport``."""
    return ("auto", *transports())


class RunOptions(OptionGroup):
    """The options of every run: of collectives, of pairs, and of training steps.

    Fields with a plain value are options of some kinds of runs only.
    """

    #: Options that a record leaves out, besides those that take a file or a host.
    not_recorded: ClassVar[tuple[str, ...]] = (
        "--ranks", "--append", "--overwrite", "--per-rank", "--quiet", "--details", "--layout",
        "--dry-run", "--json", "--launches", "--seed",
    )  # fmt: skip
    #: Of these the ones that the command to repeat a run has in another way, or not at all.
    not_repeated: ClassVar[tuple[str, ...]] = (
        "--ranks", "--dry-run", "--json", "--launches", "--seed",
    )  # fmt: skip

    if TYPE_CHECKING:
        tuning: Path
        grid: tuple[int, ...] | None
        root: int | None
        seed: int | None

    transport: str = option(
        "--transport  auto (default): nccl on GPUs, else shm on one host or shm+mpi on several with"
        " ranks in common, where they are built, else mpi",
        "auto",
        choices=transport_names,
        title="where it runs",
    )
    rank_list: tuple[int, ...] = option(
        "--ranks P[,P…]  start this many ranks, without mpirun; several counts run one after the"
        " other",
        (),
        types.ranks(1),
    )
    hosts: tuple[str, ...] = option(
        "-H --host HOST[,HOST…]  start the ranks of --ranks on these hosts, as many on each,"
        " by the launcher of this MPI, or srun in a Slurm job; Busbar must be at the same path"
        " there",
        (),
        types.hosts,
        action=JoinLists,
        alternatives="hosts",
    )
    hostfile: Path | None = option(
        "--hostfile FILE  as --host; the launcher reads the file", alternatives="hosts"
    )
    launches: int = 1
    launch: LaunchTurn | None = None
    thread_count: int | None = option(
        "--threads N  run N ranks as threads of this process, on one or several GPUs or on the"
        " host",
        parse=at_least(1, "threads", MOST_RANKS),
    )
    mpi_threads: str | None = option(
        f"{OPTION}  thread level that MPI is started with (default: the lowest that the run needs,"
        " but multiple if MPICH's ranks share cores)",
        choices=LEVELS,
    )
    affinity: str = option(
        "--affinity  pin ranks to a core each, or to the cores of a NUMA node",
        "none",
        choices=AFFINITIES,
    )

    iterations: int | None = option(
        "-n --iters N  iterations of a row, not ranks (default: until the median is within 2 % or"
        " the budget is spent)",
        parse=at_least(1, "iterations"),
        title="how long",
    )
    budget: float = option(
        "--budget SECONDS|10m  time limit of a row and placement, without -n", 2.0, types.seconds
    )
    timeout: float | None = option(
        "-T --timeout SECONDS|10m  end a row that makes no progress for so long (default 0: never)",
        parse=types.patience,
    )
    wait_quiet: float | None = option(
        "--wait-quiet SECONDS|10m  before the first row of a launch, wait until nothing else uses"
        " the cores, at most this long; other time limits do not count it",
        parse=types.seconds,
    )
    total: float | None = None
    timing: str = "each"
    statistic: str = "median"
    json: bool = False

    out: tuple[str, ...] = option(
        "--out FILE  write records after every row, as .jsonl, .jsonl.gz, .json, .csv or .parquet,"
        " or into a run directory (DIR/); repeatable",
        (),
        action="append",
        title="what is kept",
    )
    append: bool = switch(
        "--append  add to the results in --out's .jsonl files", alternatives="results"
    )
    overwrite: bool = switch(
        "--overwrite  replace the results in the files that are written; without --append or this a"
        " file that has results is refused",
        alternatives="results",
    )
    nccl_json: Path | None = None
    per_rank: bool = switch("--per-rank  keep every rank's own times in the records")
    quiet: bool = switch(
        "-q --quiet  print only the closing sentences; on standard error only how long the run may"
        " take, and what is to be acted on; files stay the same"
    )
    # Passed by a run to the launches that it starts: a file with the rows of earlier launches.
    after: Path | None = option("--after")
    # Passed by a run to ranks that another launcher starts: how many ranks there must be.
    expected_ranks: int | None = option("--expected-ranks")
    #: The options that say what is measured and how, as a record has them.
    recorded: str = field(default="", compare=False)
    #: The others that the command to repeat the run has, as words.
    unrecorded: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def parse(cls, argv: Sequence[str], parser: Parser, **more: Any) -> Self:
        """The options of a command line. Raises Unsupported; see `OptionGroup`."""
        options = super().parse(argv, parser, **more)
        others = parser.left_out(cls.not_recorded, cls.not_repeated)
        options = options.replace(unrecorded=tuple(others))
        words = parser.spelled(cls.not_recorded)
        if options.after is not None and options.total is not None:
            words = words[:-2]  # this launch's share, appended to the --total of all
        launches = options.launch.of if options.launch else options.launches
        if launches > 1:
            words += ["--launches", str(launches)]
        # Paths are private, and without its option the command would not repeat the run.
        if any("/" in word for word in words):
            return options
        return options.replace(recorded=join(words))

    @property
    def ranks(self) -> int | None:
        """The number of ranks to start; None if no count or several counts are given."""
        return self.rank_list[0] if len(self.rank_list) == 1 else None

    @property
    def rank_counts(self) -> tuple[int, ...]:
        """The rank counts to measure one after the other; empty unless there are several."""
        return self.rank_list if len(self.rank_list) > 1 else ()

    @property
    def launch_counts(self) -> tuple[int, ...]:
        """The ranks of each launch; a single 0 if no option gives a number."""
        return self.rank_counts or (self.ranks or self.threads or 0,)

    @property
    def threads(self) -> int | None:
        """The number of ranks that are threads of this process; None if ranks are processes."""
        return self.thread_count

    @property
    def in_process(self) -> bool:
        """True if ranks are threads of this process."""
        entry = transports().get(self.transport)
        return self.threads is not None or (entry is not None and entry.makes_ranks)

    @property
    def on_hosts(self) -> bool:
        """True if options name the hosts to start ranks on."""
        return bool(self.hosts) or self.hostfile is not None

    @property
    def deadline(self) -> float:
        """Seconds that a transport waits for another rank: more than -T, whose error says more."""
        return 60.0 if self.timeout is None else 2 * self.timeout

    def checked(self) -> Self:
        """These options. Raises Unsupported for a file without a name, or hosts without ranks."""
        if "" in self.out:
            raise Unsupported("--out '' names no file; ./ is this folder")
        twice = [str(name) for name in self.out if self.out.count(name) > 1]
        if twice:
            raise Unsupported(f"--out {twice[0]}: named twice")
        if self.on_hosts:
            flag = "--host" if self.hosts else "--hostfile"
            if self.hostfile is not None and not self.hostfile.is_file():
                text = f"--hostfile {self.hostfile}: there is no such file"
                raise MissingFile(text, self.hostfile)
            if self.in_process:
                raise Unsupported(f"{flag} starts processes; threads are on this host alone")
            if not self.rank_list:
                raise Unsupported(f"{flag} starts ranks; say how many: --ranks N")
        return self


# A title of options.
_TIME = "what a row's time is"


class _Own(argparse.Action):
    """Stores the value of a transport's own option in ``chosen``, under its name."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, value: object, flag: object = None
    ) -> None:
        namespace.chosen = {**vars(namespace).get("chosen", {}), self.const: value}


class Options(RunOptions):
    """The options of a benchmark, checked as far as possible without knowing the ranks.

    Fields with a plain value are not options of pair tests; these use the value. ``chosen``: values
    of transports' own options, by name. ``on_gpu``: True if the ranks have GPUs.
    """

    titles = ("sizes", "how long", "what is measured", "where it runs", "GPUs", _TIME)
    collective: str
    chosen: Mapping[str, str] = field(default_factory=dict)
    on_gpu: bool = False

    minbytes: str = option("-b --minbytes SIZE  smallest size", "1M", title="sizes")
    maxbytes: str = option("-e --maxbytes SIZE  largest size", "1G")
    size_list: str | None = option(
        "--sizes SIZES  these sizes, joined by commas, instead of -b, -e, -f, -i",
        action=JoinLists,
    )
    factor: float | None = option(
        "-f --stepfactor F  factor between sizes (default 2)", parse=types.factor
    )
    increment: str | None = option(
        "-i --stepbytes SIZE  increment between sizes, instead of a factor"
    )
    warmup_iters: int | None = option(
        "-w --warmup_iters N  warm-up iterations (default: 1; without -n also all iterations"
        " before the row is steady)",
        parse=at_least(0, "warm-ups"),
        title="how long",
    )
    total: float | None = option(
        "--total SECONDS|10m  time limit of all rows, cycles and launches together, without -n:"
        " where the rows would take longer, each gets less, and no row begins after it",
        parse=types.seconds,
        title="how long",
    )
    cycles: int = option(
        "-N --run_cycles N  run the whole sweep N times, 0 for ever", 1, at_least(0, "cycles")
    )
    order: str = option(
        "--order  what is measured first: all sizes of an algorithm (default), or all algorithms at"
        " a size; then tables are printed after the last size, or when the run is interrupted",
        "algorithm",
        choices=("algorithm", "size"),
    )
    algorithm: str | None
    tuning: Path = TUNING
    grid: tuple[int, ...] | None = None
    nonblocking: bool = False
    op: str = "sum"
    datatype: str = "uint8"
    root: int | None = 0
    placement: str = "out"
    counts: Path | None = None
    spread: float = 1.0
    check: Checks = option(
        "-c --check N|timed  check the results of N more iterations after the timed ones, as"
        " nccl-tests; timed: of every timed iteration, outside the clock",
        Checks(),
        types.check,
        completes=("timed",),
        title="what is measured",
    )

    rank_list: tuple[int, ...] = redefine(
        RunOptions,
        "rank_list",
        (),
        text="--ranks P[,P…]  start this many ranks, without mpirun (default: one a core, at least"
        " 2, or one a GPU); several counts run one after the other, and a map of the fastest"
        " algorithm by size and count follows",
    )
    launches: int = option(
        "--launches N  start the ranks N times, with the rows in another order each time, and show"
        " the interval over launches",
        1,
        at_least(1, "launches"),
    )
    # Number and seed of this launch, if it is one of several.
    launch: LaunchTurn | None = option("--launch", parse=parse_turn)
    seed: int | None = option(
        "--seed N  seed of the order of rows with --launches (default: drawn, and kept in the"
        " records)",
        parse=at_least(0, "as seed", MOST_SEED),
        title="where it runs",
    )
    split: tuple[str, int] | None = option(
        "--split RULE:N  split the ranks into groups that run at the same time, by rank mod N, div"
        " N, and N, or or N; every group has a table of its own",
        parse=types.split,
    )

    gpus: tuple[int, ...] | None = option(
        "--gpus N,N…  the GPUs that a node's ranks take, in this order; pick: those that topology"
        " pick ranks first (default: by node-local rank)",
        (),
        types.gpus,
        title="GPUs",
    )
    oversubscribe_gpu: bool = switch(
        "--oversubscribe-gpu  let ranks share a GPU, for tests; otherwise this is refused"
    )
    nthreads: int = option(
        "-t --nthreads N  with -g, as in nccl-tests: --threads t x g",
        1,
        at_least(1, "threads", MOST_RANKS),
    )
    ngpus: int | None = option(
        "-g --ngpus N  GPUs for each of -t threads: --threads t x g, and an error where there is no"
        " GPU",
        parse=at_least(1, "GPUs", MOST_RANKS),
    )
    cudagraph: int | None = option(
        "-G --cudagraph N  0 is --graph off, any other number --graph on",
        parse=at_least(0, "launches"),
    )

    timing: str = option(
        "--timing  time each iteration, or N back to back as nccl-tests does",
        "each",
        choices=("each", "loop"),
        title=_TIME,
    )
    sync_mode: str | None = option(
        "--sync  how iterations begin: behind a barrier (default), or at agreed times of one clock"
        " (window); with window the time is from the earliest start to the latest end",
        choices=("barrier", "window"),
        title=_TIME,
    )
    arrivals: tuple[ArrivalPattern, ...] = option(
        "--arrival PATTERN  let ranks enter late, in microseconds: zero, ramp:US, late:RANK:US,"
        " random:US, a file (one line per iteration, one number per rank), or all[:US] for a table"
        " of the fastest algorithm by pattern; the time counts from the last arrival; implies"
        " --sync window",
        (ZERO,),
        arrivals,
    )
    statistic: str = option(
        "--statistic  a row's time is this statistic of its iterations",
        "median",
        choices=("median", "mean"),
    )
    average: int = option(
        "-a --average  time of an iteration over ranks: 0 rank 0's, 1 average, 2 minimum, 3"
        " maximum",
        3,
        choices=(0, 1, 2, 3),
    )
    limit: str = option(
        "--limit  % of the memory roofline (shm): in the table at the end (default), also in a last"
        " column, or none, without measuring the roofline",
        "table",
        choices=("table", "column", "none"),
    )
    energy: bool = switch(
        "--energy  on GPUs: extend each row to 2 s, untimed, so that its energy can be measured"
    )

    layout: str = option(
        "--layout  nccl: rows as nccl-tests prints them; compact: one short line for each"
        " placement; auto (default): compact only on a terminal that is too narrow",
        "auto",
        choices=("auto", "nccl", "compact"),
        title="what is kept",
    )
    # For bench.selfcheck: lengthen timed iterations by each of these fractions, in every cycle.
    inject: tuple[float, ...] = option("--inject", (), types.shares)
    per_iteration: int = option(
        "-I --per_iter_timing 0|1  add columns of per-iteration statistics (default 0; -I alone is"
        " 1)",
        0,
        choices=(0, 1),
        nargs="?",
        const=1,
    )
    nccl_json: Path | None = option(
        "-J --output_file FILE.json  write nccl-tests' JSON after every row"
    )
    details: bool = switch("--details  with several rank counts: also print every launch's tables")
    dry_run: bool = switch("--dry-run  print what would run, with its memory and bytes, and exit")

    @cached_property
    def step(self) -> int | None:
        """Bytes between sizes; None if sizes rise by a factor."""
        return None if self.increment is None else parse_size(self.increment)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The sizes to measure, rising, without repetitions."""
        if self.size_list is None:
            low, high = parse_size(self.minbytes), parse_size(self.maxbytes)
            return tuple(sweep_sizes(low, high, factor=self.factor, step=self.step))
        if self.given & {"minbytes", "maxbytes", "factor", "increment"}:
            raise Unsupported("--sizes excludes -b, -e, -f and -i; give the one or the others")
        return tuple(sorted({parse_size(part) for part in self.size_list.split(",")}))

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the greatest size asked for; a sweep may end below, as in nccl-tests."""
        if self.size_list is None:
            return parse_size(self.minbytes), parse_size(self.maxbytes)
        return self.sizes[0], self.sizes[-1]

    @property
    def warmup(self) -> int:
        """Warm-up iterations."""
        return 1 if self.warmup_iters is None else self.warmup_iters

    @property
    def settle(self) -> bool:
        """True to leave out iterations from before times became steady."""
        return self.warmup_iters is None and self.iterations is None

    @cached_property
    def algorithms(self) -> tuple[Choice, ...]:
        """The algorithms, library or bound to compare. Without ``-A`` there are more for GPUs."""
        return (
            _choices(self.algorithm, self.collective, more=self._more_on_gpus)
            + (Choice(NONBLOCKING),) * self.nonblocking
        )

    @property
    def every_algorithm(self) -> bool:
        """True if algorithms that do not support the ranks are left out with a note."""
        return self.algorithm == "all" or self._more_on_gpus

    @property
    def _more_on_gpus(self) -> bool:
        return self.on_gpu and self.algorithm is None and self.collective == "allreduce"

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """The data types."""
        known = ",".join(map(canonical, self.datatype.split(",")))
        return names(known, DTYPES, "data type", FLOAT8)

    @cached_property
    def ops(self) -> tuple[str, ...]:
        """The operations."""
        if Path(self.op).suffix:
            raise Unsupported(f"-o {self.op[:80]}: -o is the operation; --out FILE keeps records")
        if "mulsum" in self.op.split(","):
            raise Unsupported("-o mulsum: NCCL's sum times a factor is not here; -o sum is")
        return names(self.op, OPS, "operation")

    @property
    def placements(self) -> tuple[str, ...]:
        """The placements to measure: ``out``, ``in``, or both."""
        return ("out", "in") if self.placement == "both" else (self.placement,)

    @property
    def across(self) -> How:
        """How the ranks' times of an iteration are combined into one."""
        return ACROSS[self.average]

    @cached_property
    def sync(self) -> str:
        """How iterations begin: ``barrier`` or ``window``. Raises Unsupported for a conflict."""
        late = "arrivals" in self.given
        if self.sync_mode == "barrier" or (self.sync_mode is None and not late):
            if late:
                raise Unsupported(
                    "--arrival needs --sync window: a barrier makes ranks arrive at once"
                )
            return "barrier"
        if self.timing == "loop":
            raise Unsupported("--sync window times each iteration; leave out --timing loop")
        if self.across != "max":
            raise Unsupported(
                "-a combines ranks' own times; with --sync window a time is from the earliest start"
                " to the latest end"
            )
        if self.launches > 1 and any(one.seconds is None for one in self.arrivals):
            raise Unsupported("--launches draws the order of rows; write --arrival all:US, not all")
        return "window"

    @property
    def threads(self) -> int | None:
        """The number of ranks that are threads: ``--threads``, or ``-t`` times ``-g``, or None."""
        product = self.nthreads * (self.ngpus or 1)
        if product == 1:
            return self.thread_count
        if product > MOST_RANKS:
            raise Unsupported(f"-t x -g makes {product} ranks; at most {MOST_RANKS} are threads")
        if self.thread_count not in (None, product):
            raise Unsupported(
                f"--threads {self.thread_count}, but -t x -g makes {product}; give one of them"
            )
        return product

    @property
    def asks_for_gpus(self) -> bool:
        """True if an option names GPUs, so that a run without GPUs is an error."""
        return self.gpus != () or self.ngpus is not None or self.oversubscribe_gpu

    @property
    def names_gpu_transport(self) -> bool:
        """True if ``--transport`` names one that moves the memory of GPUs."""
        entry = transports().get(self.transport)
        if entry is None or entry.on_gpu_with is None:
            return entry is not None and entry.on_gpu
        return entry.on_gpu_with.of(self.chosen) != entry.on_gpu_with.default

    @property
    def names_no_ranks(self) -> bool:
        """True if no option says how many ranks there are, or who starts them."""
        named = self.rank_list or self.given & {"thread_count", "nthreads", "ngpus"}
        return not named and self.expected_ranks is None

    @property
    def pairing(self) -> Pairing | None:
        """The pair tests of this command; None for collectives."""
        return None

    def checked(self) -> Self:
        """These options. Raises Unsupported if one is wrong, or if two exclude each other."""
        if self.step is not None and self.factor is not None:
            raise Unsupported("-f and -i exclude each other; give one of them")
        # Computed here for the errors that they raise.
        _ = self.sizes, self.algorithms, self.dtypes, self.ops, self.sync, self.threads
        super().checked()
        if self.cudagraph is not None:
            if "graph" in self.chosen:
                raise Unsupported("-G and --graph exclude each other; give one of them")
            graph = "on" if self.cudagraph else "off"
            return replace(self, cudagraph=None, chosen={**self.chosen, "graph": graph}).checked()
        entry = transports().get(self.transport)
        if entry is not None:
            check_chosen(entry, self.chosen)
        self._check_gpus()
        self._check_launches()
        if self.nthreads > 1 and self.ranks and self.launch is None:
            product = self.nthreads * (self.ngpus or 1)
            raise Unsupported(
                f"-t {self.nthreads} --ranks {self.ranks}: in nccl-tests {self.ranks} processes of"
                f" {product} threads; here give --ranks {self.ranks * product} for processes, or"
                f" --threads {self.ranks * product}"
            )
        if self.total is not None and (self.iterations is not None or not self.cycles):
            flag = "-n" if self.cycles else "-N 0"
            raise Unsupported(f"--total and {flag} exclude each other; give one of them")
        if self.check.timed and self.timing == "loop":
            raise Unsupported(
                "--check timed looks at a result between two iterations; leave out --timing loop"
            )
        return self

    def _check_gpus(self) -> None:
        """Raise Unsupported if GPUs are named for a transport that uses none."""
        entry = transports().get(self.transport)
        if entry is None or self.names_gpu_transport:
            return
        without, needed = "", entry.on_gpu_with
        if needed is not None:
            values = " or ".join(value for value in needed.choices if value != needed.default)
            without = f"without {needed.flag} {values}, "
        if self.asks_for_gpus:
            named = "--gpus" if self.gpus != () else "-g" if self.ngpus else "--oversubscribe-gpu"
            raise Unsupported(f"{without}{named} has no effect with --transport {self.transport}")

    def _check_launches(self) -> None:
        """Raise Unsupported for options that exclude several launches in one command."""
        several = []
        if self.rank_counts:
            several.append(f"--ranks {','.join(map(str, self.rank_counts))}")
            if self.threads is not None:
                raise Unsupported(
                    f"{several[0]} and --threads (-t x -g) exclude each other; give one of them"
                )
        if self.launches > 1:
            several.append(f"--launches {self.launches}")
            if "order" in self.given:
                raise Unsupported("--launches draws the order of rows; leave out --order")
        for what in several:
            if not self.cycles:
                raise Unsupported(f"{what}: with -N 0 the first would never end")
            if self.nccl_json is not None:
                raise Unsupported(f"{what}: -J has room for one launch; --out FILE for all")
            if self.split is not None:
                raise Unsupported(f"{what} and --split exclude each other; give one of them")


class CollectiveOptions(Options):
    """The options of a collective's benchmark."""

    algorithm: str | None = option(
        "-A --algorithm NAMES  names joined by commas, each with :key=value if it has parameters;"
        " library (MPI's or NCCL's own); worksharing (all processes share the work of all ranks);"
        " auto (as tuned); NAME=FILE (a schedule's file); all (default ring,library; on GPUs tree,"
        " torus and ps, too)",
        parse=types.plain_case,
        title="what is measured",
        action=JoinLists,
    )
    nonblocking: bool = switch(
        "--nonblocking  also measure MPI's non-blocking collective and its overlap with computation"
    )
    tuning: Path = option("--tuning FILE  the choices for -A auto, written by busbar tune", TUNING)
    grid: tuple[int, ...] | None = option(
        "--grid XxY  the grid of algorithms that have one, such as 4x4", parse=types.grid
    )
    op: str = option(
        f"-o --op OP  {', '.join(OPS)}, all", "sum", completes=(*OPS, "all"), action=JoinLists
    )
    datatype: str = option(
        f"-d --datatype TYPE  {', '.join((*DTYPES, *FLOAT8))}; all: without the last two",
        "float",
        completes=(*DTYPES, *FLOAT8, "all"),
        action=JoinLists,
    )
    root: int | None = option(
        "-r --root RANK  root rank of rooted collectives, or all", 0, types.root
    )
    placement: str = option(
        "--placement  out of place, in place or both", "both", choices=("out", "in", "both")
    )


class SendrecvOptions(CollectiveOptions):
    """The options of ``bench.sendrecv``."""

    pattern: str = option(
        "--pattern  to the next rank, or between ranks 0-1, 2-3 …",
        "ring",
        choices=("ring", "pairs"),
        title="what is measured",
    )

    def checked(self) -> Self:
        """These options; the pattern ``pairs`` is a separate collective. Raises Unsupported."""
        collective = {"ring": "sendrecv", "pairs": "sendrecv_pairs"}[self.pattern]
        return super(SendrecvOptions, replace(self, collective=collective)).checked()


class AlltoallvOptions(CollectiveOptions):
    """The options of ``bench.alltoallv``."""

    counts: Path | None = option(
        "--counts FILE.csv  elements from rank (row) to rank", title="what is measured"
    )
    spread: float = option("--spread F  0 even to 1 by distance, as nccl-tests", 1.0)


class Pt2ptOptions(Options):
    """The options of ``bench.pt2pt``, named as in OSU's and Intel's benchmarks."""

    minbytes: str = redefine(Options, "minbytes", "1")
    maxbytes: str = redefine(Options, "maxbytes", "4M")
    limit: str = redefine(Options, "limit", "none")
    transport: str = option(
        "--transport  auto (default): nccl on GPUs, else mpi",
        "auto",
        choices=transport_names,
        title="where it runs",
    )
    tests: tuple[str, ...] = option(
        f"--tests NAMES  of {', '.join(TESTS)}, joined by commas (default: all)",
        TESTS,
        lambda text: names(text, TESTS, "test"),
        title="what is measured",
        action=JoinLists,
    )
    algorithm: str | None = option(
        "-A --algorithm NAMES  two_sided (messages, the default), put or get (one-sided), or all",
        title="what is measured",
        action=JoinLists,
    )
    window: int = option(
        "-W --window N  messages in flight in bandwidth tests (default 64, as OSU's)",
        64,
        at_least(1, "messages", 4096),
    )
    pairs: int | None = option(
        "--pairs N  pairs that run at once; of P ranks, rank i is paired with rank i + P/2"
        " (default: all)",
        parse=at_least(1, "pairs", MOST_RANKS),
    )

    @cached_property
    def algorithms(self) -> tuple[Choice, ...]:
        """The transfer methods to measure: messages, put or get."""
        return tuple(map(Choice, names(self.algorithm or TWO_SIDED, TRANSFERS, "transfer")))

    @property
    def pairing(self) -> Pairing:
        """The pair tests, the window and the number of pairs."""
        return Pairing(self.tests, self.window, self.pairs)


def _show(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def parse_choice(text: str) -> Choice:
    """``double_tree:segments=4`` or ``NAME=FILE`` as a Choice. Raises Unsupported if malformed."""
    shown, equals, file = text.strip().partition("=")
    if equals and re.fullmatch(r"\w+", shown, re.ASCII) and is_file(file):
        return Choice(file, shown=shown)
    name, parameters = catalogue.parse(text.strip())
    return Choice(name, tuple(parameters.items()))


def _choices(text: str | None, collective: str, *, more: bool) -> tuple[Choice, ...]:
    """The algorithms, library or bound that ``-A`` names; ``text`` None: without ``-A``.

    The default is the library and one algorithm, or with ``more`` four.
    """
    known = catalogue.algorithms(collective)
    if text == "all":
        return tuple(map(Choice, (*known, *BESIDE)))
    if text is None:
        ours = ("ring", "tree", "torus", "ps") if more else (catalogue.usual(collective),)
        return tuple(map(Choice, (*ours, "library")))
    chosen = tuple(dict.fromkeys(map(parse_choice, types.split_names(text))))
    labels = [choice.label for choice in chosen]
    for choice in chosen:
        if choice.shown in (*_known(collective), NONBLOCKING):
            raise Unsupported(f"-A {choice.shown}=: an algorithm of Busbar is called so")
        if choice.shown and labels.count(choice.shown) > 1:
            raise Unsupported(f"-A {choice.shown}=: two files have this name")
        listed = choice.name in (*BESIDE, NONBLOCKING, "auto") or choice.name in known
        if not (listed or "+" in choice.name or is_file(choice.name)):
            theirs = dict.fromkeys(("nccl", "mpi", "rccl"), "library")
            theirs |= catalogue.synonyms(known)
            raise unknown("algorithm", choice.name, _known(collective), elsewhere=theirs)
    return chosen


_CLASSES: Mapping[str, type[Options]] = {
    PT2PT: Pt2ptOptions,
    "sendrecv": SendrecvOptions,
    "alltoallv": AlltoallvOptions,
}


def make_parser(collective: str, command: str = "") -> Parser:
    """The parser of a benchmark's command line. It raises Unsupported instead of exiting.

    ``collective``: a collective, ``pt2pt``, or ``all`` for the options that all collectives share.
    ``command``: the command that messages name, if it is not that of the collective.
    """
    if collective == ALL:
        title, known = ALL_TITLE, list(dict.fromkeys(chain(*map(_known, catalogue.collectives()))))
    elif collective == PT2PT:
        title, known = f"{PT2PT}: {TITLE}", []
    else:
        title, known = f"{collective}: {catalogue.spec(collective).title}", _known(collective)
    name = program(f"bench.{command or collective}")
    if (command or collective) == ALL:  # which is no module of its own
        name = name.replace(f"bench.{ALL}", f"bench {ALL}")
    parser = _CLASSES.get(collective, CollectiveOptions).make_parser(
        prog=name,
        usage=f"{name} [options]",
        description=f"Measure {title}. For example: {name} --ranks 2"
        + ("" if collective == "barrier" else " -b 64K -e 16M"),
        epilog="Run under mpirun, or let --ranks N start the launcher for you (default: one rank"
        " for each core, or GPU). Of nccl-tests' other flags each says what to use here"
        " (docs/nccl-tests.md). algbw: size over time; busbw: algbw times the bus factor (of"
        " allreduce 2(P-1)/P for P ranks), the rate that a rank's port needs, to"
        " compare with a link's rate; limit: the share of what memory allows (docs/glossary.md).",
    )
    parser.no_names = catalogue.collectives()
    add_flags(parser.add_argument)
    for own in dict.fromkeys(one for entry in transports().values() for one in entry.options):
        parser.group(own.title).add_argument(
            own.flag, action=_Own, const=own.name, choices=own.choices or None, help=own.help,
            type=own.parse, metavar=None if own.choices else "N", dest="chosen",
            default=argparse.SUPPRESS,
        )  # fmt: skip
    if known:
        offer(parser._option_string_actions["-A"], known)
    return parser


def _known(collective: str) -> list[str]:
    """The names that ``-A`` takes."""
    return [*catalogue.algorithms(collective), *BESIDE, "auto", "all"]


def parse(argv: Sequence[str], collective: str, command: str = "") -> Options:
    """Options from a command line. Raises Unsupported with a one-line message for any error.

    ``command``: see `make_parser`. ``--help`` prints and exits by SystemExit, as argparse does.
    """
    family = _CLASSES.get(collective, CollectiveOptions)
    return family.parse(argv, make_parser(collective, command), collective=collective)
