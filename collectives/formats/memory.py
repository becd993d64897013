"""The locations of an MSCCL algorithm's chunks: its collective's layout and every gpu's memory."""

from __future__ import annotations

from busbar.errors import ScheduleError, Unsupported
from collectives.formats.graph import Transfer
from collectives.formats.msccl import BUFFERS, Algorithm
from collectives.schedule.catalogue import spec
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer

#: The format's collectives; it also writes reduce_scatter as one word.
COLLECTIVES = (
    "allgather", "allreduce", "alltoall", "broadcast", "gather", "reduce", "reduce_scatter",
    "scatter",
)  # fmt: skip
# Where nchunksperloop counts the chunks of one rank's part or buffer, not of the whole vector.
_PER_RANK = ("alltoall", "gather", "scatter")


def layout(algorithm: Algorithm) -> Layout:
    """The layout of an algorithm's collective.

    Raises Unsupported for a collective whose result nobody states (custom), ScheduleError for
    chunks that do not fall on the ranks' parts.
    """
    name = "reduce_scatter" if algorithm.coll == "reducescatter" else algorithm.coll
    if name not in COLLECTIVES:
        known = ", ".join(COLLECTIVES)
        raise Unsupported(f"coll={name[:40]!r} says nothing of the result; known are: {known}")
    what = spec(name)
    scale = algorithm.ngpus if what.name in _PER_RANK else 1
    return Layout(what, algorithm.ngpus, algorithm.nchunksperloop * scale, algorithm.root)


def nchunksperloop(where: Layout) -> int:
    """The format's names for the chunks of a layout: the inverse of `layout`."""
    return where.nchunks // (where.nranks if where.spec.name in _PER_RANK else 1)


class ChunkMemory:
    """Every chunk of every gpu's buffers as a numbered slot; in place ``i`` and ``o`` share.

    ``holds(gpu, buffer)`` are the vector chunks that the slots of ``i`` and ``o`` stand for.
    """

    def __init__(self, algorithm: Algorithm, where: Layout, in_place: bool) -> None:
        self.algorithm = algorithm
        self.layout = where
        self.in_place = in_place
        self.at: dict[tuple[int, str], list[int]] = {}
        self.size = 0
        for gpu in algorithm.gpus:
            out = self._fresh(len(self.holds(gpu.id, "o")))
            position = dict(zip(self.holds(gpu.id, "o"), out, strict=True)) if in_place else {}
            taken = [position.get(c, -1) for c in self.holds(gpu.id, "i")]
            self.at[gpu.id, "o"] = out
            self.at[gpu.id, "i"] = [a if a >= 0 else self._fresh(1)[0] for a in taken]
            self.at[gpu.id, "s"] = self._fresh(gpu.s_chunks)

    def _fresh(self, n: int) -> list[int]:
        self.size += n
        return list(range(self.size - n, self.size))

    def holds(self, gpu: int, buffer: str) -> list[int]:
        """The vector chunks that a gpu's ``i`` or ``o`` has room for, in order.

        In place a rooted collective has one buffer on every gpu, whatever it is used for.
        """
        which = Buffer.IN if buffer == "i" else Buffer.OUT
        found = self.layout.chunks(gpu, which).tolist()
        root = self.layout.root
        if self.in_place and not found and self.layout.spec.rooted:
            both = [self.layout.chunks(root, b).tolist() for b in (Buffer.IN, Buffer.OUT)]
            return both[0] if both[0] == both[1] else []
        return list(found)

    def slot(self, node: Transfer, buffer: str, offset: int) -> int:
        """The slot of a chunk. Raises ScheduleError, naming the step, for one out of range."""
        room = self.at[node.gpu, buffer]
        declared = self.algorithm.gpus[node.gpu].declared(buffer)
        if not 0 <= offset < min(len(room), declared):
            why = (
                f"the gpu declares {declared} {buffer}_chunks"
                if declared < len(room)
                else f"{self.layout.spec.name} leaves it {len(room)} chunks"
            )
            raise ScheduleError(f"{node}: {buffer}[{offset}] is out of range; {why}")
        return room[offset]

    def name(self, slot: int, gpu: int) -> str:
        """A slot as the file writes it, as ``o[3]``."""
        return next(
            f"{b}[{self.at[gpu, b].index(slot)}]" for b in BUFFERS if slot in self.at[gpu, b]
        )
