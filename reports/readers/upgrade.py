"""Fields that records of formats 1 and 2 lack, derived when they are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.records.cores import of_environment
from reports.records.record import LIBRARY

#: The last format whose records say neither.
OLD = 2
_ON_GPUS = ("nccl", "ipc")


def per_core(transport: str, ranks: int, environment: Mapping[str, Any]) -> float:
    """Ranks per core; 0.0 where it is not known, and on GPUs, whose ranks wait for no core."""
    if transport in _ON_GPUS or environment.get("devices"):
        return 0.0
    return of_environment(environment, ranks)


def shared_work(transport: str, algorithm: str, schedule: str = "") -> bool:
    """Whether work of one rank may have been carried out by another process.

    Until format 3 the executor of ``shm`` gave ranks' work to whoever had a core and fused it
    across steps, for every schedule. A row of ``auto`` without the hash of one ran the library.
    """
    if transport != "shm" or algorithm == LIBRARY:
        return False
    return bool(schedule) or algorithm != "auto"
