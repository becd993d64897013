"""A schedule as GOAL text, which LogGOPSim and ATLAHS simulate.

A rank's steps follow one another, as in execution: a step's messages wait for a ``calc`` that ends
the step before. Source of the format: T. Hoefler et al., LogGOPSim (2010), and its schedules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from collectives.formats.traffic import Turn


def _rank(rank: int, steps: Sequence[Turn], ns_per_byte: float) -> Iterator[str]:
    yield f"rank {rank} {{"
    label, last = 0, 0
    for turn in steps:
        mine = []
        for verb, to, messages in (("send", "to", turn.sends), ("recv", "from", turn.receives)):
            for peer, nbytes, tag in messages:
                label += 1
                mine.append(label)
                yield f"l{label}: {verb} {nbytes}b {to} {peer} tag {tag}"
        if last:
            yield from (f"l{one} requires l{last}" for one in mine)
        label += 1
        yield f"l{label}: calc {round(turn.reduced_bytes * ns_per_byte)}"
        # A step without messages adds what is there already.
        yield from (f"l{label} requires l{one}" for one in mine or [last] if one)
        last = label
    yield "}"


def goal(ranks: Iterable[Sequence[Turn]], ns_per_byte: float = 0.0) -> bytes:
    """GOAL text of all ranks' turns; an addition takes ``ns_per_byte`` nanoseconds per byte."""
    lines = [""]
    for rank, steps in enumerate(ranks):
        lines += ["", *_rank(rank, steps, ns_per_byte)]
        lines[0] = f"num_ranks {rank + 1}"
    return ("\n".join(lines) + "\n").encode()
