"""Base class of the transports of GPU memory: a rank's GPU, its memory, and facts for records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from collectives.execution.gpu.action import DeviceBuffers, StreamAction, copied, turns
from collectives.execution.gpu.device import Call, GpuDevice
from collectives.execution.gpu.lane import Lane
from collectives.execution.roofline import least, typical
from collectives.execution.transport import Floats, LibraryCall, Start, Transport
from collectives.execution.world import Json, World
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer

# Of all ranks together, that copies for a limit go over.
_MOST_SWEPT = 512 << 20


class GpuTransport(Transport):
    """The base of transports on GPUs; see `Transport` for the methods.

    All ranks create theirs together, each in its own thread. ``facts``: facts for the record, in
    addition to versions and the ranks' GPUs. ``cold``: rotate sets of buffers, so that no iteration
    finds its operands in the L2 cache.
    """

    lane: Lane
    #: Allocations are rounded up to a multiple of so many bytes.
    granule = 256

    def __init__(
        self, world: World, device: GpuDevice, facts: Mapping[str, Json], *, cold: bool = False
    ) -> None:
        device.use()
        self.cold = cold
        self.world, self.device = world, device
        self.device_uuid, self.device_busid = device.uuid, device.bus_id
        self.device_index, self.device_name = device.index, device.name
        # Gathered here, since only one rank writes records.
        uuids = world.gather(device.uuid)
        self.facts: dict[str, Json] = {**device.versions(), "uuids": uuids, "cold": cold, **facts}
        self.remarks: list[str] = []

    @property
    def meet(self) -> list[Call] | None:
        """Calls that let all ranks' streams wait for each other; None where they cannot."""
        return None

    def allocate(self, nbytes: int) -> Any:
        """Allocate bytes of their own; returns a `DeviceArray`."""
        return self.device.allocate(nbytes)

    def turns(self, nbytes: int) -> int:
        """Sets of buffers in rotation, if all buffers together have ``nbytes`` bytes."""
        return turns(nbytes, self.device.cache_bytes) if self.cold else 1

    def sets(self, buffers: DeviceBuffers) -> list[DeviceBuffers]:
        """The buffers, and the copies of them in rotation. All ranks call this together.

        All ranks have the same number of sets: the most that any rank's bytes require.
        """
        own = sum(array.nbytes for array in buffers.values())
        most = max(self.world.gather(own))
        further = range(1, self.turns(most))
        return [buffers, *(copied(self.device, buffers, self.allocate) for _ in further)]

    def rotation(self, nbytes: int) -> int:
        """Bytes that the copies in rotation need in addition to ``nbytes`` bytes of buffers."""
        return (self.turns(nbytes) - 1) * (nbytes + 3 * self.granule)

    def room(self) -> tuple[str, int]:
        """The GPU's name and its free bytes."""
        return f"GPU {self.device_busid}", self.device.memory()[0]

    def trim(self) -> None:
        """Free memory that no rank uses. All ranks call this together, while no plan runs."""
        self.device.sweep()

    def limit(self, call: LibraryCall, n: int = 5) -> float | None:
        """The shortest time that memory allows: measured by copies, if all ranks use one GPU.

        All ranks copy at once, as plans do. Each copies as many bytes as the largest buffer of any
        rank. A copy reads and writes each byte once at the same speed, so reading alone or writing
        alone takes half as long. See `Transport.limit`.
        """
        if self.meet is None or len(set(self.facts["uuids"])) > 1:
            return None
        source, target = call.buffers[Buffer.IN], call.buffers[Buffer.OUT]
        shorter = self.world.gather(min(source.nbytes, target.nbytes))
        nbytes = max(1, min(max(map(int, shorter)), _MOST_SWEPT // self.world.size))
        # A rank whose buffers are shorter (because it is not the root) copies temporary memory.
        arrays: list[Any] = [
            array if array.nbytes >= nbytes else self.device.allocate(nbytes)
            for array in (source, target)
        ]
        seconds = max(typical(self._copied(arrays, nbytes, n, self.meet), self.world), 1e-9)
        parts = call.spec.parts(self.world.size)
        layout = Layout(call.spec, self.world.size, parts, call.root)
        needed = least(layout, call.elements, source.itemsize, call.in_place)
        return sum(needed) / 2 * seconds / (self.world.size * nbytes)

    def copy_rate(self, nbytes: int, n: int) -> float | None:
        """Bytes per second of the fastest of n copies inside this rank's GPU, or None.

        It is None, too, if streams cannot wait for each other. See `Transport.copy_rate`.
        """
        if self.meet is None:
            return None
        arrays = [self.device.allocate(nbytes) for _ in range(2)]
        return nbytes / max(float(np.min(self._copied(arrays, nbytes, n, self.meet))), 1e-9)

    def _copied(self, arrays: list[Any], nbytes: int, n: int, meet: list[Call]) -> Floats:
        """Seconds of each of ``n`` copies from the first array to the second, on all ranks at once.

        ``nbytes``: of a copy. ``meet``: calls that let all ranks' streams wait for each other.
        """
        device, lane = self.device, self.lane
        begin, end = (array.address for array in arrays)
        self.world.barrier()

        def copy() -> None:
            device.copy(end, begin, nbytes, lane.stream)

        action = StreamAction(lane, [[copy]], (0, 0), meet=meet, graph=False, held=arrays)
        try:
            return action.spans(n, Start(self.world.barrier)).seconds
        finally:
            action.close()
