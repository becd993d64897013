"""Our commands in this process: what `busbar` and ``python -m`` run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from busbar.cli import main


def command(*first: str) -> Callable[[Sequence[str]], int]:
    """The function that runs a command with further words and gives its exit status."""
    return lambda words: main([*first, *words])


collectives_main = command("collectives")
reports_main = command("reports")
topology_main = command("topology")
