"""Reads what rccl-tests' ``-Z json`` writes: a list with one object for each row and placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from reports.readers import names
from reports.records.rows import Note, Reading, Row, Run

_KEYS = {"size", "inPlace", "time", "algBw", "busBw"}


def recognises(document: object) -> bool:
    """Whether a JSON document has the shape of that file."""
    first = document[0] if isinstance(document, list) and document else None
    return isinstance(first, dict) and first.keys() >= _KEYS


def read(source: str, documents: Sequence[object]) -> Reading:
    """The rows of one document; an object that lacks what a row needs is said by its number.

    Every cycle of ``-N`` is a run of its own. Wrong values that were not counted are None.
    """
    rows: list[Row] = []
    notes: list[Note] = []
    runs: dict[object, Run] = {}
    for n, each in enumerate(documents):
        document = each if isinstance(each, dict) else {}
        run = runs.setdefault(
            document.get("numCycle"), Run(source, len(runs), "rccl-tests-json", library="RCCL")
        )
        row = _row(run, document)
        if isinstance(row, str):
            notes.append(Note(source, 0, f"object {n} not read: {row}"))
        else:
            rows.append(row)
    return Reading(rows, notes)


def _number(value: object) -> float | None:
    """A finite number, in quotes or not; None for anything else."""
    try:
        number = float(str(value)[:32])
    except ValueError:
        return None
    return number if isfinite(number) else None


def _row(run: Run, document: Mapping[str, Any]) -> Row | str:
    size, time = _number(document.get("size")), _number(document.get("time"))
    if size is None or size < 0 or time is None or time < 0:
        return "its size or its time is no number"
    algbw, busbw = _number(document.get("algBw")), _number(document.get("busBw"))
    wrong, ranks = _number(document.get("wrong")), _number(document.get("ranks"))
    collective = names.collective(str(document.get("name", "")))
    op = str(document.get("redop", ""))
    return Row(
        run=run,
        line=0,
        collective=collective,
        size=int(size),
        message=int(size),
        placement="in" if document.get("inPlace") in (1, "1", True) else "out",
        transport="nccl",
        ranks=int(ranks)
        if ranks
        else names.ranks_from_rates(collective, algbw or 0.0, busbw or 0.0),
        dtype=names.dtype(str(document.get("type", ""))),
        op="" if op == "none" else op,
        time_s=time * 1e-6,
        algbw_bytes_per_s=names.scaled(algbw, 1e9),
        busbw_bytes_per_s=names.scaled(busbw, 1e9),
        wrong=None if wrong is None or wrong < 0 else int(wrong),
    )
