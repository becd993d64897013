"""Reads what rccl-tests' ``-Z json`` writes: a list with one object for each row and placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.readers import names
from reports.readers.gathered import Gathered
from reports.readers.nccl_json import number, whole
from reports.readers.printed import contradiction, micros
from reports.records.measurement import Measurement, Reading, Run

_KEYS = {"size", "inPlace", "time", "algBw", "busBw"}


def recognises(document: object) -> bool:
    """Whether a JSON document has the shape of that file."""
    first = document[0] if isinstance(document, list) and document else None
    return isinstance(first, dict) and first.keys() >= _KEYS


def read(source: str, documents: Sequence[object]) -> Reading:
    """The rows of one document; an object that lacks what a row needs is said by its number.

    Every cycle of ``-N`` is a run of its own. Wrong values that were not counted are None.
    """
    gathered = Gathered(source)
    runs: dict[object, Run] = {}
    for n, each in enumerate(documents):
        document = each if isinstance(each, dict) else {}
        run = runs.setdefault(
            document.get("numCycle"), Run(source, len(runs), "rccl-tests-json", library="RCCL")
        )
        gathered.take(0, _row(run, document), f"object {n}")
    return gathered.close()


def _row(run: Run, document: Mapping[str, Any]) -> Measurement | str:
    size, time = whole(document.get("size")), number(document.get("time"))
    if size is None or size < 0 or time is None or time < 0:
        return "its size or its time is no number"
    algbw, busbw = number(document.get("algBw")), number(document.get("busBw"))
    wrong, ranks = whole(document.get("wrong")), whole(document.get("ranks"))
    collective = names.collective(str(document.get("name", "")))
    op = str(document.get("redop", ""))
    ranks = ranks or names.ranks_from_rates(collective, algbw or 0.0, busbw or 0.0)
    timed = micros(document.get("time")) if collective != "hypercube" else None
    rates = (str(document.get("algBw")), str(document.get("busBw")))
    if odd := contradiction(size, timed, *rates, names.bus_factor(collective, ranks)):
        return f"{odd}: a figure was changed"
    return Measurement(
        run=run,
        line=0,
        collective=collective,
        size=size,
        message=size,
        placement="in" if document.get("inPlace") in (1, "1", True) else "out",
        transport="nccl",
        ranks=ranks,
        dtype=names.dtype(str(document.get("type", ""))),
        op="" if op == "none" else op,
        time_s=time * 1e-6,
        algbw_bytes_per_s=names.scaled(algbw, 1e9),
        busbw_bytes_per_s=names.scaled(busbw, 1e9),
        wrong=None if wrong is None or wrong < 0 else wrong,
    )
