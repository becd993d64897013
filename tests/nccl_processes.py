# ruff: noqa: N802, N803 -- the names are CuPy's
"""NCCL that is not there, among the processes of an mpirun: `tests.nccl_standin` over MPI.

Every process has a stand-in machine of its own with all GPUs of the node. Messages of a group are
MPI's, posted when the group comes first in its stream; a collective gathers all inputs.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from mpi4py import MPI

from tests.gpu_standin import Item, Machine, whole
from tests.nccl_standin import KINDS, Communicator, Nccl, NcclError, carry_out, shares


class _Group(Item):
    """Messages that go at once: done when MPI has carried all of them."""

    def __init__(self, machine: Machine, comm: MPI.Intracomm, ops: list[tuple[Any, ...]]) -> None:
        self._m, self._comm, self._ops = machine, comm, ops
        self._posted: list[MPI.Request] | None = None

    def advance(self) -> bool:
        """See `Item.advance`."""
        if self._posted is None:
            self._posted = [
                (self._comm.Isend if sends else self._comm.Irecv)(self._m.view(at, nbytes), peer)
                for sends, at, nbytes, peer in self._ops
            ]
        return bool(MPI.Request.Testall(self._posted))


class _Part(Item):
    """One rank's part of a collective: all inputs are gathered, the result is computed here."""

    def __init__(
        self, machine: Machine, comm: MPI.Intracomm, name: str, args: tuple[Any, ...]
    ) -> None:
        self._m, self._comm, self._name, self._args = machine, comm, name, args
        count, datatype, *more = args[2:]
        elements = count * comm.size if name == "reduceScatter" else count
        self._nbytes = elements * KINDS[datatype].itemsize
        # Only the root of a broadcast has something to read.
        self._reads = name != "broadcast" or more[0] == comm.rank
        self._request: MPI.Request | None = None

    def advance(self) -> bool:
        """See `Item.advance`."""
        if self._request is None:
            if len(set(self._comm.allgather((self._name, self._args[2:])))) > 1:
                raise NcclError(4, "ranks call different collectives")
            mine = np.zeros(self._nbytes, np.uint8)
            if self._reads:
                mine[:] = self._m.view(self._args[0], self._nbytes)
            self._all = np.empty((self._comm.size, self._nbytes), np.uint8)
            self._request = self._comm.Iallgather(mine, self._all)
        if not self._request.Test():
            return False
        ranks = range(self._comm.size)
        held = [self._m.take(max(self._nbytes, 1)) for _ in ranks]
        spare = self._m.take(max(self._nbytes * self._comm.size, 1))
        for at, values in zip(held, self._all, strict=True):
            self._m.view(at, self._nbytes)[:] = values
        outs = [self._args[1] if rank == self._comm.rank else spare for rank in ranks]
        carry_out(
            self._m, self._name, [(a, b, *self._args[2:]) for a, b in zip(held, outs, strict=True)]
        )
        for at in (*held, spare):
            del self._m.blocks[at]
        return True


class _Communicator(Communicator):
    """``cupy.cuda.nccl.NcclCommunicator`` of one process among several."""

    def __init__(self, nccl: Nccl, comm: MPI.Intracomm) -> None:
        self._nccl, self._m, self.rank, self.gone = nccl, nccl.machine, comm.rank, ""
        # All that is asked of a clique here is its size, which MPI's communicator has, too.
        self.clique: Any = comm
        # What NCCL tells ranks apart by: the host as NCCL_HOSTID calls it, and the GPU.
        places = comm.allgather((os.environ.get("NCCL_HOSTID"), self._m.device))
        if len(set(places)) < comm.size and not shares(self._m):
            raise NcclError(5, "invalid usage (Duplicate GPU detected)")

    def part(self, name: str, args: tuple[Any, ...]) -> Item:
        """See `Communicator.part`."""
        return _Part(self._m, self.clique, name, args)

    def group(self, ops: list[tuple[Any, ...]]) -> Item:
        """See `Communicator.group`."""
        return _Group(self._m, self.clique, ops)

    def commSplit(self, color: int, key: int, config: object = None) -> Communicator:
        """As NCCL's: ranks of one color, in the order of their keys."""
        whole(color, key)
        return _Communicator(self._nccl, self.clique.Split(color, key))


class NcclOfProcesses(Nccl):
    """The module ``cupy.cuda.nccl`` in each of several processes."""

    def NcclCommunicator(
        self, ndev: int, commId: bytes, rank: int, config: object = None
    ) -> Communicator:
        """Joins those who were given one id: here all processes, as our transport does."""
        whole(ndev, rank)
        world = MPI.COMM_WORLD
        assert isinstance(commId, bytes) and len(commId) == 128
        if ndev != world.size or len(set(world.allgather(commId))) > 1:
            raise NcclError(5, "ranks were given different ids")
        return _Communicator(self, world.Split(0, rank))
