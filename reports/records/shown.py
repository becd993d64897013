"""What a row is, in words."""

from __future__ import annotations

from busbar.units import format_size
from reports.records.measurement import Measurement

PLACEMENT = {"out": "out-of-place", "in": "in-place"}


def setting(row: Measurement) -> str:
    """The group of a row in words: everything but size and algorithm."""
    ranks = f"{row.ranks} ranks" if row.ranks else ""
    words = (row.collective or "unnamed collective", row.dtype, row.op, ranks, row.reading)
    return ", ".join(w for w in (*words, PLACEMENT[row.placement]) if w)


def named(row: Measurement) -> str:
    """A row in a few words: ``allreduce ring 64M out``."""
    words = (row.collective, row.algorithm, format_size(row.nbytes), row.placement)
    return " ".join(w for w in words if w)
