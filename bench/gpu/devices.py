"""Opens the transports that move GPU memory: which GPU a rank takes, and whether all can go on.

All ranks call `nccl_transport` together, and what one finds missing all are told: either every
rank gets a transport, or every rank raises the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.options.options import Options
from busbar.errors import BusbarError, ProbeError, Unavailable, Unsupported
from busbar.host import hostname
from collectives.execution.gpu import pick
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.gpu.load import count_gpus, load_cupy, load_nccl
from collectives.execution.world import World
from topology.model.busid import canonical

if TYPE_CHECKING:
    from collectives.execution.ipc.transport import IpcTransport
    from collectives.execution.mpi.device import MpiDeviceTransport
    from collectives.execution.mpi.world import MpiWorld
    from collectives.execution.nccl.transport import NcclTransport
    from collectives.execution.transport import Transport

# What NVIDIA's driver leaves in the file system; the last is Windows' own under WSL.
_SIGNS = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
_MPS = ("/tmp/nvidia-mps/control",)  # noqa: S108  (where MPS listens unless told otherwise)


class NoGpu(Unavailable):
    """No GPU, or no library for it; raised on all ranks alike."""


class Taken(NamedTuple):
    """A rank's GPU, whether ranks share one, and what the table must say of that."""

    device: GpuDevice
    shared: bool
    remarks: list[str]


def driver_here() -> bool:
    """Whether an NVIDIA driver seems to be loaded: asked before anything large is imported."""
    return any(Path(sign).exists() for sign in _SIGNS)


def visible() -> tuple[Any, int]:
    """CuPy, and how many GPUs it sees. Raises Unavailable with all that was found missing."""
    # Read when CUDA starts, which counting does. A kernel that is loaded only when it is first
    # launched waits for the device then, and with it for a rank that has still to launch.
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    try:
        cupy = load_cupy()
        return cupy, count_gpus(cupy)
    except Unavailable as error:
        if driver_here():
            raise
        raise Unavailable(f"no NVIDIA driver here (no {_SIGNS[0]}); {error}") from None


def take(world: World, options: Options, *, library: bool) -> Taken:
    """This rank's GPU, by its place among the ranks of its node.

    ``library``: NCCL is wanted, too. Raises NoGpu where a rank has none, Unsupported where ranks
    would share a GPU unasked; both on all ranks alike.
    """
    local = [rank for rank, node in enumerate(world.nodes) if node == world.nodes[world.rank]]
    if world.name == "inproc":
        # Streams of several ranks on one GPU must not share a queue of the hardware's: a kernel
        # would wait behind the very one that waits for it. Before CUDA starts, like `visible`.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    chosen = _picked(world, local) if options.gpus is None else []
    device, problem, unsupported = None, "", False
    try:
        cupy, count = visible()
        here = local.index(world.rank)
        wanted = [_numbered(cupy, count, bus) for bus in chosen] or options.gpus or ()
        device = GpuDevice(cupy, pick.index(here, count, wanted))
        device.use()
        if library:
            load_nccl()
    except BusbarError as error:
        problem, unsupported = str(error), isinstance(error, Unsupported)
    everyone = world.gather(
        [problem, unsupported, device and device.uuid, hostname(), device and device.index]
    )
    _agree(everyone)
    assert device is not None
    uuids = [f"{uuid} of {host}" for _, _, uuid, host, _ in everyone]
    if not options.oversubscribe_gpu and (refusal := pick.sharing(uuids)):
        raise Unsupported(refusal)
    remarks = _remarks(world, uuids)
    if len(set(uuids)) == 1:
        remarks.append(
            "all bytes pass through this GPU's memory and over no link: busbw is a reckoning; % of"
            " limit is of what the GPU's own copies reach, measured beside the rows"
        )
    if chosen:
        remarks.append(f"GPUs as topology pick ranks them: {' '.join(chosen)}")
    return Taken(device, bool(pick.several(uuids)), remarks)


def _picked(world: World, local: list[int]) -> list[str]:
    """PCI addresses of the best GPUs for the ranks of this node, in the order of their ring.

    One rank a node looks. Raises Unsupported on all ranks where one node has no answer.
    """
    mine: list[str] | str | None = None
    if world.rank == local[0]:
        try:
            visible()
            mine = best_gpus(len(local))
        except Unavailable:
            mine = []  # said, with the status for it, when the GPU is taken
        except ProbeError as error:
            mine = f"--gpus pick on {hostname()}: {error}"
    everyone = world.gather(mine)
    for found in everyone:
        if isinstance(found, str):
            raise Unsupported(found)
    return list(everyone[local[0]])


