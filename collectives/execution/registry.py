"""The transports that there are: every folder here that has an ``entry`` says what it is and takes.

Entries are light: nothing of a transport is loaded before it is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules

from collectives import execution


@dataclass(frozen=True)
class Option:
    """An option of a command line that belongs to one transport. ``default`` None: left open."""

    flag: str
    choices: tuple[str, ...]
    default: str | None
    help: str


@dataclass(frozen=True)
class Entry:
    """What is known of a transport without loading it.

    ``worlds``: whose ranks it joins, by `World.name`. ``on_gpu``: it moves the memory of GPUs;
    ``on_gpu_with``: it does with these options only.
    """

    name: str
    worlds: tuple[str, ...]
    on_gpu: bool = False
    on_gpu_with: str = ""
    options: tuple[Option, ...] = ()


def transports() -> Mapping[str, Entry]:
    """Every transport by the name that ``--transport`` knows."""
    found: dict[str, Entry] = {}
    for folder in iter_modules(execution.__path__):
        place = f"{execution.__name__}.{folder.name}"
        if folder.ispkg and "entry" in _names(place):
            entry: Entry = import_module(f"{place}.entry").ENTRY
            found[entry.name] = entry
    return found


def _names(place: str) -> set[str]:
    return {module.name for module in iter_modules(import_module(place).__path__)}
