"""The fastest under each arrival pattern: the closing table of ``--arrival all``."""

from __future__ import annotations

from reports.records.measurement import LAST, Placements, Window
from reports.tables.summary import arrivals_table
from tests.reports.runs import allreduce, flat, timed


def _result(algorithm: str, pattern: str, each: float, also: float | None = None) -> Placements:
    """A row of 20 iterations of about ``each`` seconds; ``also``: since the last arrival."""

    def times(value: float) -> tuple[float, ...]:
        return tuple(value * (1 + 0.001 * (i % 3)) for i in range(20))

    arrival = pattern if pattern == "zero" else f"{pattern}:5"
    sample = timed(
        times(each),
        window=Window(pattern=pattern, arrival=arrival),
        also={} if also is None else {LAST: times(also)},
    )
    return allreduce(algorithm, 4, 64, sample)


def _table(*results: Placements) -> str:
    return "\n".join(arrivals_table(flat(results)))


def test_the_winner_of_each_pattern_is_marked_and_its_change_is_said() -> None:
    """Rule: the fastest of a pattern is marked, and a line says where another wins surely."""
    text = _table(
        _result("ring", "zero", 2e-6),
        _result("tree", "zero", 3e-6),
        _result("ring", "late:0", 5e-6),
        _result("tree", "late:0", 4e-6),
    )
    assert ">2.00 us" in text and ">4.00 us" in text and text.count(">") == 3
    assert "# 64 B: ring when all arrive at once, tree under late:0" in text
    assert "late:0:5" in text


def test_what_may_be_as_fast_is_no_winner() -> None:
    """Rule: where intervals overlap the mark says so, and no change of the winner is claimed."""
    text = _table(
        _result("ring", "zero", 2e-6),
        _result("tree", "zero", 3e-6),
        _result("ring", "late:0", 4.002e-6),
        _result("tree", "late:0", 4e-6),
    )
    assert "~4.00 us" in text and "when all arrive" not in text


def test_nobody_late_is_timed_from_the_last_arrival_too() -> None:
    """Rule: all columns are from the last arrival, also where the row's own time is not."""
    text = _table(_result("ring", "zero", 9e-6, also=2e-6), _result("ring", "ramp", 3e-6))
    assert "2.00 us" in text and "9.00 us" not in text


def test_one_pattern_has_no_table() -> None:
    """Rule: rows of one pattern, or behind barriers, end in the usual report."""
    assert not arrivals_table(_result("ring", "zero", 2e-6).every)
    assert not arrivals_table(allreduce("ring", 4, 64, [1e-6]).every)
