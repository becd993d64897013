"""The interface of the extension (`native/src/module.cpp`); a test compares both.

Addresses are integers. Plans are described by tables: structured arrays with the row types below,
which `collectives.execution.shm.pass_plans` writes. If a row has several places, waits or messages,
it has only their count: they are the next rows of their own table.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Version of this interface; `native` checks it.
INTERFACE: int
#: Bytes of a line of control words (a pair of cache lines).
LINE: int

#: A pass: whether another rank waits for it, its elements, its stage, how many places it writes and
#: reads, and how many passes it waits for.
TASK: np.dtype[np.void]
#: Where a pass reads or writes, and which rank's memory that is; ``fixed``: the same bytes in every
#: window, ``stream``: non-temporal stores.
PLACE: np.dtype[np.void]
#: A wait for a peer: the number of its task (-1: its begin), and the stage of that task.
WAIT: np.dtype[np.void]
#: Elements of a window, how many windows, the highest stage, and who waits for all other ranks.
ROUNDS: np.dtype[np.void]
#: How many copies and messages a step of `eager` has, in the order in which they are done.
EXCHANGE: np.dtype[np.void]
#: Inside a rank: ``source`` is copied to ``target``, or reduced into it.
COPY: np.dtype[np.void]
#: A message through a mailbox of two halves of ``stride`` bytes; ``other``: operand to reduce with.
EAGER_MESSAGE: np.dtype[np.void]
#: A call of MPI, or work inside a rank: the number of its shape, its function (0: inside a rank),
#: three addresses (source, other source, target), elements sent and received (a copy: bytes; a put:
#: the displacement; a word in shared memory: the step and how many steps there are), the root or
#: two peers, and the handles of type and operation.
CALL: np.dtype[np.void]
#: Names of the shapes of calls, in the order of their numbers.
SHAPES: tuple[str, ...]

class PeerFailure(Exception):
    """Another rank is lost; the arguments are that rank and the number of the reason."""

class Mapping:
    """A shared mapping of a file, in huge pages if possible; ``fresh``: touch all pages now."""

    def __init__(self, fd: int, nbytes: int, fresh: bool) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Watch:
    """Waits for other ranks with a deadline, and notices when one of them has ended."""

    def __init__(
        self, rank: int, life: int, pids: Sequence[int], crowded: bool, deadline: float
    ) -> None: ...
    def leave(self) -> None:
        """Mark this rank as left: a rank that still waits for it ends with an error."""

class CallFailed(Exception):
    """A call of MPI failed; the arguments are the code and the other rank of the message, or -1."""

class Timed:
    """An operation that is run and timed without the interpreter's lock."""

    def run(self) -> None: ...
    def spans(
        self, n: int, at: Sequence[float] = (), loop: bool = False, slower: float = 0.0
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...
    def begun(self) -> int: ...
    def waiting(self) -> int: ...
    def barrier(self) -> None: ...

class Plan(Timed):
    """A collective over shared memory. Raises PeerFailure."""

    def traced(self) -> list[tuple[bool, int, int, int, float, float]]:
        """Run once; for each access: a load or a store, peer, bytes, number of pass, begin, end."""

class Calls(Timed):
    """Calls of MPI. Raises CallFailed."""

    def part(self, start: int, stop: int, /) -> None:
        """Make only the calls from ``start`` to ``stop``."""

    def end(self) -> None:
        """End the iteration whose calls were made with `part`."""

    def test(self, index: int, /) -> bool:
        """Whether the request that call ``index`` waits for is complete."""

def direct(
    watch: Watch,
    lines: int,
    type: int,
    op: int,
    rounds: NDArray[np.void],
    tasks: NDArray[np.void],
    places: NDArray[np.void],
    waits: NDArray[np.void],
    ntasks: Sequence[int],
    /,
) -> Plan: ...
def worksharing(
    watch: Watch,
    lines: int,
    type: int,
    op: int,
    tasks: NDArray[np.void],
    places: NDArray[np.void],
    ntasks: Sequence[int],
    /,
) -> Plan: ...
def eager(
    watch: Watch,
    lines: int,
    type: int,
    op: int,
    steps: NDArray[np.void],
    copies: NDArray[np.void],
    messages: NDArray[np.void],
    /,
) -> Plan: ...
def calls(
    list: NDArray[np.void],
    parts: Sequence[int],
    barrier: int,
    comm: int,
    wide: bool,
    watch: Watch | None,
    /,
) -> Calls: ...
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
def core_hz() -> float: ...
def isas() -> list[str]: ...
def plan_lines(size: int, /) -> int: ...
