"""Which rank takes which GPU, and what to do where there are more ranks than GPUs.

Pure decisions; the environment variables that follow are returned, not set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from busbar.errors import Unsupported
from collectives.execution.gpu.load import version_text

SEVERAL_SINCE = 23000  # NCCL_MULTI_RANK_GPU_ENABLE
_FINE = 2  # ranks on one GPU that NCCL's default channels still leave room for
_CTAS = 64  # of NCCL on one GPU in all: half of a large GPU's multiprocessors


def index(local_rank: int, visible: int, wanted: Sequence[int]) -> int:
    """The number of the GPU for a rank, of those that its process sees.

    By node-local rank, through the list that was asked for, and round again where ranks are more.
    Raises Unsupported for a GPU that is not there.
    """
    missing = [gpu for gpu in wanted if not 0 <= gpu < visible]
    if missing:
        raise Unsupported(
            f"--gpus: no GPU {missing[0]}; this node shows {visible}: 0 to {visible - 1}"
        )
    return wanted[local_rank % len(wanted)] if wanted else local_rank % visible


def several(uuids: Sequence[str]) -> dict[str, list[int]]:
    """The GPUs that more than one rank took, with those ranks."""
    found: dict[str, list[int]] = {}
    for rank, uuid in enumerate(uuids):
        found.setdefault(uuid, []).append(rank)
    return {uuid: ranks for uuid, ranks in found.items() if len(ranks) > 1}


def sharing(uuids: Sequence[str]) -> str:
    """The refusal where ranks share a GPU, with the advice; empty where none do."""
    for uuid, ranks in several(uuids).items():
        return (
            f"ranks {', '.join(map(str, ranks))} would share one GPU ({uuid}): start no more ranks"
            " on a node than it has GPUs, or give --oversubscribe-gpu, which is for testing"
        )
    return ""


def oversubscribed(
    uuids: Sequence[str], version: int, rank: int, *, threads: bool, env: Mapping[str, str]
) -> dict[str, str]:
    """The NCCL variables for ranks that share GPUs; what the user has set stays.

    ``version``: NCCL's number. Since 2.30 it takes several ranks on one GPU, about two with its own
    number of channels. An older one is made to believe that each rank is on a host of its own, so
    that ranks talk over sockets. Raises Unsupported for threads, which share one environment.
    """
    shared = several(uuids)
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


def only_right(version: int) -> list[str]:
    """The remark of a table over NCCL on ranks that share a GPU."""
    if version >= SEVERAL_SINCE:
        return []
    return [
        f"correctness only: to NCCL {version_text(version)} each rank that shares a GPU is on a"
        " host of its own (NCCL_HOSTID), and they talk over sockets"
    ]
