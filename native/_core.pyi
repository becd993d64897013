"""What the extension (`native/src/module.cpp`) offers to Python; a test compares both.

Addresses are integers. Plans are described by tables: structured arrays of the rows declared here,
which `collectives.execution.shm.pass_plans` writes. Of what a row has several it says how many;
they are the next rows of their own table.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: What `native` expects.
INTERFACE: int
#: Bytes of a line.
LINE: int

#: A pass: whether anyone waits for it, its elements, its stage, how many places it writes and
#: reads, and how many passes it waits for.
TASK: np.dtype[np.void]
#: Where a pass reads or writes, and whose memory that is; ``fixed``: the same in every window,
#: ``stream``: by non-temporal stores.
PLACE: np.dtype[np.void]
#: A peer's task that is waited for (-1: that it has begun), and that task's stage.
WAIT: np.dtype[np.void]
#: Elements of a window, how many windows, the highest stage, and who waits for everyone.
ROUNDS: np.dtype[np.void]
#: How many copies and messages a step of mailboxes has, in the order in which they are done.
EXCHANGE: np.dtype[np.void]
#: Inside a rank: ``target`` becomes ``source``, or gains it.
COPY: np.dtype[np.void]
#: A message through a mailbox of two halves of ``stride`` bytes; ``other``: what it is joined with.
EAGER_MESSAGE: np.dtype[np.void]
#: A call of MPI, or work inside a rank: its shape's number, its function (0: work inside a rank),
#: three addresses (source, other source, target), elements sent and received (bytes of a copy, the
#: displacement of a put; of a word in shared memory the step and how many there are), the root or
#: two peers, and the handles of type and operation.
CALL: np.dtype[np.void]
#: Calls of MPI that have the same arguments, by their numbers.
SHAPES: tuple[str, ...]

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

class CallFailed(Exception):
    """A call of MPI failed; its arguments are the code and the message's other rank, or -1."""

class Timed:
    """What is run and timed without the interpreter's lock."""

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
        """Run once; loads (or stores), peer, bytes, number of the pass, begin and end."""

class Calls(Timed):
    """Calls of MPI. Raises CallFailed."""

    def part(self, start: int, stop: int, /) -> None:
        """Make some of the calls."""

    def end(self) -> None:
        """End the iteration of which parts were made."""

    def test(self, index: int, /) -> bool:
        """Whether the request that a call waits for is complete."""

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
