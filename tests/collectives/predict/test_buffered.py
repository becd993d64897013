"""Messages that leave through buffers: by hand, against bounds, and against the other engines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import Unsupported
from collectives.predict.named import build_network
from collectives.predict.simulation import SimulationResult
from collectives.schedule.catalogue import draft, spec
from tests.collectives.predict.predicting import simulate
from tests.conftest import examples

NAMES = ("ring", "ps", "sharded_ps", "tree", "recursive_doubling", "torus", "one_shot")
MIB = 1 << 20
#: A switch of links of 1 MiB/s, without latency.
SWITCH = "fattree:{}:gbs=0.001048576:latency_us=0"


def _took(
    collective: str, name: str, ranks: int, buffer: float, text: str = SWITCH, burst: float = 0.0
) -> SimulationResult:
    schedule = draft(collective, name, ranks, root=0)
    on = replace(build_network(text.format(ranks), ranks), buffer=buffer, burst=burst)
    return simulate(schedule, spec(collective), on, MIB)


@pytest.mark.parametrize(
    ("buffer", "seconds"), [(0, 2), (1e-9, 2), (MIB / 2, 2.469), (2 * MIB, 2.969)]
)
def test_a_rank_sends_to_its_next_child_beside_the_one_before(
    buffer: float, seconds: float
) -> None:
    """Rule: of a binomial broadcast over 4 ranks, 1 s a message, rank 0's two share its link.

    With buffers for both, they alternate by 32 KiB, 1/32 s each, so rank 1 has its message after
    2 - 1/32 s and needs 1 s for rank 3's. With half of it the second message begins after half a
    second, and the first is there 1/32 s before 1.5 s. A frame is 0.9 %.
    """
    found = _took("broadcast", "binomial", 4, buffer)
    assert found.seconds == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize(
    ("name", "ranks", "seconds"),
    [
        ("ring", 4, 1.5),
        ("torus", 4, 1.5),
        ("recursive_doubling", 2, 1),
        ("ps", 2, 1.5),
        ("ps", 4, 5.5),
        ("tree", 4, 4.219),
    ],
)
def test_a_port_that_was_idle_passes_its_burst_at_once(
    name: str, ranks: int, seconds: float
) -> None:
    """Rule: buckets of a quarter of the message help only where links are idle in between.

    All links of a ring are busy from one iteration to the next, so it takes its law, as do a torus
    and one message each way. The server's link is idle each way while it is busy the other way, so
    `ps` takes 2 (P - 1) s less a quarter each way. In a tree of 4 ranks the root's first message
    takes 0.75 s, the next finds its bucket empty, and 1 s; its own two alternate, and the first is
    there after 2 - 1/32 s less a quarter; rank 1 takes 0.75 s for rank 3's. A frame is 0.9 %.
    """
    found = _took("allreduce", name, ranks, 2 * MIB, burst=MIB / 4)
    assert found.seconds == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize(("ranks", "seconds"), [(3, 0.2719), (5, 0.3704), (6, 0.4298)])
def test_short_messages_leave_in_the_order_of_their_posting(ranks: int, seconds: float) -> None:
    """Rule: two trees, pipelined, take what was measured on ports of 50 Mbit/s, within 7 %.

    Each rank has messages of several steps in its port. With equal shares for them, later steps
    held up the earlier ones, and 3 and 5 ranks took 19 % longer than measured.
    """
    found = _took(
        "allreduce",
        "double_tree",
        ranks,
        2**18 * 2 / 3,
        "fattree:{}:gbs=0.00625:latency_us=50",
        burst=18000.0,
    )
    assert found.seconds == pytest.approx(seconds, rel=0.07)


@examples(40)
@given(
    st.sampled_from(NAMES),
    st.sampled_from([2, 4, 6, 8, 9]),
    st.floats(1.0, 4.0 * MIB),
    st.sampled_from([0.0, 1.0, MIB / 4, 2.0 * MIB]),
)
def test_no_port_carries_more_than_it_can(
    name: str, ranks: int, buffer: float, burst: float
) -> None:
    """Rule: it takes the busiest link's time less a burst at least, the sum of its parts."""
    if name == "recursive_doubling" and ranks & (ranks - 1):
        ranks = 8
    found = _took("allreduce", name, ranks, buffer, burst=burst)
    least = float(((found.link_bytes - burst) / found.machine.links.rate).max())
    assert found.seconds >= least * (1 - 1e-9)
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert min(found.parts.values()) >= -1e-9 * found.seconds


def test_more_messages_than_go_one_by_one_are_refused() -> None:
    """Rule: what would take minutes without a word is one line before it begins."""
    with pytest.raises(Unsupported, match="130560 messages through buffers; at most 100000"):
        _took("allreduce", "ring", 256, 1.0, "full:{}:gbs=1:latency_us=0")


@examples(40)
@given(st.sampled_from(NAMES), st.sampled_from([2, 4, 8]), st.floats(1.0, 4.0 * MIB))
def test_where_nothing_is_shared_buffers_only_help(name: str, ranks: int, buffer: float) -> None:
    """Rule: with a link of its own for every pair no rank is through later than without buffers."""
    text = "full:{}:gbs=0.001048576:latency_us=3"
    bare, found = (_took("allreduce", name, ranks, size, text) for size in (0.0, buffer))
    assert (found.ranks <= bare.ranks * (1 + 1e-9)).all()
