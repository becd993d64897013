"""What verify accepts is right, and what a mutation broke it refuses.

The judge is `naive`, which knows nothing of verify: it carries the mutated schedule out on numbers
of which no two sums agree, with a step's writes in either order.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.errors import ScheduleError
from collectives.schedule.catalogue import spec
from collectives.schedule.moves import Moves
from collectives.schedule.schedule import Schedule
from collectives.schedule.verify import verify
from tests.collectives.cases import PAIRS, built, computes, fixed, placements, roots

MUTATIONS = ("drop", "duplicate", "redirect", "rechunk", "flip", "swap")


def _mutate(schedule: Schedule, kind: str, draw: st.DataObject) -> Schedule | None:
    """The schedule with one move changed; None where there is nothing to change."""
    steps = list(schedule.all_moves)
    busy = [i for i, step in enumerate(steps) if len(step)]
    if not busy:
        return None
    at = draw.draw(st.sampled_from(busy), "step")
    table = steps[at].table.copy()
    i = draw.draw(st.integers(0, table.shape[1] - 1), "move")
    if kind == "drop":
        table = np.delete(table, i, axis=1)
    elif kind == "duplicate":
        table = np.concatenate([table, table[:, [i]]], axis=1)
    elif kind == "redirect":
        end = draw.draw(st.sampled_from([0, 1]), "end")
        table[end, i] = draw.draw(st.integers(0, schedule.nranks), "rank")
    elif kind == "rechunk":
        end = draw.draw(st.sampled_from([3, 5]), "end")
        table[end, i] += draw.draw(st.sampled_from([-1, 1, 2]), "by")
    elif kind == "flip":
        table[7, i] ^= 1
    else:
        other = draw.draw(st.integers(0, len(steps) - 1), "other step")
        steps[at], steps[other] = steps[other], steps[at]
        return fixed(schedule, steps)
    steps[at] = Moves(table)
    return fixed(schedule, steps)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.sampled_from(PAIRS), st.integers(2, 6), st.sampled_from(MUTATIONS), st.data())
def test_what_verify_accepts_is_right(
    pair: tuple[str, str], n: int, kind: str, draw: st.DataObject
) -> None:
    """A mutation that changes the meaning is refused; what is accepted still does its job."""
    what = spec(pair[0])
    root = draw.draw(st.sampled_from(roots(what, n)), "root")
    schedule = built(*pair, n, root=root)
    if schedule is None or what.idempotent:
        return
    mutant = _mutate(schedule, kind, draw)
    if mutant is None:
        return
    in_place = draw.draw(st.sampled_from(placements(what)), "in place")
    try:
        verify(mutant, what, root=root, in_place=in_place)
    except ScheduleError:
        return
    said = "verify accepted what computes something else"
    assert computes(mutant, what, root, in_place=in_place), said
