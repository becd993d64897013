"""Findings for people: text, evidence and remedy."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from busbar.printable import printable_lines
from topology.diagnostics.finding import Finding
from topology.model.topology import Topology


def text(topology: Topology, found: Sequence[Finding], width: int = 80) -> str:
    """Return the findings in their order, wrapped; or one line that says what was looked at."""
    sources = ", ".join(topology.sources) or "no source"
    if not found:
        what = f"{len(topology.gpus)} GPU(s), {len(topology.nics)} NIC(s)"
        lost = "".join(f"; {gap.subject}: {gap.reason}" for gap in topology.lost)
        return printable_lines(f"no findings: {what}, as far as {sources} can tell{lost}\n")
    lines = [f"{len(found)} finding(s), worst first, from {sources}", ""]
    for place, finding in enumerate(found, 1):
        lines += _wrapped(f"{place}. ", f"{finding.summary}  [{finding.code}]", width)
        for head, body in (
            ("on", ", ".join(finding.subjects)),
            ("evidence", finding.evidence),
            ("remedy", finding.remedy),
        ):
            if body:
                lines += _wrapped(f"   {head + ':':10}", body, width)
        lines.append("")
    return printable_lines("\n".join(lines[:-1]) + "\n")


def _wrapped(head: str, body: str, width: int) -> list[str]:
    return textwrap.wrap(
        head + body,
        max(width, 40),
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
