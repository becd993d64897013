"""What the extension (`native/src/module.cpp`) offers to Python; a test compares both.

Addresses are integers. ``numbers`` describe a plan; `collectives.execution.shm.fast` writes them.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Kinds of `sweep`, by their numbers.
SWEEPS: tuple[str, ...]
#: Bytes of a line, and of a word in one.
INTERFACE: int
LINE: int
WORD: int

class PeerFailure(Exception):
    """Another rank is lost; its arguments are the rank and the reason's number."""

class Mapping:
    """A shared mapping of a file, in huge pages where granted; ``fresh``: touch its pages."""

    def __init__(self, fd: int, nbytes: int, fresh: bool) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Watch:
    """How long a rank waits for the others, and how it notices that one is gone."""

    def __init__(
        self, rank: int, life: int, pids: Sequence[int], crowded: bool, deadline: float
    ) -> None: ...

class Plan:
    """A collective that fires without the interpreter's lock. Raises PeerFailure."""

    def fire(self) -> None: ...
    def spans(self, n: int, starts: Sequence[float]) -> tuple[list[float], list[float]]: ...
    def each(self, n: int) -> list[float]: ...
    def loop(self, n: int) -> float: ...
    def barrier(self) -> None: ...

def direct(
    watch: Watch,
    lines: int,
    type: int,
    op: int,
    numbers: NDArray[np.int64],
    ntasks: Sequence[int],
    window: int,
    nwindows: int,
    depth: int,
    gates: bool,
    enter_all: bool,
    exit_all: bool,
    /,
) -> Plan: ...
def worksharing(
    watch: Watch, lines: int, type: int, op: int, numbers: NDArray[np.int64], /
) -> Plan: ...
def eager(watch: Watch, lines: int, type: int, op: int, numbers: NDArray[np.int64], /) -> Plan: ...
def sweep(
    watch: Watch, lines: int, kind: int, source: int, target: int, nbytes: int, stream: bool, /
) -> Plan: ...
def reduce(
    type: int,
    op: int,
    targets: Sequence[int],
    sources: Sequence[int],
    count: int,
    stream: bool,
    isa: str,
    /,
) -> None: ...
def isa() -> str: ...
def isas() -> list[str]: ...
def plan_lines(size: int, /) -> int: ...
