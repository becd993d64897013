"""Rank 0's standard output (results) and standard error (progress and notes).

With ``--split``, groups of ranks run the same sweep at the same time, each with its own table.
nccl-tests runs groups too, but prints only rank 0's. Here every group is reported: rank 0 of the
run prints its own group's table during the run, and the others' at the end.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.options.options import Options
from bench.run.pace import Pace
from busbar.process import output
from busbar.terminal import make_lines_printable, open_console
from busbar.units import format_bytes, format_count, format_duration
from collectives.execution.world import Json, World

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


# Seconds between lines of progress without a bar, and before the first.
_EVERY_S = 5.0
# A new estimate is not shown if it is at most the last one times this, plus a second.
_NEAR = 1.25
#: A sweep that may take longer than this says so before it begins.
LONG_S = 30.0
#: What a note on a long sweep without ``--total`` says more.
LIMITS_ALL = " (--budget is for each row; --total 5m limits all)"


class Screen:
    """Prints whole lines, flushed, on rank 0 only. The watchdog's thread may use it as well."""

    def __init__(self, rank: int) -> None:
        self._speaks = rank == 0
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._pace: Pace | None = None
        self._doing, self._done, self._of, self._told = "", -1, 0, 0.0
        self._endless, self._estimate = False, inf

    def lines(self, lines: Iterable[str]) -> None:
        """Print results on standard output, on rank 0."""
        with self._lock:
            if not self._speaks:
                return
            # Rows are printed unchanged, so the progress display is stopped meanwhile.
            if self._progress is not None:
                self._progress.stop()
            with output():
                for line in lines:
                    print(make_lines_printable(line))
                sys.stdout.flush()
            if self._progress is not None:
                self._progress.start()

    def note(self, text: str) -> None:
        """Print a line on standard error, on rank 0.

        Text and line break are one write: a launcher forwards each write by itself, and what it
        forwards of standard output must not stand between them.
        """
        with self._lock:
            if self._speaks:
                print(f"{make_lines_printable(text)}\n", end="", file=sys.stderr, flush=True)

    def start(
        self,
        rows: int,
        pace: Pace,
        *,
        endless: bool = False,
        limit: bool = True,
        progress: bool = True,
    ) -> None:
        """Print the time limit of all ``rows`` placements, and which are too large; show progress.

        ``endless``: rows are repeated for ever, so there is no total. ``limit``: False if the time
        is known, as of the launches after the first. A terminal gets a progress bar; a file or a
        launcher's pipe gets a line every few seconds, unless ``progress`` is False.
        """
        if not self._speaks:
            return
        if limit and pace.bounded and pace.total >= LONG_S and not endless:
            most = format_duration(pace.total) + " at most" + ("" if pace.most else LIMITS_ALL)
            self.note(f"busbar: {format_count(rows, 'row')} and placements, {most}")
        if pace.largest is not None:
            self.note(f"busbar: sizes above {format_bytes(pace.largest)} do not fit in memory")
        if not progress:
            return
        self._pace, self._of, self._endless, self._estimate = pace, rows, endless, inf
        if sys.stderr is not None and sys.stderr.isatty():
            self._bar(rows)

    def _bar(self, rows: int) -> None:
        from rich import progress

        # Refreshed by hand: a refreshing thread would share this rank's core with the benchmark.
        self._progress = progress.Progress(
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.description}"),
            console=open_console(stderr=True),
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", total=None if self._endless else rows)
        self._progress.start()

    def advance(self, doing: str) -> None:
        """Count the current placement as done; ``doing`` describes the next."""
        if self._pace is None:
            return
        with self._lock:
            self._doing, self._done = doing, self._done + 1
            if self._progress is not None:
                self._draw()
        self.tick()

    def tick(self) -> None:
        """Show progress, unless it was shown in the last few seconds; any thread may call this."""
        # Do nothing while a row is being printed, which takes as long as its reader blocks.
        if self._pace is None or not self._lock.acquire(blocking=False):
            return
        try:
            if self._pace is None or self._pace.elapsed - self._told < _EVERY_S:
                return
            self._told = self._pace.elapsed
            with suppress(OSError):
                if self._progress is not None:
                    self._draw()
                else:
                    print(f"busbar: {self._far()}", file=sys.stderr, flush=True)
        finally:
            self._lock.release()

    def _far(self) -> str:
        """The progress of the sweep as text."""
        assert self._pace is not None
        of = "" if self._endless else f" of {self._of}"
        passed = format_duration(self._pace.elapsed)
        return f"{max(0, self._done)}{of} done, {passed} passed{self._left(', ')}: {self._doing}"

    def _left(self, before: str) -> str:
        """The estimated time that is left, after ``before``; empty if it is unknown.

        Where it is more than the last one, the text says why; if it is only a little more
        (`_NEAR`), the last one stands.
        """
        remaining = None if self._endless or self._pace is None else self._pace.remaining()
        if remaining is None:
            return ""
        assert self._pace is not None
        late, last, more = self._pace.is_late(), self._estimate, ""
        if late and self._done + 1 >= self._of:
            return f"{before}the last row takes longer than expected"
        if remaining > last and late:
            return f"{before}this row takes longer than expected"
        if last < remaining <= last * _NEAR + 1:
            remaining = last
        elif remaining > last:
            more = ", as rows take longer than before"
        self._estimate = remaining
        return f"{before}about {format_duration(remaining)} left{more}"

    def _draw(self) -> None:
        assert self._progress is not None and self._task is not None
        text = self._doing + self._left("  ")
        self._progress.update(self._task, completed=self._done, description=text, refresh=True)

    def end(self, reason: str) -> None:
        """Print the last note, if there is a reason; afterwards no thread prints."""
        if reason:
            self.note(f"busbar: {reason}")
        with self._lock:
            self._speaks = False

    def close(self) -> None:
        """Remove the progress display."""
        with self._lock:
            self._pace = None
            if self._progress is not None:
                self._progress.stop()
                self._progress = None


