"""What the ranks of a launch do, and how they answer: words of a command line, marked lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: A line of ours begins so; `bench.qualify.lines` reads them.
MARK = "busbar-qualify "
#: Longest text of a fact or of a line of standard error that is sent.
MOST_TEXT = 300


class Task(NamedTuple):
    """What the ranks of a launch do: the words of the worker's command line.

    ``repeats`` of each measure with vectors of ``nbytes``; ``seconds`` after which the rank is
    ended; ``hosts``: how many hosts the launch has; ``transport`` as `--transport` of a benchmark.
    """

    stage: str
    hosts: int
    nbytes: int
    repeats: int
    seconds: float
    transport: str

    def words(self) -> list[str]:
        """The command line of the worker; see `parse`."""
        return [str(value) for value in self]

    @classmethod
    def parse(cls, words: Sequence[str]) -> Task:
        """The task of a command line that `words` made."""
        stage, hosts, nbytes, repeats, seconds, transport = words
        return cls(stage, int(hosts), int(nbytes), int(repeats), float(seconds), transport)
