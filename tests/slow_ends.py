"""Ends of a pair that lose their cores while a schedule runs between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from collectives.schedule.schedule import Schedule

Both = tuple[float, float]
#: How long both ends are held up, in times of a message, iteration after iteration.
HELD = st.lists(st.tuples(*[st.sampled_from([0.0, 0.4, 7.0])] * 2), min_size=1, max_size=6)


def slower_ends(
    schedule: Schedule, travel: float, began: Sequence[float], held: Iterable[Both]
) -> list[float]:
    """What an iteration after the other takes the slower of two ranks, by its own clock.

    A message takes ``travel``; a send ends at once, for the socket has it. The ranks begin at
    ``began``, and before an iteration they have no core for as long as ``held`` says.
    """
    clock, found = list(began), []
    for hold in held:
        start = clock
        clock = [now + late for now, late in zip(clock, hold, strict=True)]
        for step in schedule.steps:
            sent, moves = clock[:], step.moves()
            for src, dst in zip(moves.src.tolist(), moves.dst.tolist(), strict=True):
                clock[dst] = max(clock[dst], sent[src] + travel)
        found.append(max(now - then for now, then in zip(clock, start, strict=True)))
    return found