class GroupScreen(Screen):
    """The screen of a group without the run's rank 0: stores lines to be printed at the end."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.held: list[str] = []

    def lines(self, lines: Iterable[str]) -> None:
        """Store results to be printed later."""
        if self._speaks:
            self.held += lines

    def start(self, rows: int, pace: Pace, **more: bool) -> None:
        """Show no progress: only the first group shows it."""


class Group(NamedTuple):
    """One group of a run, seen from one of its ranks; ``every``: number of ranks in all groups.

    ``together``: all ranks, if the groups have the same rows and start each one together.
    ``part``: the fraction of the ranks on this rank's node that belong to this group.
    """

    number: int
    count_: int
    ranks: tuple[int, ...]
    world: World
    every: int
    screen: Screen
    together: World | None
    part: float

    @property
    def title(self) -> str:
        """The line above the group's tables."""
        whom = " ".join(map(str, self.ranks))
        return f"group {self.number} of {self.count_}: ranks {whom}"

    @property
    def facts(self) -> dict[str, Json]:
        """The entry ``group`` of a record's environment."""
        return {"number": self.number, "of": self.count_, "ranks": list(self.ranks)}


def color(rule: tuple[str, int], rank: int) -> int:
    """The group of a rank, by nccl-tests' rules: rank ``mod N``, ``div N``, ``and N``, ``or N``."""
    name, n = rule
    return {"mod": rank % n, "div": rank // n, "and": rank & n, "or": rank | n}[name]


def split(world: World, rule: tuple[str, int]) -> Group:
    """Split the ranks into groups. Returns this rank's group; all ranks call this together.

    If all groups have the same size, they start every row together. Groups of different sizes may
    have different rows, and run independently.
    """
    colors = [color(rule, rank) for rank in range(world.size)]
    mine = colors[world.rank]
    order = sorted(set(colors))
    number = order.index(mine)
    ranks = tuple(rank for rank, one in enumerate(colors) if one == mine)
    inner = world.split(mine, world.rank)
    sizes = {colors.count(one) for one in order}
    screen = Screen(inner.rank) if number == 0 else GroupScreen(inner.rank)
    together = world if len(sizes) == 1 else None
    here = [rank for rank, node in enumerate(world.nodes) if node == world.nodes[world.rank]]
    part = sum(colors[rank] == mine for rank in here) / len(here)
    return Group(number, len(order), ranks, inner, world.size, screen, together, part)


def of_group(wanted: Sequence[Options], number: int) -> list[Options]:
    """The options of one group, with its number in file names: ``run.group1.jsonl``."""

    def named(path: Path) -> Path:
        ending = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
        return path.with_name(f"{path.name.removesuffix(ending)}.group{number}{ending}")

    def target(text: str) -> str:
        """Rename a target. A folder keeps its final slash, which Path drops."""
        return str(named(Path(text))) + "/" * (text.endswith("/") or Path(text).is_dir())

    return [
        replace(
            options,
            out=tuple(map(target, options.out)),
            nccl_json=None if options.nccl_json is None else named(options.nccl_json),
        )
        for options in wanted
    ]
