# ruff: noqa: D102, N802, N803 -- the names are CuPy's
"""NCCL that is not there: ``cupy.cuda.nccl``'s names and signatures over `tests.gpu_standin`.

Messages meet as NCCL's do: a group is done when all of it has found its partner, and a message
outside of a group holds its stream until then, so that a wrong group deadlocks here as it does
there. Collectives wait until every rank's part is first in its stream.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.schedule.dtypes import dtype
from collectives.schedule.ops import op as operation
from collectives.schedule.ops import scale
from tests.gpu_standin import Item, Machine, whole

# Of a stream's queue that a call takes: a wait, the kernel, a record, and one more at times.
ENTRIES = 4


class NcclError(RuntimeError):
    """As CuPy's: the number of the ncclResult."""

    def __init__(self, status: int, text: str = "") -> None:
        self.status = status
        super().__init__(f"NCCL_ERROR {status}: {text}")


class Clique:
    """The ranks of one communicator."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.members: dict[int, Communicator] = {}
        self.devices: dict[int, int] = {}
        self.full = threading.Barrier(size)
        self.colors: dict[int, tuple[int, int]] = {}
        self.groups: dict[int, Clique] = {}


class Op:
    """One send or receive of a group."""

    def __init__(self, sends: bool, at: int, nbytes: int, peer: int) -> None:
        self.sends, self.at, self.nbytes, self.peer, self.done = sends, at, nbytes, peer, False


class Group(Item):
    """Messages that go at once: done when all are."""

    def __init__(self, machine: Machine, comm: Communicator, ops: list[tuple[Any, ...]]) -> None:
        self._m, self.comm, self.ops = machine, comm, [Op(*op) for op in ops]

    def advance(self) -> bool:
        if self.comm.gone:
            return True
        for op in self.ops:
            if op.sends and not op.done and self.first(True, op.peer) is op:
                self._deliver(op)
        return all(op.done for op in self.ops)

    def first(self, sends: bool, peer: int) -> Op | None:
        """The first message to or from a rank that has not met its partner yet."""
        found = (op for op in self.ops if op.sends == sends and op.peer == peer and not op.done)
        return next(found, None)

    def _deliver(self, op: Op) -> None:
        for head in self._m.heads():
            if not isinstance(head, Group) or head.comm.clique is not self.comm.clique:
                continue
            if head.comm.rank != op.peer:
                continue
            to = head.first(False, self.comm.rank)
            if to is None:
                continue
            if to.nbytes != op.nbytes:
                raise NcclError(4, f"{op.nbytes} bytes sent, {to.nbytes} expected")
            self._m.view(to.at, to.nbytes)[:] = self._m.view(op.at, op.nbytes)
            op.done = to.done = True
            return


class Collective(Item):
    """One rank's part of a collective: done when all ranks' parts are first in their streams."""

    def __init__(self, machine: Machine, comm: Communicator, name: str, args: tuple[Any, ...]):
        self._m, self.comm, self.name, self.args, self.done = machine, comm, name, args, False

    def advance(self) -> bool:
        if self.comm.gone or self.done:
            return True
        parts = [
            head
            for head in self._m.heads()
            if isinstance(head, Collective)
            and head.comm.clique is self.comm.clique
            and not head.done
        ]
        if len(parts) < self.comm.clique.size:
            return False
        parts.sort(key=lambda part: part.comm.rank)
        if len({(part.name, part.args[2:]) for part in parts}) > 1:
            raise NcclError(4, "ranks call different collectives")
        carry_out(self._m, self.name, [part.args for part in parts])
        for part in parts:
            part.done = True
        return True


# By NCCL's numbers.
OPS = [operation(name) for name in ("sum", "prod", "max", "min", "avg")]
KINDS = [
    *map(dtype, ("int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float")),
    *map(dtype, ("double", "bfloat16", "f8e4m3", "f8e5m2")),
]


def carry_out(machine: Machine, name: str, parts: list[tuple[Any, ...]]) -> None:
    """A collective on all ranks' memory; what is aliased as NCCL allows gives the same."""
    count, datatype, *more = parts[0][2:]
    kind, n = KINDS[datatype], len(parts)

    def read(rank: int, elements: int) -> NDArray[Any]:
        return machine.view(parts[rank][0], elements, kind).copy()

    def write(rank: int, values: NDArray[Any]) -> None:
        machine.view(parts[rank][1], len(values), kind)[:] = values

    def joined(elements: int) -> NDArray[Any]:
        total = read(0, elements)
        for rank in range(1, n):
            total = OPS[more[0]].ufunc(total, read(rank, elements))
        if OPS[more[0]].mean:
            scale(total, n)
        return total

    if name == "allReduce":
        total = joined(count)
        for rank in range(n):
            write(rank, total)
    elif name == "reduce":
        write(more[1], joined(count))
    elif name == "broadcast":
        values = read(more[0], count)
        for rank in range(n):
            write(rank, values)
    elif name == "allGather":
        values = np.concatenate([read(rank, count) for rank in range(n)])
        for rank in range(n):
            write(rank, values)
    elif name == "reduceScatter":
        total = joined(count * n)
        for rank in range(n):
            write(rank, total[rank * count : (rank + 1) * count])
    else:
        raise AssertionError(name)


def shares(machine: Machine) -> bool:
    """Whether this NCCL takes several ranks of a process on one GPU."""
    return machine.version >= 23000 and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"


