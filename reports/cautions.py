"""What a reader must know before believing the rows of a run, in a few lines. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.readers import own
from reports.readers.rows import Row
from reports.record import Result
from reports.shown import size_text
from reports.stability import FEWEST, Kind, Unstable, spread, unstable

__all__ = ["of_results", "unstable_rows", "warnings_of"]

_MOST = 1000  # rows looked at closely: enough to know a run, and half a second of work
_SAID: Mapping[Kind, str] = {
    "few": f"have fewer than {FEWEST} iterations: no interval is known",
    "spread": "vary by more than 10 % (cv) from iteration to iteration",
    "warm-up": "were not warm when the clock started",
    "drift": "drift",
    "modes": "have more than one mode",
    "alike": "have iterations that resemble the one before",
}


def unstable_rows(rows: Sequence[Row]) -> list[tuple[Row, tuple[Unstable, ...]]]:
    """The rows with a reason to distrust them, see `reports.stability`.

    Of more than 1000 rows that say something, 1000 evenly spread ones are looked at.
    """
    found = ((r, _reasons(r)) for r in _looked_at(_telling(rows)))
    return [(r, reasons) for r, reasons in found if reasons]


def _reasons(row: Row) -> tuple[Unstable, ...]:
    if row.times_s:
        return unstable(row.times_s)
    found = spread(row.cv or 0.0)  # a log's own figure, as nccl-tests -I print it
    return () if found is None else (found,)


def _telling(rows: Sequence[Row]) -> Sequence[Row]:
    return [r for r in rows if r.times_s or r.cv is not None]


def _looked_at(given: Sequence[Row]) -> Sequence[Row]:
    return given if len(given) <= _MOST else [given[i * len(given) // _MOST] for i in range(_MOST)]


def warnings_of(rows: Sequence[Row]) -> list[str]:
    """What makes the rows of a run less than they seem, a line a kind: wrong elements first."""
    timed = [r for r in rows if r.time_s is not None]
    silent = sum(not r.times_s for r in timed)
    wrong = sum(bool(r.wrong) for r in rows)
    found = [f"{_rows(wrong)} wrong elements"] if wrong else []
    if silent:
        found.append(f"{silent} of {len(timed)} rows have no raw times: no interval is known")
    telling = _telling(timed)
    looked_at = len(_looked_at(telling))
    every = looked_at == len(telling)
    of = f"of {looked_at} rows" if every else f"of the {looked_at} rows looked at"
    by_kind: dict[Kind, list[tuple[Row, Unstable]]] = {}
    for row, reasons in unstable_rows(telling):
        for reason in reasons:
            by_kind.setdefault(reason.kind, []).append((row, reason))
    for kind, said in _SAID.items():
        mine = by_kind.get(kind, [])
        if mine:
            row, worst = max(mine, key=lambda one: one[1].amount)
            most = "" if kind == "few" else f"; most of all {_where(row)}: {worst.text}"
            found.append(f"{len(mine)} {of} {said}{most}")
    return found


def of_results(results: Sequence[Result]) -> list[str]:
    """The same for the records of a run that is just ending, for its closing table."""
    return warnings_of(own.rows(results))


def _rows(n: int) -> str:
    return "1 row has" if n == 1 else f"{n} rows have"


def _where(r: Row) -> str:
    size = size_text(r.size if r.size is not None else r.message)
    return " ".join(w for w in (r.collective, r.algorithm, size, r.placement) if w)
