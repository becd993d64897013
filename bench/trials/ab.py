"""``busbar ab``: compare two commands, interleaved, until every row is decided."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import exp, log
from operator import attrgetter
from pathlib import Path
from random import Random
from secrets import randbelow
from typing import ClassVar, NamedTuple

import numpy as np
from msgspec import structs

from bench.cli.main import names
from bench.launch import child
from bench.launch.launch import (
    Interrupted,
    LaunchFailed,
    folder_for_rows,
    show_progress,
    succeeded,
)
from bench.options.argument_types import at_least, seconds
from bench.options.launching import MOST_SEED, LaunchTurn
from bench.options.options import ALL, Options, parse
from bench.run.screen import Screen
from bench.run.table_text import report_width
from busbar.arguments import Parser
from busbar.commands import Command
from busbar.errors import ReportError, Unavailable, Unsupported
from busbar.launchers import launched
from busbar.options import Self, option, switch
from busbar.start import python
from busbar.tables import render_lines
from busbar.terminal import print_note, wrap_line
from busbar.units import (
    format_change,
    format_change_interval,
    format_count,
    format_duration,
    format_seconds,
    format_size,
)
from reports.analysis.cautions import causes
from reports.analysis.compare import samples
from reports.analysis.expect import parse_share
from reports.readers.reading import read
from reports.records.measurement import Measurement, grouped, level_of
from reports.statistics.inference import launch_center, within_run
from reports.statistics.sequential import always_interval

_BENCH = "bench."
_FORM = "write -- A… -- B…, as in -- allreduce -A ring -- allreduce -A ps"
_COMPARES = "the rows that a benchmark prints are compared, not the time that a command takes"


class Side(NamedTuple):
    """A command. ``ours``: it is a Busbar command that writes records (``--out``).

    ``options``: its options if it is a benchmark of this build; None for any other command.
    """

    name: str
    words: tuple[str, ...]
    ours: bool
    options: Options | None = None

    @property
    def shuffles(self) -> bool:
        """Whether the command takes ``--launch``."""
        return self.options is not None

    def __str__(self) -> str:
        """The command as it was given, for messages."""
        words = self.words[2:] if self.shuffles else self.words
        return " ".join(words).removeprefix(_BENCH)


def side(name: str, words: Sequence[str]) -> Side:
    """One of the commands to compare, from its words, which may begin with a benchmark's name.

    ``name``: A or B. Raises Unsupported without a word, and for options that a benchmark refuses or
    that start several launches.
    """
    if not words:
        raise Unsupported(f"no command {name}; {_FORM}")
    if words[0] in names():
        options = parse(words[1:], words[0])
        if options.launches > 1 or options.rank_counts:
            raise Unsupported(f"{name}: a turn is one launch of one number of ranks")
        command = python(f"{_BENCH}{words[0]}", *words[1:])
        return Side(name, tuple(command), ours=True, options=options)
    return Side(name, tuple(words), ours=_ours(words))


class SharedLaunch(NamedTuple):
    """A command whose launches measure both sides, and each side's algorithm."""

    side: Side
    algorithms: tuple[str, str]


def together(a: Side, b: Side) -> SharedLaunch | None:
    """One launch that measures both sides; None if that is not possible.

    It is possible if both are benchmarks of this build that differ only in one algorithm (``-A``).
    """
    left, right = a.options, b.options
    if left is None or right is None or left == right:
        return None
    if replace(left, algorithm=right.algorithm) != right:
        return None
    chosen = [choice.label for options in (left, right) for choice in options.algorithms]
    if len(chosen) != 2:
        return None
    # -A adds to what the command has of it already.
    added = chosen[1:] if "algorithm" in left.given else chosen
    words = (*a.words, "-A", ",".join(added))
    return SharedLaunch(a._replace(name="AB", words=words), (chosen[0], chosen[1]))


def _ours(words: Sequence[str]) -> bool:
    """Whether these words start a benchmark of Busbar, in any build and under any launcher."""
    for at, word in enumerate(words[:-1]):
        following = words[at + 1]
        if word == "-m" and following.removeprefix(_BENCH) in (*names(), "bench"):
            return True
        if Path(word).name == "busbar" and following in (*names(), ALL):
            return True
    return False


