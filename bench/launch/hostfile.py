"""Names of hosts, from a host file or a list, as MPI's launchers and Slurm write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from busbar.errors import Unsupported
from busbar.files import read_text

#: Most hosts of a list. Decisions of ``busbar qualify`` were simulated up to a quarter of it.
MOST_HOSTS = 1 << 16
_MOST_BYTES, _MOST_RANGES = 1 << 24, 8
_RANGE = "[0-9]{1,9}(?:-[0-9]{1,9})?"
_RANGES = re.compile(rf"([^\[\]]*)\[({_RANGE}(?:,{_RANGE})*)\](.*)")


def from_file(path: Path) -> list[tuple[str, str]]:
    """The hosts of a file, each once, with its first place, such as ``hosts, line 3``.

    A line has a host or a list (see `from_words`). ``host5``, ``host5:8`` and ``host5 slots=8`` are
    the same host; ``#`` begins a comment. Raises Unsupported if the file cannot be read or has no
    host, for other words behind a host, and for an IPv6 address, whose colons are no slots.
    """
    hosts = dict[str, str]()
    for (names, *options), where in lines(path):
        for word in options:
            if not re.fullmatch(r"[\w-]+=.*", word):
                raise Unsupported(
                    f"{where}: {word[:60]!r} is no option such as slots=2; write a host a line, or"
                    " a,b,c"
                )
        for name in _listed(names):
            if name.count(":") > 1:
                raise Unsupported(f"{where}: {name[:60]}: give an IPv6 host a name")
            for one in expand(name.partition(":")[0], where):
                hosts.setdefault(one, where)
    if not hosts:
        raise Unsupported(f"{path}: no hosts in this file")
    return [*hosts.items()]


def states_slots(path: Path) -> str:
    """How a host file says how many ranks a host takes; empty if it names each host once, alone.

    ``HOST:RANKS`` (MPICH), ``slots=`` (Open MPI), or a host's name in several lines. Raises
    Unsupported if the file cannot be read.
    """
    names, options = list[str](), list[str]()
    for (listed, *more), _ in lines(path):
        names += _listed(listed)
        options += more
    if any(word.startswith("slots=") for word in options):
        return "slots="
    if any(":" in name for name in names):
        return "HOST:RANKS"
    return "lines" if len({*names}) < len(names) else ""


def lines(path: Path) -> Iterator[tuple[list[str], str]]:
    """The words of each line of a file that has any, with their place. Raises Unsupported.

    Blanks beside commas and equals signs separate no words.
    """
    for number, line in enumerate(read_text(path, _MOST_BYTES).splitlines(), 1):
        text = " ".join(line.partition("#")[0].split())
        if words := re.sub(" ?([,=]) ?", r"\1", text).split():
            yield words, f"{path}, line {number}"


def from_words(text: str) -> list[tuple[str, str]]:
    """The hosts in ``a,b,c`` or ``node[001-128,200]``, each with its place; see `expand`.

    Raises Unsupported for an empty name, which may be that of a variable that is not set.
    """
    if text.strip() and not all(
        name.strip() for name in re.sub(r"\[[^\]]*\]?", "x", text).split(",")
    ):
        raise Unsupported(f"--hosts: {text[:60]!r} has an empty name beside a comma")
    return [(name, "--hosts") for word in _listed(text) for name in expand(word, "--hosts")]


def _listed(text: str) -> list[str]:
    """The words between commas, of which those in brackets do not count."""
    return [word.strip() for word in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", text)]


def expand(word: str, where: str) -> list[str]:
    """The hosts of a word in Slurm's form: ``node[001-128,200]`` has 129.

    Raises Unsupported for more than `MOST_HOSTS`. Brackets without numbers stay as they are.
    """
    if word.count("[") > _MOST_RANGES:
        raise Unsupported(f"{where}: {word[:60]}: a name has at most {_MOST_RANGES} ranges")
    match = _RANGES.fullmatch(word)
    head, ranges, tail = match.groups() if match else (word, "", "")
    ends = [part.partition("-") for part in ranges.split(",") if part]
    spans = [(len(low), int(low), int(high or low)) for low, _, high in ends]
    if not spans or any(first > last for _, first, last in spans):
        return [word] if word else []
    tails = expand(tail, where) or [""]
    count = sum(last - first + 1 for _, first, last in spans) * len(tails)
    if count > MOST_HOSTS:
        raise Unsupported(f"{where}: {count:,} hosts; a list has at most {MOST_HOSTS:,}")
    return [
        f"{head}{number:0{width}}{end}"
        for width, first, last in spans
        for number in range(first, last + 1)
        for end in tails
    ]
