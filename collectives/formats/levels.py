"""Assign each move to the earliest step that its reads and writes allow.

Moves are added one after the other, as a sequential execution would do them, on numbered slots of
their own. Only conflicts on slots order them, by the rules of `collectives.schedule.schedule`: who
reads comes after who wrote; a plain write comes after every earlier access; a reducing write may
share a step with messages that read what was there before, and with other reducing writes.

A read may be *booked* before its move is known: a message that is on its way. What overwrites the
slot in the meantime must not come earlier than that move.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_MOST_ROUNDS = 64


@dataclass
class _Slot:
    """Accesses since the last plain write, as numbers of moves; -1 where there was none."""

    plain: int = -1
    reduces: list[int] = field(default_factory=list)
    # (move, whether it stays inside its rank)
    reads: list[tuple[int, bool]] = field(default_factory=list)
    booked: list[Booking] = field(default_factory=list)


@dataclass(eq=False)
class Booking:
    """A read of a slot as it was at one moment, by a move that comes later."""

    slot: int
    after: list[int]
    # Who overwrote the slot since, and whether only by adding to it.
    overwritten: list[tuple[int, bool]] = field(default_factory=list)


class Levels:
    """The moves' constraints: move b comes at least ``weight`` steps after move a."""

    def __init__(self) -> None:
        self.slots: dict[int, _Slot] = {}
        self.edges: list[list[tuple[int, int]]] = []

    def _slot(self, slot: int) -> _Slot:
        return self.slots.setdefault(slot, _Slot())

    def book(self, slot: int) -> Booking:
        """Note that a later move reads a slot as it is now."""
        state = self._slot(slot)
        booking = Booking(slot, self._writes(state))
        state.booked.append(booking)
        return booking

    @staticmethod
    def _writes(state: _Slot) -> list[int]:
        return [*state.reduces, *([state.plain] if state.plain >= 0 else [])]

    def booked(self, slot: int) -> list[Booking]:
        """The bookings of a slot whose moves have not come yet."""
        return list(self._slot(slot).booked)

    def rebook(self, booking: Booking, slot: int) -> None:
        """Let a booking's move read another slot instead, as it is now."""
        self._slot(booking.slot).booked.remove(booking)
        state = self._slot(slot)
        booking.slot, booking.after, booking.overwritten = slot, self._writes(state), []
        state.booked.append(booking)

    def add(self, read: Booking, write: int, *, reduce: bool, local: bool, behind: int = -1) -> int:
        """Add a move, which reads what was booked and writes a slot; return its number.

        ``behind``: a move that it must not overtake, or -1.
        """
        me = len(self.edges)
        self.edges.append([(u, 1) for u in read.after])
        if behind >= 0:
            self.edges[me].append((behind, 0))
        for later, adds in read.overwritten:
            self.edges[later].append((me, 0 if adds and not local else 1))
        state = self._slot(read.slot)
        state.booked.remove(read)
        state.reads.append((me, local))
        self._write(me, self._slot(write), reduce)
        return me

    def _write(self, me: int, state: _Slot, reduce: bool) -> None:
        mine = self.edges[me]
        if state.plain >= 0:
            mine.append((state.plain, 1))
        for booking in state.booked:
            booking.overwritten.append((me, reduce))
        others = [(u, inside) for u, inside in state.reads if u != me]
        if reduce:
            mine += [(u, int(inside)) for u, inside in others]
            state.reduces.append(me)
            return
        mine += [(u, 1) for u in state.reduces] + [(u, 1) for u, _ in others]
        state.plain, state.reduces, state.reads = me, [], []

    def solve(self, first: int) -> list[int] | None:
        """The earliest step of every move, the first ``first`` moves alone in step 0.

        None where the constraints contradict each other, as when two slots are to be exchanged.
        """
        level = [int(v >= first > 0) for v in range(len(self.edges))]
        for _ in range(_MOST_ROUNDS):
            changed = False
            for v, waits in enumerate(self.edges):
                least = max((level[u] + weight for u, weight in waits), default=0)
                if least > level[v]:
                    level[v], changed = least, True
            if not changed:
                return level
        return None
