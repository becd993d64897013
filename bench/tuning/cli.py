"""``busbar tune``: from options to rules; measures, or uses earlier measurements."""

from __future__ import annotations

import signal
from argparse import ArgumentTypeError
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench.cli.main import names
from bench.launch.launch import Interrupted, LaunchFailed
from bench.options.argument_types import at_least, ranks, seconds
from bench.options.launching import MOST_SEED, LaunchTurn, turns
from bench.options.options import TUNING, parse
from bench.run.screen import Screen
from bench.run.tuning_file import Rules, dump, load
from bench.tuning.decide import has_rows, of_files, predicted, table, tune
from bench.tuning.launches import Course, Launch, effort, launches_within, plan, run
from bench.tuning.libraries import rules_file, tuner_file
from busbar.arguments import Parser, time_in, unknown
from busbar.commands import Command
from busbar.errors import StoreError, Unsupported
from busbar.files import has_content, make_folder, special, write
from busbar.launchers import launched
from busbar.options import Self, option, switch
from busbar.status import BY_SIGNAL, FOUND, GOOD
from busbar.terminal import print_note
from collectives.schedule import catalogue
from reports.analysis.expect import parse_share
from reports.records.measurement import LIBRARY

# Options of what is measured, which do not choose among records.
_MEASURED = ("collective", "ranks", "transport", "algorithm")


def _whole_time(text: str) -> float:
    """Seconds of a whole search. Raises ArgumentTypeError for a time without a unit.

    Elsewhere --budget is of a row, in seconds.
    """
    try:
        float(text)
    except ValueError:
        return time_in("s", 3, 6_000_000)(text)
    raise ArgumentTypeError(
        f"{text} of what? It is the time of the whole search: write {text}m or {text}s"
    )


class TuneCommand(Command):
    """Find the best algorithm for each size and rank count.

    It is written for -A auto, for Open MPI and for NCCL. Nothing is preferred that is not faster
    beyond noise.
    """

    EPILOG = "Options not listed here go to every measuring run, such as -b 1K -e 16M -f 4."

    rest: tuple[str, ...] = ()
    collective: str = option("--collective  names joined by commas", "allreduce")
    ranks: tuple[int, ...] = option(
        "--ranks P,P…  rank counts to measure (default 2)", (2,), ranks(2)
    )
    transport: str = option("--transport NAMES  such as mpi,shm", "auto")
    algorithm: str | None = option(
        "-A --algorithm NAMES  default: all that support the number of ranks"
    )
    open_mpi: bool = switch("--open-mpi  also measure every algorithm of Open MPI")
    nccl: bool = switch("--nccl  also measure every algorithm and protocol of NCCL")
    budget: float | None = option(
        "--budget 30m|2h  time limit of the whole search, with its unit (default: none)",
        parse=_whole_time,
    )
    row_budget: float | None = option(
        "--row-budget SECONDS|10m  time limit of a row (default 2)", parse=seconds
    )
    launches: int = option("--launches  launches of each run, in turns", 3, at_least(1, "launches"))
    seed: int | None = option(
        "--seed  seed of the order of rows with --launches",
        parse=at_least(0, "as seed", MOST_SEED),
    )
    launcher: str | None = option(
        "--launcher COMMAND  how to start ranks, such as 'srun -n {ranks}'"
    )
    placement: str = option("--placement", "out", choices=("out", "in"))
    noise: float = option(
        "--noise SHARE  differences up to this do not count (default 2%)", 0.02, parse_share
    )
    default: str = option(
        "--default NAME  algorithm that stays unless another is faster (default library)", LIBRARY
    )
    from_model: Path | None = option(
        "--from-model FIT  measure nothing; decide by the predictions of this fit"
    )
    topology: tuple[str, ...] = option("--topology FILE  the machine to predict for", (), nargs="+")
    runs: tuple[Path, ...] = option(
        "--from RUN  measure nothing; decide by these records", (), nargs="+"
    )
    dry_run: bool = switch("--dry-run  print the runs and how long they may take, and end")
    out: Path = option("--out FILE  write the choices here, as JSON", TUNING)
    overwrite: bool = switch(
        "--overwrite  replace the choices in --out and the records beside it; without, nothing is"
        " measured where there are some"
    )
    open_mpi_rules: Path | None = option(
        "--open-mpi-rules FILE  also write Open MPI's coll_tuned_dynamic_rules_filename"
    )
    nccl_tuner: Path | None = option(
        "--nccl-tuner FILE  also write the file of NCCL's example tuner plug-in"
    )

    @classmethod
    def parse(cls, argv: Sequence[str], parser: Parser, **more: object) -> Self:
        """Parse the options of this command; unknown options become ``rest``, for the runs."""
        known, rest = parser.parse_known_args(argv)
        return cls.of(known, argv, rest=tuple(rest), **more)

    def run(self) -> int:
        """Return 0, or 1 if a run failed or a file could not be written. Raises Interrupted."""
        if self.dry_run:
            return _dry_run(self)
        _check_out(self.out)
        if self.runs or self.from_model is not None:
            return self._decide()
        try:
            return self._decide()
        except KeyboardInterrupt:
            number = int(signal.SIGINT)
        except Interrupted as end:
            number = end.exit_status - 128
        raise Interrupted(number, _kept(_records(self)))

    def _decide(self) -> int:
        """Measure, unless told not to, and write the choices. Returns the exit status."""
        measured = Measuring(self.runs)
        if self.from_model is not None:
            rules = _predict(self, self.from_model)
        else:
            if not self.runs:
                measured = _measure(self)
            else:
                unused = [f"--{name}" for name in _MEASURED if name in self.given]
                if wrong := [*self.rest[:1], *unused]:
                    raise Unsupported(f"{wrong[0]}: nothing is measured with --from; see --help")
            series, doubt, notes = of_files(measured.records, self.placement)
            if self.budget is not None and not measured.interrupted:
                # A run whose time is over was ended by a signal.
                by_signal, why = f"{BY_SIGNAL} SIGINT", "its share of --budget was over"
                notes = [one.replace(by_signal, why) for one in notes]
            for one in notes[:20]:
                print_note(one)
            rules = tune(series, self.default, self.noise, doubt=doubt)
        files = _files(self, rules, interrupted=bool(measured.interrupted))
        for path, data in files:
            write(path, data)
            print_note(f"wrote {path}")
        Screen(0).lines(table(rules))
        if measured.interrupted:
            print_note(
                f"interrupted: {self.out} is decided on the rows that {len(measured.records)} of"
                f" {measured.of} runs have, and lacks the others"
            )
            return 128 + measured.interrupted
        return FOUND if measured.failed else GOOD


