"""Chooses each rank's GPU, and checks that all ranks can go on. Only this module imports CuPy.

All ranks call `take` together. Either every rank gets a GPU, or every rank raises the same error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from busbar.errors import BusbarError, ProbeError, Unavailable, Unsupported
from busbar.host import hostname
from busbar.installation import extra
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.registry import TransportRequest
from collectives.execution.world import World
from topology.model.device import canonical


def _extras() -> str:
    return f"{extra('cuda13')} (or [cuda12] for an older driver)"


def load_cupy() -> Any:
    """The module ``cupy``, also on a host without a GPU. Raises Unavailable with the remedy."""
    try:
        import cupy
    except ImportError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Unavailable(f"CuPy cannot be used ({reason}); {_extras()}") from None
    return cupy


def count_gpus(cupy: Any) -> int:
    """The number of GPUs that this process sees. Raises Unavailable if there is none."""
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise Unavailable(f"no GPU can be used here: {error}") from None
    if count < 1:
        raise Unavailable("no GPU is visible here; see CUDA_VISIBLE_DEVICES")
    return count


def load_nccl() -> Any:
    """The module ``cupy.cuda.nccl``. Raises Unavailable where CuPy finds no NCCL."""
    load_cupy()
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise Unavailable(f"CuPy finds no NCCL ({error}); {_extras()}") from None
    if not nccl.available:
        raise Unavailable(f"CuPy finds no NCCL (nvidia-nccl-cu12 or -cu13); {_extras()}")
    return nccl


def version_text(code: int) -> str:
    """NCCL's version as text: 23203 is 2.32.3; 2804, by the older scheme, is 2.8.4."""
    big = 10000 if code >= 10000 else 1000
    return f"{code // big}.{code % big // 100}.{code % 100}"


SEVERAL_SINCE = 23000  # NCCL_MULTI_RANK_GPU_ENABLE
_FINE = 2  # ranks on one GPU for which NCCL's default number of channels still fits
_CTAS = 64  # NCCL's thread blocks (CTAs) on one GPU in total: half of a large GPU's multiprocessors


def gpu_number(local_rank: int, visible: int, wanted: Sequence[int]) -> int:
    """The number of a rank's GPU among those that its process sees.

    Ranks of a node take the GPUs of ``wanted`` (or all) in turn, and start again when there are
    more ranks. Raises Unsupported for a GPU that does not exist.
    """
    missing = [gpu for gpu in wanted if not 0 <= gpu < visible]
    if missing:
        raise Unsupported(
            f"--gpus: no GPU {missing[0]}; this node shows {visible}: 0 to {visible - 1}"
        )
    return wanted[local_rank % len(wanted)] if wanted else local_rank % visible


def shared_gpus(uuids: Sequence[str]) -> dict[str, list[int]]:
    """The GPUs that more than one rank uses, with those ranks."""
    users: dict[str, list[int]] = {}
    for rank, uuid in enumerate(uuids):
        users.setdefault(uuid, []).append(rank)
    return {uuid: ranks for uuid, ranks in users.items() if len(ranks) > 1}


def sharing_refusal(uuids: Sequence[str]) -> str:
    """The error text if ranks share a GPU, with the remedy; empty if they do not."""
    for uuid, ranks in shared_gpus(uuids).items():
        return (
            f"ranks {', '.join(map(str, ranks))} would share one GPU ({uuid}): start no more ranks"
            " on a node than it has GPUs, or give --oversubscribe-gpu, which is for testing"
        )
    return ""


