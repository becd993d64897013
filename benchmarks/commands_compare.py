"""Compare the commands and options of two installations by their ``--help``.

    python benchmarks/commands_compare.py OLD/bin/busbar NEW/bin/busbar

Prints the commands and options that only one of them has. The exit status is 1 if the first has one
that the second has not.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

_COMMAND = re.compile(r"^ {2,4}([a-z][a-z0-9_]*)(?: {2,}|$)", re.MULTILINE)
_OPTION = re.compile(r"^ {2}(-[^\n]*?)(?: {2,}|$)", re.MULTILINE)
#: A command that no ``--help`` lists as such.
_UNLISTED = ("cluster", "law")
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")


def main(old: str, new: str) -> int:
    """Print what differs; returns the exit status."""
    before, after = dict(_commands(old)), dict(_commands(new))
    print(f"commands: {len(before)} before, {len(after)} after")
    counts = [sum(map(len, found.values())) for found in (before, after)]
    print(f"options:  {counts[0]} before, {counts[1]} after")
    lost = 0
    for command in sorted(before.keys() | after.keys()):
        if command not in after:
            print(f"only before: {command}")
            lost += 1
            continue
        if command not in before:
            print(f"only after:  {command}")
            continue
        gone, more = before[command] - after[command], after[command] - before[command]
        lost += len(gone)
        for what, flags in (("only before", gone), ("only after ", more)):
            if flags:
                print(f"{what}: {command}: {', '.join(sorted(flags))}")
    return 1 if lost else 0


def _commands(busbar: str) -> Iterator[tuple[str, set[str]]]:
    """Each command with its options, subcommands included."""
    for name in _COMMAND.findall(_help(busbar)):
        text = _help(busbar, name)
        yield name, _options(text)
        for below in re.findall(r"^ {4}([a-z][a-z0-9_]*)(?: {2,}|$)", text, re.MULTILINE):
            yield f"{name} {below}", _options(_help(busbar, name, below))
    yield " ".join(_UNLISTED), _options(_help(busbar, *_UNLISTED))


def _options(text: str) -> set[str]:
    return {flag for line in _OPTION.findall(text) for flag in _FLAG.findall(line)}


def _help(busbar: str, *words: str) -> str:
    command = [busbar, *words, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2]))
