"""Completion of a shell's words by argcomplete, which asks a command's parser for what may follow.

``eval "$(register-python-argcomplete busbar)"`` in the shell's start-up file turns it on.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence

# Set by argcomplete's shell function, and by us once it is at work: it parses with our parsers.
_ASKED, _AT_WORK = "_ARGCOMPLETE", "_BUSBAR_COMPLETES"


def words() -> list[str] | None:
    """The whole words behind the command's name, up to the one to complete; None if nobody asks."""
    if _ASKED not in os.environ or _AT_WORK in os.environ:
        return None
    try:
        from argcomplete.lexers import split_line
    except ImportError:
        return None
    line, point = os.environ.get("COMP_LINE", ""), os.environ.get("COMP_POINT", "")
    found: list[str] = split_line(line, int(point) if point.isdigit() else len(line))[3]
    return found[1:]


def completing(
    parser: argparse.ArgumentParser, args: Sequence[str], commands: Iterable[str] = ()
) -> None:
    """Where a shell asks, say what may follow these words and leave; else do nothing.

    ``args``: those of the words that are this parser's, for argcomplete is told how many the doors
    before it have taken. ``commands``: what may stand first, where doors decide on that.
    """
    known = words()
    if known is None:
        return
    from argcomplete import autocomplete

    if commands:
        parser.add_argument("command", nargs="?", choices=sorted(commands))
    os.environ |= {_ASKED: str(1 + len(known) - len(args)), _AT_WORK: "1"}
    autocomplete(parser, always_complete_options="long")


def offer(action: object, names: Iterable[str]) -> None:
    """Let an option's value, names joined by commas, be completed by these names."""

    def completer(prefix: str, **_: object) -> list[str]:
        before, comma, _word = prefix.rpartition(",")
        return [f"{before}{comma}{name}" for name in names]

    vars(action)["completer"] = completer  # where argcomplete looks for it
