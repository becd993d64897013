"""What several tests of tuning need: candidates, rules, and Open MPI's reading of a rules file."""

from __future__ import annotations

from bench.run.tuning_file import Range, Rules, Tunable

A, B, LIBRARY = (Tunable(name, "mpi") for name in ("ring", "tree", "library"))


def rules(ranges: tuple[Range, ...], ranks: int = 4, collective: str = "allreduce") -> Rules:
    """Rules with everything that does not matter here filled in."""
    low = ranges[0].low
    about = (collective, ranks, 1, "float", "mpi/library", "measured", LIBRARY)
    return Rules(*about, 0.02, low, 1 << 30, ranges)


def choice(rules: Rules, nbytes: int) -> Tunable:
    """What is taken at a size; sizes below all ranges belong to the first."""
    below = [one for one in rules.ranges if one.low <= nbytes]
    return (below or rules.ranges[:1])[-1].choice


def as_open_mpi(text: str, wanted: int, ranks: int, nbytes: int) -> int:
    """The algorithm number that Open MPI 5's reader and lookup give for a rules file.

    The grammar is read strictly; of several communicator sizes the largest not above ``ranks``
    counts, and of several message sizes the largest not above ``nbytes``.
    """
    words = [w for line in text.splitlines() for w in line.split("#")[0].split()]
    numbers = iter(map(int, words))
    chosen = 0
    for _ in range(next(numbers)):
        collective = next(numbers)
        for _ in range(next(numbers)):
            size, found = next(numbers), 0
            for i in range(next(numbers)):
                low, number, fan, segment = (next(numbers) for _ in range(4))
                assert i or low == 0, "the first rule must be for size 0"
                assert fan == segment == 0
                found = number if low <= nbytes else found
            if collective == wanted and size <= ranks:
                chosen = found
    assert next(numbers, None) is None
    return chosen
