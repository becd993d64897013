"""`run` and `step`: benchmarks as function calls. Ranks are separate processes, as a command's."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

from msgspec import structs

from bench.api.calls import (
    RENAMED,
    as_words,
    function_name,
    in_python,
    listed,
    python_names,
    type_names,
)
from bench.api.keywords import (
    Algorithm,
    Collective,
    DataTypes,
    Keywords,
    OptionKeywords,
    Sizes,
    StepOptionKeywords,
)
from bench.api.measured import MeasuredRows, load
from bench.api.public import ELSEWHERE, public, with_keywords
from bench.api.remedies import in_keywords
from bench.cli.main import names
from bench.cli.ranks import core_ranks
from bench.cli.start import check_gpus
from bench.launch.launch import (
    RunProgress,
    error_messages,
    folder_for_rows,
    run_of_its_own,
    show_progress,
)
from bench.options.options import PT2PT, RunOptions, make_parser, parse
from bench.run.contenders import RankSetup, jobs
from bench.run.contenders import check as check_rows
from bench.run.memory import pools
from bench.run.pace import at_most, limits, longest, passes, waits
from bench.run.recorder import refuse_results
from bench.steps.main import StepCommand, check
from bench.steps.options import StepOptions
from busbar.arguments import each, unknown
from busbar.errors import BusbarError, RankFailure, ReportError, Unavailable, Unsupported
from busbar.host import cores
from busbar.launchers import launched
from busbar.status import BAD, FOUND, GOOD, MISSING, RANK_LOST
from busbar.terminal import shorten
from busbar.units import format_count
from collectives.schedule.catalogue import spec
from reports.analysis.cautions import is_in_brief
from reports.records.measurement import ENDED_EARLY

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

_STEPS = "step"
_LAUNCH = re.compile(r"(?<=, )launch [0-9]+ of ([0-9]+)")  # notes of launches become one
_MOST_LINES, _LONGEST_LINE = 5, 200  # of a launcher, in an exception
#: Options and commands that print or draw, and what there is in Python.
NOT_RUN = {
    "details": "use print(rows), or print(rows.filter(ranks=2)) for the tables of one count",
    "layout": "print(rows) has every figure; use the command with --layout",
    "per_iter_timing": "rows have the times of all iterations: use rows[0].times_s",
    "csv": 'give out="FILE.csv", or use rows.save("FILE.csv")',
    "dry_run": "busbar.plan says how long a run takes; the command with --dry-run lists its rows",
    "json": 'give out="FILE.jsonl", or use rows.save("FILE.jsonl")',
    "plot": "use rows.plot() or rows.figures()",
    "quiet": "it prints nothing as it is",
    "split": "each group has a file of its own: use the command with --out, and busbar.load",
}
#: The same of the command ``step``, and options that start no ranks.
NOT_STEP = ("join", "json", "learners", "plot", "sweep")

_UNDER_MPIRUN = (
    "{} starts ranks of its own; call it without mpirun, with ranks=, or with launcher= for a"
    " cluster's launcher, such as launcher='mpirun -n {{ranks}}'"
)
_ERRORS: Mapping[int, type[BusbarError]] = {
    BAD: Unsupported,
    MISSING: Unavailable,
    RANK_LOST: RankFailure,
}


@dataclass(frozen=True)
class RunPlan:
    """What `busbar.run` would measure, from `busbar.plan`. ``str()`` gives a line.

    ``rows``: rows and placements of all ``launches``, also those for which memory is missing.
    ``at_most_s``: seconds that they may take, without their start; None with ``iters``, where rows
    have no time limit. ``crowded``: True if ranks share cores, and may take more.
    """

    launches: int
    rows: int
    at_most_s: float | None
    crowded: bool

    @property
    def limit(self) -> str:
        """The most that all launches take, in words; empty with ``iters``."""
        return "" if self.at_most_s is None else at_most(self.at_most_s, crowded=self.crowded)

    def __str__(self) -> str:
        rows = f"{format_count(self.rows, 'row')} and placements"
        launches = format_count(self.launches, "launch")
        return f"{rows} in {launches}, {self.limit or 'without a time limit'}"


@with_keywords(OptionKeywords)
@public
def run(
    collective: Collective = "allreduce",
    *,
    ranks: int | str | Sequence[int] | None = None,
    algorithms: Algorithm | Sequence[Algorithm] | None = None,
    sizes: Sizes | None = None,
    dtype: DataTypes | None = None,
    out: str | Path | Sequence[str | Path] | None = None,
    launcher: str | None = None,
    progress: bool | None = None,
    **options: Unpack[OptionKeywords],
) -> MeasuredRows:
    """Measure a collective. Returns the rows, and prints nothing.

    ``ranks``: ranks on this host (default: one for each core), or several counts to measure in
    turn. ``algorithms``: as for ``-A``, and functions of a rank count that return a Schedule, which
    is proven here before anything starts. ``sizes``: bytes, or text such as ``"64K"`` (default: 1
    MB to 1 GB), rounded down to whole elements. ``dtype``: as ``datatype``. ``out``: a file, or
    several, to write the records to; an interrupt without one leaves only the ``rows`` of the
    KeyboardInterrupt. ``launcher``: a cluster's launcher, such as ``srun -n {ranks}``, which
    must start as many ranks as are given; one that PATH lacks is the one beside this Python.
    ``progress``: shows a bar in a notebook or on a terminal, unless False. Other keywords are the
    command's options: ``placement="out"``, ``budget=0.5``, ``transport="mpi"``;
    ``help(busbar.run)`` lists them.

    Raises Unsupported for invalid options, ScheduleError if a function's schedule is wrong,
    Unavailable if something needed is missing, RankFailure if a rank was lost. Rows with wrong
    results are returned too, and counted in ``wrong``. Ctrl-C ends the ranks and raises
    KeyboardInterrupt, whose ``rows`` are the finished ones.
    """
    request = _request(
        collective,
        "busbar.run",
        ranks=ranks,
        algorithms=algorithms,
        sizes=sizes,
        dtype=dtype,
        out=out,
        launcher=launcher,
        progress=progress,
        **options,
    )
    return _measure(collective, request, progress, RENAMED)


@with_keywords(Keywords)
@public
def plan(collective: Collective = "allreduce", **keywords: Unpack[Keywords]) -> RunPlan:
    """What `run` with the same arguments would measure, and how long that may take.

    Starts nothing. ``print(busbar.plan(...))`` says it in a line. Raises Unsupported and
    ScheduleError as `run` does, and Unsupported if the launcher decides the number of ranks.
    """
    request = _request(collective, "busbar.plan", **keywords)
    if request.several.unknown:
        raise Unsupported("busbar.plan: give ranks= beside launcher=")
    with folder_for_rows(elsewhere=False) as folder, python_names(request.parser):
        counts = request.several.counts
        parts = [
            _planned(collective, request.several.elsewhere, count, request.argv_of(count, folder))
            for count in counts
        ]
    limits = [one.at_most_s for one in parts if one.at_most_s is not None]
    return RunPlan(
        sum(one.launches for one in parts),
        sum(one.rows for one in parts),
        sum(limits) if limits else None,
        any(one.crowded for one in parts),
    )


def _request(
    collective: Collective,
    of: str,
    *,
    ranks: int | str | Sequence[int] | None = None,
    algorithms: Algorithm | Sequence[Algorithm] | None = None,
    sizes: Sizes | None = None,
    dtype: DataTypes | None = None,
    out: str | Path | Sequence[str | Path] | None = None,
    launcher: str | None = None,
    progress: bool | None = None,
    **options: Unpack[OptionKeywords],
) -> _Request:
    """Check a call of `run` or `plan` before anything starts. Raises as `run` does.

    ``of``: the beginning of messages.
    """
    if launched() is not None:
        raise Unsupported(_UNDER_MPIRUN.format(of))
    if collective == _STEPS:
        raise Unsupported(f"{of} measures collectives; busbar.step measures training steps")
    if collective == PT2PT:
        raise Unsupported(
            f"{of}: pt2pt is a command: busbar pt2pt --out FILE, then busbar.load(FILE)"
        )
    if str(collective) == "all":
        raise Unsupported(f"{of} measures one collective; call it for each, and add the rows")
    if collective not in names():
        raise unknown("collective", str(collective), names())
    for name, instead in NOT_RUN.items():
        if name in options:
            raise Unsupported(f"{of} has no {name}; {instead}")
    _check_call(options, progress, of)
    # A wrapper may pass None for options that this collective does not have.
    more: dict[str, object] = {
        name: one
        for name, one in options.items()
        if one is not None or name not in OptionKeywords.__annotations__
    }
    for of_command, name in RENAMED.items():
        if of_command in options:
            raise Unsupported(f"{of}: no option {of_command!r}; did you mean {name}?")
    named = {"algorithm": algorithms, "datatype": dtype, "sizes": sizes}
    more |= {name: value for name, value in named.items() if value is not None}
    if more.get("datatype") is not None:
        more["datatype"] = type_names(cast(DataTypes, more["datatype"]))
    chosen = [] if algorithms is None else listed(algorithms)
    functions = [one for one in chosen if callable(one)]
    if functions:
        # Files that are not written yet. Of two functions with one name `as_words` says so.
        more["algorithm"] = dict.fromkeys(
            f"{function_name(one, collective)}=./" if callable(one) else one for one in chosen
        )
    parser = make_parser(collective)
    _refuse_check(options.get("check"))
    with python_names(parser, values=[*more.values(), out, launcher]):
        argv = parser.words(more, of, ELSEWHERE)
        several = _launches(lambda words: parse(words, collective), argv, ranks, launcher, out, of)
        if functions and several.unknown:
            raise Unsupported(
                "algorithms: a function needs the number of ranks; give ranks= beside launcher="
            )
        parsed = parse([*argv, "--ranks", str(several.counts[0])], collective)
        root = parsed.root
        if not several.elsewhere:
            check_gpus(parsed)
        for count in [] if several.unknown else several.counts:
            if functions:  # their schedules are proven in `as_words`
                check_rows(spec(collective), parsed, count)
            else:
                jobs([parsed], RankSetup(count, parsed.transport))
        if functions and root is None:
            raise Unsupported("root all: an algorithm that is a function has one root; give root=0")

        # The time of all counts, as of ``--ranks 2,4``: the last of an option counts.
        each = len(several.counts)
        share = [] if parsed.total is None else [f"--total={parsed.total / each}"]

        def argv_of(count: int, folder: Path) -> list[str]:
            if not functions:
                return [*argv, *share]
            words = as_words(chosen, collective, count, root or 0, folder)
            return [*parser.words({**more, "algorithm": words}, of), *share]

    return _Request(several, argv_of, parser)


def _planned(collective: str, elsewhere: bool, ranks: int, argv: Sequence[str]) -> RunPlan:
    """The plan of a number of ranks, with the options of a command line."""
    options = parse([*argv, "--ranks", str(ranks)], collective)
    sweep, seen = jobs([options], RankSetup(ranks, options.transport)), [pools()] * ranks
    rows = len(limits(sweep, ranks, seen)) * max(1, options.cycles) * passes(options)
    seconds = None
    if options.iterations is None:
        seconds = longest(sweep, ranks, seen) * options.launches
        seconds = seconds if options.total is None else min(seconds, options.total)
        seconds += waits(options) * options.launches
    crowded = not elsewhere and ranks > len(cores())
    return RunPlan(options.launches, rows * options.launches, seconds, crowded)


def _begin(collective: str, elsewhere: bool, ranks: int, argv: Sequence[str]) -> RunProgress:
    """What a display of progress shows before the first row of a launch."""
    of = _planned(collective, elsewhere, ranks, argv)
    return RunProgress(0, of.rows // of.launches, of.limit)


@with_keywords(StepOptionKeywords)
@public
def step(
    model: str | Path = "resnet50",
    *,
    ranks: int | str | Sequence[int] | None = None,
    update: str | Sequence[str] | None = None,
    compute: str | None = None,
    launches: int = 1,
    out: str | Path | Sequence[str | Path] | None = None,
    launcher: str | None = None,
    progress: bool | None = None,
    **options: Unpack[StepOptionKeywords],
) -> MeasuredRows:
    """Measure training steps of a model, as ``busbar step`` does, by one or more kinds of exchange.

    Returns a row for each kind. ``model``: a name, or a .csv or .json file. ``update``: how
    gradients are exchanged, as ``--update``: ``"ring"`` or ``["ring", "async"]`` (default: ring and
    library). ``compute``: the distribution of a rank's compute time, such as ``"fixed:50"`` in
    milliseconds. ``launches``: how many times the ranks are started, with rows of each, which
    `busbar.compare` takes as launches. ``ranks``, ``out``, ``launcher``, ``progress`` and what is
    raised: as for `run`. Other keywords are the command's options, which ``help(busbar.step)``
    lists.

    A row has the exposed, compute and exchange times in ``row.step``; ``frame()`` has their medians
    in seconds, and samples per second.
    """
    if not isinstance(launches, int) or launches < 1:
        raise Unsupported(f"busbar.step: launches is a number from 1, not {launches!r}")
    every = MeasuredRows(())
    for number in range(launches):
        if number:
            options = {**options, "overwrite": None, "append": True if out else None}
        try:
            every += _steps(model, ranks, update, compute, out, launcher, progress, options)
        except KeyboardInterrupt as stopped:
            rows = every + vars(stopped).get("rows", MeasuredRows(()))
            if number:
                early = (
                    f"busbar.step: interrupted; launches measured in full: {number} of {launches}"
                )
                rows = MeasuredRows(rows, (*rows.notes, early))
            stopped.rows = rows  # type: ignore[attr-defined]
            raise
    return every


def _steps(
    model: str | Path,
    ranks: int | str | Sequence[int] | None,
    update: str | Sequence[str] | None,
    compute: str | None,
    out: str | Path | Sequence[str | Path] | None,
    launcher: str | None,
    progress: bool | None,
    options: StepOptionKeywords,
) -> MeasuredRows:
    """One launch of `step`."""
    if launched() is not None:
        raise Unsupported(_UNDER_MPIRUN.format("busbar.step"))
    for name in NOT_STEP:
        if options.get(name):
            raise Unsupported(f"busbar.step has no {name}; use the command busbar step")
    _check_call(options, progress, "busbar.step")
    if "list" in (model, update):
        raise Unsupported("busbar.step measures; busbar step --model list lists models")
    more: dict[str, object] = {"update": update, "compute": compute, **options}
    if isinstance(overlap := more.get("overlap"), bool):  # as `frame` has it
        more["overlap"] = "on" if overlap else "off"
    if options.get("problem") is None or model != "resnet50":
        more["model"] = model
    parser = StepCommand.make_parser(prog="busbar step")
    with python_names(parser, {}, values=[*more.values(), model, out, launcher]):
        argv = parser.words(more, "busbar.step")

        def parsed(words: Sequence[str]) -> StepOptions:
            step_options = StepCommand.parse(words, parser)
            for count in step_options.rank_list:
                check(step_options, count)
            return step_options

        several = _launches(parsed, argv, ranks, launcher, out, "busbar.step")
    return _measure(_STEPS, _Request(several, lambda count, folder: argv, parser), progress, {})


def _check_call(options: Mapping[str, object], progress: object, of: str) -> None:
    """Raise Unsupported for ``budget`` beside ``iters``, and for values of a wrong type."""
    if not (progress is None or isinstance(progress, bool)):
        raise Unsupported(f"{of}: progress is True, False or None, not {progress!r}")
    arrival = options.get("arrival")
    if not (arrival is None or isinstance(arrival, (str, Path))):
        raise Unsupported(f"{of}: arrival is one pattern, 'all' or a file, not {arrival!r}")
    if options.get("iters") is not None and options.get("budget") is not None:
        raise Unsupported(f"{of}: budget limits rows without iters; give one of them")


def _refuse_check(value: object) -> None:
    """Raise Unsupported for a text that is no value of ``check``."""
    if isinstance(value, str) and value != "timed" and not value.isdigit():
        raise Unsupported(
            f"check is True, False, a number of checked iterations, or 'timed', not {value!r}"
        )


class _Launches(NamedTuple):
    """The launches of a call. ``unknown``: True if the launcher decides the number of ranks."""

    counts: list[int]
    outs: list[str]
    launcher: str | None
    elsewhere: bool
    unknown: bool


def _launches(
    parsed: Callable[[Sequence[str]], RunOptions],
    argv: Sequence[str],
    ranks: int | str | Iterable[int] | None,
    launcher: str | None,
    out: str | Path | Iterable[str | Path] | None,
    of: str,
) -> _Launches:
    """Check the options for every number of ranks, before anything is started.

    ``of``: the beginning of messages. Raises Unsupported, and StoreError if rank 0 is on this host
    and a file of ``out`` cannot be written.
    """
    if out is not None and not isinstance(out, (str, Path, Iterable)):
        raise Unsupported(f"out is a file or several, not {out!r}")
    outs = [] if out is None else list(map(_out, each(out)))
    if launcher is not None and not (isinstance(launcher, str) and launcher.strip()):
        raise Unsupported(f"{of}: launcher is a command line such as 'srun', not {launcher!r}")
    requested: list[object] = [(parsed(argv).threads or core_ranks()) if ranks is None else ranks]
    if isinstance(ranks, Iterable) and not isinstance(ranks, str):
        requested = list(ranks)
    if not requested:
        raise Unsupported(f"{of}: ranks has no items")
    counts: list[int] = []
    elsewhere = launcher is not None
    for text in map(str, requested):
        options = parsed([*argv, *(f"--out={one}" for one in outs), "--ranks", text])
        counts += [count for count in options.rank_list if count not in counts]
        elsewhere |= options.on_hosts
    if not elsewhere:
        refuse_results(options)
    places = re.findall(r"\{\w*\}", launcher or "")
    if unknown_places := [one for one in places if one != "{ranks}"]:
        raise Unsupported(f"{of}: launcher has {unknown_places[0]}; only {{ranks}} is replaced")
    fixed = launcher is not None and not places
    if fixed and len(counts) > 1:
        raise Unsupported(
            f"{of}: {launcher} starts the same ranks for every count; write {{ranks}} in it"
        )
    return _Launches(counts, outs, launcher, elsewhere, ranks is None and fixed)


class _Request(NamedTuple):
    """A call that was checked.

    ``argv_of``: the words of the command line for a number of ranks, which may name files that it
    writes to a folder.
    """

    several: _Launches
    argv_of: Callable[[int, Path], Sequence[str]]
    parser: ArgumentParser


def _others(err: str) -> str:
    """The last lines of standard error that are not Busbar's, such as the launcher's."""
    lines = [one.strip() for one in err.splitlines() if not one.startswith("busbar: ")]
    last = [*filter(None, lines)][-_MOST_LINES:]
    return "".join(f"\n    {shorten(one, _LONGEST_LINE)}" for one in last)


def _out(path: str | Path) -> str:
    """A value of ``--out``. A Path without an ending is a folder, which its text cannot say."""
    folder = isinstance(path, Path) and not path.suffix and not path.exists()
    return f"{path}/" if folder else str(path)


def _measure(
    name: str, request: _Request, progress: bool | None, renamed: Mapping[str, str]
) -> MeasuredRows:
    """Start the launches one after the other, and return the rows of all.

    ``name``: of the benchmark. ``renamed``: of its options, for messages of the ranks. Raises as
    `run` does.
    """
    several = request.several
    with folder_for_rows(elsewhere=several.elsewhere) as folder:
        file = folder / "rows.jsonl"
        try:
            notes, by = _launch(name, request, progress, renamed, file)
            measured = None if by else _measured(file, several.outs)
        except KeyboardInterrupt:
            raise _interrupt(_finished(file, several.outs), several.outs) from None
    if measured is None:  # the ranks and files are gone, as if the signal had come here alone
        signal.raise_signal(by)
        raise RankFailure(
            f"the ranks were ended because {signal.Signals(by).name} came to this process"
        )
    # Those in brief are of one launch each; `MeasuredRows.warnings` has them of all rows. The file
    # has the reason of a run that ended early.
    early = {note.partition(f"{ENDED_EARLY}: ")[2] for note in measured.notes}
    more = [note for note in notes if not is_in_brief(note) and in_keywords(note) not in early]
    return MeasuredRows(measured, dict.fromkeys([*measured.notes, *more]))


def _launch(
    name: str,
    request: _Request,
    progress: bool | None,
    renamed: Mapping[str, str],
    file: Path,
) -> tuple[list[str], int]:
    """Start the launches, whose rows are added to ``file``. Returns their messages, and a signal.

    The signal is the one to this process that ended the ranks, or 0. Raises KeyboardInterrupt for
    SIGINT.
    """
    several, notes = request.several, list[str]()
    who = "the ranks" if several.launcher is None else "the launcher"
    # Schedules of functions are proven here for every count, before anything starts.
    with python_names(request.parser, renamed):
        argv = {count: request.argv_of(count, file.parent) for count in several.counts}
    for count in several.counts:
        files = [f"--out={file}", f"--after={file}", *(f"--out={one}" for one in several.outs)]
        title = name if several.unknown else f"{name}, {format_count(count, 'rank')}"
        begin = None
        if name != _STEPS and not several.unknown:
            begin = partial(_begin, name, several.elsewhere, count, argv[count])
        with show_progress(title, progress, begin) as on_line:
            ended = run_of_its_own(
                [f"bench.{name}"],
                count,
                [*argv[count], *files],
                command=several.launcher,
                check_ranks=not several.unknown,
                on_line=on_line,
                stdout=subprocess.DEVNULL,
            )
        if ended.interrupted == signal.SIGINT:
            raise KeyboardInterrupt
        if ended.interrupted:
            return notes, ended.interrupted
        errors = error_messages(ended.err)
        if ended.status not in (GOOD, FOUND):
            # Without a message of ours the status is the launcher's, whose numbers differ.
            kind = _ERRORS.get(ended.status, RankFailure) if errors else RankFailure
            message = f"{who} ended with status {ended.status}"
            if errors:
                message = in_python(errors[-1], request.parser, renamed)
            raise kind(message + (_others(ended.err) if kind is RankFailure else ""))
        notes += (_LAUNCH.sub(r"\1 launches", one) for one in errors)
    if not file.exists():
        raise RankFailure(
            f"{who} ended with status {ended.status} and no rank wrote results to {file.parent}"
            f"{_others(ended.err)}"
        )
    return notes, 0


def _interrupt(rows: MeasuredRows, outs: Sequence[str]) -> KeyboardInterrupt:
    """The KeyboardInterrupt of an interrupted call, with its finished ``rows``; ``outs`` have them.

    It has no class of its own: only for KeyboardInterrupt itself does Python end by SIGINT, as
    shells expect of what Ctrl-C ends.
    """
    kept = f"in {', '.join(outs)}" if outs else 'in this error\'s rows; out="run.jsonl" keeps them'
    finished = f"{format_count(len(rows), 'finished row')} {kept}"
    error = KeyboardInterrupt(finished if rows else "interrupted before a row was finished")
    error.rows = rows  # type: ignore[attr-defined]
    return error


def _measured(file: Path, outs: Sequence[str]) -> MeasuredRows:
    """The rows of a file that will be gone, with the first of ``outs`` as their source."""
    rows = load(file)
    source = outs[0] if outs else "busbar.run"
    runs = {id(row.run): replace(row.run, source=source) for row in rows}
    # Its lines are others in a file that had records before.
    named = re.compile(rf"{re.escape(str(file))}(:[0-9]+)?")
    notes = [named.sub(lambda _: source, note) for note in rows.notes]
    return MeasuredRows((structs.replace(row, run=runs[id(row.run)]) for row in rows), notes)


def _finished(file: Path, outs: Sequence[str]) -> MeasuredRows:
    """The rows that an interrupted run has written; none if the file has no whole row."""
    try:
        return _measured(file, outs)
    except ReportError:
        return MeasuredRows()
