"""Schedules in which disjoint pairs of ranks exchange messages.

Pure: no transports, no clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from collectives.schedule.moves import Buffer, Move, Slot
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective, Size

#: Bytes of the answer to a window of messages, as in osu_bw.
TOKEN_BYTES = 4
#: Least bytes in a window of a bandwidth test: after a pause a port may pass some kilobytes at any
#: speed.
WINDOW_BYTES = 1 << 18
#: The most messages of such a window; osu_bw has as many.
WINDOW_MESSAGES = 64


@dataclass(frozen=True)
class ExchangePattern:
    """How the two ranks of a pair exchange messages.

    ``both``: both ranks send at once; otherwise only the first does, or each in turn if
    ``chained``: a step forwards the data of the step before, so that no step can begin early.
    ``messages``: per step and direction. ``adds``: received data is added; the sums have no
    meaning. ``answered``: a few bytes are sent back when all messages have arrived.

    Rates are measured only where each end waits for a message of the other. Otherwise a sender is
    done when the socket has its bytes, and a receiver that begins late finds the message there.
    """

    both: bool = False
    chained: bool = False
    messages: int = 1
    adds: bool = False
    answered: bool = False

    @property
    def turns(self) -> bool:
        """True if the ranks send in turn."""
        return self.chained and not self.both


#: The exchange for each measured quantity, with one message each way; see `pattern` and
#: `topology.model.measured.SWEPT`.
PATTERNS: Mapping[str, ExchangePattern] = MappingProxyType(
    {
        "bandwidth": ExchangePattern(answered=True),
        "bandwidth_both": ExchangePattern(both=True),
        "latency": ExchangePattern(chained=True),
        "still": ExchangePattern(both=True),
        "sum": ExchangePattern(both=True, adds=True),
        "swap": ExchangePattern(both=True, chained=True),
        "first": ExchangePattern(both=True, chained=True),
        "add": ExchangePattern(both=True, chained=True, adds=True),
        "burst": ExchangePattern(both=True, chained=True),
    }
)


def pattern(quantity: str, nbytes: int) -> ExchangePattern:
    """The exchange that measures a quantity with messages of ``nbytes``.

    A bandwidth is measured with a window of messages: `WINDOW_BYTES`, at most `WINDOW_MESSAGES`. A
    burst has `topology.model.measured.BURST` messages.
    """
    how = PATTERNS[quantity]
    if quantity == "burst":
        from topology.model.measured import BURST  # with all of the map, which others do not need

        return replace(how, messages=BURST)
    if quantity not in ("bandwidth", "bandwidth_both"):
        return how
    return replace(how, messages=min(WINDOW_MESSAGES, max(1, -(-WINDOW_BYTES // nbytes))))


@dataclass(frozen=True)
class _Answered(Collective):
    """A collective for an exchange: the last part on each rank is an answer of a few bytes."""

    def size(self, nranks: int, nbytes: int, itemsize: int) -> Size:
        whole = super().size(nranks, nbytes, itemsize)
        few = np.full(nranks, -(-TOKEN_BYTES // itemsize), np.int64)
        parts = np.full(self.parts(nranks) - nranks, whole.elements, np.int64)
        return whole._replace(elements=np.concatenate([parts, few]))


def exchange(
    how: ExchangePattern, pairs: Sequence[tuple[int, int]], nranks: int, times: int = 1
) -> tuple[Schedule, Collective]:
    """The schedule of ``times`` exchanges in a row between disjoint pairs, and its collective.

    In turns, one of ``times`` is a round trip. Swaps (``both`` and ``chained``) have one part per
    message; after an even number of swaps a rank has its own and its partner's parts: two slots per
    message, written alternately. Otherwise a rank has one part, which it sends as every message,
    each into a slot of its own. The last parts are the answers.
    """
    swaps = how.both and how.chained
    parts = how.messages if swaps else 1
    peers = dict(pairs) | ({b: a for a, b in pairs} if how.both else {})
    turns = [list(peers.items())]
    turns += [[(b, a) for a, b in peers.items()]] * how.turns
    steps = [
        [_move(how, *ends, number, i) for ends in senders for i in range(how.messages)]
        for number, senders in enumerate(turns * times)
    ]
    token = nranks * parts
    if how.answered:
        steps.append([Move(b, a, Slot(Buffer.IN, parts), Slot(Buffer.OUT, 0)) for a, b in pairs])

    def inputs(nranks: int, rank: int, root: int) -> list[int]:
        return [rank * parts + i for i in range(parts)] + [token + rank] * how.answered

    def outputs(nranks: int, rank: int, root: int) -> list[int]:
        senders = {to: of for of, to in peers.items()}
        if rank in senders:
            of = (rank, senders[rank]) if swaps else (senders[rank],)
            return [one * parts + i % parts for i in range(how.messages) for one in of]
        if rank not in peers:
            return []
        # The first rank of a pair gets back what it sent, or an answer.
        return [rank] * how.turns + [token + peers[rank]] * how.answered

    spec = (_Answered if how.answered else Collective)(
        name="pairs",
        title="disjoint pairs of ranks exchange vectors",
        parts=lambda nranks: nranks * (parts + how.answered),
        inputs=inputs,
        outputs=outputs,
        # A rank's whole vector passes through its port once in each direction.
        bus_factor=lambda nranks: 1.0,
        reduces=how.adds,
        in_place=False,
    )
    schedule = Schedule.of(nranks, spec.parts(nranks), steps)
    return replace(schedule, fusible=not how.chained), spec


def _move(how: ExchangePattern, source: int, target: int, number: int, i: int) -> Move:
    if how.both and how.chained:
        had, gets = (Slot(Buffer.OUT, 2 * i + (number + n) % 2) for n in (0, 1))
        return Move(source, target, had if number else Slot(Buffer.IN, i), gets, how.adds)
    had = Slot(Buffer.OUT, i) if how.chained and number else Slot(Buffer.IN, 0)
    return Move(source, target, had, Slot(Buffer.OUT, i), how.adds)
