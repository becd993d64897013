"""The ``measure`` command: options, the ranks' parts, and the output of rank 0."""

from __future__ import annotations

import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from bench.links import measure as links
from bench.links.measure import (
    EarlyEnd,
    Measured,
    PairOptions,
    PairRun,
    PairTimer,
    as_topology,
    opener,
    sweep,
    with_racks,
)
from busbar.arguments import Parser
from busbar.commands import Command
from busbar.counters import between, gathered, look
from busbar.cpulist import members
from busbar.errors import BusbarError, ProbeError
from busbar.files import check
from busbar.options import Self, option, switch
from busbar.status import BAD, BY_SIGNAL, GOOD
from busbar.terminal import make_lines_printable, styled_stream
from busbar.units import format_duration
from collectives.execution.world import World
from topology.cli import FileOptions, gather_map, write_text
from topology.model.measured import QUANTITIES, Pair, RankPlace, matrix, slow
from topology.model.merge import merge
from topology.model.topology import Fact, Topology
from topology.sources import own_json
from topology.views import measured as view

T = TypeVar("T")
# Seconds between lines of progress, where standard error is no terminal.
_EVERY_S = 5.0
# Columns of a line of progress on a terminal, which is written over the one before.
_WIDTH = 72


class MeasureCommand(PairOptions, FileOptions, Command):
    """Measure latency and bandwidth between all ranks: mpirun -n P busbar topology measure.

    Without mpirun, --from shows matrices that were measured before.
    """

    racks: bool = switch(
        "--racks  also find which hosts share an uplink that is narrower than their links, by"
        " messages between all hosts at once"
    )
    out: str | None = option("-o --out FILE  save as JSON that --from reads")
    json: bool = switch("--json  print that JSON instead of matrices")

    @classmethod
    def parse(cls, argv: Sequence[str], parser: Parser, **more: object) -> Self:
        """Parse the options. The hint at ``--ranks``, which benchmarks have, is a launcher."""
        count = re.search(r"--ranks[= ]([0-9]+)", " ".join(argv))
        ranks = f"mpirun -n {count[1] if count else 'P'} {parser.prog}"
        parser.beside = {**parser.beside, "ranks": ranks}
        return super().parse(argv, parser, **more)

    def run(self) -> int:
        """Measure, or show the files of --from. Returns the exit status."""
        try:
            world = links.world(self.mpi_threads)
        except BusbarError:
            if not self.files:
                raise
            _report(self, _only_measured(gather_map(self)))
            return 0
        try:
            machine = _together(world, lambda: _machine(self) if world.rank == 0 else None)
            over = _together(world, lambda: PairTimer(world, opener(self.transport)(world)))
        except _FailedOnAnotherRank:
            return BAD
        before = look()
        try:
            end = EarlyEnd(self.total)
            with end.at_signals():
                pairs = PairRun.of(world, over, self, Progress(), end)
                result = links.measure(pairs)
                result = links.look_again(pairs, result, lambda seen: _accused(seen, self))
                swept = sweep(pairs) if self.sweep else {}
                loaded = links.measure_racks(pairs) if self.racks else {}
                counted = world.collect(between(before, look()))
        except BusbarError as error:
            # The other ranks wait for this one and cannot be notified otherwise.
            sys.stderr.write(f"rank {world.rank}: {error}\n")
            sys.stderr.flush()
            world.abort(error.exit_status)
            raise
        except BaseException:
            traceback.print_exc()
            world.abort(1)
            raise
        over.close()
        # The signal that rank 0 got: a launcher may send it to all.
        status = 128 + end.signal if end.reason.startswith(BY_SIGNAL) and end.signal else GOOD
        if machine is None:
            return status
        result = replace(result, others_share=max(gathered(counted).get("others", [0.0])))
        whole = measured = as_topology(result, self, swept)
        if early := links.ended(pairs, result):
            sys.stderr.write(f"note: ended early: {early}\n")
            fact = Fact("ended_early", early, links.SOURCE)
            whole = measured = replace(measured, facts=(*measured.facts, fact))
        if self.racks and not early:
            whole = measured = with_racks(measured, result.places, links.grouped(loaded))
        # A map of another machine would be wrong for these ranks.
        with suppress(ProbeError):
            whole = merge([measured, machine])
        for host, ranks, cpus in crowded(result.places):
            sys.stderr.write(
                f"note: {ranks} ranks share {cpus} CPUs of {make_lines_printable(host)}: pairs took"
                " turns on them, so the results depend on the scheduler as well\n"
            )
        for line in refusals(result):
            sys.stderr.write(f"note: {line}\n")
        _report(self, whole)
        if self.json and whole.disturbance:  # otherwise it stands below the matrices
            sys.stdout.flush()
            sys.stderr.write(f"note: {whole.disturbance}\n")
        return status


