"""``busbar doctor``: what is here, what is missing or in the way, and what to do about it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from textwrap import wrap

from bench.cli.checks import CHECKS, Check, Standing
from busbar.commands import Command
from busbar.status import FOUND, GOOD
from busbar.terminal import make_printable


class DoctorCommand(Command):
    """See what is installed, what belongs together, and what a run would take.

    Exit status 1 where something is in the way.
    """

    EPILOG = "ok: works; --: not installed, and perhaps not needed; !!: a run would fail."

    def run(self) -> int:
        """Print what was found; 0, or 1 where something is in the way."""
        width = shutil.get_terminal_size().columns
        results = []
        for check in CHECKS:
            results.append(check())
            for line in _lines(results[-1], width):
                print(make_printable(line))
        return FOUND if any(one.state is Standing.WRONG for one in results) else GOOD


def _lines(check: Check, width: int) -> Iterator[str]:
    """The finding, and below it the remedy on one line, so that it can be copied."""
    head = f"{check.state.value}  {check.name:<12}  "
    room = max(40, width - len(head))
    first, *more = wrap(check.text, room, break_long_words=False, break_on_hyphens=False) or [""]
    yield head + first
    yield from (" " * len(head) + line for line in more)
    if check.remedy:
        yield f"{' ' * len(head)}-> {check.remedy}"
