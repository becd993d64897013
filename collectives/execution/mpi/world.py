"""The ranks in MPI_COMM_WORLD, or in a part of it, and control messages between them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unsupported
from busbar.mpi import NEEDED, OPTION, ThreadLevel, library_version, start_mpi
from collectives.execution.world import How, Json, State

T = TypeVar("T")
# Open MPI's launcher sets this for ``--with-ft ulfm``.
_TOLERANT = "OMPI_MCA_mpi_ft_enable"
_REST_S = 5e-4  # seconds between two polls in `rest`
_READ_S = 0.3  # seconds for the launcher to read a rank's last output


class MpiWorld:
    """All MPI ranks of a run, seen from one of them; see `World` for the methods.

    Raises Unavailable where there is no MPI, and Unsupported as `busbar.mpi.start_mpi` does and
    where ranks have different thread levels.
    """

    name = "mpi"

    def __init__(
        self, comm: Any = None, *, threads: str | None = None, needed: str = NEEDED
    ) -> None:
        """Duplicate a communicator of these ranks; ``comm``: default MPI_COMM_WORLD.

        ``threads``, ``needed``: the MPI thread level to request, and the lowest that is enough, if
        MPI has not started yet.
        """
        self.mpi, self._level = start_mpi(threads, needed)
        if comm is None:
            _check_levels(self.mpi, self._level)
        whole = self.mpi.COMM_WORLD if comm is None else comm
        # Own communicators, so that our messages cannot match the caller's, nor alarms our data.
        self.comm = whole.Dup()
        self._alarm, self._told = whole.Dup(), list[Any]()
        self.rank, self.size = int(self.comm.Get_rank()), int(self.comm.Get_size())
        self.nodes: Sequence[int] = self._find_nodes()
        self.states: dict[int, State] = {}

    def _find_nodes(self) -> tuple[int, ...]:
        local = self.comm.Split_type(self.mpi.COMM_TYPE_SHARED)
        leader = np.array([self.rank], np.int64)
        local.Bcast(leader, root=0)
        local.Free()
        leaders = np.empty(self.size, np.int64)
        self.comm.Allgather(leader, leaders)
        order = {int(x): i for i, x in enumerate(dict.fromkeys(leaders.tolist()))}
        return tuple(order[int(x)] for x in leaders)

    def broadcast(self, value: Json, root: int = 0) -> Json:
        """The root's value, on every rank."""
        text = json.dumps(value).encode() if self.rank == root else b""
        size = np.array([len(text)], np.int64)
        self.comm.Bcast(size, root=root)
        data = bytearray(text) if self.rank == root else bytearray(int(size[0]))
        self.comm.Bcast([data, self.mpi.BYTE], root=root)
        return json.loads(data.decode())

    def gather(self, value: Json) -> list[Json]:
        """Every rank's value, in rank order, on every rank."""
        return self._gathered(value, self.size, self.comm.Allgather, self.comm.Allgatherv)

    def collect(self, value: Json) -> list[Json]:
        """Every rank's value, in rank order, on rank 0; an empty list on other ranks."""
        count = self.size if self.rank == 0 else 0
        return self._gathered(value, count, self.comm.Gather, self.comm.Gatherv)

    def _gathered(
        self, value: Json, count: int, of_sizes: Callable[..., Any], of_texts: Callable[..., Any]
    ) -> list[Json]:
        """The values that this rank receives, ``count`` of them, by MPI's calls for both."""
        mine, sizes = json.dumps(value).encode(), np.zeros(count, np.int64)
        of_sizes(np.array([len(mine)], np.int64), sizes)
        data = bytearray(int(sizes.sum()))
        of_texts([mine, self.mpi.BYTE], [data, sizes.tolist(), None, self.mpi.BYTE])
        edges = np.concatenate([[0], np.cumsum(sizes)])
        return [json.loads(data[a:b].decode()) for a, b in pairwise(edges)]

    def combine(self, values: NDArray[np.float64], how: How) -> NDArray[np.float64]:
        """Reduce all ranks' arrays elementwise, or take rank 0's; every rank gets the result."""
        result: NDArray[np.float64] = np.array(values)
        if how == "rank0":
            self.comm.Bcast(result, root=0)
            return result
        ops = {"avg": "SUM", "sum": "SUM", "min": "MIN", "max": "MAX"}
        op = getattr(self.mpi, ops[how])
        self.comm.Allreduce(values, result, op)
        if how == "avg":
            result /= self.size
        return result

    def barrier(self) -> None:
        """Return when every rank has called this."""
        self.comm.Barrier()

    def rest(self) -> None:
        """Return when every rank has called this; sleep meanwhile."""
        here = self.comm.Ibarrier()
        while not here.Test():
            time.sleep(_REST_S)

    def send(self, peer: int, values: NDArray[np.float64]) -> None:
        """Send a few numbers to a rank, which must `receive` as many."""
        self.comm.Send(values, peer)

    def receive(self, peer: int, into: NDArray[np.float64]) -> None:
        """Wait for the numbers that rank ``peer`` sends."""
        self.comm.Recv(into, peer)

    def alarm(self, value: Json) -> None:
        """Send a message to all other ranks without waiting for them."""
        data = json.dumps(value).encode()
        others = (rank for rank in range(self.size) if rank != self.rank)
        self._told += [self._alarm.Isend([data, self.mpi.BYTE], rank) for rank in others]

    def alarms(self) -> list[tuple[int, Json]]:
        """The alarms of other ranks since the last call, as (rank, message)."""
        messages: list[tuple[int, Json]] = []
        status = self.mpi.Status()
        while self._alarm.Iprobe(status=status):
            data, rank = bytearray(status.Get_count(self.mpi.BYTE)), int(status.Get_source())
            self._alarm.Recv([data, self.mpi.BYTE], source=rank)
            messages.append((rank, json.loads(data.decode())))
        return messages

    def once(self, make: Callable[[], T]) -> T:
        """The result of ``make``, which every rank calls, because each is a process of its own."""
        return make()

    def threads(self) -> ThreadLevel:
        """The thread level that MPI provides."""
        return self._level

    def split(self, color: int, key: int) -> MpiWorld:
        """The ranks with the same ``color``, ordered by ``key``. All ranks call this."""
        comm = self.comm.Split(color, key)
        try:
            return self._subworld(comm)
        finally:
            comm.Free()  # the world has duplicates of it

    def _subworld(self, comm: Any) -> MpiWorld:
        """The ranks of ``comm``, some of these ranks, with the same thread level."""
        world = MpiWorld(comm)
        world._level = self._level
        return world

    def survivors(self) -> MpiWorld:
        """The remaining ranks after a failure; this object if all are left or failures are fatal.

        All remaining ranks call this together. If `goes_on`, MPI reports failed ranks (ULFM), and
        its other calls work among the remaining ranks.
        """
        if not self.goes_on():
            return self
        left = self.comm.Shrink()
        return self if left.Get_size() == self.size else self._subworld(left)

    def goes_on(self) -> bool:
        """True if MPI lets ranks go on when one has failed: ``mpirun --with-ft ulfm``."""
        return os.environ.get(_TOLERANT) == "1"

    def close(self) -> None:
        """Free this object's communicators. All its ranks call this together.

        An MPI library has a limited number of communicators (MPICH about 2,000).
        """
        self.comm.Free()
        self._alarm.Free()

    def abort(self, status: int) -> None:
        """End every rank at once with an exit status, see `World.abort`."""
        # After an abort a launcher discards output that it has not read.
        time.sleep(_READ_S)
        self.mpi.COMM_WORLD.Abort(status)

    def library(self) -> str:
        """The MPI library's name and version, in one line."""
        return library_version(self.mpi)

    def type_of(self, dtype: np.dtype[Any]) -> Any | None:
        """The MPI datatype of a NumPy type, or None where MPI has none (half, bfloat16)."""
        names = {
            "int8": "INT8_T",
            "uint8": "UINT8_T",
            "int32": "INT32_T",
            "uint32": "UINT32_T",
            "int64": "INT64_T",
            "uint64": "UINT64_T",
            "float32": "FLOAT",
            "float64": "DOUBLE",
        }
        name = names.get(dtype.name)
        return None if name is None else getattr(self.mpi, name)


def _check_levels(mpi: Any, level: ThreadLevel) -> None:
    """Raise Unsupported on all ranks if their MPI thread levels differ, before any collective.

    MPICH chooses its collectives by the thread level, so ranks with different levels crash or hang.
    Messages between two ranks are the same at every level.
    """
    comm, mine = mpi.COMM_WORLD, np.array([mpi.Query_thread()], np.int64)
    rank, size = comm.Get_rank(), comm.Get_size()
    other = np.array([-1], np.int64)
    if rank == 0:
        one = np.empty(1, np.int64)
        for peer in range(1, size):
            comm.Recv(one, peer)
            if one[0] != mine[0] and other[0] < 0:
                other[0] = peer
        for peer in range(1, size):
            comm.Send(other, peer)
    else:
        comm.Send(mine, 0)
        comm.Recv(other, 0)
    if other[0] >= 0:
        raise Unsupported(
            f"ranks 0 and {other[0]} have different thread levels of MPI; rank {rank} has"
            f" {level.name}: {level.why}. Give {OPTION} LEVEL to all"
        )
