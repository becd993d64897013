"""The numbers of nccl-tests' table, and the closing tables of a run."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from busbar.units import (
    agreeing,
    format_change,
    format_change_interval,
    format_interval,
    format_part,
    seven_characters,
)
from reports.analysis.cautions import WHY_ABOVE, warnings_of
from reports.exports.run_table import number, row
from reports.records.measurement import Noise, Placements
from reports.tables.scaling import answer
from reports.tables.summary import _KEY, summary
from tests.reports.runs import allreduce, changed, flat, timed


def _result(size: int = 1024, algorithm: str = "ring", seconds: float = 1e-3) -> Placements:
    half = timed((seconds,) * 8, sent_bytes=size, received_bytes=size, total_bytes=size)
    return allreduce(algorithm, 4, size, half, half, transport="inproc")


@given(st.floats(0, 1e12), st.sampled_from([6, 7]))
def test_numbers_keep_their_column(value: float, width: int) -> None:
    """Rule: a figure never breaks the columns, however large."""
    assert len(number(value, width)) == width


@given(st.floats(1e-3, 0.999))
def test_rates_below_one_keep_significant_digits(value: float) -> None:
    """Rule: a slow link's rate is told to three digits as far as a column has room, not as 0.02."""
    assert float(number(value, 6)) == pytest.approx(value, rel=0.005, abs=5.1e-5)
    assert number(0.0247, 6) == "0.0247"


@given(st.floats(1e-3, 9e3))
def test_closing_tables_keep_three_digits(value: float) -> None:
    """Rule: a rate is told to three digits in seven characters, also over slow links."""
    assert len(seven_characters(value)) <= 7
    assert float(seven_characters(value)) == pytest.approx(value, rel=0.0051)


def test_a_row_is_byte_for_byte_nccl_tests() -> None:
    """Rule: the row that nccl-tests' own format strings give for these figures."""
    result = allreduce("ring", 4, 1048576, (164.1e-6,))
    expected = "%12i  %12i  %8s  %6s  %6i" % (1048576, 262144, "float", "sum", -1)  # noqa: UP031
    expected += "  %7s  %6s  %6s  %6g" % (" 164.10", "  6.39", "  9.58", 0.0)  # noqa: UP031
    expected += "  %7s  %6s  %6s  %6s" % ("N/A", "N/A", "N/A", "N/A")  # noqa: UP031
    assert row(result) == expected


@given(st.integers(80, 200), st.integers(1, 14))
def test_the_closing_table_fits_its_width(width: int, algorithms: int) -> None:
    """Rule: comment lines no wider than the terminal, every algorithm shown, ratios to library."""
    results = [_result(2**30, f"algorithm_{i}") for i in range(algorithms)]
    results.append(_result(2**30, "library", seconds=2e-3))
    lines = summary(flat(results), width=width)
    assert all(line.startswith("#") and len(line) <= width for line in lines)
    text = "\n".join(lines)
    assert all(f"algorithm_{i}" in text for i in range(algorithms)) and "(2.00x)" in text


def _lines(results: list[Placements], width: int = 80) -> list[str]:
    return summary(flat(results), width=width)


def test_server_and_ring_have_the_law_below_their_bytes() -> None:
    """Rule: with both, the factor P between their ports is said; with one it is not."""
    moved: dict[str, Any] = {"sent_bytes": 1, "received_bytes": 1, "total_bytes": 2}
    rows = [
        allreduce(name, 8, 2**20, timed((1e-3,) * 8, **moved)) for name in ("ring", "ps", "tree")
    ]
    said = " ".join(line.removeprefix("# ") for line in _lines(rows))
    assert "2N(P-1) = 14N" in said and "2N(P-1)/P = 1.75N" in said and "P = 8 times" in said
    assert "P = 8 times" not in " ".join(_lines(rows[1:]))