def launch(one: Side, file: Path, turn: LaunchTurn | None = None) -> Sequence[Measurement]:
    """Launch a command once; returns its rows, which are in ``file`` (``.jsonl``) or beside it.

    Rows of a foreign command are read from its output. Raises LaunchFailed, also if there are no
    rows, and Interrupted if a signal asked this process to end.
    """
    words = list(one.words)
    if one.shuffles and turn is not None:
        words += turn.words
    if one.ours:
        file.unlink(missing_ok=True)
        words += ["--out", str(file)]
    else:
        file = file.with_suffix(".txt")
    target = os.devnull if one.ours else str(file)
    try:
        with Path(target).open("w") as out, show_progress(one.name, None) as show:
            ended = child.run(words, os.environ, on_line=show, stdout=out)
    except Unavailable as error:
        raise LaunchFailed(f"{one.name}: {error}") from None
    succeeded(one.name, ended, ours=one.ours)
    try:
        return read(file).rows
    except ReportError as error:
        why = str(error).removeprefix(f"{file}: ")
        if not one.ours:
            why = why if file.stat().st_size else "it printed nothing"
            why += f"; {_COMPARES}"
        raise LaunchFailed(f"{one.name} gave nothing to compare: {why}") from None


#: Fields that identify a row on both sides. If each side has a single value and these differ, that
#: field is what is compared.
_FIELDS = (
    "collective", "algorithm", "transport", "ranks", "size", "dtype", "op", "root", "placement",
    "timing", "across",
)  # fmt: skip
_LEVEL = 0.05
UNDECIDED = "undecided"
Key = tuple[object, ...]


@dataclass
class Pair:
    """A row with its times in seconds, one of A and one of B per round."""

    row: Measurement
    a: list[float] = field(default_factory=list)
    b: list[float] = field(default_factory=list)
    #: The logarithm of B over A, one a round.
    logs: list[float] = field(default_factory=list)

    def interval(self, of: int) -> tuple[float, float] | None:
        """The interval of B's time over A's, valid at every round, for one of ``of`` rows."""
        interval = always_interval(self.logs, _LEVEL / of)
        return None if interval is None else (exp(interval[0]), exp(interval[1]))

    @property
    def ratio(self) -> float:
        """B's time divided by A's."""
        return exp(float(np.mean(self.logs)))

    def word(self, of: int, noise: float) -> str:
        """The verdict on B: slower, faster, indistinguishable (within the noise), or undecided."""
        interval = self.interval(of)
        if interval is None:
            return UNDECIDED
        low, high = interval
        if low > 1 and self.ratio > 1 + noise:
            return "slower"
        if high < 1 and self.ratio < 1 / (1 + noise):
            return "faster"
        return "indistinguishable" if 1 / (1 + noise) < low and high < 1 + noise else UNDECIDED


def _without_times(row: Measurement) -> Measurement:
    """A row whose times are one, their sum, since rounds may be many; ``loop`` has few times."""
    return row if row.timing == "loop" else structs.replace(row, times_s=(sum(row.times_s),))


