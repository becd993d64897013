"""``python -m bench.ab``: two commands, interleaved, until every row is decided."""

from __future__ import annotations

import argparse
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
from busbar.arguments import Parser, program
from busbar.errors import Unsupported
from busbar.launchers import launched
from busbar.process import serve
from busbar.terminal import print_note
from reports.analysis.expect import parse_share

_MOST_ROUNDS = 1000


def main(argv: Sequence[str]) -> int:
    """Run it; 0 well, 2 a wrong option, or the status of a launch that failed (1 of a foreign)."""
    return serve("busbar", lambda: _run(argv))


def _parser() -> argparse.ArgumentParser:
    own = program("bench.ab")
    p = Parser(
        prog=own,
        usage=f"{own} [options] -- A… -- B…",
        description="Interleave two commands, in random order, until every row is decided or the"
        " time is up, and say whether B is slower or faster than A. Two algorithms (-A) of one"
        " benchmark take turns within each launch.",
        epilog="A and B: a benchmark with its options, as allreduce --ranks 2 -A ring; or any"
        " command that writes our records or prints a log that reports read, such as that of"
        " another build. See docs/measuring.md.",
    )
    add = p.group()
    most, seed = at_least(1, "rounds", _MOST_ROUNDS), at_least(0, "as seed", MOST_SEED)
    time_limit = "time limit: no round begins that would end later (default 300)"
    add("--budget SECONDS", time_limit, type=seconds, default=300.0)
    add("--most N", "most rounds (default 1000)", type=most, default=_MOST_ROUNDS)
    counts = "least difference that counts (default 1%%)"
    add("--noise SHARE", counts, type=parse_share, default=0.01)
    add("--seed N", "seed of the order of sides and rows (default: drawn)", type=seed)
    kept = "keep the records of every launch: a-001.jsonl, b-001.jsonl, … or ab-001.jsonl, …"
    add("--out DIR", kept, type=Path)
    apart = "launch A and B on their own, even where one launch can measure both"
    add("--separate", apart, action="store_true")
    return p


def _parts(argv: Sequence[str]) -> list[list[str]]:
    """The words before, between and after the first two ``--``."""
    found: list[list[str]] = [[]]
    for word in argv:
        if word == "--" and len(found) < 3:
            found.append([])
        else:
            found[-1].append(word)
    return found


def _run(argv: Sequence[str]) -> int:
    mine, *commands = _parts(argv)
    given = _parser().parse_args(mine)
    if len(commands) != 2:
        raise Unsupported("two commands are needed; write -- A… -- B…")
    if launched() is not None:
        raise Unsupported("bench.ab starts launches of its own; run it without mpirun")
    a, b = (side(name, words) for name, words in zip("AB", commands, strict=True))
    both = None if given.separate else together(a, b)
    seed = randbelow(MOST_SEED) if given.seed is None else given.seed
    pairs, status = PairedRows(given.noise), 0
    with ExitStack() as stack:
        folder = given.out or Path(stack.enter_context(TemporaryDirectory(prefix="busbar-")))
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise Unsupported(f"{folder}: {error.strerror}") from None
        try:
            _rounds((a, b), both, pairs, folder, seed, given)
        except Interrupted as end:
            status = end.exit_status
    if pairs.found:
        Screen(0).lines([f"A: {a}", f"B: {b}", *pairs.lines()])
        undecided = pairs.words.count(UNDECIDED)
        if undecided:
            of = f"{undecided} of {len(pairs.words)} rows"
            print_note(f"{of} are undecided when --budget or --most ends")
    return status


def _rounds(
    sides: Sequence[Side],
    both: SharedLaunch | None,
    pairs: PairedRows,
    folder: Path,
    seed: int,
    given: argparse.Namespace,
) -> None:
    """Run rounds of both sides until all rows are decided or there is no time for another."""
    random, begin, longest = Random(seed), time.monotonic(), 0.0
    for number in range(1, given.most + 1):
        start = time.monotonic()
        if start - begin + longest > given.budget and number > 1:
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
