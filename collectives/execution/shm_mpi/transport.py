"""Shared memory on a node and MPI between nodes; see `collectives.execution.shm_mpi.binding`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

import native
from busbar.errors import Unavailable, Unsupported
from collectives.execution.mpi.calls import NativeCalls, Neighbourhood, bind_calls
from collectives.execution.mpi.transport import DEFAULT, Segments
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.program import Program
from collectives.execution.shm.memory import LINE
from collectives.execution.shm.pass_plans import type_number
from collectives.execution.shm.tasks import EMPTY, places_of
from collectives.execution.shm.transport import ShmTransport
from collectives.execution.shm_mpi.binding import HostBinder, Neighbours
from collectives.execution.transport import Action, Array, Buffers, Transport
from collectives.execution.world import Json, agree
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import Op


class ShmMpiTransport(Transport):
    """The transport that uses shared memory on a node and MPI between nodes.

    See `Transport` for the methods; all but `allocate` are called by all ranks together. Raises
    Unavailable, on all ranks, if a host has no memory that its ranks share, or a rank has no native
    extension.
    """

    name = "shm+mpi"

    def __init__(
        self, world: MpiWorld, segments: Segments = DEFAULT, *, deadline: float = 60.0
    ) -> None:
        self._world, self._segments = world, segments
        node = world.nodes[world.rank]
        self._members = [rank for rank, other in enumerate(world.nodes) if other == node]
        agree(world, native.why_not())
        self._inner, why = world.split(node, world.rank), ""
        try:
            self._host = ShmTransport(self._inner, deadline=deadline)
        except Unavailable as error:
            why = str(error)
        try:
            agree(world, why)
        except Unavailable:
            self._inner.close()
            raise
        self.action_facts: Mapping[str, Json] = {}

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocate memory that the ranks of this host share."""
        return self._host.allocate(nbytes)

    def staging(self, program: Program, itemsize: int) -> int:
        """Bytes of staging for messages whose target the step's sends read, or added from MPI."""
        return self._segments.staging(program, itemsize, self._members)

    def trim(self) -> None:
        """Free memory that is no longer used, see `Transport.trim`."""
        self._host.trim()

    def prepare(self, program: Program, buffers: Buffers, op: Op | None) -> Action:
        """Bind one rank's program to its buffers; all ranks call this together.

        Raises Unsupported for an element type without kernels.
        """
        type_number(buffers[Buffer.OUT].dtype)
        near, held = self._neighbours(program, buffers)
        binder = HostBinder(self._world, self._segments, buffers, op, near)
        steps = binder.steps(program)
        calls = [call for step in steps for call in step.calls]
        action = bind_calls(
            self._world,
            calls,
            (binder.sent, binder.received),
            steps,
            neighbours=Neighbourhood(self._host.watch, self._members, self._host.deadline),
            held=held,
        )
        shared = binder.shared_sent
        everyone = self._world.gather(
            [isinstance(action, NativeCalls), shared, binder.sent - shared]
        )
        if not all(bound for bound, _, _ in everyone):
            action.close()
            raise Unsupported(
                "the extension cannot make this MPI's calls, or a message is too long for one;"
                " use --transport mpi"
            )
        self.action_facts = {
            "shm_bytes": sum(shared for _, shared, _ in everyone),
            "mpi_bytes": sum(others for _, _, others in everyone),
            **self._segments.remark(),
        }
        return action

    def _neighbours(self, program: Program, buffers: Buffers) -> tuple[Neighbours, object]:
        """The ranks of this host, with their messages to this rank.

        Also returns the memory that must stay mapped.
        """
        memory, size, itemsize = self._host.memory, len(self._members), buffers[Buffer.OUT].itemsize
        places = places_of(memory.locate, buffers, itemsize)
        sends = [
            [send.peer, key, (start + send.span.start) * itemsize, send.span.size * itemsize]
            for step in program.steps
            for send in step.sends
            for key, start in [places[send.span.buffer]]
        ]
        keys = {key for key, _ in places.values() if key != EMPTY}
        last = max((step.number for step in program.steps), default=0)
        everyone = self._host.world.gather(
            [sends, {str(key): memory.describe(key) for key in keys}, last]
        )
        lines = self._host.common(2 * size * LINE)
        messages: dict[int, list[Array]] = defaultdict(list)
        for peer, (theirs, segments, _) in zip(self._members, everyone, strict=True):
            if peer == self._world.rank:
                continue
            messages[peer] = []
            for to, key, begin, nbytes in theirs:
                if to == self._world.rank:
                    array = self._host.attach(peer, key, segments[str(key)])
                    messages[peer].append(array[begin : begin + nbytes])
        at = [int(lines.ctypes.data) + number * LINE for number in range(2 * size)]
        self._host.world.barrier()  # what was described stays open until all have mapped it
        near = Neighbours(
            dict(zip(self._members, at[:size], strict=True)),
            dict(zip(self._members, at[size:], strict=True)),
            max(number for _, _, number in everyone) + 2,
            {peer: iter(arrays) for peer, arrays in messages.items()},
        )
        # The host's transport, too: its memory says which ranks have left.
        return near, (self._host, lines, messages)

    def close(self) -> None:
        """See `Transport.close`. All ranks call this together."""
        self._host.close()
        self._inner.close()
