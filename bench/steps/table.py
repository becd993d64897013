"""The updates that ``--update`` names: how all ranks' gradients become one update.

The table gives the module that runs a name. Any other name is an all-reduce of the catalogue (or
``library``, ``auto``), which ``sync`` runs bucket by bucket.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.steps.job import Update

#: The update of every name that the table lacks.
ALLREDUCE = Update(
    "bench.steps.updates.sync:run",
    "an all-reduce by its name (ring, ps, hierarchical …), library or auto",
    "bench.steps.updates.sync:check",
    fused=True,
)
_SERVERS = "bench.steps.updates.servers"


def _served(about: str) -> Update:
    return Update(f"{_SERVERS}:run", about, f"{_SERVERS}:check")


UPDATES: Mapping[str, Update] = {
    "reduce+broadcast": Update(
        "bench.steps.updates.sync:run",
        "gradients reduced to rank 0, parameters broadcast from it (as torch's DataParallel)",
        "bench.steps.updates.sync:check",
        fused=True,
    ),
    "sync": _served("a server waits for every learner's gradient"),
    "k-sync": _served("k-sync:K: a server waits for K learners and cancels the others"),
    "k-batch-sync": _served("k-batch-sync:K: for K gradients, several of a learner, then cancels"),
    "async": _served("a server updates with every gradient that comes"),
    "k-async": _served("k-async:K: with the gradients of K learners; the others go on"),
    "k-batch-async": _served("k-batch-async:K: with K gradients; nobody waits"),
}
#: Those of the table that go on when a learner is lost.
ASYNCHRONOUS = ("async", "k-async", "k-batch-async")


def update(name: str) -> Update:
    """The function that runs an update by its name."""
    return UPDATES.get(name, ALLREDUCE)
