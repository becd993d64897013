"""Ranks of gpu_one.py as processes on one GPU, without a launcher, joined by a local socket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gpu_right as sections
import numpy as np
from gpu_page import Page

from collectives.execution.gpu.device import GpuDevice
from collectives.execution.gpu.take import load_nccl, nccl_variables
from collectives.execution.ipc.transport import IpcTransport
from collectives.execution.world import How, Json

__all__ = ["play", "right"]

# Waits of time-sliced processes take milliseconds each: fewer sizes than among threads.
SIZES = (4, 64 * sections.KB, 16 * sections.MB)
KINDS = sections.KINDS


class SocketWorld:
    """A `collectives.execution.world.World` over sockets: data goes to rank 0, then to all."""

    name = "sockets"

    def __init__(self, rank: int, size: int, address: str) -> None:
        self.rank, self.size, self.nodes = rank, size, (0,) * size
        if rank == 0:
            with Listener(address, "AF_UNIX", backlog=size) as listener:
                Path(f"{address}.open").touch()
                found = [listener.accept() for _ in range(size - 1)]
            self._links: list[Connection] = sorted(found, key=lambda link: self._read(link))
        else:
            while not Path(f"{address}.open").exists():
                time.sleep(0.01)
            self._links = [Client(address, "AF_UNIX")]
            self._links[0].send_bytes(json.dumps(rank).encode())

    @staticmethod
    def _read(link: Connection) -> Json:
        return json.loads(link.recv_bytes())

    def gather(self, value: Json) -> list[Json]:
        """See `World.gather`."""
        if self.rank:
            self._links[0].send_bytes(json.dumps(value).encode())
            return list(self._read(self._links[0]))
        everyone = [json.loads(json.dumps(value)), *(self._read(link) for link in self._links)]
        for link in self._links:
            link.send_bytes(json.dumps(everyone).encode())
        return everyone

    def broadcast(self, value: Json, root: int = 0) -> Json:
        """See `World.broadcast`."""
        return self.gather(value)[root]

    def barrier(self) -> None:
        """See `World.barrier`."""
        self.gather(None)

    def rest(self) -> None:
        """See `World.rest`."""
        self.barrier()

    def combine(self, values: np.ndarray[Any, Any], how: How) -> np.ndarray[Any, Any]:
        """See `World.combine`; only the maximum is needed here."""
        assert how == "max"
        return np.max(self.gather(values.tolist()), axis=0)

    def alarm(self, value: Json) -> None:
        """Send nothing: if a rank fails, its process exits, and the other ranks notice that."""

    def alarms(self) -> list[tuple[int, Json]]:
        """See `World.alarms`."""
        return []


def play(cupy: Any, what: str, rank: str, size: str, address: str) -> None:
    """Run one rank over ``ipc`` or ``nccl``. Rank 0 prints the objects it wrote as JSON."""
    world: Any = SocketWorld(int(rank), int(size), address)
    device, page = GpuDevice(cupy, 0), Page(out=sys.stderr)
    page.table(what, "", sections.COLUMNS)
    transport = (_nccl if what == "nccl" else _ipc)(world, device)
    sections.ended(transport, lambda one: sections.judge(one, SIZES, KINDS, page))
    if world.rank == 0:
        print(json.dumps(page.kept))


def _ipc(world: Any, device: GpuDevice) -> Any:
    return IpcTransport(world, device, deadline=sections.DEADLINE_S)


def _nccl(world: Any, device: GpuDevice) -> Any:
    from collectives.execution.nccl.transport import NcclTransport

    nccl = load_nccl()
    uuids = world.gather(device.uuid)
    version = int(nccl.get_version())
    os.environ.update(nccl_variables(uuids, version, world.rank, threads=False, env=os.environ))
    # Ranks that NCCL takes for hosts of their own talk over sockets, here without a network.
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    return NcclTransport(world, device, nccl, cold=False, deadline=sections.DEADLINE_S)


def right(
    page: Page, script: Sequence[str], ranks: Sequence[int], what: str = "ipc", told: str = ""
) -> None:
    """Check every all-reduce with processes as ranks.

    ``script`` starts a process when it is given the transport, rank, rank count and address.
    """
    page.table(
        f"Right over `{what}`, ranks as processes",
        f"{told or 'Memory mapped by IPC handles.'} Correctness only: processes on one GPU are"
        f" time-sliced unless MPS runs. {sections.TOLD}",
        sections.COLUMNS,
    )
    for n in ranks:
        for row in _run([sys.executable, *script, what], n):
            if "failed" in row:
                page.fail(f"{n} processes: {row['failed']}")
                continue
            page.row(*(row[name] for name in sections.COLUMNS), algorithms=row.get("algorithms"))


def _run(command: Sequence[str], n: int) -> list[dict[str, Any]]:
    """The rows of n processes, all of which have ended when this returns."""
    with TemporaryDirectory() as folder:
        address = str(Path(folder) / "meet")
        people = [
            subprocess.Popen(
                [*command, str(rank), str(n), address], stdout=subprocess.PIPE, text=True
            )
            for rank in range(n)
        ]
        try:
            said = people[0].communicate()[0]
            statuses = [one.wait(30) for one in people]
        finally:
            for one in people:
                one.kill()
                one.wait()
    if any(statuses):
        raise RuntimeError(f"processes ended with {statuses}")
    found: list[dict[str, Any]] = json.loads(said)
    return found
