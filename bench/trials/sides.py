"""One side of a comparison: a command that is launched repeatedly, and its rows."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench.cli.main import ALL, names
from bench.launch import child
from bench.launch.launch import LaunchFailed, succeeded
from bench.options.launching import LaunchTurn
from bench.options.options import Options, parse
from busbar.errors import ReportError, Unsupported
from busbar.start import python
from reports.readers.reading import read
from reports.records.measurement import Measurement

_BENCH = "bench."


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
        """True if the command accepts ``--launch``."""
        return self.options is not None

    def __str__(self) -> str:
        """The command as it was given, for messages."""
        words = self.words[2:] if self.shuffles else self.words
        return " ".join(words).removeprefix(_BENCH)


def side(name: str, words: Sequence[str]) -> Side:
    """Make a side from a command's words; a benchmark's name alone means the one in this build.

    Raises Unsupported without a word, and for options that the benchmark refuses.
    """
    if not words:
        example = "-- allreduce … -- allreduce …"
        raise Unsupported(f"no command {name}; write -- A -- B, as in {example}")
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
    # -A adds to the algorithms that the command already has.
    added = chosen[1:] if "algorithm" in left.given else chosen
    words = (*a.words, "-A", ",".join(added))
    return SharedLaunch(a._replace(name="AB", words=words), (chosen[0], chosen[1]))


def _ours(words: Sequence[str]) -> bool:
    """True if the words start a benchmark of any Busbar build, under any launcher."""
    for at, word in enumerate(words[:-1]):
        following = words[at + 1]
        if word == "-m" and following.removeprefix(_BENCH) in (*names(), "bench"):
            return True
        if Path(word).name == "busbar" and following in (*names(), ALL):
            return True
    return False


def launch(
    one: Side,
    file: Path,
    turn: LaunchTurn | None = None,
    more: Sequence[str] = (),
    env: Mapping[str, str] = os.environ,
) -> Sequence[Measurement]:
    """Launch a command once; returns its rows, which are in ``file`` (``.jsonl``) or beside it.

    Rows of a foreign command are read from its output. Raises LaunchFailed, also if there are no
    rows, and Interrupted if a signal asked this process to end.
    """
    words = [*one.words, *more]
    if one.shuffles and turn is not None:
        words += turn.words
    if one.ours:
        file.unlink(missing_ok=True)
        words += ["--out", str(file)]
    else:
        file = file.with_suffix(".txt")
    target = os.devnull if one.ours else str(file)
    try:
        with Path(target).open("w") as out:
            ended = child.run(words, env, stdout=out, stderr=subprocess.PIPE)
    except OSError as error:
        raise LaunchFailed(f"{one.name}: {words[0]}: cannot be started: {error.strerror}") from None
    succeeded(one.name, ended, ours=one.ours)
    try:
        return read(file).rows
    except ReportError as error:
        raise LaunchFailed(f"{one.name} gave nothing to compare: {error}") from None
