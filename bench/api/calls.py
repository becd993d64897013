"""Calls from Python: algorithms that are functions, and errors that name options as Python does."""

from __future__ import annotations

import inspect
import re
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import SupportsIndex

from bench.api.keywords import Algorithm, Collective, DataTypes
from bench.api.public import public
from busbar.arguments import each
from busbar.errors import BusbarError, ScheduleError, Unsupported, rewording
from collectives.formats import own
from collectives.formats.convert import proven
from collectives.schedule.catalogue import algorithms, spec
from collectives.schedule.layout import Layout
from collectives.schedule.passes import named
from collectives.schedule.place import place
from collectives.schedule.schedule import Schedule

#: Names of parameters, where the command's option has another name.
RENAMED: Mapping[str, str] = {"algorithm": "algorithms", "datatype": "dtype"}
_FLAGS = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*(?:/--?[A-Za-z][\w-]*)*")
# Command lines of other programs, and of ours, have options of their own.
_COMMANDS = re.compile(r"((?:\S*python\S* -m )?\bpip (?:un)?install [^;]*|\b(?:mpirun|srun) [^;]*)")
_MEANT = re.compile(r"(; did you mean )(\w+)")
_PAGE = "docs/add-an-algorithm.md"
# Errors about a value that do not name the option, by their beginning.
_UNNAMED = (
    (re.compile(r"(?:\w+: )?no algorithm '"), "algorithms"),
    (re.compile("no data type '"), "dtype"),
    (re.compile("no operation '"), "op"),
    (
        re.compile(
            r"(?:'[^']*' is no (?:size|whole number of bytes)|\S+: (?:sizes are|a size cannot))"
        ),
        "sizes",
    ),
)


def python_names(
    parser: ArgumentParser | None = None,
    renamed: Mapping[str, str] = RENAMED,
    values: Iterable[object] = (),
) -> AbstractContextManager[None]:
    """A context in which messages of errors have keywords (``minbytes``) in place of flags.

    ``parser``: has the flags; without one, keywords are flags without dashes. ``values``:
    those of the call, which stay as they are.
    """

    def change(text: str) -> str:
        kept = re.compile(f"({'|'.join(map(re.escape, _with_flags(values))) or '(?!)'})")
        text = between(kept, text, lambda part: in_python(part, parser, renamed))
        text = _MEANT.sub(lambda match: match[1] + renamed.get(match[2], match[2]), text)
        keyword = next((name for begin, name in _UNNAMED if begin.match(text)), "")
        return f"{keyword}: {text}" if keyword else text

    return rewording(change)


def _with_flags(values: Iterable[object]) -> list[str]:
    """The texts in values that a message may quote and that have what looks like a flag."""
    texts: set[str] = set()
    for value in values:
        for text in map(str, (*each(value), value)):
            texts |= {text, repr(text), str(Path(text).parent)}
    return sorted(filter(_FLAGS.search, texts), key=len, reverse=True)


def in_python(
    text: str, parser: ArgumentParser | None = None, renamed: Mapping[str, str] = RENAMED
) -> str:
    """A text with keywords in place of flags; arguments: see `python_names`."""
    if parser is None:
        return re.sub(r"(?<![\w-])--(?=[a-z])", "", text)
    names = {}
    for flag, action in parser._option_string_actions.items():
        long = [one for one in action.option_strings if one.startswith("--")]
        name = (long or [flag])[-1].lstrip("-").replace("-", "_")
        names[flag] = renamed.get(name, name)
    text = re.sub(r"; see [^;]* --help$", "", text).removeprefix("argument ")

    def name_of(match: re.Match[str]) -> str:
        return "/".join(dict.fromkeys(names.get(flag, flag) for flag in match[0].split("/")))

    return between(_COMMANDS, text, lambda part: _FLAGS.sub(name_of, part))


