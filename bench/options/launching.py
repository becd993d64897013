"""``--launches``: the order of launches, and the order of rows in each."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from secrets import randbelow
from typing import TypeVar

from busbar.errors import Unsupported

#: Largest seed: it fits into the integers of any language that reads a record.
MOST_SEED = 2**31 - 1
T = TypeVar("T")


@dataclass(frozen=True)
class LaunchTurn:
    """The launch ``number`` (from 1) ``of`` several (``--launches``), and the seed that all share.

    The seed is recorded.
    """

    number: int
    of: int
    seed: int

    def __str__(self) -> str:
        """The value of ``--launch``: ``2/5:1234``."""
        return f"{self.number}/{self.of}:{self.seed}"

    @property
    def facts(self) -> Mapping[str, int]:
        """The entry ``launch`` of a record's environment."""
        return {"number": self.number, "of": self.of, "seed": self.seed}

    @property
    def words(self) -> list[str]:
        """The command-line options that make a run this launch."""
        return ["--launches", "1", "--launch", str(self)]

    def order(self, blocks: Sequence[Hashable], cycle: int = 0) -> list[int]:
        """The indices of rows in an order shuffled for this launch and cycle by the seed.

        ``blocks``: each row's block, such as its size. Blocks come in random order. The rows of a
        block stay together, in random order, so that rows to compare are measured side by side.
        Effects of the neighbouring rows on a row differ between launches.
        """
        random = Random(f"{self.seed}/{self.number}/{cycle}")
        rows: dict[Hashable, list[int]] = {}
        for at, block in enumerate(blocks):
            rows.setdefault(block, []).append(at)
        ordered = list(rows.values())
        random.shuffle(ordered)
        return [at for block in ordered for at in random.sample(block, len(block))]


def turns(
    things: Sequence[T], launches: int, seed: int | None
) -> list[tuple[T, LaunchTurn | None]]:
    """Each thing once per launch, in an order drawn from the seed, with its launch.

    A single launch keeps the order of ``things``, with None as launch. If ``seed`` is None, a seed
    is drawn.
    """
    if launches == 1:
        return [(one, None) for one in things]
    seed = randbelow(MOST_SEED) if seed is None else seed
    random, pairs = Random(seed), list[tuple[T, LaunchTurn | None]]()
    for number in range(1, launches + 1):
        turn = LaunchTurn(number, launches, seed)
        pairs += [(one, turn) for one in random.sample(things, len(things))]
    return pairs


def parse_turn(text: str) -> LaunchTurn:
    """The launch from text such as ``2/5:1234``. Raises Unsupported if it is malformed."""
    try:
        place, seed = text.split(":")
        number, of = place.split("/")
        return LaunchTurn(int(number), int(of), int(seed))
    except ValueError:
        raise Unsupported(f"--launch {text[:80]!r}: write NUMBER/OF:SEED") from None
