"""The one error of this room. Knows nothing of devices or sources."""

from __future__ import annotations

#: Characters of a reason at most.
LONGEST = 1000


class ProbeError(Exception):
    """A source that cannot be read, or a text that cannot be understood.

    Attributes:
        source: the format or probe that gave up, such as ``topo -m``.
        line: the 1-based line of the text, or ``None`` where a line means nothing.
        reason: what is wrong and, where there is one, the remedy; one sentence.

    """

    def __init__(self, source: str, reason: str, line: int | None = None) -> None:
        # What is quoted of a text may be as long as the text.
        reason = reason if len(reason) <= LONGEST else f"{reason[:LONGEST]}…"
        self.source = source
        self.reason = reason
        self.line = line
        place = f"{source}, line {line}" if line is not None else source
        super().__init__(f"{place}: {reason}")
