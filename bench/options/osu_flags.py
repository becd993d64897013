"""Options of OSU's tests, as options of Busbar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# OSU Micro-Benchmarks 7.5: util/osu_util_options.h. Empty: what Busbar does by itself.
_OPTIONS: Mapping[tuple[str, ...], str] = {
    ("-i", "--iterations"): "-n",
    ("-x", "--warmup"): "-w",
    ("-W", "--window-size"): "-W",
    ("-c", "--validation"): "",
    ("-f", "--full"): "-I",
}
_WITHOUT_VALUE = ("-I", "")
_SIZES = ("-m", "--message-size")


def translated(words: Sequence[str], least: int) -> tuple[list[str], list[str]]:
    """The words of Busbar for those of an OSU test, and the words that have none.

    ``least``: the test's smallest size in bytes, if ``-m`` names only the largest. A value may
    follow its option, or be part of it: ``-i100``, ``--iterations=100``.
    """
    names = {name: own for flags, own in _OPTIONS.items() for name in flags}
    names |= dict.fromkeys(_SIZES, "-m")
    mine, left = list[str](), list[str]()
    rest = [part for word in words for part in _parts(word)]
    while rest:
        name = rest.pop(0)
        own = names.get(name)
        if own in _WITHOUT_VALUE:
            mine += filter(None, [own])
        elif own is None or not rest:
            left.append(name)
        elif own == "-m":
            low, colon, high = rest.pop(0).partition(":")
            mine += ["-b", low if colon else str(least), "-e", high or low]
        else:
            mine += [own, rest.pop(0)]
    return mine, left


def _parts(word: str) -> list[str]:
    """An option and its value, if both are in one word; else the word."""
    name, equals, value = word.partition("=")
    if name.startswith("--") and equals:
        return [name, value]
    if word[:1] == "-" and word[1:2] not in ("", "-") and len(word) > 2:
        return [word[:2], word[2:]]
    return [word]
