"""``python -m bench.selfcheck``: check that verdicts on equal and on slowed sides are right."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from secrets import randbelow
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bench.launch import child
from bench.launch.launch import Interrupted, launcher
from bench.options.argument_types import at_least, seconds
from bench.options.launching import MOST_SEED, LaunchTurn
from bench.run.screen import Screen
from bench.trials.checks import (
    CheckLine,
    SlowedSides,
    against_c,
    coverage,
    covered,
    equal_sides,
    words,
)
from bench.trials.harness import PAIR_TESTS
from bench.trials.sides import launch, side
from bench.trials.stopping import stopping_lines
from busbar.arguments import unknown
from busbar.commands import Command
from busbar.errors import Unavailable, Unsupported
from busbar.host import cores
from busbar.launchers import launched, mpirun_beside
from busbar.mpi import library_version, load_mpi
from busbar.options import option, switch
from busbar.start import python
from busbar.units import format_seconds as shown
from busbar.units import format_size
from reports.readers import codec
from reports.records.measurement import Measurement, grouped

_LAUNCHES = 5  # launches per side
_SLOWED = (0.02, 0.05, 0.1, 0.2)
_COMMON = ("-A", "ring", "--placement", "out", "--limit", "none", "-c", "0")
_LONG = 3  # launches of long rows
_PARTS = ("stopping", "equal", "slowed", "coverage", "harness")
_MESSAGES = "messages"  # a part that runs only if it is named
# Shares of the total time: equal sides, slowed sides, coverage, the harness.
_SHARES = (0.36, 0.5, 0.04, 0.1)
# The C loop adds with the processor's widest vectors, as the extension does.
_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC")
_LOOP = Path(__file__).parents[2] / "benchmarks" / "collective_loop.c"


class _Form(NamedTuple):
    """The amount of measurement: sets of launches for equal and slowed sides, launches against C.

    ``visits``: how often a launch of slowed sides measures a row, in turns with other rows of its
    size, so that a disturbance of milliseconds affects few visits. ``rows``: rows of each simulated
    process.
    """

    budget: float
    equal: int
    slowed: int
    visits: int
    launches: int
    rows: int


_WHOLE = _Form(1140.0, 10, 14, 12, 7, 100)
_QUICK = _Form(100.0, 2, 2, 2, 2, 20)


class SelfcheckCommand(Command):
    """Check the tool itself.

    Measure equal sides, and sides slowed by a known share, and count how often compare is right.
    Count how often confidence intervals hold the true median. Measure what the harness costs. This
    takes at most 20 minutes and needs a quiet machine.
    """

    quick: bool = switch("--quick  only a few launches of each, in two minutes")
    ranks: int = option("--ranks N", 2, at_least(2, "ranks", 1024))
    transport: str = option("--transport NAMES", "shm,mpi")
    budget: float | None = option(
        f"--budget SECONDS  time limit of the whole check (default {_WHOLE.budget:g})",
        parse=seconds,
    )
    parts: tuple[str, ...] = option(
        f"--parts NAMES  these parts only, joined by commas: {', '.join(_PARTS)}; or {_MESSAGES}:"
        " point-to-point messages against C, on two ranks",
        (),
        lambda text: tuple(text.split(",")),
    )
    seed: int | None = option("--seed N  of all orders", parse=at_least(0, "as seed", MOST_SEED))

    def run(self) -> int:
        """Return 0 if all checks pass, else 1."""
        if launched() is not None:
            raise Unsupported("bench.selfcheck starts launches of its own; run it without mpirun")
        for name in self.parts or _PARTS:
            if name not in (*_PARTS, _MESSAGES):
                raise unknown("part", name, (*_PARTS, _MESSAGES))
        if _MESSAGES in self.parts and self.ranks != 2:
            raise Unsupported(f"--parts {_MESSAGES} takes two ranks, and --ranks is {self.ranks}")
        form = _QUICK if self.quick else _WHOLE
        form = form if self.budget is None else form._replace(budget=self.budget)
        seed = randbelow(MOST_SEED) if self.seed is None else self.seed
        transports, passed = self.transport.split(","), True
        with TemporaryDirectory(prefix="busbar-") as folder:
            check = _Check(Path(folder), self.ranks, transports, form, seed)
            check.screen.lines([f"{self.ranks} ranks, {', '.join(transports)}, seed {seed}"])
            try:
                checks = (check.ends, check.equal, check.slowed, check.covers, check.harness)
                parts = dict(zip(_PARTS, checks, strict=True)) | {_MESSAGES: check.messages}
                for name in self.parts or _PARTS:
                    for line in parts[name]():
                        check.screen.lines([str(line)])
                        passed = passed and line.passed is not False
            except Interrupted as end:
                return end.exit_status
        return 0 if passed else 1


class _Check:
    """The parts of the check, each with its share of the time, over launches of one benchmark."""

    def __init__(
        self, folder: Path, ranks: int, transports: list[str], form: _Form, seed: int
    ) -> None:
        self._folder, self._ranks, self._transports = folder, ranks, transports
        self._form, self._seed, self._random = form, seed, Random(seed)
        self.screen, self._number, self._begun = Screen(0), 0, time.monotonic()

    def _launch(self, name: str, transport: str, *more: str, collective: str = "allreduce") -> Path:
        """Launch once; returns the file of its records."""
        self._number += 1
        # If the system may put two ranks on one core, launches differ as much as possible.
        affinity = ("--affinity", "core") if self._ranks <= len(cores()) else ()
        options = (
            "--ranks",
            str(self._ranks),
            "--transport",
            transport,
            *_COMMON,
            *affinity,
            *more,
        )
        file = self._folder / f"{self._number:04}.jsonl"
        print(f"busbar: launch {self._number}, {name}", file=sys.stderr, flush=True)
        turn = LaunchTurn(self._number, 0, self._seed)
        launch(side(name, [collective, *options]), file, turn)
        return file

    def _until(self, part: int) -> float:
        """The time at which a part of the check must end."""
        return self._begun + self._form.budget * sum(_SHARES[: part + 1])

    def _sets(self, sets: int, part: int) -> Iterator[str]:
        """Yield the transport of each set, in turns, while there is time for another set."""
        longest = 0.0
        for number in range(sets):
            start = time.monotonic()
            if number and start + longest > self._until(part):
                print(f"busbar: time for {number} of {sets} sets", file=sys.stderr, flush=True)
                return
            yield self._transports[number % len(self._transports)]
            longest = max(longest, time.monotonic() - start)

    def ends(self) -> Iterator[CheckLine]:
        """Rows that end by themselves, with known medians on a simulated clock."""
        yield from stopping_lines(self._form.rows)

    def equal(self) -> Iterator[CheckLine]:
        """Equal sides with three launches each; the first of these also as one launch each."""
        one, three = Counter[str](), Counter[str]()
        sizes = ("-b", "8", "-e", "64M", "-f", "2", "--budget", "0.03")
        for transport in self._sets(self._form.equal, 0):
            files = [self._launch("equal sides", transport, *sizes) for _ in range(6)]
            self._random.shuffle(files)
            rows = [_rows(file)[0.0] for file in files]
            three += words(chain(*rows[:3]), chain(*rows[3:]))
            one += words(rows[0], rows[3])
        yield equal_sides(one, 1)
        yield equal_sides(three, 3)

    def slowed(self) -> Iterator[CheckLine]:
        """One slowed side: both sides take turns in each launch."""
        sides = SlowedSides(_LAUNCHES)
        sizes = ("-b", "256", "-e", "4M", "-f", "4", "--budget", "0.02")
        shares = ("--inject", ",".join(map(str, (0, *_SLOWED))), f"-N{self._form.visits}")
        for transport in self._sets(self._form.slowed, 1):
            every: dict[float, list[Measurement]] = {}
            for _ in range(_LAUNCHES):
                file = self._launch("slowed sides", transport, *sizes, *shares)
                for share, rows in _rows(file).items():
                    every.setdefault(share, []).extend(rows)
            sides.add(every)
        yield from sides.lines()

    def covers(self) -> Iterator[CheckLine]:
        """Coverage of intervals, in windows of long rows."""
        hits = total = 0
        for transport in self._transports * _LONG:
            more = ("-b", "8", "-e", "32K", "-f", "16", "-n", "10000")
            coverages = coverage(_rows(self._launch("long rows", transport, *more))[0.0])
            hits, total = hits + coverages[0], total + coverages[1]
        yield covered(hits, total)

    def harness(self) -> Iterator[CheckLine]:
        """The harness's own costs (never subtracted), and MPI's collectives against C."""
        library, reason = self._c_loop()
        launches = self._harness(library)
        yield CheckLine("a reading of the clock", shown(launches[0]["clock"]))
        yield CheckLine("a barrier, the slowest rank's", shown(launches[0]["barrier"]))
        yield CheckLine("an empty plan", shown(launches[0]["empty"]))
        yield from _lines_against_c(launches, reason)

    def messages(self) -> Iterator[CheckLine]:
        """Point-to-point messages, puts and gets compared with a loop in C."""
        library, reason = self._c_loop()
        launches = self._harness([*library, *PAIR_TESTS]) if library else []
        yield from _lines_against_c(launches, reason, faster=True)  # puts reach aligned memory

    def _harness(self, words_: Sequence[str]) -> list[Any]:
        """The output of `bench.trials.harness`: of one launch, or of several against C."""
        command = [*python("bench.trials.harness"), *words_]
        count = self._form.launches if words_ else 1
        return [json.loads(self._ranks_of(command)) for _ in range(count)]

    def _c_loop(self) -> tuple[list[str], str]:
        """Compile the C loop; returns its path in a list, or an empty list and the reason."""
        library = self._folder / "collective_loop.so"
        beside = str(Path(sys.executable).parent)
        compiler = shutil.which("mpicc", path=beside) or shutil.which("mpicc")
        if compiler is None or not _LOOP.exists():
            return [], "no mpicc, or no source for it"
        build = [compiler, *_FLAGS, "-o", str(library), str(_LOOP)]
        if subprocess.run(build, capture_output=True, check=False).returncode:
            return [], "mpicc failed"
        return [str(library)], ""

    def _ranks_of(self, command: Sequence[str]) -> str:
        """The output of a command started on all ranks. Raises Unavailable if it fails."""
        library, mpirun = library_version(load_mpi()), mpirun_beside()
        if mpirun is None:
            raise Unavailable("no mpirun beside this Python or on PATH; pip install mpich")
        words_, env = launcher(self._ranks, library, mpirun, os.environ)
        file = self._folder / "printed"
        with file.open("w") as out:
            ended = child.run([*words_, *command], env, stdout=out, stderr=subprocess.PIPE)
        if ended.interrupted:
            raise Interrupted(ended.interrupted)
        if ended.status:
            last = (ended.err.strip().splitlines() or ["nothing said"])[-1]
            raise Unavailable(f"{command[-1]}: exit status {ended.status}: {last}")
        return file.read_text()


def _lines_against_c(
    launches: Sequence[Any], reason: str, *, faster: bool = False
) -> Iterator[CheckLine]:
    """A line for each operation and size, as `against_c` makes it.

    ``reason``: why nothing was measured; empty if it was.
    """
    if reason:
        yield CheckLine("against C", f"not measured: {reason}")
        return
    for what, by_size in launches[0]["against_c"].items():
        for size in by_size:
            name = f"{what} of {format_size(int(size))} against C"
            yield against_c(name, [one["against_c"][what][size] for one in launches], faster=faster)


def _rows(file: Path) -> Mapping[float, Sequence[Measurement]]:
    """The rows of a launch by the fraction by which they were slowed; 0 for no slowdown."""
    return grouped(codec.measurements(file.read_text()), lambda row: row.injected or 0.0)
