"""Findings for people: text, evidence and remedy."""

from __future__ import annotations

from collections.abc import Sequence

from busbar.terminal import make_lines_printable, wrap_line
from topology.diagnostics.finding import Finding
from topology.model.topology import Topology


def text(topology: Topology, findings: Sequence[Finding], width: int = 80) -> str:
    """Return the findings in their order, wrapped; or one line that names what was checked."""
    sources = ", ".join(topology.sources) or "no source"
    if not findings:
        what = f"{len(topology.gpus)} GPU(s), {len(topology.nics)} NIC(s)"
        lost = "".join(f"; {gap.subject}: {gap.reason}" for gap in topology.lost)
        return make_lines_printable(f"no findings: {what}, as far as {sources} can tell{lost}\n")
    lines = [f"{len(findings)} finding(s), worst first, from {sources}", ""]
    for place, finding in enumerate(findings, 1):
        lines += wrap_line(
            f"{place}. {finding.summary}  [{finding.code}]", width, len(f"{place}. ")
        )
        for head, body in (
            ("on", ", ".join(finding.subjects)),
            ("evidence", finding.evidence),
            ("remedy", finding.remedy),
        ):
            if body:
                lines += wrap_line(f"   {head + ':':10}{body}", width, 13)
        lines.append("")
    return make_lines_printable("\n".join(lines[:-1]) + "\n")