def between(kept: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    """A text whose parts between matches of ``kept`` are changed. ``kept`` has one group."""
    parts = kept.split(text)
    return "".join(part if at % 2 else change(part) for at, part in enumerate(parts))


def listed(chosen: Algorithm | Iterable[Algorithm]) -> list[Algorithm]:
    """The algorithms of a call, each once. Raises Unsupported for other types, and for none."""
    if isinstance(chosen, str) or callable(chosen):
        return [chosen]
    if not isinstance(chosen, Iterable):
        raise Unsupported(f"algorithms: names and functions are possible, not {chosen!r}")
    items = list(chosen)
    if not items:
        raise Unsupported("algorithms has no items")
    return [one for at, one in enumerate(items) if one not in items[:at]]


def type_names(chosen: DataTypes) -> list[str]:
    """The names of element types. Raises Unsupported for Python's own, such as ``float``."""
    names = []
    for one in each(chosen):
        if isinstance(one, type) and one.__module__ == "builtins":
            raise Unsupported(
                f"dtype: Python's {one.__name__} has no size; write a name, such as 'float' or"
                " 'double', or numpy's type"
            )
        names.append(one.__name__ if isinstance(one, type) else str(one))
    return names


def function_name(function: Callable[..., Schedule], collective: str) -> str:
    """The name of an algorithm that is a function, for its rows.

    Raises Unsupported for a function without one, and for the name of an algorithm of Busbar.
    """
    name = _name_of(function)
    if not re.fullmatch(r"\w+", name, re.ASCII):
        raise Unsupported(f"algorithms: {name or function!r} is no name for rows; use def NAME(n)")
    if name in (*algorithms(collective), "library", "worksharing", "nonblocking", "auto", "all"):
        raise Unsupported(
            f"algorithms: a function is called {name}, as is an algorithm of Busbar; rename it"
        )
    return name


def _name_of(function: Callable[..., Schedule]) -> str:
    inner = function.func if isinstance(function, partial) else function
    return str(getattr(function, "__name__", getattr(inner, "__name__", "")))


def build(
    function: Callable[..., Schedule],
    collective: str,
    ranks: int,
    root: int,
    of: str = "algorithms",
) -> Schedule:
    """The placed schedule that a function makes, proven in every placement of the collective.

    ``of``: the beginning of messages. Raises ScheduleError if it is wrong or the function fails,
    and Unsupported if the function makes none. An error of `busbar.errors` from the function itself
    is raised as it is.
    """
    name, what = _name_of(function), spec(str(collective))
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # a function in C
        raise Unsupported(f"{of}: {name} is no function in Python ({_PAGE})") from None
    more = {"root": root} if "root" in parameters else {}
    try:
        inspect.signature(function).bind(ranks, **more)
    except TypeError as error:
        raise Unsupported(
            f"{of}: {name} cannot be called as {name}({ranks}): {error}; give its parameters"
            f" values with functools.partial ({_PAGE})"
        ) from None
    try:
        schedule = function(ranks, **more)
    except BusbarError:
        raise
    except Exception as error:
        raise ScheduleError(
            f"{of}: {name}({ranks}) raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(schedule, Schedule):
        kind = type(schedule).__name__
        raise Unsupported(f"{of}: {name}({ranks}) returned {kind}, not a Schedule ({_PAGE})")
    if schedule.nranks != ranks:
        raise Unsupported(f"{of}: {name}({ranks}) is a schedule for {schedule.nranks} ranks")
    try:
        placed = place(named(schedule, name), what, root)
        return proven(placed, Layout.of(placed, what, root))
    except ScheduleError as error:
        raise ScheduleError(f"{of}: {name}({ranks}) is wrong: {error}") from None


@public
def verify(
    function: Callable[..., Schedule],
    collective: Collective = "allreduce",
    *,
    ranks: int | Sequence[int],
    root: int = 0,
) -> None:
    """Prove an algorithm that is a function, for each number of ranks, out of place and in place.

    Raises ScheduleError, which names step, rank and chunk, if a schedule is wrong or the function
    fails; Unsupported if it makes none, or for an unknown collective.
    """
    if not callable(function):
        raise Unsupported(f"busbar.verify: a function of a rank count is proven, not {function!r}")
    counts = list(each(ranks))
    if not counts or not all(isinstance(n, SupportsIndex) and int(n) > 0 for n in counts):
        raise Unsupported(
            f"busbar.verify: ranks is a number of ranks from 1, or several: {ranks!r}"
        )
    for count in map(int, counts):
        if not 0 <= root < count:
            raise Unsupported(
                f"busbar.verify: root {root} is not a rank; there are {count}, from 0"
            )
        build(function, collective, count, root, "busbar.verify")


def as_words(
    chosen: Sequence[Algorithm], collective: str, ranks: int, root: int, folder: Path
) -> list[str]:
    """The algorithms as words of ``-A``. Schedules of functions are written to files in a folder.

    Raises as `build` does, and Unsupported if two functions have one name.
    """
    words: list[str] = []
    written: set[str] = set()
    for one in chosen:
        if not callable(one):
            words.append(str(one))
            continue
        name = function_name(one, collective)
        if name in written:
            raise Unsupported(f"algorithms: two functions are called {name}; set their __name__")
        written.add(name)
        path = folder / f"{name}-{ranks}.json"
        path.write_bytes(own.write(build(one, collective, ranks, root), spec(collective), root))
        words.append(f"{name}={path}")
    return words