def best_gpus(k: int, files: Sequence[str] = ()) -> list[str]:
    """PCI addresses of the k best GPUs of this machine (or of files), in the order of their ring.

    Raises ProbeError where no source answers, or there are fewer.
    """
    from topology.placement.pick import pick as rank
    from topology.sources.gather import gather

    topology, _ = gather(files)
    order = rank(topology, k).picks[0].order
    address = {gpu.id: gpu.busid for gpu in topology.gpus}
    found = [address[gpu] for gpu in order]
    if None in found:
        raise ProbeError("pick", "no source says at which PCI address the GPUs are")
    return [str(bus) for bus in found]


def _numbered(cupy: Any, visible: int, bus: str) -> int:
    """CUDA's number of the GPU at a PCI address.

    Raises Unsupported where this process sees none.
    """
    for number in range(visible):
        if canonical(str(cupy.cuda.runtime.deviceGetPCIBusId(number))) == bus:
            return number
    raise Unsupported(f"--gpus pick: no GPU at {bus} is visible here; see CUDA_VISIBLE_DEVICES")


def _agree(everyone: list[list[Any]]) -> None:
    """Raise what the first rank that cannot go on has found."""
    for rank, (problem, unsupported, _, host, _) in enumerate(everyone):
        if problem:
            alone = any(not other[0] for other in everyone)
            where = f"rank {rank} on {host}: " if alone else ""
            raise (Unsupported if unsupported else NoGpu)(where + problem)


def _remarks(world: World, uuids: list[str]) -> list[str]:
    """What the table must say of ranks that share a GPU."""
    found = []
    if world.size == 1:
        found.append(
            "one rank: nothing crosses a link; out of place is a copy inside the GPU, and in place"
            " nothing needs to move"
        )
    for uuid, ranks in pick.several(uuids).items():
        whom = f"ranks {', '.join(map(str, ranks))} share GPU {uuid}"
        if world.name == "inproc":
            found.append(f"{whom}: threads of one process, whose kernels run side by side")
        elif _mps():
            found.append(f"{whom}: processes under MPS, whose kernels run side by side")
        else:
            found.append(
                f"{whom}: processes without MPS are time-sliced, so that these times say nothing"
                " about speed"
            )
    return found


def _mps() -> bool:
    """Whether the CUDA Multi-Process Service serves this process."""
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    return any(Path(place).exists() for place in ((f"{pipe}/control",) if pipe else _MPS))


def nccl_transport(world: World, options: Options, wanted: Taken | None = None) -> NcclTransport:
    """The transport ``nccl`` on this rank's GPU; raises as `take` does."""
    from collectives.execution.nccl.said import listening
    from collectives.execution.nccl.transport import NcclTransport

    taken = wanted or take(world, options, library=True)
    nccl, remarks = load_nccl(), taken.remarks
    if taken.shared:
        everyone = world.gather(f"{taken.device.uuid} of {hostname()}")
        threads = world.name == "inproc"
        version = int(nccl.get_version())
        remarks = [*remarks, *pick.only_right(version)]
        os.environ.update(
            pick.oversubscribed(
                everyone, version, world.rank, threads=threads, env=dict(os.environ)
            )
        )
    with listening(world.rank == 0) as log:
        transport = NcclTransport(
            world,
            taken.device,
            nccl,
            graph=options.graph != "off",
            compare=options.graph == "compare",
            cold=options.cache == "cold",
            deadline=options.deadline,
            log=log,
        )
    transport.remarks = remarks
    return transport


def ipc_transports(world: World, options: Options) -> tuple[IpcTransport, Transport]:
    """The transport ``ipc`` on this rank's GPU, and NCCL on it as the baseline.

    Raises as `take` does.

    Where NCCL cannot be used, the first stands for both, and a remark says why.
    """
    from collectives.execution.ipc.transport import IpcTransport

    taken = take(world, options, library=False)
    transport = IpcTransport(
        world,
        taken.device,
        graph=options.graph != "off",
        deadline=options.deadline,
    )
    transport.remarks += taken.remarks
    problem = ""
    try:
        load_nccl()
    except Unavailable as error:
        problem = str(error)
    problems = [one for one in world.gather(problem) if one]
    if not problems:
        try:
            baseline = nccl_transport(world, options, taken)
            transport.remarks += [r for r in baseline.remarks if r not in transport.remarks]
            return transport, baseline
        except (Unsupported, Unavailable) as error:  # the same on every rank
            problems = [str(error)]
    transport.remarks.append(f"without NCCL to compare with: {problems[0]}")
    return transport, transport


def mpi_transport(world: MpiWorld, options: Options) -> MpiDeviceTransport:
    """MPI between GPU buffers; raises as `take` does."""
    from collectives.execution.mpi.device import MpiDeviceTransport, takes_device_memory

    taken = take(world, options, library=False)
    aware = all(world.gather(takes_device_memory(world.mpi))) and options.buffers == "device"
    transport = MpiDeviceTransport(world, taken.device, aware=aware)
    transport.remarks += taken.remarks
    return transport