def _predict(options: TuneCommand, fit: Path) -> list[Rules]:
    """Rules from the cost model; the default is the usual algorithm of each collective."""
    if options.runs or options.open_mpi or options.nccl:
        raise Unsupported("--from-model predicts our own algorithms; it measures and reads no runs")
    rules: list[Rules] = []
    for collective in _collectives(options):
        own = parse(options.rest, collective)
        series, notes = predicted(
            [collective],
            options.ranks,
            own.sizes,
            fit,
            options.topology or None,
            options.algorithm,
            own.dtypes[0],
            in_place=options.placement == "in",
        )
        for one in notes:
            print_note(one)
        default = catalogue.usual(collective) if options.default == LIBRARY else options.default
        rules += tune(series, default, options.noise, "predicted")
    return rules


def _collectives(options: TuneCommand) -> list[str]:
    wanted: list[str] = options.collective.split(",")
    for collective in wanted:
        if collective not in names():
            raise unknown("collective", collective, names())
    return wanted


def _check_out(path: Path) -> None:
    """Raise Unsupported for a folder, and for a file with other content than tuning rules."""
    if path.is_dir():
        raise Unsupported(f"--out {path}: is a folder; name a file, such as {path / TUNING}")
    if has_content(path) and not special(path):
        try:
            load(path)
        except Unsupported:
            raise Unsupported(f"--out {path}: is no tuning file; name another file") from None


def _files(
    options: TuneCommand, rules: Sequence[Rules], *, interrupted: bool = False
) -> list[tuple[Path, bytes]]:
    """Make all files before the first is written. Raises Unsupported if one cannot be made."""
    runs = [str(path) for path in options.runs]
    about: dict[str, object] = {"runs": runs, "fit": str(options.from_model or "")}
    if interrupted:
        about["interrupted"] = True
    files = [(options.out, dump(rules, about))]
    if options.open_mpi_rules is not None:
        own = _own(rules, ("mpi/library", "mpi"))
        files.append((options.open_mpi_rules, rules_file(own)))
    if options.nccl_tuner is not None:
        files.append((options.nccl_tuner, tuner_file(_own(rules, ("nccl/library",)))))
    return files


def _own(rules: Sequence[Rules], groups: Sequence[str]) -> list[Rules]:
    """The rules of the first of these groups that has any, for the file of one library."""
    for group in groups:
        own = [one for one in rules if one.transport == group]
        if own:
            # Such a file cannot say whether cores are shared. Of both kinds the last one counts.
            return sorted(own, key=lambda one: not one.oversubscribed)
    raise Unsupported(f"nothing was measured of {groups[0]}, so there is nothing to write for it")


def _records(options: TuneCommand) -> Path:
    """The folder of the records, beside the file of the choices."""
    return options.out.with_name(options.out.name + ".records")


