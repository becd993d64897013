"""What a launch's ranks measure, with a check of each result; rates are in bytes per second."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from bench.links.exchange import exchange, pattern
from bench.qualify.model import ALLREDUCE, BACKWARD, BOTH, FORWARD, MEMORY, Stage
from bench.qualify.task import MOST_TEXT, Task
from bench.run.data import Inputs
from busbar.host import cores, cpu_model
from busbar.installation import busbar_version, revision
from busbar.mpi import library_version, load_mpi
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.plan import Plan
from collectives.execution.registry import TransportRequest, open_transports
from collectives.execution.transport import Start, Transport
from collectives.execution.world import World
from collectives.schedule import catalogue
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective

Send = Callable[..., object]
# Copies that measure memory: bytes in host memory and on a GPU (larger than caches), repetitions.
_COPY_BYTES, _GPU_COPY_BYTES, _COPIES = 32 << 20, 128 << 20, 8
# A repeat is the median of the exchanges that fit into _REPEAT_S seconds, at most _MOST_TIMES.
_REPEAT_S, _MOST_TIMES = 0.02, 200


class Timed(NamedTuple):
    """Seconds of each repeat on the slowest rank, and the number of this rank's wrong elements.

    ``best``: the shortest exchange of all repeats.
    """

    seconds: list[float]
    best: float
    wrong: int


def measure(task: Task, send: Send) -> None:
    """Run a launch's task on this rank, and send the result. All ranks call this together."""
    mpi = load_mpi()
    world = MpiWorld()
    # A rank that is stopped or has no link hangs before this line, or in the exchanges.
    send("joined")
    request = TransportRequest(task.transport, task.seconds, {}, _best_gpus)
    transport = open_transports(world, request).transport
    facts: dict[str, str] = {}
    if task.stage == Stage.ALONE:
        rates, wrong = _alone(world, transport, task)
        if world.rank == 0:
            facts = {**software(library_version(mpi)), "transport": transport.name}
            if transport.on_gpu:
                facts["library"] = transport.library_version[:MOST_TEXT]
    elif task.hosts == 2:
        rates, wrong = _pair(world, transport, task)
    else:
        rates, wrong = _together(world, transport, task)
    send("finished", wrong=wrong, facts=facts, rates=rates if world.rank == 0 else {})
    world.barrier()
    transport.close()


def software(library: str) -> Mapping[str, str]:
    """Facts that the hosts of a cluster should have in common, as text."""
    from bench.run.environment import driver, topology_fingerprint

    known = {
        "busbar": busbar_version(),
        "revision": revision(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mpi": library,
        "kernel": platform.release(),
        "driver": driver(),
        "cpu": cpu_model(),
        "cores": str(len(cores())),
        "topology": topology_fingerprint(),
    }
    return {name: value[:MOST_TEXT] for name, value in known.items() if value}


def _best_gpus(k: int) -> list[str]:
    from bench.cli.start import best_gpus

    return best_gpus(k)


def _alone(
    world: World, transport: Transport, task: Task
) -> tuple[Mapping[str, Sequence[float]], int]:
    """The memory rate, and with several ranks the rate of an all-reduce inside the host.

    The best times count, because hosts are measured at once, and other work only slows them down.
    """
    rates = {MEMORY: [_memory(world, transport)]}
    if world.size == 1:
        return rates, 0
    timed = _all_reduce(world, transport, task)
    return {**rates, ALLREDUCE: [task.nbytes / timed.best]}, timed.wrong


def _memory(world: World, transport: Transport) -> float:
    """The rate at which all ranks of this host copy memory at once: GPU memory if they have GPUs.

    Host memory is timed by CPU time, so that other work on a core does not count.
    """
    own = transport.copy_rate(_GPU_COPY_BYTES, _COPIES) or _host_copy_rate(world)
    return sum(float(one) for one in world.gather(own))


def _host_copy_rate(world: World) -> float:
    """Bytes per second of this rank's copies in host memory."""
    source = np.zeros(_COPY_BYTES, np.uint8)
    target = np.ones_like(source)
    world.barrier()
    spent = []
    for _ in range(_COPIES):
        start = time.thread_time()
        np.copyto(target, source)
        spent.append(time.thread_time() - start)
    return _COPY_BYTES / min(spent)


def _pair(
    world: World, transport: Transport, task: Task
) -> tuple[Mapping[str, Sequence[float]], int]:
    """Each rank of the first host exchanges with one of the second: forward, backward, both."""
    half = world.size // 2
    forth = [(rank, half + rank) for rank in range(half)]
    back = [(b, a) for a, b in forth]
    rates, wrong = dict[str, list[float]](), 0
    for name, quantity, pairs in (
        (FORWARD, "bandwidth", forth),
        (BACKWARD, "bandwidth", back),
        (BOTH, "bandwidth_both", forth),
    ):
        how = pattern(quantity, task.nbytes)
        timed = _timed(world, transport, *exchange(how, pairs, world.size), task)
        # For both directions at once, this is the rate of each direction.
        moved = how.messages * task.nbytes * len(pairs)
        rates[name] = [moved / seconds for seconds in timed.seconds]
        wrong += timed.wrong
    return rates, wrong


def _together(
    world: World, transport: Transport, task: Task
) -> tuple[Mapping[str, Sequence[float]], int]:
    """The rate of an all-reduce over all ranks: bytes of the vector per second."""
    timed = _all_reduce(world, transport, task)
    return {ALLREDUCE: [task.nbytes / seconds for seconds in timed.seconds]}, timed.wrong


def _all_reduce(world: World, transport: Transport, task: Task) -> Timed:
    """Time a ring over all ranks. Each of its steps uses every link of the ring."""
    schedule = catalogue.build("allreduce", "ring", world.size)
    return _timed(world, transport, schedule, catalogue.spec("allreduce"), task)


def _timed(
    world: World,
    transport: Transport,
    schedule: Schedule,
    spec: Collective,
    task: Task,
) -> Timed:
    """Run a schedule, after one iteration that is not counted, and check the last result."""
    dtype = np.dtype(np.float32 if spec.reduces else np.uint8)
    operation = op("sum") if spec.reduces else None
    elements = spec.size(world.size, task.nbytes, dtype.itemsize).elements
    layout = Layout.of(schedule, spec)
    inputs = Inputs(layout, dtype, operation, elements)
    source, target = (
        transport.allocate(layout.elements(world.rank, buffer, elements) * dtype.itemsize).view(
            dtype
        )
        for buffer in (Buffer.IN, Buffer.OUT)
    )
    inputs.fill(world.rank, source)
    rank = world.rank
    with Plan(schedule, spec, transport, rank, source, target, operation, elements) as plan:
        start = Start(world.barrier)
        once = world.combine(plan.spans(1, start).seconds, "max")[0]
        times = max(1, min(_MOST_TIMES, int(_REPEAT_S / once)))
        own = plan.spans(task.repeats * times, start).seconds.tolist()
        wrong = inputs.check(rank, target).count
    world.rest()  # ranks that wait leave their cores to those that work
    slowest = [max(each) for each in zip(*world.gather(own), strict=True)]
    batches = [slowest[n : n + times] for n in range(0, len(slowest), times)]
    return Timed([median(batch) for batch in batches], min(slowest), wrong)
