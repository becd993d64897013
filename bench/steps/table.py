"""The updates that ``--update`` names: how all ranks' gradients become one update.

Any name that the table lacks is an all-reduce of the catalogue, ``library`` or ``auto``.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.steps.job import Update

_SYNCHRONOUS, _SERVERS = "bench.steps.updates.sync", "bench.steps.updates.servers"
#: The update of a name that the table lacks.
ALLREDUCE = Update(
    _SYNCHRONOUS,
    "an all-reduce by its name (ring, ps, hierarchical …), library or auto",
    fused=True,
)
UPDATES: Mapping[str, Update] = {
    "reduce+broadcast": Update(
        _SYNCHRONOUS,
        "gradients reduced to rank 0, parameters broadcast from it (as torch's DataParallel)",
        fused=True,
    ),
    "sync": Update(_SERVERS, "a server waits for every learner's gradient"),
    "k-sync": Update(_SERVERS, "k-sync:K: a server waits for K learners and cancels the others"),
    "k-batch-sync": Update(
        _SERVERS, "k-batch-sync:K: for K gradients, several of a learner, then cancels"
    ),
    "async": Update(_SERVERS, "a server updates with every gradient that comes"),
    "k-async": Update(_SERVERS, "k-async:K: with the gradients of K learners; the others go on"),
    "k-batch-async": Update(_SERVERS, "k-batch-async:K: with K gradients; nobody waits"),
}
#: Updates that continue when a learner is lost.
ASYNCHRONOUS = ("async", "k-async", "k-batch-async")


def update(name: str) -> Update:
    """The update of that name."""
    return UPDATES.get(name, ALLREDUCE)