class PairedRows:
    """All rows that both sides measure, round by round."""

    def __init__(self, noise: float) -> None:
        self._noise = noise
        self.pairs: dict[Key, Pair] = {}
        self._dropped: tuple[str, ...] | None = None
        # Of all rounds, without their single times.
        self._rows: list[Measurement] = []
        #: What is compared, as ``algorithm ring against tree``; empty where all is the same.
        self.against = ""

    def add(self, a: Sequence[Measurement], b: Sequence[Measurement]) -> None:
        """Add a round's rows. Raises ReportError if the sides have no row in common."""
        if self._dropped is None:
            self._dropped = self._compared(a, b)
        sides = [self._measured(rows) for rows in (a, b)]
        shared = [key for key in sides[0] if key in sides[1]]
        if not shared:
            raise ReportError("no row of A measured what a row of B did; nothing to compare")
        for key in shared:
            left, right = sides[0][key], sides[1][key]
            pair = self.pairs.setdefault(key, Pair(left[0]))
            times = [launch_center(samples(rows)) for rows in (left, right)]
            pair.a.append(times[0])
            pair.b.append(times[1])
            # A launch that measured both took turns; two launches are compared as a whole.
            together = left[0].run is right[0].run
            self._rows += map(_without_times, (*left, *right))
            visits = ([r.times_s for r in rows] for rows in (left, right))
            pair.logs.append(within_run(*visits) if together else log(times[1] / times[0]))

    def _compared(self, a: Sequence[Measurement], b: Sequence[Measurement]) -> tuple[str, ...]:
        notes = {}
        for name in _FIELDS:
            values = [{attrgetter(name)(row) for row in rows} for rows in (a, b)]
            if values[0] != values[1] and len(values[0]) == len(values[1]) == 1:
                notes[name] = [str(one.pop()) for one in values]
        dropped = tuple(notes)
        levels = [", ".join(sorted({level_of(r) for r in rows} - {""})) for rows in (a, b)]
        if all(levels) and levels[0] != levels[1]:
            notes["MPI thread level"] = levels
        self.against = ", ".join(f"{name} {x} against {y}" for name, (x, y) in notes.items())
        return dropped

    def _measured(self, rows: Sequence[Measurement]) -> dict[Key, list[Measurement]]:
        """The rows that have a time, by their identifying fields."""
        getters = [attrgetter(name) for name in _FIELDS if name not in (self._dropped or ())]
        return grouped((r for r in rows if r.time_s), lambda r: tuple(get(r) for get in getters))

    @property
    def rounds(self) -> int:
        """The number of rounds that were added."""
        return max((len(pair.logs) for pair in self.pairs.values()), default=0)

    @property
    def words(self) -> list[str]:
        """The verdict of each row."""
        return [p.word(len(self.pairs), self._noise) for p in self.pairs.values()]

    @property
    def decided(self) -> bool:
        """True if every row is decided."""
        return bool(self.pairs) and UNDECIDED not in self.words

    def lines(self) -> Iterator[str]:
        """The lines of the table, one per row, and what may have changed the times (`causes`)."""
        if self.against:
            yield f"compared: {self.against}"
        head = ("size", "algorithm", "A", "B", "B to A", "95 %", "rounds", "B is")
        rows = sorted(zip(self.pairs.values(), self.words, strict=True), key=_place)
        columns = zip(head, *(self._cells(pair, word) for pair, word in rows), strict=True)
        words = ("algorithm", "B is")
        yield from render_lines(
            (name, "left" if name in words else "right", texts) for name, *texts in columns
        )
        yield from wrap_line(causes(self._rows), report_width(), 2)

    def _cells(self, pair: Pair, word: str) -> tuple[str, ...]:
        row, bounds = pair.row, pair.interval(len(self.pairs))
        shown = row.algorithm if "algorithm" not in (self._dropped or ()) else ""
        place = " in" if row.placement == "in" else ""
        return (
            format_size(row.nbytes),
            f"{shown}{place}".strip(),
            format_seconds(launch_center([[t] for t in pair.a])),
            format_seconds(launch_center([[t] for t in pair.b])),
            format_change(pair.ratio),
            "" if bounds is None else format_change_interval(pair.ratio, *bounds),
            str(len(pair.a)),
            word,
        )


def _place(one: tuple[Pair, str]) -> tuple[object, ...]:
    """The sort key of a pair: algorithm, then size."""
    row = one[0].row
    return row.collective, row.algorithm, row.transport, row.placement, row.size or 0