class Communicator:
    """``cupy.cuda.nccl.NcclCommunicator``."""

    def __init__(self, nccl: Nccl, clique: Clique, rank: int) -> None:
        self._nccl, self._m, self.clique, self.rank = nccl, nccl.machine, clique, rank
        self.gone = ""
        with self._m.lock:
            clique.members[rank], clique.devices[rank] = self, self._m.device
        clique.full.wait(20)
        if len(set(clique.devices.values())) < clique.size and not shares(self._m):
            raise NcclError(5, "invalid usage (Duplicate GPU detected)")

    def _alive(self) -> None:
        if self.gone:
            raise NcclError(4, f"the communicator was {self.gone}")

    def _message(self, sends: bool, args: tuple[Any, ...]) -> None:
        at, count, datatype, peer, stream = args
        whole(*args)
        self._alive()
        if not 0 <= peer < self.clique.size or not 0 <= datatype < len(KINDS) or count < 0:
            raise NcclError(4, f"invalid argument {args}")
        size = KINDS[datatype].itemsize
        if not self._m.on_device(at, count * size):
            raise NcclError(4, "not the device's memory")
        self._nccl.message(self, (sends, at, count * size, peer), stream)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._message(True, (sendbuf, count, datatype, peer, stream))

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._message(False, (recvbuf, count, datatype, peer, stream))

    def _all(self, name: str, args: tuple[int, ...], stream: int) -> None:
        whole(*args, stream)
        self._alive()
        if self._nccl.depth:
            raise NcclError(5, "the stand-in takes no collectives inside a group")
        if self._m.log is not None:
            with Path(self._m.log).open("a") as log:
                log.write(
                    f"NCCL INFO {name}: 8 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..3}}\n"
                )
        self._m.push(stream, lambda: self.part(name, args), user=self, entries=ENTRIES)

    def part(self, name: str, args: tuple[Any, ...]) -> Item:
        """This rank's part of a collective, for its stream."""
        return Collective(self._m, self, name, args)

    def group(self, ops: list[tuple[Any, ...]]) -> Item:
        """Messages that go at once, for the stream."""
        return Group(self._m, self, ops)

    def allReduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        self._all("allReduce", (sendbuf, recvbuf, count, datatype, op), stream)

    def reduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int
    ) -> None:
        self._all("reduce", (sendbuf, recvbuf, count, datatype, op, root), stream)

    def broadcast(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int
    ) -> None:
        self._all("broadcast", (sendbuff, recvbuff, count, datatype, root), stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        self._all("allGather", (sendbuf, recvbuf, count, datatype), stream)

    def reduceScatter(
        self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int
    ) -> None:
        self._all("reduceScatter", (sendbuf, recvbuf, recvcount, datatype, op), stream)

    def commSplit(self, color: int, key: int, config: object = None) -> Communicator:
        whole(color, key)
        self._alive()
        clique = self.clique
        clique.colors[self.rank] = color, key
        clique.full.wait(20)
        mine = sorted((k, rank) for rank, (c, k) in clique.colors.items() if c == color)
        with self._m.lock:
            group = clique.groups.setdefault(color, Clique(len(mine)))
        clique.full.wait(20)
        return Communicator(self._nccl, group, [rank for _, rank in mine].index(self.rank))

    def check_async_error(self) -> None:
        self._alive()
        if self.rank in self._m.faults:
            raise NcclError(self._m.faults[self.rank], "injected")

    def abort(self) -> None:
        self._end("aborted")

    def destroy(self) -> None:
        self._end("destroyed")

    def _end(self, how: str) -> None:
        """NCCL waits until no graph refers to the communicator any more; this says so instead."""
        if self.gone:
            return
        held = [graph for graph in list(self._m.graphs) if self in graph.users]
        if held:
            self._m.stuck.append(f"{how} with {len(held)} graphs")
        assert not held, f"a communicator is {how} while graphs refer to it"
        self.gone = how


class Nccl:
    """The module ``cupy.cuda.nccl``."""

    available = True
    NcclError = NcclError

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.communicators: list[Communicator] = []

    @property
    def depth(self) -> int:
        return getattr(self.machine.here, "depth", 0)

    def get_version(self) -> int:
        return self.machine.version

    def get_unique_id(self) -> bytes:
        with self.machine.lock:
            self.machine.log = os.environ.get("NCCL_DEBUG_FILE")
            self.machine.now += 1
            return self.machine.now.to_bytes(128, "little")

    def NcclCommunicator(
        self, ndev: int, commId: bytes, rank: int, config: object = None
    ) -> Communicator:
        whole(ndev, rank)
        assert isinstance(commId, bytes) and len(commId) == 128
        with self.machine.lock:
            clique = self.machine.cliques.setdefault(commId, Clique(ndev))
        comm = Communicator(self, clique, rank)
        self.communicators.append(comm)
        return comm

    def groupStart(self) -> None:
        self.machine.here.depth = self.depth + 1

    def groupEnd(self) -> None:
        if not self.depth:
            raise NcclError(5, "groupEnd without groupStart")
        self.machine.here.depth = self.depth - 1
        if not self.depth:
            held, self.machine.here.held = getattr(self.machine.here, "held", {}), {}
            for (comm, stream), ops in held.items():
                self._go(comm, ops, stream)

    def message(self, comm: Communicator, op: tuple[Any, ...], stream: int) -> None:
        """Into the group that is open, or alone."""
        if not self.depth:
            self._go(comm, [op], stream)
            return
        if not hasattr(self.machine.here, "held"):
            self.machine.here.held = {}
        self.machine.here.held.setdefault((comm, stream), []).append(op)

    def _go(self, comm: Communicator, ops: list[tuple[Any, ...]], stream: int) -> None:
        self.machine.push(stream, lambda: comm.group(ops), user=comm, entries=ENTRIES)
