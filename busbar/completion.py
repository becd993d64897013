"""Shell completion by argcomplete, which asks a command's parser for the possible next words.

``eval "$(register-python-argcomplete busbar)"`` in the shell's start-up file turns it on.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence

# Set by argcomplete's shell function; and set here before argcomplete runs and calls our parsers.
_ASKED, _AT_WORK = "_ARGCOMPLETE", "_BUSBAR_COMPLETES"
_DRAWN = (".html", ".pdf", ".png", ".svg")


def words() -> list[str] | None:
    """The complete words after the command's name; None when no shell asks for completion."""
    if _ASKED not in os.environ or _AT_WORK in os.environ:
        return None
    try:
        from argcomplete.lexers import split_line
    except ImportError:
        return None
    line, point = os.environ.get("COMP_LINE", ""), os.environ.get("COMP_POINT", "")
    shell_words: list[str] = split_line(line, int(point) if point.isdigit() else len(line))[3]
    return shell_words[1:]


def completing(
    parser: argparse.ArgumentParser, args: Sequence[str], commands: Iterable[str] = ()
) -> None:
    """Answer a shell that asks for completion, then exit; otherwise do nothing.

    ``args``: the words for this parser; argcomplete must know how many words come before them.
    ``commands``: the possible first words, for a parser of commands.
    """
    known = words()
    if known is None:
        return
    from argcomplete import autocomplete

    if commands:
        parser.add_argument("command", nargs="?", choices=sorted(commands))
    os.environ |= {_ASKED: str(1 + len(known) - len(args)), _AT_WORK: "1"}
    autocomplete(parser, always_complete_options="long")


def offer(action: object, names: Iterable[str] | Callable[[str], Iterable[str]]) -> None:
    """Let a shell complete an option's value, which is one or more of ``names`` with commas.

    ``names`` may also be a function from the beginning of the value to its possible values.
    """

    def completer(prefix: str, **_: object) -> list[str]:
        return list(names(prefix)) if callable(names) else behind_commas(prefix, names)

    vars(action)["completer"] = completer  # the attribute that argcomplete reads


def behind_commas(prefix: str, names: Iterable[str]) -> list[str]:
    """Each name in place of what follows the last comma of ``prefix``."""
    before, comma, _word = prefix.rpartition(",")
    return [f"{before}{comma}{name}" for name in names]


def run_files(prefix: str) -> list[str]:
    """The files that begin like this and may hold rows: all but figures and pages."""
    from argcomplete.completers import FilesCompleter

    return [name for name in FilesCompleter()(prefix) if not name.endswith(_DRAWN)]
