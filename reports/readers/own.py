"""Reads Busbar's own records: JSON lines, or a JSON list.

Every format ever written stays readable.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from reports.readers.columns import HEAD, REAL, Rows, Times, rows_of
from reports.readers.placements import BYTES, checked, per_rank, placement
from reports.readers.printable import printable_values
from reports.readers.runs import Runs, check_format
from reports.readers.text import record_texts
from reports.readers.upgrade import OLD, per_core, shared_work
from reports.records.gpus import energy, memory_clock
from reports.records.record import Result
from reports.records.rows import Note, Reading, Run

_RESULT = {f.name for f in fields(Result)} - {"out", "in_place"}
_WHOLE = ("ranks", "size", "count", "root")
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1  # what a column of whole numbers holds
_MOST_FACTOR, _MOST_HZ = 1e6, 1e12
_ABSENT: dict[str, Any] = {
    "alg_factor": 1.0,
    "schedule": "",
    "ranks_per_core": 0.0,
    "worksharing": False,
}
Documents = Iterable[tuple[int, object]]

# What JSON has where a text is not plain: an escape, or a character beyond ASCII's printable ones.
_ODD = re.compile(r"\\[ubfnrt]|[^\n\r\t -~]")


def recognises(document: object) -> bool:
    """Whether a JSON value is one of our lines, of this format or a newer one."""
    return isinstance(document, dict) and (
        ("collective" in document and "bus_factor" in document) or _is_run(document)
    )


def _is_run(document: Mapping[str, Any]) -> bool:
    """Whether it is the line of an environment, which records name as their ``run``."""
    return {"run", "environment", "format"} <= document.keys() and "collective" not in document


def result(document: Mapping[str, Any]) -> Result:
    """A record from its JSON form; fields that this version does not know are left out.

    What an older format does not say is worked out (`reports.readers.upgrade`). Raises ValueError
    with the reason when it is no record that we can read.
    """
    check_format(document)
    head = tuple(document.get(name, _ABSENT.get(name)) for name in HEAD)
    _check_head(head)
    if document["format"] <= OLD:
        head = _upgraded(head, document.get("environment", {}))
    known = {k: v for k, v in document.items() if k in _RESULT}
    known |= dict(zip(HEAD, head, strict=True)) | {"gpus": _gpus(document)}
    return Result(
        **known, out=placement(document.get("out")), in_place=placement(document.get("in_place"))
    )


def _check_head(head: Sequence[object]) -> None:
    """Raise ValueError where a value of ``HEAD`` is missing or of another kind."""
    for name, value in zip(HEAD, head, strict=True):
        if name in REAL:
            if not isinstance(value, (int, float)) or not abs(value) <= _MOST_FACTOR:
                raise ValueError(f"{name} is missing or no number")
            if name == "ranks_per_core" and value < 0:
                raise ValueError(f"{name} {value} is below 0")
        elif name == "worksharing":
            if not isinstance(value, bool):
                raise ValueError(f"{name} is neither true nor false")
        elif not isinstance(value, int if name in _WHOLE else str):
            raise ValueError(f"{name} is missing or no {'int' if name in _WHOLE else 'str'}")
        elif isinstance(value, int) and not _LEAST <= value <= _MOST:
            raise ValueError(f"{name} {value} is out of range")


def _upgraded(head: tuple[Any, ...], environment: Mapping[str, Any]) -> tuple[Any, ...]:
    """The head of a record of an old format, with the values that it lacks."""
    known = dict(zip(HEAD, head, strict=True))
    transport = known["transport"]
    known["ranks_per_core"] = per_core(transport, known["ranks"], environment)
    known["worksharing"] = shared_work(transport, known["algorithm"], known["schedule"])
    return tuple(known.values())


def _gpus(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    gpus = document.get("gpus", ())
    if not isinstance(gpus, (list, tuple)) or not all(isinstance(gpu, dict) for gpu in gpus):
        raise ValueError("gpus are not a list of objects")
    return tuple(gpus)


def _core_clock(noise: object, placement: str) -> float | None:
    """The slowest rank's core in Hz; None where the record does not say."""
    found = noise.get(placement) if isinstance(noise, dict) else None
    clocks = found.get("hz") if isinstance(found, dict) else None
    known = isinstance(clocks, list) and all(
        isinstance(hz, int | float) and 0 < hz < _MOST_HZ for hz in clocks
    )
    return float(min(clocks)) if clocks and known else None


