"""Figures and Markdown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import ReportError
from busbar.tables import draw_sparkline
from busbar.units import format_seconds, format_size
from reports.figures.plot import figures
from reports.readers.reading import parse
from reports.tables.markdown import markdown
from tests.reports.runs import noisy, rows


@pytest.mark.parametrize(
    ("form", "mark"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_every_kind_is_drawn(form: str, mark: bytes) -> None:
    """Rule: busbw, latency and distribution for what was measured, in the form asked for."""
    made = figures(rows(noisy(1)), form, 2e10)
    assert set(made) == {f"allreduce-float-sum-4-ranks-{k}" for k in ("busbw", "latency", "ecdf")}
    assert all(data.startswith(mark) for data in made.values())


def test_a_figure_says_what_it_shows() -> None:
    """Rule: axes with units, a legend that names each algorithm, the bound with its figure."""
    found = rows(noisy(1, sizes=(1024, 2**16, 2**20, 2**26)))
    made = {k.rsplit("-", 1)[1]: v.decode() for k, v in figures(found, "svg", 2e10).items()}
    for kind, words in {
        "busbw": ["busbw (GB/s)", "size (bytes)", "limit, at most 20 GB/s", "ring mpi"],
        "latency": ["<!-- time -->", "tree mpi: ", "out-of-place"],
        "ecdf": ["share of iterations", "at 64M", "n = 40"],
    }.items():
        assert all(f"<!-- {w}" in made[kind] or w in made[kind] for w in words), kind


def test_a_log_without_raw_times_has_no_distribution() -> None:
    """Rule: what a log does not hold is not drawn; nothing to draw is an error."""
    text = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    rows = parse(text + " 1024 256 float sum -1 10.0 0.1 0.2 0 11.0 0.1 0.2 0\n").rows
    assert {name.rsplit("-", 1)[1] for name in figures(rows)} == {"busbw", "latency"}
    with pytest.raises(ReportError, match="to draw"):
        figures([])


@given(st.lists(st.floats(0, 1e6), max_size=60), st.integers(1, 40))
def test_a_sparkline_fits_and_shows_the_extremes(values: list[float], width: int) -> None:
    """Rule: never wider than asked, and never blank at its ends when there is something to show."""
    line = draw_sparkline(values, width)
    assert len(line) <= width
    assert not values or (line[0] != " " and line[-1] != " ")
    assert draw_sparkline(values, width, ascii_only=True).isascii()


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.5e-6, "1.50 us"), (999.4e-6, "999 us"), (2e-3, "2.00 ms"), (12.0, "12.0 s"), (None,
    "N/A"), (0.0, "0 us")],
)  # fmt: skip
def test_times_are_short(value: float | None, text: str) -> None:
    """Rule: three digits and the unit that suits."""
    assert format_seconds(value) == text


def test_sizes_are_exact() -> None:
    """Rule: a unit only where nothing is rounded away."""
    assert [format_size(n) for n in (0, 8, 1000, 1024, 1536, 3 << 30)] == [
        "0", "8", "1000", "1K", "1536", "3G"
    ]  # fmt: skip


def test_markdown_has_every_row_and_no_foreign_markup() -> None:
    """Rule: a row each, and a name cannot end its cell or become a link."""
    text = markdown(rows(noisy(1)))
    table = text[text.index("| size |") :]
    assert sum(line.startswith("|") for line in table.splitlines()) == 2 + 6
    odd = parse(
        "# Collective test starting: x|[y](z)\n"
        "# size count type redop root time algbw busbw #wrong\n"
        " 1024 256 float sum -1 10.0 0.1 0.2 0\n"
    ).rows
    assert "x|" not in markdown(odd) and "[y]" not in markdown(odd).replace("\\[", "")
