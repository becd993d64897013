"""The rules as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.run.tuning_file import ANY, Rules
from busbar.units import format_bytes


def table(rules: Sequence[Rules]) -> list[str]:
    """A block of lines for each set of rules, at most 80 columns wide with usual names."""
    return [line for one in rules for line in _block(one)]


def _block(rules: Rules) -> Iterator[str]:
    where = "all transports" if rules.transport == ANY else rules.transport
    yield (
        f"# {rules.collective}, {rules.ranks} ranks on {rules.nodes}"
        f" node{'s' * (rules.nodes != 1)}, {rules.dtype}, {where}: {rules.source} from"
        f" {format_bytes(rules.low)} to {format_bytes(rules.high)}"
    )
    if rules.oversubscribed:
        yield "# oversubscribed: ranks shared cores; not for runs in which each has one"
    yield f"# {rules.default} stays unless something is faster by more than {rules.noise:.0%}"
    yield f"# {'from':>10}  {'algorithm':<34} {'time':>10}  {'against default':>15}"
    for one in rules.ranges:
        gain = ""
        if one.default_seconds is not None and one.choice != rules.default:
            gain = f"{one.default_seconds / one.seconds:.2f} x"
        yield (
            f"  {format_bytes(one.low):>10}  {one.choice!s:<34} {one.seconds * 1e6:>8.1f}us "
            f" {gain:>15}"
        )
    yield ""
