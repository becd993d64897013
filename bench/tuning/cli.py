"""``python -m bench.tune``: from arguments to rules; measures, or uses earlier measurements."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench.cli.main import names
from bench.launch.launch import Interrupted, LaunchFailed
from bench.options import options
from bench.options.argument_types import at_least, ranks, seconds
from bench.options.arguments import TUNING
from bench.options.launching import MOST_SEED, LaunchTurn, turns
from bench.run.rules import LIBRARY, Rules, dump
from bench.run.screen import Screen
from bench.tuning import nccl, openmpi
from bench.tuning.course import Course, effort, rounds_within
from bench.tuning.launches import Launch, plan, run
from bench.tuning.predicted import predicted
from bench.tuning.series import has_rows, of_files, tune
from bench.tuning.table import table
from busbar.arguments import Parser, number, program, unknown
from busbar.errors import Unsupported
from busbar.files import write
from busbar.launchers import launched
from busbar.process import serve
from busbar.status import FOUND, GOOD
from busbar.terminal import print_note
from collectives.schedule import catalogue
from reports.analysis.expect import parse_share


def _parser() -> argparse.ArgumentParser:
    p = Parser(
        prog=program("bench.tune"),
        description=(
            "Find the best algorithm for each size and rank count, and write it for -A auto, for"
            " Open MPI and for NCCL. Nothing is preferred that is not faster beyond noise."
        ),
        epilog="Options not listed here go to every measuring run, such as -b 1K -e 16M -f 4.",
    )
    add = p.group()
    add("--collective", "names joined by commas (default allreduce)", default="allreduce")
    add("--ranks P,P…", "rank counts to measure (default 2)", type=ranks(2))
    add("--transport NAMES", "such as mpi,shm (default auto)", default="auto")
    add("-A --algorithm NAMES", "default: all that serve the ranks")
    add("--open-mpi", "also measure every algorithm of Open MPI", action="store_true")
    add("--nccl", "also measure every algorithm and protocol of NCCL", action="store_true")
    add("--rounds", "sweeps per run (default 3)", type=at_least(1, "rounds"), default=3)
    minutes = number(0.05, 100_000, "minutes")
    add("--budget MINUTES", "time limit of the whole search (default: none)", type=minutes)
    add("--row-budget SECONDS", "time limit of a row (default 2)", type=seconds)
    add("--launches", "launches of each run (default 1)", type=at_least(1, "launches"), default=1)
    whole = at_least(0, "as seed", MOST_SEED)
    add("--seed", "seed of the order of rows with --launches", type=whole)
    add("--launcher COMMAND", "how to start ranks, such as 'srun -n {ranks}'")
    add("--placement", "default out", choices=("out", "in"), default="out")
    least = "differences up to this do not count (default 2%%)"
    add("--noise SHARE", least, type=parse_share, default=0.02)
    stays = "algorithm that stays unless another is faster (default library)"
    add("--default NAME", stays, default=LIBRARY)
    add("--from-model FIT", "measure nothing; decide by the predictions of this fit", type=Path)
    add("--topology FILE", "the machine to predict for", nargs="+")
    add("--from RUN", "measure nothing; decide by these records", dest="runs", nargs="+", type=Path)
    choices = f"write the choices here, as JSON (default {TUNING})"
    add("--out FILE", choices, type=Path, default=TUNING)
    rules = "also write Open MPI's coll_tuned_dynamic_rules_filename"
    add("--open-mpi-rules FILE", rules, type=Path)
    add("--nccl-tuner FILE", "also write the file of NCCL's example tuner plug-in", type=Path)
    return p


def main(argv: Sequence[str]) -> int:
    """Run it; 0 well, 1 a run failed or a file could not be written, 2 a wrong option or file."""
    return serve("busbar", lambda: _tune(*_parser().parse_known_args(argv)))


def _tune(given: argparse.Namespace, rest: list[str]) -> int:
    measured = Measuring(given.runs or ())
    if given.from_model is not None:
        rules = _predict(given, rest)
    else:
        if given.runs is None:
            measured = _measure(given, rest)
        elif rest:
            raise Unsupported(f"{rest[0]}: nothing is measured with --from; see --help")
        series, notes = of_files(measured.records, given.placement)
        for one in notes[:20]:
            print_note(one)
        rules = tune(series, given.default, given.noise)
    files = _files(given, rules)
    for path, data in files:
        write(path, data)
        print_note(f"wrote {path}")
    Screen(0).lines(table(rules))
    if measured.interrupted:
        print_note(
            f"interrupted: decided on what {len(measured.records)} of {measured.of} runs have"
        )
        return 128 + measured.interrupted
    return FOUND if measured.failed else GOOD


def _predict(given: argparse.Namespace, rest: Sequence[str]) -> list[Rules]:
    """Rules from the cost model; the algorithm that is usual for a collective is the default."""
    if given.runs is not None or given.open_mpi or given.nccl:
        raise Unsupported("--from-model predicts our own algorithms; it measures and reads no runs")
    found: list[Rules] = []
    for collective in _collectives(given):
        options_ = options.parse(rest, collective)
        series, notes = predicted(
            [collective],
            given.ranks or (2,),
            options_.sizes,
            given.from_model,
            given.topology,
            given.algorithm,
            options_.dtypes[0],
        )
        for one in notes:
            print_note(one)
        default = catalogue.usual(collective) if given.default == LIBRARY else given.default
        found += tune(series, default, given.noise, "predicted")
    return found


def _collectives(given: argparse.Namespace) -> list[str]:
    wanted: list[str] = given.collective.split(",")
    for collective in wanted:
        if collective not in names():
            raise unknown("collective", collective, names())
    return wanted


def _files(given: argparse.Namespace, rules: Sequence[Rules]) -> list[tuple[Path, bytes]]:
    """All files, made before the first is written. Raises Unsupported where one cannot be made."""
    runs = [str(path) for path in given.runs or ()]
    found = [(given.out, dump(rules, {"runs": runs, "fit": str(given.from_model or "")}))]
    if given.open_mpi_rules is not None:
        own = _own(rules, ("mpi/library", "mpi"))
        found.append((given.open_mpi_rules, openmpi.rules_file(own)))
    if given.nccl_tuner is not None:
        found.append((given.nccl_tuner, nccl.tuner_file(_own(rules, ("nccl/library",)))))
    return found


def _own(rules: Sequence[Rules], groups: Sequence[str]) -> list[Rules]:
    """The rules of the first of these groups that there are: what one library can be told to do."""
    for group in groups:
        found = [one for one in rules if one.transport == group]
        if found:
            # These files cannot tell; where both are known, what stands last counts.
            return sorted(found, key=lambda one: not one.oversubscribed)
    raise Unsupported(f"nothing was measured of {groups[0]}, so there is nothing to write for it")


class Measuring(NamedTuple):
    """What came of the runs: files of records, how many failed, the signal that ended all, or 0."""

    records: Sequence[Path]
    failed: int = 0
    interrupted: int = 0
    of: int = 0


def _measure(given: argparse.Namespace, rest: Sequence[str]) -> Measuring:
    """Do all runs, or as many as the time and the user allow."""
    sign = launched()
    if sign is not None:
        raise Unsupported(
            "bench.tune starts runs of its own; run it without mpirun, and name a cluster's"
            " launcher by --launcher 'srun -n {ranks}'"
        )
    if given.open_mpi and given.nccl:
        raise Unsupported("--open-mpi and --nccl exclude each other: they are two libraries")
    wanted = _collectives(given)
    for collective in wanted:
        options.parse(rest, collective)
    own = "openmpi" if given.open_mpi else "nccl" if given.nccl else ""
    common = (*rest, "--placement", given.placement)
    if given.row_budget is not None:
        common = (*common, f"--budget={given.row_budget}")

    def planned(rounds: int) -> list[Launch]:
        transports, more = given.transport.split(","), (*common, "-N", str(rounds))
        return list(plan(wanted, given.ranks or (2,), transports, given.algorithm, own, more))

    once = [effort(one) for one in planned(1)] * given.launches
    todo = planned(rounds_within(once, given.budget, given.rounds))
    folder = given.out.with_name(given.out.name + ".records")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unsupported(f"{folder}: {error.strerror}") from None
    runs = turns(todo, given.launches, given.seed)
    course = Course([effort(one) for one, _ in runs], given.budget, print_note)
    course.announce()
    return _all(runs, folder, given.launcher, course)


_Run = tuple[Launch, LaunchTurn | None]


def _all(runs: Sequence[_Run], folder: Path, launcher: str | None, course: Course) -> Measuring:
    found: dict[Path, None] = {}
    failed = interrupted = 0
    for place, (one, which) in enumerate(runs):
        if course.over:
            print_note(f"the time is over; {len(runs) - place} of {len(runs)} runs are left out")
            break
        each, within = course.row_seconds(), course.within()
        told = () if each is None else (f"--budget={each:.3g}",)
        try:
            with course.run(one.name) as heard:
                mine = replace(one, argv=(*one.argv, *told))
                path = run(mine, folder, launcher, which, heard=heard, within=within)
            found[path] = None
        except LaunchFailed as error:  # an algorithm that hangs or crashes wins nothing
            failed += 1
            print_note(str(error))
        except Interrupted as end:
            path = folder / f"{one.name}.jsonl"
            if has_rows(path):  # a report was left, and its rows are as good as any
                found[path] = None
            if not found:
                raise
            interrupted = end.exit_status - 128
            break
    if not found:
        raise LaunchFailed(f"none of {len(runs)} runs succeeded")
    return Measuring(list(found), failed, interrupted, len(runs))