def test_small_sizes_are_told_in_microseconds() -> None:
    """Rule: one table has each size once: times below 64K, then busbw; the best is marked."""
    results = [
        _result(size, name, seconds=t)
        for size in (1024, 65536)
        for name, t in (("ring", 5e-5), ("tree", 4e-5))
    ]
    text = "\n".join(_lines(results))
    times, rates = text.index("time in us"), text.index("busbw in GB/s")
    assert times < rates and text.count("out-of-place float sum") == 1
    assert re.search(r"#\s+1024\s+50\.0\s+>40\.0", text[times:rates])
    assert re.search(r"#\s+65536\s+1\.97\s+>2\.46", text[rates:])


def test_long_names_break_no_alignment() -> None:
    """Rule: a long name stands on several lines above its column, and whole beside bytes."""
    long = "double_tree:segments=16+" * 3 + "tree"
    lines = _lines([_result(2**20, long), _result(2**20, "ring", seconds=2e-3)])
    grid = [line for line in lines if line.split()[1:2] == ["1048576"]]
    assert grid and all(len(line) <= 80 for line in grid)
    moved = lines[next(n for n, line in enumerate(lines) if "bytes moved" in line) + 1 :][:3]
    assert len({len(line) for line in moved}) == 1 and long in moved[1]


def test_a_bound_has_a_column_apart() -> None:
    """Rule: work sharing stands last, under "bound:", and wins nothing, however fast it is."""
    half = timed((1e-6,) * 8)
    bound = allreduce("worksharing", 4, 1 << 20, half, half, worksharing=True)
    lines = summary(flat([bound, _result(1 << 20), _result(1 << 20, "tree", 2e-3)]))
    at = next(n for n, line in enumerate(lines) if line.split() == ["#", "bound:"])
    assert lines[at + 1].split() == ["#", "size", "ring", "tree", "worksharing"]
    assert [">" in cell for cell in lines[at + 2].split()[2:]] == [True, False, False]
    assert any(line.startswith("# bound: ") for line in lines)


@given(st.floats(0.01, 1e6))
def test_large_changes_are_factors(ratio: float) -> None:
    """Rule: a change is in per cent below ten times, from there on a factor that can be read."""
    text = format_change(ratio)
    value = float(text[:-1])
    read = value if text.endswith("x") else 1 + value / 100
    assert text.endswith("x") == (ratio >= 10) and read == pytest.approx(ratio, rel=0.01, abs=1e-3)
    assert len(format_interval(0.9, ratio + 1, 1)) <= 16


@given(st.floats(0.1, 3e3), st.floats(0.1, 0.999), st.floats(1.001, 9))
def test_the_interval_of_a_change_has_its_unit(ratio: float, below: float, above: float) -> None:
    """Rule: an interval's ends are factors wherever the change is one, and no number is long."""
    text = format_change_interval(ratio, ratio * below, ratio * above)
    if ratio * above >= 100 * ratio * below:
        assert text == "-"
        return
    ends = text.replace("x", "").replace("%", "").split()
    low, high = (float(one) if "x" in text else 1 + float(one) / 100 for one in ends)
    assert low == pytest.approx(ratio * below, rel=0.01, abs=1e-3)
    assert high == pytest.approx(ratio * above, rel=0.01, abs=1e-3)
    factor = "x" in format_change(ratio) or ratio * above >= 100
    assert (text.count("x"), text.count("%")) == ((2, 0) if factor else (0, 1))
    digits = [sum(map(str.isdigit, one)) for one in ends]
    assert max(digits) <= (4 if ratio * above < 10_000 else 5)


@given(st.floats(1e-30, 1.0), st.floats(1.0, 1e30))
def test_an_open_interval_is_not_printed(low: float, high: float) -> None:
    """Rule: ends that are a factor of 100 or more apart are ``-``; others are short texts."""
    text = format_interval(low, high, 1.0)
    assert (text == "-") == (high >= 100 * low) and len(text) <= 16
    assert format_interval(0.9996, 1.0004, 1.0) == "<0.1%"
    assert format_interval(0.9996, 1.002, 1.0) == "-0.0 +0.2%"


