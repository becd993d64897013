"""``python -m topology check``: findings about this machine's performance, worst first.

A rule is a function from a topology to findings. A rule whose facts are missing finds nothing.
"""

from __future__ import annotations

from topology.diagnostics.finding import Finding
from topology.diagnostics.gpu import GPU_RULES
from topology.diagnostics.links import LINK_RULES
from topology.diagnostics.peers import PEER_RULES
from topology.model.topology import Topology

__all__ = ["Finding", "check"]


def check(topology: Topology) -> tuple[Finding, ...]:
    """Return all findings in order of harm; the order is stable for equal harm."""
    rules = (*GPU_RULES, *LINK_RULES, *PEER_RULES, contradictions)
    found = [finding for rule in rules for finding in rule(topology)]
    return tuple(sorted(found, key=lambda f: (-f.harm, f.code, f.subjects)))


def contradictions(topology: Topology) -> list[Finding]:
    """Sources that cannot all be right: one of them is stale, or of another machine."""
    said = topology.contradictions()
    if not said:
        return []
    evidence = "; ".join(
        f"{c.subject} {c.name}: "
        + ", ".join(f"{source} says {value}" for source, value in c.said.items())
        for c in said
    )
    return [
        Finding(
            "sources-contradict",
            0.01,
            tuple(dict.fromkeys(c.subject for c in said)),
            f"sources disagree on {len(said)} statement(s)",
            evidence,
            "read all sources on this machine at one time; a link's speed may be lower while idle",
        )
    ]
