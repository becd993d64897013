"""The measuring runs, one launch for each rank count, transport and algorithm; their progress."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.launch.launch import OnLine, parse_progress, run_of_its_own, show_progress, succeeded
from bench.options.launching import LaunchTurn
from bench.options.options import parse
from bench.run.contenders import RankSetup, jobs, rows
from bench.run.memory import pools
from bench.run.pace import limits
from bench.tuning.libraries import force_nccl, force_openmpi
from busbar.errors import Unsupported
from busbar.units import format_count, format_duration
from collectives.schedule import catalogue

SEGMENTS = (4, 16)


@dataclass(frozen=True)
class Launch:
    """One run with its options and additional environment variables; ``name`` names its records."""

    name: str
    collective: str
    ranks: int
    argv: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


def algorithms(collective: str, ranks: int) -> list[str]:
    """All our algorithms for ``ranks`` ranks; those with segments in several segment counts."""
    names: list[str] = []
    for name in catalogue.algorithms(collective):
        known = catalogue.parameters(collective, name)
        try:
            catalogue.draft(collective, name, ranks)
        except Unsupported:
            continue
        names += [name, *(f"{name}:segments={n}" for n in SEGMENTS if "segments" in known)]
    return names


def plan(
    collectives: Sequence[str],
    ranks: Sequence[int],
    transports: Sequence[str],
    wanted: str | None,
    own: str,
    rest: Sequence[str],
) -> Iterator[Launch]:
    """The launches of a tuning run.

    ``wanted``: algorithms as for ``-A``, None for all that support the ranks. ``own``: the library
    whose own algorithms are forced one after the other, ``openmpi``, ``nccl`` or empty. ``rest``:
    options for every run.
    """
    for collective in collectives:
        for n in ranks:
            names = wanted or ",".join(algorithms(collective, n))
            for i, transport in enumerate(transports):
                # The library is measured once, beside the first of the transports. It comes first,
                # since all others are compared with it.
                chosen = names if wanted or i else f"library,{names}"
                argv = ("-A", chosen, "--transport", transport, *rest)
                yield Launch(f"{collective}-{n}-{transport}", collective, n, argv)
            yield from _forced(collective, n, own, rest)


def _forced(collective: str, n: int, own: str, rest: Sequence[str]) -> Iterator[Launch]:
    if not own:
        return
    forcing = force_openmpi(collective, n) if own == "openmpi" else force_nccl(collective)
    transport = "mpi" if own == "openmpi" else "nccl"
    for name, variables in forcing.items():
        argv = ("-A", "library", "--transport", transport, *rest)
        label = f"{collective}-{n}-{own}-{name.replace('/', '-')}"
        yield Launch(label, collective, n, argv, variables)


def run(
    launch: Launch,
    records: Path,
    launcher: str | None,
    which: LaunchTurn | None = None,
    *,
    on_line: Callable[[str], object] = lambda line: None,
    within: float | None = None,
    on_signal: Callable[[int], object] = lambda count: None,
) -> Path:
    """Run a launch; returns the file of its records. Finished rows are kept if the run fails.

    ``which``: its turn, if there are several launches; records of later ones are appended.
    ``launcher``: a command line with ``{ranks}`` in it, None for this host's own mpirun.
    ``on_line``: called with each line of its output. ``within``: seconds after which it is ended,
    with the rows that it has. ``on_signal``: see `bench.launch.child.run`. Raises
    LaunchFailed with the run's last line, Interrupted after a signal.
    """
    began = time.monotonic()
    path = records / f"{launch.name}.jsonl"
    more = which.words if which is not None else []
    if which is not None and which.number > 1:
        more += ["--after", str(path)]
    if which is None or which.number == 1:
        path.unlink(missing_ok=True)  # so that all rows in it are this run's
    ended = run_of_its_own(
        [f"bench.{launch.collective}"],
        launch.ranks,
        [*launch.argv, "--out", str(path), *more],
        command=launcher,
        variables=launch.variables,
        on_line=on_line,
        within=within,
        on_signal=on_signal,
        stdout=subprocess.DEVNULL,
    )
    late = within is not None and time.monotonic() - began >= within and path.exists()
    if ended.interrupted or not late:
        succeeded(launch.name, ended)
    return path


#: The shares of the given time for rows and for all runs. The rest is for starting and for
#: deciding.
_ROWS, _RUNS = 0.9, 0.95
# The least and the most seconds of a row; a run's default is the most.
_LEAST_S, _MOST_S = 0.01, 2.0
# Seconds that a row should have before there is a further launch, and seconds besides for memory,
# plan, proof and trial of stores.
_ENOUGH_S, _SETUP_S = 0.1, 0.3
# Seconds between lines of progress without a bar.
_EVERY_S = 10.0


class Effort(NamedTuple):
    """The cost of a run: number of rows, and an upper bound of seconds."""

    rows: int
    seconds: float


def effort(launch: Launch) -> Effort:
    """Estimate the cost of a run before it starts, without allocating. Raises Unsupported."""
    options = parse(launch.argv, launch.collective)
    try:
        todo = jobs([options], RankSetup(launch.ranks, options.transport))
    except Unsupported:  # an algorithm does not support the ranks; the run will report it
        return Effort(0, 0.0)
    times = max(1, options.cycles)
    each = limits(todo, launch.ranks, [pools()] * launch.ranks)
    sizes = sum(
        len(one.chosen) * sum(1 for _ in rows(one.spec, one.options, launch.ranks)) for one in todo
    )
    return Effort(sizes * len(options.placements) * times, sum(each) * times)


class Course:
    """The progress and time limit of a tuning run.

    ``runs``: the efforts of all runs, in order. ``whole``: the seconds for all of them, or None.
    """

    def __init__(
        self,
        runs: Sequence[Effort],
        whole: float | None,
        say: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runs, self._say, self._clock = list(runs), say, clock
        self._start, self._told = clock(), clock()
        self._whole = whole
        self._number, self._begun, self._taken = 0, 0.0, 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start

    def announce(self) -> None:
        """Print how many runs and rows there are, and how long they take."""
        many = len(self._runs)
        what = f"{format_count(many, 'run')} of {sum(run.rows for run in self._runs)} rows in all"
        if self._whole is None:
            most = format_duration(sum(run.seconds for run in self._runs))
            self._say(f"{what}, {most} at most; --budget 10m limits it")
        else:
            each = self.row_seconds() or 0.0
            self._say(f"{what} within {format_duration(self._whole)}, {each:.2g} s a row")
            if each < _ENOUGH_S:
                need = format_duration((_ENOUGH_S + _SETUP_S) * self._ahead() / (_ROWS * _RUNS))
                self._say(f"some rows may be left out; {need} is enough, or fewer rows (-f, -A)")

    def _ahead(self) -> int:
        """The number of rows of this run and of all later ones."""
        return sum(run.rows for run in self._runs[self._number :])

    def _left(self) -> float:
        assert self._whole is not None
        return _RUNS * self._whole - self.elapsed

    @property
    def over(self) -> bool:
        """True if no further run may start."""
        return self._whole is not None and self._left() <= 0

    def row_seconds(self) -> float | None:
        """Seconds for a row of the next run; None if the run decides itself."""
        if self._whole is None:
            return None
        share = _ROWS * self._left() / max(1, self._ahead())
        return min(_MOST_S, max(_LEAST_S, share - _SETUP_S))

    def within(self) -> float | None:
        """Seconds after which the next run is stopped: its share of the time left, by its rows."""
        if self._whole is None:
            return None
        return max(0.1, self._left() * self._runs[self._number].rows / max(1, self._ahead()))

    @contextmanager
    def run(self, name: str) -> Iterator[OnLine]:
        """Account for the next run; yields a function to call with each line of its output."""
        title = f"{self._number + 1}/{len(self._runs)} {name}"
        self._say(title + _left_in_all(self.remaining()))
        self._begun = self.elapsed
        seen = sys.stderr is not None and sys.stderr.isatty()
        try:
            with show_progress(title, None) as show:

                def on_line(line: str) -> None:
                    show(line)
                    at = parse_progress(line)
                    if at is not None and not seen:
                        left = self.remaining(at.done / at.of if at.of else 0.0)
                        rows = f"{title}: {at.done} of {at.of} rows"
                        self._now_and_then(f"{rows}{_left_in_all(left)}")

                yield on_line
        finally:
            self._taken += self.elapsed - self._begun
            self._number += 1

    def remaining(self, share: float = 0.0) -> float | None:
        """Seconds until all runs are done, by the speed of what is done; None if that is nothing.

        ``share``: of the present run that is done.
        """
        done = sum(run.seconds for run in self._runs[: self._number])
        taken = self._taken
        if share:
            done += share * self._runs[self._number].seconds
            taken += self.elapsed - self._begun
        if not done:
            return None
        guess = taken / done * (sum(run.seconds for run in self._runs) - done)
        return guess if self._whole is None else max(0.0, min(guess, self._left()))

    def _now_and_then(self, text: str) -> None:
        """Print a line, unless one was printed within the last seconds."""
        if self._clock() - self._told >= _EVERY_S:
            self._told = self._clock()
            self._say(text)


def _left_in_all(seconds: float | None) -> str:
    return "" if seconds is None else f", about {format_duration(seconds)} left in all"


def launches_within(runs: Sequence[Effort], seconds: float | None, most: int) -> int:
    """The number of launches of these runs, at most ``most``, that the time limit allows.

    A further launch is worth less than a row that is measured long enough.
    """
    if seconds is None:
        return most
    needed = (_ENOUGH_S + _SETUP_S) * sum(run.rows for run in runs)
    return max(1, min(most, int(_ROWS * _RUNS * seconds / needed))) if needed else most
