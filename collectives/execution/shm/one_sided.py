"""Put and get in shared memory: one rank copies between its own memory and another's.

A copy is a store into, or a load from, memory that both ranks map. The other rank is not notified;
to read what was put, it waits for a barrier.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from collectives.execution.one_sided import OneSidedProgram
from collectives.execution.program import Program
from collectives.execution.shm.bound import HostTransport
from collectives.execution.transport import Array, Buffers, CallList, OneSidedAccess


def one_sided(
    transport: HostTransport, program: Program, buffers: Buffers, how: OneSidedAccess
) -> CallList:
    """See `collectives.execution.transport.Transport.one_sided`."""
    reaching = OneSidedProgram(transport.world, program, how)
    places = _places(transport, buffers[reaching.exposed], reaching.peers)
    calls = []
    for peer, own, start, stop in reaching.accesses:
        near = buffers[own.buffer][own.start : own.stop]
        far = places[peer].view(near.dtype)[start:stop]
        calls.append(partial(np.copyto, *((far, near) if reaching.put else (near, far))))
    moved = reaching.moved(buffers[reaching.exposed].itemsize)
    return CallList(calls * reaching.times, *moved)


def _places(transport: HostTransport, exposed: Array, peers: list[int]) -> dict[int, Array]:
    """Map the exposed memory of other ranks; returns it by rank."""
    memory, description = transport.memory, None
    if exposed.nbytes:
        key, offset = memory.locate(exposed)
        description = [key, offset, exposed.nbytes, memory.describe(key)]
    everyone = transport.world.gather(description)
    places = {}
    for peer in peers:
        key, offset, nbytes, where = everyone[peer]
        places[peer] = transport.attach(peer, key, where)[offset : offset + nbytes]
    transport.world.barrier()  # descriptions stay valid until all ranks have mapped them
    return places