def nccl_variables(
    uuids: Sequence[str], version: int, rank: int, *, threads: bool, env: Mapping[str, str]
) -> dict[str, str]:
    """NCCL's environment variables for ranks that share GPUs, except those that the user has set.

    ``version``: NCCL's version number. Since 2.30 NCCL accepts several ranks on one GPU; its
    default number of channels fits for two. For an older NCCL each rank gets a host name of its
    own, so that ranks communicate over sockets. Raises Unsupported for threads, which share one
    environment.
    """
    shared = shared_gpus(uuids)
    if not shared:
        return {}
    most = max(map(len, shared.values()))
    if version >= SEVERAL_SINCE:
        chosen = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
        if most > _FINE:
            chosen["NCCL_MAX_CTAS"] = str(max(1, _CTAS // most))
    elif threads:
        raise Unsupported(
            f"NCCL {version_text(version)} takes no two ranks of a process on one GPU, which"
            " it does since 2.30; use --transport ipc, or run the ranks as processes under mpirun"
        )
    else:
        chosen = {"NCCL_HOSTID": f"busbar-rank-{rank}"}
    return {name: value for name, value in chosen.items() if name not in env}


def correctness_remarks(version: int) -> list[str]:
    """The table's remark for NCCL on ranks that share a GPU."""
    if version >= SEVERAL_SINCE:
        return []
    return [
        f"correctness only: to NCCL {version_text(version)} each rank that shares a GPU is on a"
        " host of its own (NCCL_HOSTID), and they talk over sockets"
    ]


# Files that NVIDIA's driver creates; the last one is of Windows under WSL.
_SIGNS = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
_MPS = ("/tmp/nvidia-mps/control",)  # noqa: S108  (where MPS listens unless told otherwise)


class NoGpu(Unavailable):
    """No GPU, or no library for it; raised on all ranks alike."""


class RankGpu(NamedTuple):
    """A rank's GPU, the GPUs of all ranks, and remarks on them for the table.

    ``nccl``: NCCL's module, if it was requested.
    """

    device: GpuDevice
    everyone: list[str]
    remarks: list[str]
    nccl: Any = None

    @property
    def shared(self) -> bool:
        """True if ranks share a GPU."""
        return bool(shared_gpus(self.everyone))


def driver_here() -> bool:
    """Whether an NVIDIA driver seems to be loaded; a cheap test before CuPy is imported."""
    return any(Path(sign).exists() for sign in _SIGNS)


def visible() -> tuple[Any, int]:
    """CuPy, and how many GPUs it sees. Raises Unavailable if CuPy, a driver or a GPU is missing."""
    # CUDA reads this when it starts, which counting GPUs causes. A kernel that is loaded lazily
    # waits for the device at its first launch, and so for a rank that has still to launch.
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    try:
        cupy = load_cupy()
        return cupy, count_gpus(cupy)
    except Unavailable as error:
        if driver_here():
            raise
        raise Unavailable(
            f"no NVIDIA driver here (no {_SIGNS[0]}); {error}; without options for GPUs (-g,"
            " --gpus, --transport nccl) the host is measured"
        ) from None


def take(world: World, request: TransportRequest, *, library: bool) -> RankGpu:
    """Choose this rank's GPU by its place among the ranks of its node.

    ``library``: NCCL is needed, too. Raises NoGpu if a rank has no GPU, and Unsupported if ranks
    would share a GPU without --oversubscribe-gpu; both on all ranks.
    """
    local = [rank for rank, node in enumerate(world.nodes) if node == world.nodes[world.rank]]
    if world.name == "inproc":
        # Streams of several ranks on one GPU must not share a hardware queue: a kernel could stand
        # behind the kernel that waits for it. To be set before CUDA starts, as in `visible`.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    chosen = _picked(world, local, request) if request.gpus is None else []
    device, nccl, problem, unsupported = None, None, "", False
    try:
        cupy, count = visible()
        here = local.index(world.rank)
        wanted = [_numbered(cupy, count, bus) for bus in chosen] or request.gpus or ()
        device = GpuDevice(cupy, gpu_number(here, count, wanted))
        device.use()
        nccl = load_nccl() if library else None
    except BusbarError as error:
        problem, unsupported = str(error), isinstance(error, Unsupported)
    everyone = world.gather(
        [problem, unsupported, device and device.uuid, hostname(), device and device.index]
    )
    _agree(everyone)
    assert device is not None
    uuids = [f"{uuid} of {host}" for _, _, uuid, host, _ in everyone]
    if not request.oversubscribe_gpu and (refusal := sharing_refusal(uuids)):
        raise Unsupported(refusal)
    remarks = _remarks(world, uuids)
    if len(set(uuids)) == 1:
        remarks.append(
            "all bytes pass through this GPU's memory and over no link: busbw is a reckoning; % of"
            " limit is of what the GPU's own copies reach, measured beside the rows"
        )
    if chosen:
        remarks.append(f"GPUs as topology pick ranks them: {' '.join(chosen)}")
    return RankGpu(device, uuids, remarks, nccl)


def _picked(world: World, local: list[int], request: TransportRequest) -> list[str]:
    """PCI addresses of the best GPUs for the ranks of this node, in the order of their ring.

    One rank of each node looks. Raises Unsupported on all ranks if a node finds none.
    """
    answer: list[str] | str | None = None
    if world.rank == local[0]:
        try:
            visible()
            answer = request.best_gpus(len(local))
        except Unavailable:
            answer = []  # said, with the status for it, when the GPU is taken
        except ProbeError as error:
            answer = f"--gpus pick on {hostname()}: {error}"
    everyone = world.gather(answer)
    for picked in everyone:
        if isinstance(picked, str):
            raise Unsupported(picked)
    return list(everyone[local[0]])


def _numbered(cupy: Any, visible: int, bus: str) -> int:
    """CUDA's number of the GPU at a PCI address.

    Raises Unsupported if this process does not see that GPU.
    """
    for number in range(visible):
        if canonical(str(cupy.cuda.runtime.deviceGetPCIBusId(number))) == bus:
            return number
    raise Unsupported(f"--gpus pick: no GPU at {bus} is visible here; see CUDA_VISIBLE_DEVICES")


def _agree(everyone: list[list[Any]]) -> None:
    """Raise, on all ranks, the problem of the first rank that has one."""
    for rank, (problem, unsupported, _, host, _) in enumerate(everyone):
        if problem:
            alone = any(not other[0] for other in everyone)
            where = f"rank {rank} on {host}: " if alone else ""
            raise (Unsupported if unsupported else NoGpu)(where + problem)


def _remarks(world: World, uuids: list[str]) -> list[str]:
    """The table's remark on ranks that share a GPU."""
    remarks = []
    if world.size == 1:
        remarks.append(
            "one rank: nothing crosses a link; out of place is a copy inside the GPU, and in place"
            " nothing needs to move"
        )
    for uuid, ranks in shared_gpus(uuids).items():
        whom = f"ranks {', '.join(map(str, ranks))} share GPU {uuid}"
        if world.name == "inproc":
            remarks.append(f"{whom}: threads of one process, whose kernels run side by side")
        elif _mps():
            remarks.append(f"{whom}: processes under MPS, whose kernels run side by side")
        else:
            remarks.append(
                f"{whom}: processes without MPS are time-sliced, so that these times say nothing"
                " about speed"
            )
    return remarks


def _mps() -> bool:
    """True if this process uses the CUDA Multi-Process Service."""
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    return any(Path(place).exists() for place in ((f"{pipe}/control",) if pipe else _MPS))