def refusals(measured: Measured) -> Iterator[str]:
    """A sentence for each rate that was refused."""
    for name, pairs in measured.refused.items():
        for (a, b), one in pairs.items():
            yield (
                f"rank {a} to rank {b}, {name}: {one.median / 1e6:.4g} MB/s in the median window,"
                f" but at most {one.sustained / 1e6:.4g} MB/s over half of the windows in a row by"
                " the clocks of its ends, so it is left out; a larger --bytes makes windows longer"
            )


def _accused(measured: Measured, options: PairOptions) -> list[Pair]:
    """The pairs that are slow for their class."""
    seen = as_topology(measured, options)
    number = {f"RANK{rank}": rank for rank in range(len(measured.places))}
    return sorted(
        {
            (number[one.a], number[one.b])
            for name, more_is_better in QUANTITIES.items()
            for one in slow(seen, matrix(seen, name), more_is_better)
        }
    )


class _FailedOnAnotherRank(Exception):
    """Raised on ranks other than the one that reports the error."""


def _together(world: World, action: Callable[[], T]) -> T:
    """Run an action on all ranks and return its result.

    If any rank fails, the first of them raises its error, the others _FailedOnAnotherRank.
    """
    trouble = None
    try:
        result = action()
    except BusbarError as error:
        trouble = error
    fine = world.gather(trouble is None)
    if all(fine):
        return result
    if trouble is not None and fine.index(False) == world.rank:
        raise trouble
    raise _FailedOnAnotherRank


def _machine(options: MeasureCommand) -> Topology:
    if options.out and options.out != "-":
        check(Path(options.out))
    return gather_map(options)


def crowded(places: Sequence[RankPlace]) -> list[tuple[str, int, int]]:
    """Systems with more ranks than CPUs for these ranks: (hosts, ranks, CPUs)."""
    pairs = []
    for system in dict.fromkeys(place.system for place in places):
        here = [place for place in places if place.system == system]
        cpus = {cpu for place in here for cpu in members(place.cpus) or ()}
        if 0 < len(cpus) < len(here):
            hosts = list(dict.fromkeys(place.host for place in here))
            name = hosts[0] if len(hosts) == 1 else f"{hosts[0]} to {hosts[-1]} (one machine)"
            pairs.append((name, len(here), len(cpus)))
    return pairs


def _only_measured(topology: Topology) -> Topology:
    if not any(matrix(topology, name) for name in QUANTITIES):
        reason = (
            "no measured matrix in these files; start it as mpirun -n 4 busbar topology measure"
        )
        raise ProbeError("measure", reason)
    return topology


def _report(options: MeasureCommand, topology: Topology) -> None:
    if options.out:
        write_text(options.out, own_json.dump(topology))
    if options.json:
        sys.stdout.write(own_json.dump(topology))
    else:
        for name in (
            "mpi_library",
            "mpi_threads",
            "transport",
            "message_bytes",
            "racks",
            "ended_early",
        ):
            value = topology.get(name)
            if value is not None:
                shown = make_lines_printable(str(value))
                sys.stdout.write(f"{name.replace('_', ' ')}: {shown}\n")
        sys.stdout.write(f"\n{view.text(topology)}")


class Progress:
    """Show which round of pairs begins: on a terminal each, else a line every few seconds.

    Lines have the form of those of a sweep (`bench.launch.launch.parse_progress`).
    """

    def __init__(self) -> None:
        self._start = self._begun = self._shown = time.monotonic()

    def __call__(self, done: int, total: int, what: str) -> None:
        """Show it before a round; ``done``: the rounds before it, of ``total``.

        The time left is of these rounds, at the mean time of those before.
        """
        now = time.monotonic()
        if not done:
            self._begun = now
        rest = (now - self._begun) / done * (total - done) if done else None
        left = "" if rest is None else f", about {format_duration(rest)} left"
        if sys.stderr.isatty():
            end = "\n" if done + 1 == total else ""
            text = f"{what}: round {done + 1} of {total}{left}"
            styled_stream(sys.stderr).write(f"\r{text:<{_WIDTH}}{end}")
        elif now - self._shown >= _EVERY_S:
            self._shown = now
            passed = format_duration(now - self._start)
            sys.stderr.write(f"busbar: {done} of {total} done, {passed} passed{left}: {what}\n")
            sys.stderr.flush()