class _Table:
    """Gathers the placements of records, to be worked out all together."""

    def __init__(self, source: str) -> None:
        self._runs = Runs(source)
        self._sound: set[tuple[Any, ...]] = set()  # heads that were found to be ones
        self._upgraded: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # by run and head
        self._heads: dict[tuple[Any, ...], int] = {}
        self._placed: list[tuple[Any, ...]] = []
        self._times: list[list[float]] = []

    def add(self, line: int, document: dict[str, Any]) -> str:
        """Take a record, or the line of an environment; return a remark on it.

        Raises ValueError (TypeError for kinds that no number has) when it cannot be read; nothing
        of it is kept then.
        """
        if _is_run(document):
            self._runs.keep(document)
            return ""
        check_format(document)
        head = self._head(document)
        halves = [
            (name, checked(document[key]), per_rank(document[key]))
            for name, key in (("out", "out"), ("in", "in_place"))
            if document.get(key) is not None
        ]
        gpus = _gpus(document) if "gpus" in document else ()
        run, said = self._runs.of(document)
        if document["format"] <= OLD:
            head = self._of_old(run, head)
        number = self._heads.setdefault(head, len(self._heads))
        for name, half, own in halves:
            get = half.get
            self._times.append(get("times", []))
            self._placed.append(
                (
                    run,
                    line,
                    number,
                    name,
                    "mean" if get("timing") == "loop" else "median",
                    get("iterations", 0),
                    get("stopped", ""),
                    get("wrong"),
                    get("skipped", ""),
                    get("timing", "each"),
                    get("across", "max"),
                    get("checked", ""),
                    get("limit"),
                    own,
                    _core_clock(document.get("noise"), name),
                    memory_clock(gpus, name) if gpus else None,
                    energy(gpus, name) if gpus else None,
                    *map(get, BYTES),
                )
            )
        return said

    def _head(self, document: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values for both placements; equal ones are checked once."""
        head = tuple([document.get(name, _ABSENT.get(name)) for name in HEAD])
        # As 1 and true are the same key, and only one of them is what it should be.
        key = (*head, type(head[-1]))
        if key not in self._sound:
            _check_head(head)
            self._sound.add(key)
        return head

    def _of_old(self, run: Run, head: tuple[Any, ...]) -> tuple[Any, ...]:
        key = (run.number, *head)
        if key not in self._upgraded:
            self._upgraded[key] = _upgraded(head, run.environment)
        return self._upgraded[key]

    def rows(self) -> Rows:
        """All rows so far."""
        return rows_of(self._placed, list(self._heads), Times.of(self._times))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the cyclic collector, which walks over millions of young values again and again."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _object(document: object) -> dict[str, Any]:
    """A document that may be a record. Raises ValueError."""
    if isinstance(document, ValueError):
        raise document
    if not isinstance(document, dict):
        raise ValueError("not a record")
    return document


def _readings(source: str, documents: Documents) -> Reading:
    table, notes = _Table(source), list[Note]()
    with _uncollected():
        for n, (line, document) in enumerate(documents, 1):
            try:
                said = table.add(line, _object(document))
            except (ValueError, TypeError, OverflowError) as error:
                said = f"record{'' if line else f' {n}'} not read: {error}"
            if said:
                notes.append(Note(source, line, said))
        return Reading(table.rows(), notes)


def rows(results: Iterable[Result], source: str = "<results>") -> Rows:
    """The rows of records as they are in memory."""
    table = _Table(source)
    for line, one in enumerate(results, 1):
        document = json.loads(json.dumps(one.as_dict()))
        table.add(line, document)
    return table.rows()


def results(text: str, strict: bool = True) -> list[Result]:
    """The whole records of JSON lines, their texts safe to print.

    Raises ValueError where one cannot be read; unless ``strict`` it is left out.
    """
    runs, found, odd = Runs("<text>"), [], _ODD.search(text) is not None
    for _, parsed in _parsed(text):
        try:
            document = _object(printable_values(parsed) if odd else parsed)
            if _is_run(document):
                runs.keep(document)
            else:
                found.append(result({**document, "environment": runs.environment(document)[0]}))
        except (ValueError, TypeError):
            if strict:
                raise
    return found


def step_results(path: Path) -> list[Result]:
    """The records of training steps in JSON lines or a run directory, with their curves.

    Other records are left out: the reader of the file's rows has its notes.
    """
    texts = (line for text in record_texts(path) for line in text.split("\n") if '"step"' in line)
    return [one for one in results("\n".join(texts), strict=False) if one.step]


def read_list(source: str, documents: Sequence[object]) -> Reading:
    """The records of a JSON list."""
    return _readings(source, ((0, d) for d in documents))


def read_jsonl(source: str, text: str) -> Reading:
    """The records of JSON lines; a line that was cut is said, the others are kept."""
    return _readings(source, _parsed(text))


def _parsed(text: str) -> Documents:
    decode = json.JSONDecoder().decode
    for n, line in enumerate(text.split("\n"), 1):
        if line and not line.isspace():
            try:
                yield n, decode(line)
            except (ValueError, RecursionError) as error:
                yield n, ValueError(f"no JSON ({str(error)[:60]})")