def _kept(folder: Path) -> str:
    """Where measured rows are kept, for the end of a note; a folder without any is removed."""
    if any(map(has_rows, folder.glob("*.jsonl"))):
        return f"; what was measured is kept: --from {folder} decides on it"
    with suppress(OSError):
        for path in folder.glob("*.jsonl"):
            path.unlink()
        folder.rmdir()
    return ""


_ENDING = (
    "interrupted: the present run ends, then the finished rows are decided on; a second Ctrl-C"
    " leaves this out"
)
_Run = tuple[Launch, LaunchTurn | None]


class Measuring(NamedTuple):
    """The result of the runs: record files, number of failed runs, and the signal or 0."""

    records: Sequence[Path]
    failed: int = 0
    interrupted: int = 0
    of: int = 0


def _dry_run(options: TuneCommand) -> int:
    """Print the runs on standard output, and their number and duration on standard error."""
    if options.runs or options.from_model is not None:
        raise Unsupported("--dry-run: --from and --from-model measure nothing anyway")
    runs = _planned(options)
    _course(options, runs).announce()
    Screen(0).lines([one.name for one, _ in runs])
    return GOOD


def _planned(options: TuneCommand) -> list[_Run]:
    """All runs in their order. Raises Unsupported for options that do not go together."""
    sign = launched()
    if sign is not None:
        raise Unsupported(
            "bench.tune starts runs of its own; run it without mpirun, and name a cluster's"
            " launcher by --launcher 'srun -n {ranks}'"
        )
    if options.open_mpi and options.nccl:
        raise Unsupported("--open-mpi and --nccl exclude each other: they are two libraries")
    wanted = _collectives(options)
    for collective in wanted:
        parse(options.rest, collective)
    own = "openmpi" if options.open_mpi else "nccl" if options.nccl else ""
    common = (*options.rest, "--placement", options.placement)
    if options.row_budget is not None:
        common = (*common, f"--budget={options.row_budget}")
    transports = options.transport.split(",")
    todo = list(plan(wanted, options.ranks, transports, options.algorithm, own, common))
    launches = launches_within(list(map(effort, todo)), options.budget, options.launches)
    return turns(todo, launches, options.seed)


def _course(options: TuneCommand, runs: Sequence[_Run]) -> Course:
    return Course([effort(one) for one, _ in runs], options.budget, print_note)


def _measure(options: TuneCommand) -> Measuring:
    """Do all runs, or as many as the time and the user allow."""
    runs = _planned(options)
    folder = _records(options)
    _make_empty(folder, options)
    course = _course(options, runs)
    course.announce()
    return _all(runs, folder, options.launcher, course)


def _make_empty(folder: Path, options: TuneCommand) -> None:
    """Make the folder of the records. Raises StoreError if there are choices or records already."""
    records = sorted(folder.glob("*.jsonl"))
    if not options.overwrite:
        replaced = "--overwrite replaces both, and --out FILE names another"
        if has_content(options.out) and not special(options.out):
            raise StoreError(f"{options.out}: has choices already; {replaced}")
        if any(map(has_rows, records)):
            raise StoreError(f"{folder}: has records already; --from decides on them; {replaced}")
    make_folder(folder)
    for path in records:
        path.unlink()


def _all(runs: Sequence[_Run], folder: Path, launcher: str | None, course: Course) -> Measuring:
    paths: dict[Path, None] = {}
    failed = interrupted = signals = 0

    def on_signal(count: int) -> None:
        nonlocal signals
        signals = count
        if count == 1:
            with suppress(RuntimeError):  # this process is printing a line just now
                print_note(_ENDING)

    for place, (one, which) in enumerate(runs):
        if course.over:
            print_note(f"the time is over; {len(runs) - place} of {len(runs)} runs are left out")
            break
        each, within = course.row_seconds(), course.within()
        budget = () if each is None else (f"--budget={each:.3g}",)
        try:
            with course.run(one.name) as on_line:
                mine = replace(one, argv=(*one.argv, *budget))
                path = run(
                    mine,
                    folder,
                    launcher,
                    which,
                    on_line=on_line,
                    within=within,
                    on_signal=on_signal,
                )
            paths[path] = None
        except LaunchFailed as error:  # an algorithm that hangs or crashes is not chosen
            failed += 1
            print_note(str(error))
        except Interrupted as end:
            path = folder / f"{one.name}.jsonl"
            if has_rows(path):  # finished rows are valid
                paths[path] = None
            if not paths or signals > 1:  # there is nothing to decide on, or no time for it
                raise
            interrupted = end.exit_status - 128
            break
    if not paths:
        raise LaunchFailed(f"none of {len(runs)} runs succeeded")
    return Measuring(list(paths), failed, interrupted, len(runs))
