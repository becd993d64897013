"""A schedule's fingerprint: equal moves in equal steps give the same text on every machine."""

from __future__ import annotations

import hashlib

import numpy as np

from collectives.schedule.schedule import Schedule

_LENGTH = 16


def digest(schedule: Schedule) -> str:
    """The first 16 hex digits of the SHA-256 of a schedule: its shape, moves and scratch.

    Name and parameters are not included, so two ways to write one algorithm have one digest.
    """
    sha = hashlib.sha256()
    head = (schedule.nranks, schedule.nchunks, schedule.scratch, schedule.vector, schedule.packed)
    sha.update(repr(tuple(map(int, head))).encode())
    for step in schedule.steps:
        table = np.ascontiguousarray(step.moves().table, "<i4")
        sha.update(f"step {table.shape[1]}".encode())
        sha.update(table.data)
    for held in schedule.held:
        sha.update(np.ascontiguousarray(held, "<i8").tobytes())
    return sha.hexdigest()[:_LENGTH]
