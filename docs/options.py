"""Writes docs/options.md from the classes that declare the options: ``make docs``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from bench.cli.main import names
from bench.options.options import PT2PT, make_parser
from bench.steps.options import StepOptions
from busbar.cli import COMMANDS
from busbar.commands import Command, CommandTable
from busbar.process import load

PAGE = Path(__file__).with_suffix(".md")
HEAD = """# Options of every command

Made by `make docs` from the classes that declare the options; `--help` of a command shows the same.
"""


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command as it is written behind ``busbar``, with its parser."""
    for name in (*names(), PT2PT):
        yield name, make_parser(name)
    for name, (_, target) in COMMANDS.items():
        found = StepOptions if name == "step" else load(target)
        if isinstance(found, CommandTable):
            for one in ("", *found.entries) if found.default else found.entries:
                yield f"{name} {one}".strip(), found.load(one).make_parser()
        elif issubclass(found, Command) or name == "step":
            yield name, found.make_parser()


def rows(parser: argparse.ArgumentParser) -> dict[str, str]:
    """The help of each option, by its names and value."""
    formatter = argparse.HelpFormatter("")
    return {
        formatter._format_action_invocation(action): formatter._expand_help(action)
        for action in parser._actions
        if action.help not in (None, argparse.SUPPRESS) and action.dest not in ("help", "version")
    }


def page() -> str:
    """The page: what all collectives share once, then what each command has beside it."""
    every = {name: rows(parser) for name, parser in parsers()}
    shared = dict.fromkeys(every["allreduce"])
    lines = [HEAD]
    for name, options in every.items():
        if name in names():
            own = {shown: text for shown, text in options.items() if shown not in shared}
            options = own if name != "allreduce" else options
        if not options:
            continue
        title = "all collectives" if name == "allreduce" else f"busbar {name}"
        lines += [f"## {title}\n", "| option | |", "|---|---|"]
        for shown, text in options.items():
            cells = (cell.replace("|", "\\|").replace("<", "&lt;") for cell in (f"`{shown}`", text))
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
