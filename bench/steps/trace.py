"""The timeline of ``--trace``: spans in the trace format of Chrome and Perfetto."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The most spans that a rank keeps: browsers cannot open larger traces.
MOST = 200_000
#: The lane of single messages.
MESSAGES = "messages"
# The number of spans in one text of `Trace.texts`: some hundred KiB.
_SPANS_A_TEXT = 2000


class TraceSpan(NamedTuple):
    """An interval to be drawn: ``seconds`` from ``start`` on, by ``time.perf_counter``.

    ``lane``: the rank's line on which the span is drawn. ``more``: facts that viewers show.
    """

    name: str
    lane: str
    start: float
    seconds: float
    more: Mapping[str, Any]


class Trace:
    """The spans of one rank. Any thread may add spans. Nothing is kept unless ``on`` is set.

    ``lost``: how many spans were dropped because there were more than `MOST`. ``others``: by rank,
    the spans of learners that are separate processes.
    """

    def __init__(self, on: bool) -> None:
        self.on = on
        self.spans: list[TraceSpan] = []
        self.lost = 0
        self.others: dict[int, list[TraceSpan]] = {}

    def add(self, name: str, lane: str, start: float, end: float, **more: Any) -> None:
        """Add a span from ``start`` to ``end``. ``lane``: such as compute, exchange or server."""
        if not self.on:
            return
        if len(self.spans) >= MOST:
            self.lost += 1
            return
        self.spans.append(TraceSpan(name, lane, start, end - start, more))

    def texts(self) -> Iterator[str]:
        """All spans as JSON texts, each short enough for a message."""
        for first in range(0, len(self.spans), _SPANS_A_TEXT):
            yield json.dumps(self.spans[first : first + _SPANS_A_TEXT])

    def other(self, rank: int, text: str) -> None:
        """Keep spans of another rank, from one of its `texts`."""
        others = self.others.setdefault(rank, [])
        others += spans(json.loads(text))
        self.lost += max(0, len(others) - MOST)
        del others[MOST:]


def spans(values: Sequence[Sequence[Any]]) -> list[TraceSpan]:
    """Spans from their JSON values."""
    return [TraceSpan(*value) for value in values]


def chrome(ranks: Mapping[int, tuple[float, Sequence[TraceSpan]]], title: str) -> bytes:
    """The spans of all ranks as a file for chrome://tracing or Perfetto: a process for each rank.

    ``ranks``: for each rank the time of its clock at one common moment, and its spans. Times in the
    file are microseconds from the start of the first span. Spans of a lane that overlap are drawn
    on several lines, because viewers show spans of one line as nested.
    """
    starts = [span.start - zero for zero, rank_spans in ranks.values() for span in rank_spans]
    first = min(starts, default=0.0)
    events: list[dict[str, Any]] = []
    for rank, (zero, rank_spans) in sorted(ranks.items()):
        events.append(_metadata("process_name", rank, 0, f"rank {rank}"))
        for thread, (name, line) in enumerate(_lines(rank_spans)):
            events.append(_metadata("thread_name", rank, thread, name))
            events += (_complete(rank, thread, zero + first, span) for span in line)
    whole = {"displayTimeUnit": "ms", "otherData": {"title": title}, "traceEvents": events}
    return json.dumps(whole, separators=(",", ":")).encode() + b"\n"


def _lines(spans: Sequence[TraceSpan]) -> list[tuple[str, list[TraceSpan]]]:
    """The named lines of a rank: each lane has as many lines as its overlapping spans need."""
    lanes: dict[str, list[list[TraceSpan]]] = {}
    for span in sorted(spans, key=lambda span: span.start):
        lines = lanes.setdefault(span.lane, [])
        for line in lines:
            if line[-1].start + line[-1].seconds <= span.start:
                line.append(span)
                break
        else:
            lines.append([span])
    return [
        (lane if n == 1 else f"{lane} {n}", line)
        for lane, lines in lanes.items()
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


def _metadata(kind: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": rank, "tid": thread, "args": {"name": name}}
