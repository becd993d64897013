"""The timeline of ``--trace``: spans in the trace format of Chrome and Perfetto."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A rank keeps so many spans at most; a trace of more opens in no browser.
MOST = 200_000
#: The lane of single messages.
MESSAGES = "messages"
# Spans in a text of `Trace.texts`, which is some hundred KiB then.
_A_TEXT = 2000


class TraceSpan(NamedTuple):
    """From ``start`` for ``seconds``, by ``time.perf_counter``; ``lane``: a line of the rank's."""

    name: str
    lane: str
    start: float
    seconds: float
    more: Mapping[str, Any]


class Trace:
    """The spans of one rank; any thread may add. Without ``on`` it keeps nothing.

    ``lost``: how many more there were. ``others``: spans of ranks that are processes of their own,
    by their numbers, on this host's clock.
    """

    def __init__(self, on: bool) -> None:
        self.on = on
        self.spans: list[TraceSpan] = []
        self.lost = 0
        self.others: dict[int, list[TraceSpan]] = {}

    def add(self, name: str, lane: str, start: float, end: float, **more: Any) -> None:
        """Something that took from ``start`` to ``end``.

        ``lane``: the line that it is drawn on, such as compute, exchange or server.
        """
        if not self.on:
            return
        if len(self.spans) >= MOST:
            self.lost += 1
            return
        self.spans.append(TraceSpan(name, lane, start, end - start, more))

    def texts(self) -> Iterator[str]:
        """All spans, in texts that a message can hold."""
        for first in range(0, len(self.spans), _A_TEXT):
            yield json.dumps(self.spans[first : first + _A_TEXT])

    def other(self, rank: int, text: str) -> None:
        """Keep what another rank's `texts` gave."""
        mine = self.others.setdefault(rank, [])
        mine += spans(json.loads(text))
        self.lost += max(0, len(mine) - MOST)
        del mine[MOST:]


def spans(values: Sequence[Sequence[Any]]) -> list[TraceSpan]:
    """Spans that were JSON."""
    return [TraceSpan(*value) for value in values]


def chrome(ranks: Mapping[int, tuple[float, Sequence[TraceSpan]]], title: str) -> bytes:
    """Every rank's spans as a file for chrome://tracing or Perfetto: a process a rank.

    ``ranks``: of each its clock at a moment that all shared, and its spans. Times in the file are
    microseconds from the first span's start. What overlaps within a lane is drawn on further lines
    of it, since viewers take what shares a line for nested.
    """
    starts = [span.start - zero for zero, mine in ranks.values() for span in mine]
    first = min(starts, default=0.0)
    events: list[dict[str, Any]] = []
    for rank, (zero, mine) in sorted(ranks.items()):
        events.append(_named("process_name", rank, 0, f"rank {rank}"))
        for thread, (name, span) in enumerate(_threads(mine)):
            events.append(_named("thread_name", rank, thread, name))
            events += (_complete(rank, thread, zero + first, one) for one in span)
    whole = {"displayTimeUnit": "ms", "otherData": {"title": title}, "traceEvents": events}
    return json.dumps(whole, separators=(",", ":")).encode() + b"\n"


def _threads(spans: Sequence[TraceSpan]) -> list[tuple[str, list[TraceSpan]]]:
    """The lines of a rank: as many for each lane as keep spans of one line apart."""
    found: dict[str, list[list[TraceSpan]]] = {}
    for span in sorted(spans, key=lambda one: one.start):
        lines = found.setdefault(span.lane, [])
        for line in lines:
            if line[-1].start + line[-1].seconds <= span.start:
                line.append(span)
                break
        else:
            lines.append([span])
    return [
        (lane if n == 1 else f"{lane} {n}", line)
        for lane, lines in found.items()
        for n, line in enumerate(lines, 1)
    ]


def _complete(rank: int, thread: int, zero: float, span: TraceSpan) -> dict[str, Any]:
    return {
        "name": span.name,
        "cat": span.lane,
        "ph": "X",
        "pid": rank,
        "tid": thread,
        "ts": round((span.start - zero) * 1e6, 3),
        "dur": round(max(0.0, span.seconds) * 1e6, 3),
        "args": dict(span.more),
    }


def _named(what: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": rank, "tid": thread, "args": {"name": name}}