def test_more_than_the_limit_is_explained() -> None:
    """Rule: above 105 % of limit the row's cell has the letter of its reason; at 104 % none has.

    Above 150 % the cell has no figure, and a note says why.
    """
    shared: dict[str, Any] = {"ranks_per_core": 2.0}
    others: dict[str, Any] = {"noise": Noise(others=[0.2])}
    cases: tuple[tuple[str, float, dict[str, Any]], ...] = (
        ("120%c", 1.2, {}),
        ("106%s", 1.06, shared),
        ("120%o", 1.2, others),
        ("104%", 1.04, shared),
        (">150%", 1.6, {}),
    )
    for cell, limit, more in cases:
        over = timed(
            (1e-3,) * 8, limit_s=limit * 1e-3, sent_bytes=1, received_bytes=1, total_bytes=1
        )
        row = allreduce("ring", 4, 2**20, replace(over, **more))
        text = " ".join(_lines([row]))
        assert f" {cell}\n" in text or f" {cell} " in text
        notes = [w for w in warnings_of(flat([row])) if "above 105%" in w]
        why = WHY_ABOVE.get(cell[-1])
        assert len(notes) == (why is not None)
        assert notes == [  # as of rows read from a file
            w for r in flat([row]) for w in warnings_of([replace(r, noise=None)]) if "105%" in w
        ]
        assert text.count("more than any memory reaches") == (limit > 1.5)
        if why is not None:
            assert f"{cell[-1]}: {why.split(',')[0].split(';')[0]}" in text
            assert notes[0].startswith("1 of 1 row ") and notes[0].endswith(why)


def _with_limits(*algorithms: tuple[str, float]) -> list[Placements]:
    """Rows of both placements at 1K and 1M; those of 1M have a limit of 0.5 ms."""
    rows = []
    for size in (1024, 2**20):
        for name, seconds in algorithms:
            half = timed((seconds,) * 8, limit_s=5e-4 if size > 1024 else None)
            rows.append(allreduce(name, 4, size, half, half, transport="shm"))
    return rows


def test_what_marks_mean_stands_once() -> None:
    """Rule: over all placements and collectives each mark is explained once, below the tables."""
    rows = _with_limits(("ring", 1e-3), ("tree", 2e-3), ("worksharing", 1e-4))
    rows = [changed(row, worksharing=row.every[0].algorithm == "worksharing") for row in rows]
    lines = _lines(rows + [changed(row, collective="reduce") for row in rows])
    text = "\n".join(lines)
    assert all(text.count(f"\n# {key}: ") == 1 for key in (">", "bound", "limit"))
    titles = [n for n, line in enumerate(lines) if re.search("(out-of|in)-place float sum", line)]
    assert len(titles) == 4 and max(titles) < lines.index(f"# {_KEY}")
    assert lines.index(f"# {_KEY}") < min(n for n, line in enumerate(lines) if "fastest of" in line)


def test_the_limit_is_of_the_fastest() -> None:
    """Rule: a last column has what the fastest reached of its limit, and is empty without one."""
    lines = _lines(_with_limits(("ring", 1e-3), ("tree", 2e-3)))
    table = lines[1 : lines.index("#", 1)]
    assert table[1].split() == ["#", "size", "ring", "tree", "limit"]
    assert [line.split()[-1] for line in table if ">" in line] == ["2000", "50%"]


def test_a_tilde_is_explained_with_algorithm_and_sizes() -> None:
    """Rule: below each answer's table a line names what may be as fast, and at which sizes."""
    mixed = tuple(1e-3 * (1 + 0.1 * (n % 3)) for n in range(9))
    rows = [allreduce(name, 4, 1024, mixed, mixed) for name in ("ring", "tree")]
    lines = answer(flat(rows), 80)
    assert lines.count("~ring: tree may be as fast at 1K") == 2, lines


def test_a_count_of_one_is_singular() -> None:
    """Rule: noun and verb of a sentence follow the count; what is no verb stays."""
    assert format_part(1, 1, "row", "are slower") == "1 of 1 row is slower"
    assert format_part(1, 9, "row", "vary by 3 %") == "1 of 9 rows varies by 3 %"
    assert format_part(2, 9, "row", "were skipped") == "2 of 9 rows were skipped"
    assert agreeing(1, "ran") == "ran" and agreeing(1, "drift") == "drifts"
