"""The time of plans whose messages go through mailboxes: eager messages, posted and taken in order.

Follows `native/src/plans.cpp` (``Eager``): a rank copies, posts all messages of a step, takes all
that come, copies. Posting waits for nobody, so the sender goes on while a message is on its way.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from collectives.execution.program import Local, Receive
from collectives.execution.shm.tasks import PlacedProgram
from collectives.model.shm.draft import NodePrograms
from collectives.model.shm.rates import Between, Rates


def eager_seconds(
    draft: NodePrograms, scale: float, cores: Sequence[int], between: Between
) -> float:
    """Seconds of an iteration, of programs whose elements count ``scale`` bytes each."""
    mail = [_mail(program) * scale for program in draft.programs]
    now = [0.0] * draft.nranks
    boxes: dict[tuple[int, int], deque[float]] = defaultdict(deque)
    at = [0] * draft.nranks
    posted = [False] * draft.nranks
    left = sum(len(program.steps) for program in draft.programs)
    while left:
        for rank, program in enumerate(draft.programs):
            while at[rank] < len(program.steps):
                step, own = program.steps[at[rank]], between[cores[rank]][cores[rank]]
                if not posted[rank]:
                    now[rank] += _local(step.before, scale, own, mail[rank])
                    for peer, span, _ in step.sends:
                        rates = between[cores[rank]][cores[peer]]
                        now[rank] += rates.post + span.size * scale * rates.eager_message(
                            mail[rank]
                        )
                        boxes[rank, peer].append(now[rank] + rates.flight)
                    posted[rank] = True
                if not _arrived(rank, step.receives, boxes):
                    break
                for peer, span, other, _ in step.receives:
                    rates = between[cores[rank]][cores[peer]]
                    now[rank] = max(now[rank], boxes[peer, rank].popleft())
                    now[rank] += rates.post + span.size * scale * rates.eager_message(mail[rank])
                    now[rank] += own.call if other is not None else 0.0
                now[rank] += _local(step.after, scale, own, mail[rank])
                at[rank], posted[rank], left = at[rank] + 1, False, left - 1
    return max(now)


def _mail(of: PlacedProgram) -> float:
    """Elements of all messages of a rank."""
    return of.sent + sum(receive.span.size for step in of.steps for receive in step.receives)


def _arrived(
    rank: int, receives: Sequence[Receive], boxes: dict[tuple[int, int], deque[float]]
) -> bool:
    """Say whether all messages of a step have been posted."""
    wanted: dict[int, int] = defaultdict(int)
    for receive in receives:
        wanted[receive.peer] += 1
    return all(len(boxes[peer, rank]) >= count for peer, count in wanted.items())


def _local(moves: Sequence[Local], scale: float, own: Rates, mail: float) -> float:
    """Seconds of copies inside the rank."""
    return sum(own.call + 2 * move.span.size * scale * own.own(mail) for move in moves)
