"""The task of a launch's ranks as words of a command line, and the mark of their output lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: Start of a worker's line; `bench.qualify.lines` reads these lines.
MARK = "busbar-qualify "
#: Longest text of a fact or of a line of standard error that is sent.
MOST_TEXT = 300


class Task(NamedTuple):
    """The task of a launch's ranks, which is the worker's command line.

    ``repeats`` rates of each measure, with vectors of ``nbytes`` bytes. ``seconds``: until the rank
    is ended. ``hosts``: number of hosts in the launch. ``transport``: as `--transport` of a
    benchmark.
    """

    stage: str
    hosts: int
    nbytes: int
    repeats: int
    seconds: float
    transport: str

    def words(self) -> list[str]:
        """The words of the worker's command line; see `parse`."""
        return [str(value) for value in self]

    @classmethod
    def parse(cls, words: Sequence[str]) -> Task:
        """The task from the words that `words` made."""
        stage, hosts, nbytes, repeats, seconds, transport = words
        return cls(stage, int(hosts), int(nbytes), int(repeats), float(seconds), transport)
