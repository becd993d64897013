"""An MSCCL algorithm as its XML states it: gpus, their threadblocks, their steps.

The names are the format's own. A step is what the runtime calls a transfer; what its type does is
one row of `OPERATIONS`, so that no reader of steps needs a chain of comparisons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

# The letters of the buffers: input, output, scratch.
BUFFERS = ("i", "o", "s")

PROTOCOLS = ("Simple", "LL", "LL128")


class Operation(NamedTuple):
    """The effect of a type: receive a message, read ``src``, send the value, write ``dst``.

    The value is the message, or ``src``, or with both their sum. ``adds``: ``dst`` gains it.
    """

    receives: bool = False
    reads: bool = False
    sends: bool = False
    writes: bool = False
    adds: bool = False


# ``ra`` adds residuals that a caller gives the runtime beside its buffers; the proof refuses it.
OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "s": Operation(reads=True, sends=True),
        "r": Operation(receives=True, writes=True),
        "rcs": Operation(receives=True, sends=True, writes=True),
        "rrs": Operation(receives=True, reads=True, sends=True),
        "rrc": Operation(receives=True, reads=True, writes=True),
        "rrcs": Operation(receives=True, reads=True, sends=True, writes=True),
        "cpy": Operation(reads=True, writes=True),
        "re": Operation(reads=True, writes=True, adds=True),
        "ra": Operation(reads=True, writes=True, adds=True),
        "nop": Operation(),
    }
)


class ThreadblockStep(NamedTuple):
    """One step of a threadblock; ``depid`` is -1 where it waits for no other threadblock."""

    s: int
    type: str
    srcbuf: str
    srcoff: int
    dstbuf: str
    dstoff: int
    cnt: int
    depid: int = -1
    deps: int = -1
    hasdep: int = 0

    @property
    def operation(self) -> Operation:
        """The effect of the step's type."""
        return OPERATIONS[self.type]


@dataclass(frozen=True)
class ThreadBlock:
    """Steps in strict order; ``send`` and ``recv`` are the peers on channel ``chan``, or -1."""

    id: int
    send: int
    recv: int
    chan: int
    steps: tuple[ThreadblockStep, ...]


@dataclass(frozen=True)
class Gpu:
    """One gpu's threadblocks and the chunks of its buffers, 0 where the file does not use one."""

    id: int
    i_chunks: int
    o_chunks: int
    s_chunks: int
    threadblocks: tuple[ThreadBlock, ...]

    def declared(self, buffer: str) -> int:
        """Chunks that the file says a buffer has."""
        return {"i": self.i_chunks, "o": self.o_chunks, "s": self.s_chunks}[buffer]


@dataclass(frozen=True)
class Algorithm:
    """A whole file; ``gpus`` are in the order of their ids, which are 0 to ngpus−1.

    ``inplace`` and ``outofplace`` say where it may run. ``root`` is ours: the format does not
    state one, and the runtime ignores attributes that it does not know.
    """

    name: str
    proto: str
    nchannels: int
    nchunksperloop: int
    coll: str
    inplace: bool
    outofplace: bool
    gpus: tuple[Gpu, ...]
    min_bytes: int = 0
    max_bytes: int = 0
    root: int = 0

    @property
    def ngpus(self) -> int:
        """Gpus that take part."""
        return len(self.gpus)

    def placements(self) -> tuple[bool, ...]:
        """The placements that the file declares, in place being True."""
        return (False,) * self.outofplace + (True,) * self.inplace

    def steps(self) -> Iterator[tuple[Gpu, ThreadBlock, ThreadblockStep]]:
        """Every step with where it is."""
        for gpu in self.gpus:
            for tb in gpu.threadblocks:
                for step in tb.steps:
                    yield gpu, tb, step
