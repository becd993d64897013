"""The ways to make one update of all ranks' gradients, by the names that ``--update`` knows.

A name that stands here is run by the module that it names; any other one is an all-reduce of the
catalogue (or ``library``, ``auto``), which ``sync`` runs bucket by bucket.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.steps.job import Update

__all__ = ["ALLREDUCE", "UPDATES", "update"]

#: Whatever is no name of the table.
ALLREDUCE = Update(
    "bench.steps.updates.sync:run",
    "an all-reduce by its name (ring, ps, hierarchical …), library or auto",
    "bench.steps.updates.sync:check",
)
UPDATES: Mapping[str, Update] = {
    "reduce+broadcast": Update(
        "bench.steps.updates.sync:run",
        "gradients reduced to rank 0, parameters broadcast from it (as torch's DataParallel)",
        "bench.steps.updates.sync:check",
    ),
}


def update(name: str) -> Update:
    """What runs a choice of that name."""
    return UPDATES.get(name, ALLREDUCE)