class AbCommand(Command):
    """Interleave two benchmarks, in random order, until every row is decided or the time is up.

    It says whether B is slower or faster than A, row by row. The rows that a benchmark prints are
    compared, not the time that a command takes. Two algorithms (-A) of one benchmark take turns
    within each launch.
    """

    USAGE = "%(prog)s [options] -- A… -- B…"

    EPILOG = (
        "A and B: a benchmark with its options, as allreduce --ranks 2 -A ring; or any command that"
        " writes our records or prints a log that reports read, such as that of another build. See"
        " docs/measuring-compare.md."
    )

    ELSEWHERE: ClassVar = {
        **dict.fromkeys(("runs", "max-runs"), "--most"),
        "wait-quiet": "-- allreduce --wait-quiet 10m",
        **dict.fromkeys(("export-json", "export-csv", "export-markdown"), "--out DIR"),
    }

    commands: tuple[tuple[str, ...], ...] = ()
    budget: float = option(
        "--budget SECONDS|10m  time limit: no round begins that would end later", 300.0, seconds
    )
    most: int = option("--most N  most rounds", 1000, at_least(1, "rounds", 1000))
    noise: float = option(
        "--noise SHARE  least difference that counts (default 1%)", 0.01, parse_share
    )
    seed: int | None = option(
        "--seed N  seed of the order of sides and rows (default: drawn)",
        parse=at_least(0, "as seed", MOST_SEED),
    )
    out: Path | None = option(
        "--out DIR  keep the records of every launch: a-001.jsonl, b-001.jsonl, … or ab-001.jsonl,"
        " …"
    )
    separate: bool = switch(
        "--separate  launch A and B on their own, even where one launch can measure both"
    )

    @classmethod
    def parse(cls, argv: Sequence[str], parser: Parser, **more: object) -> Self:
        """Parse the options before the first ``--``, and the commands after each ``--``."""
        own, *commands = _parts(argv)
        _, left = parser.parse_known_args(own)
        if left and not left[0].startswith("-"):
            raise Unsupported(f"{left[0][:80]!r} does not follow --; {_FORM}; {_COMPARES}")
        return super().parse(own, parser, commands=tuple(map(tuple, commands)), **more)

    def run(self) -> int:
        """Return 0, or the status of a launch that failed (1 for a foreign command)."""
        if len(self.commands) != 2:
            raise Unsupported(f"two commands are needed; {_FORM}")
        if launched() is not None:
            raise Unsupported("bench.ab starts launches of its own; run it without mpirun")
        a, b = (side(name, words) for name, words in zip("AB", self.commands, strict=True))
        for one in (a, b):  # before the other side has taken a turn
            if shutil.which(one.words[0]) is None:
                raise Unavailable(f"{one.name}: {one.words[0]}: cannot be started: no such program")
        both = None if self.separate else together(a, b)
        seed = randbelow(MOST_SEED) if self.seed is None else self.seed
        pairs, status = PairedRows(self.noise), 0
        with ExitStack() as stack:
            elsewhere = any(one.options is not None and one.options.on_hosts for one in (a, b))
            folder = self.out or stack.enter_context(folder_for_rows(elsewhere=elsewhere))
            try:
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise Unsupported(f"{folder}: {error.strerror}") from None
            turns = "A and B within each launch" if both else "launches of A and B in turns"
            print_note(f"{turns}, {format_duration(self.budget)} at most (--budget)")
            try:
                _rounds((a, b), both, pairs, folder, seed, self)
            except Interrupted as end:
                status = end.exit_status
                print_note(f"{end}; {format_count(pairs.rounds, 'round')} compared")
        if pairs.pairs:
            Screen(0).lines([f"A: {a}", f"B: {b}", *pairs.lines()])
            undecided = pairs.words.count(UNDECIDED)
            if undecided:
                of = f"{undecided} of {len(pairs.words)} rows"
                print_note(
                    f"{of} are undecided; more rounds may decide them (--budget, --most, or fewer"
                    " rows a round, as by -f and --placement out of A and B)"
                )
        return status


def _parts(argv: Sequence[str]) -> list[list[str]]:
    """Split the words at the first two ``--``."""
    parts: list[list[str]] = [[]]
    for word in argv:
        if word == "--" and len(parts) < 3:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _rounds(
    sides: Sequence[Side],
    both: SharedLaunch | None,
    pairs: PairedRows,
    folder: Path,
    seed: int,
    options: AbCommand,
) -> None:
    """Run rounds of both sides until all rows are decided, or no time is left for another round."""
    random, begin, longest = Random(seed), time.monotonic(), 0.0
    for number in range(1, options.most + 1):
        start = time.monotonic()
        if start - begin + longest > options.budget and number > 1:
            return
        order = [both.side] if both else random.sample(sides, 2)
        which = LaunchTurn(number, 0, seed)
        rows = {
            one.name: launch(one, folder / f"{one.name.lower()}-{number:03}.jsonl", which)
            for one in order
        }
        if both:
            pairs.add(*([r for r in rows["AB"] if r.algorithm == x] for x in both.algorithms))
        else:
            pairs.add(rows["A"], rows["B"])
        longest = max(longest, time.monotonic() - start)
        done = sum(word != UNDECIDED for word in pairs.words)
        first = "".join(one.name for one in order)
        print_note(f"round {number} ({first}): {done} of {len(pairs.words)} rows decided")
        if pairs.decided:
            return
