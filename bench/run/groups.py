"""``--split``: groups of ranks that run the same sweep at once, each with a table of its own.

nccl-tests runs groups too, but prints only rank 0's. Here every group is reported: rank 0 of the
run prints its own group's table as it goes, and the others' at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench.options.options import Options
from bench.run.pace import Pace
from bench.run.screen import Screen
from collectives.execution.world import Json, World


class GroupScreen(Screen):
    """The screen of a group whose first rank is not the run's: keeps lines to be printed later."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.held: list[str] = []

    def lines(self, lines: Iterable[str]) -> None:
        """Results, for later."""
        if self._speaks:
            self.held += lines

    def start(self, rows: int, pace: Pace, *, endless: bool = False) -> None:
        """Progress is the first group's to show."""


class Group(NamedTuple):
    """One group of a run, seen from one of its ranks; ``every``: the ranks of all groups.

    ``part``: how many of the ranks on this rank's node belong to it, of all that are there.
    """

    number: int
    count_: int
    ranks: tuple[int, ...]
    world: World
    every: int
    screen: Screen
    together: Callable[[], None]
    part: float

    @property
    def title(self) -> str:
        """The line above its tables."""
        whom = " ".join(map(str, self.ranks))
        return f"group {self.number} of {self.count_}: ranks {whom}"

    @property
    def facts(self) -> dict[str, Json]:
        """What a record says of it."""
        return {"number": self.number, "of": self.count_, "ranks": list(self.ranks)}


def color(rule: tuple[str, int], rank: int) -> int:
    """The group of a rank, by nccl-tests' rules: rank mod N, div N, and N, or or N."""
    name, n = rule
    return {"mod": rank % n, "div": rank // n, "and": rank & n, "or": rank | n}[name]


def split(world: World, rule: tuple[str, int]) -> Group:
    """This rank's group; all ranks call this together.

    Groups of one size start every row together. Groups of different sizes may have other rows, and
    go each at its own pace.
    """
    colors = [color(rule, rank) for rank in range(world.size)]
    mine = colors[world.rank]
    order = sorted(set(colors))
    number = order.index(mine)
    ranks = tuple(rank for rank, one in enumerate(colors) if one == mine)
    inner = world.split(mine, world.rank)
    sizes = {colors.count(one) for one in order}
    screen = Screen(inner.rank) if number == 0 else GroupScreen(inner.rank)
    together = world.barrier if len(sizes) == 1 else lambda: None
    here = [rank for rank, node in enumerate(world.nodes) if node == world.nodes[world.rank]]
    part = sum(colors[rank] == mine for rank in here) / len(here)
    return Group(number, len(order), ranks, inner, world.size, screen, together, part)


def of_group(wanted: Sequence[Options], number: int) -> list[Options]:
    """The options of one group: its files bear its number, ``run.group1.jsonl``."""

    def named(path: Path) -> Path:
        ending = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
        return path.with_name(f"{path.name.removesuffix(ending)}.group{number}{ending}")

    def target(text: str) -> str:
        """A slash at the end asks for a folder, as does the name of one; a path would forget it."""
        return str(named(Path(text))) + "/" * (text.endswith("/") or Path(text).is_dir())

    return [
        replace(
            options,
            out=tuple(map(target, options.out)),
            nccl_json=None if options.nccl_json is None else named(options.nccl_json),
        )
        for options in wanted
    ]
