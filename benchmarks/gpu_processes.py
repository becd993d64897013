"""Ranks of gpu_one.py as processes on one GPU, without a launcher: they meet at a local socket."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gpu_right as sections
import numpy as np

from collectives.gpu.device import Device
from collectives.transports.ipc import IpcTransport
from collectives.world import How, Json

__all__ = ["play", "right"]

# Waits of time-sliced processes take milliseconds each: fewer sizes than among threads.
SIZES = (4, 64 * sections.KB, 16 * sections.MB, sections.GB)
KINDS = sections.KINDS
LIMIT_S = 1800


class SocketWorld:
    """See `collectives.world.World`: what every rank says goes to rank 0 and from there to all."""

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
                pass
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

    def combine(self, values: np.ndarray[Any, Any], how: How) -> np.ndarray[Any, Any]:
        """See `World.combine`; the greatest is all that is asked for here."""
        assert how == "max"
        return np.max(self.gather(values.tolist()), axis=0)

    def alarm(self, value: Json) -> None:
        """Nobody listens: a rank that fails ends, and the others notice that."""

    def alarms(self) -> list[tuple[int, Json]]:
        """See `World.alarms`."""
        return []


def play(cupy: Any, rank: int, size: int, address: str) -> None:
    """One process's part; rank 0 prints what was found as JSON."""
    world: Any = SocketWorld(rank, size, address)
    transport = IpcTransport(world, Device(cupy, 0), deadline=sections.DEADLINE_S)
    found = sections.judge(transport, SIZES, KINDS)
    world.barrier()
    transport.close()
    if rank == 0:
        print(json.dumps(found))


def right(script: Sequence[str], ranks: Sequence[int] = (2, 4, 8)) -> list[str]:
    """Every all-reduce over ipc among processes; ``script`` starts one, given its rank and all else."""
    found: dict[int, dict[str, list[str]]] = {}
    for n in ranks:
        with TemporaryDirectory() as folder:
            address = str(Path(folder) / "meet")
            command = [sys.executable, *script]
            people = [
                subprocess.Popen(
                    [*command, str(rank), str(n), address], stdout=subprocess.PIPE, text=True
                )
                for rank in range(n)
            ]
            try:
                said = [one.communicate(timeout=LIMIT_S)[0] for one in people]
            finally:
                for one in people:
                    one.kill()
            if any(one.returncode for one in people):
                raise RuntimeError(f"processes ended with {[one.returncode for one in people]}")
            found[n] = json.loads(said[0])
    told = (
        f"Memory mapped by IPC handles. Processes on one GPU are time-sliced unless MPS runs, so this"
        f" shows that results are right, never speed. Sizes {', '.join(map(str, SIZES))} bytes;"
        f" {', '.join(KINDS)}; sum; every byte compared."
    )
    return sections.verdicts("### Right over `ipc`, ranks as processes", found, told)
