"""``python -m bench.ab``: compare two commands, interleaved, until every row is decided."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from secrets import randbelow
from tempfile import TemporaryDirectory

from bench.launch.launch import Interrupted
from bench.options.argument_types import at_least, seconds
from bench.options.launching import MOST_SEED, LaunchTurn
from bench.run.screen import Screen
from bench.trials.pairs import UNDECIDED, PairedRows
from bench.trials.sides import SharedLaunch, Side, launch, side, together
from busbar.arguments import Parser
from busbar.commands import Command
from busbar.errors import Unsupported
from busbar.launchers import launched
from busbar.options import Self, option, switch
from busbar.terminal import print_note
from reports.analysis.expect import parse_share


class AbCommand(Command):
    """Interleave two commands, in random order, until every row is decided or the time is up.

    It says whether B is slower or faster than A. Two algorithms (-A) of one benchmark take turns
    within each launch.
    """

    USAGE = "%(prog)s [options] -- A… -- B…"

    EPILOG = (
        "A and B: a benchmark with its options, as allreduce --ranks 2 -A ring; or any command that"
        " writes our records or prints a log that reports read, such as that of another build. See"
        " docs/measuring.md."
    )

    commands: tuple[tuple[str, ...], ...] = ()
    budget: float = option(
        "--budget SECONDS  time limit: no round begins that would end later", 300.0, seconds
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
        return super().parse(own, parser, commands=tuple(map(tuple, commands)), **more)

    def run(self) -> int:
        """Return 0, or the status of a launch that failed (1 for a foreign command)."""
        if len(self.commands) != 2:
            raise Unsupported("two commands are needed; write -- A… -- B…")
        if launched() is not None:
            raise Unsupported("bench.ab starts launches of its own; run it without mpirun")
        a, b = (side(name, words) for name, words in zip("AB", self.commands, strict=True))
        both = None if self.separate else together(a, b)
        seed = randbelow(MOST_SEED) if self.seed is None else self.seed
        pairs, status = PairedRows(self.noise), 0
        with ExitStack() as stack:
            folder = self.out or Path(stack.enter_context(TemporaryDirectory(prefix="busbar-")))
            try:
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise Unsupported(f"{folder}: {error.strerror}") from None
            try:
                _rounds((a, b), both, pairs, folder, seed, self)
            except Interrupted as end:
                status = end.exit_status
        if pairs.pairs:
            Screen(0).lines([f"A: {a}", f"B: {b}", *pairs.lines()])
            undecided = pairs.words.count(UNDECIDED)
            if undecided:
                of = f"{undecided} of {len(pairs.words)} rows"
                print_note(f"{of} are undecided when --budget or --most ends")
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
