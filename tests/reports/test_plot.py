"""Figures for print: what is drawn, by what stands in their axes; and Markdown of a comparison."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from msgspec.structs import replace

from busbar.canvas import canvas, colour_of, times_axis
from reports.analysis.compare import Comparison, compare, differences, join
from reports.figures.plot import FIGURES, doubtful, figures, heat_map, scaling
from reports.figures.series import Palette, fitted
from reports.records.measurement import Measurement, Noise
from reports.tables.markdown import MOST_ROWS, comparison_markdown, markdown
from tests.command import reports_main as main
from tests.reports.runs import MEASURED, changed, cli, launches, noisy, records, rows, saved
from topology.model.slow_units import Cell, Pairs


def _drawn(kind: str, found: list[Measurement], limit: float | None = None) -> Any:
    axes = Figure().subplots()
    series = [s.placed("out") for s in Palette.of(found).series(found)]
    assert FIGURES[kind](axes, series, limit)
    return axes


def _line(axes: Any, name: str) -> Any:
    return next(line for line in axes.lines if str(line.get_label()).startswith(name))


def test_busbw_has_measured_fitted_and_bound_curves() -> None:
    """Rule: a line and a band an algorithm, a fit that passes near it, and the rows' own bound."""
    found = rows(records(["ring", "tree"], [4]))
    axes = _drawn("busbw", found, limit=1.0)
    assert len(axes.collections) == 2
    mine = [r for r in found if r.algorithm == "ring" and r.placement == "out"]
    assert _line(axes, "ring").get_ydata() == pytest.approx(
        [(r.busbw_bytes_per_s or 0) / 1e9 for r in mine]
    )
    fits = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert len(fits) == 2 and fits[0].get_ydata()[-1] == pytest.approx(
        _line(axes, "ring").get_ydata()[-1], rel=0.1
    )
    bound = _line(axes, "limit")
    # Records state half of the median as the least time of the fastest: twice its busbw, nearly.
    best = max((r.busbw_bytes_per_s or 0) * (r.time_s or 0) / (r.limit_s or 1) for r in mine) / 1e9
    assert max(bound.get_ydata()) == pytest.approx(best, rel=0.05)


@pytest.mark.parametrize("kind", ["busbw", "latency"])
def test_a_limit_is_drawn_where_it_holds(kind: str) -> None:
    """Rule: the limit's line has a gap at a size without one, and where a row is above it.

    All algorithms of a run have the same limit, so it holds for none of them at such a size.
    """

    def limited(row: Measurement) -> Measurement:
        # That of the ring, which is faster than the tree.
        share = {1024: None, 2**16: 1.1}.get(row.size or 0, 0.5)
        ring = next(r for r in found if (r.size, r.placement) == (row.size, row.placement))
        return replace(row, limit_s=share and (ring.time_s or 0.0) * share)

    found = rows(records(["ring", "tree"], [4]))
    axes = _drawn(kind, [limited(row) for row in found])
    line = _line(axes, "limit")
    assert [math.isnan(y) for y in line.get_ydata()] == [True, True, False, False]
    title = " ".join(axes.get_legend().get_title().get_text().split())
    assert "no limit where it is exceeded: caches hold the memory" in title


def test_an_option_bounds_rows_that_have_no_limit() -> None:
    """Rule: --limit is drawn for logs of others, on busbw as a rate and on time as a time."""
    found = [replace(r, limit_s=None) for r in rows(records(["ring"], [4]))]
    assert set(_line(_drawn("busbw", found, 5e9), "limit").get_ydata()) == {5.0}
    times = _line(_drawn("latency", found, 5e9), "limit").get_ydata()
    assert times == pytest.approx([1e6 * 1.5 * s / 5e9 for s in (1024, 2**16, 2**20, 2**26)])
    assert not any(
        str(line.get_label()).startswith("limit") for line in _drawn("busbw", found).lines
    )


def test_latency_has_logarithmic_axes_and_states_the_fit() -> None:
    """Rule: log-log, and the legend has the model's figures."""
    axes = _drawn("latency", rows(records(["ring"], [4])))
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert "us + size / " in _line(axes, "ring mpi: ").get_label()


def test_a_fit_is_not_drawn_far_from_its_times() -> None:
    """Rule: where times fall again, as on a busy machine, no range stands at no height."""
    (row, *_) = rows(records(["ring"], [4]))
    times = {16: 20e-6, 128: 34e-6, 1024: 173e-6, 8192: 114e-6, 1 << 16: 168e-6, 1 << 19: 124e-6}
    fit = fitted([replace(row, size=size, time_s=time) for size, time in times.items()])
    assert fit is not None and max(fit.times) < 2 * max(times.values())


def test_plots_go_where_they_are_wanted(tmp_path: Path) -> None:
    """Rule: a folder that is missing is made; where none can be, nothing is written.

    What ``topology measure -o`` writes is drawn beside the runs.
    """
    run_, measured = tmp_path / "run.jsonl", tmp_path / "m.json"
    saved(run_, records(["ring"], [4]))
    measured.write_text(MEASURED)
    words = ["plot", str(run_), "--topology", str(measured), "--out"]
    said = cli(*words, tmp_path / "new").out
    made = sorted((tmp_path / "new").iterdir())
    assert sorted(said.split()) == list(map(str, made))
    assert all(file.stat().st_size for file in made)
    assert tmp_path / "new" / "matrix-latency.png" in made
    for bad in (tmp_path / "no" / "such", run_):
        cli(*words, bad, status=2)


def test_the_distribution_goes_from_none_to_all() -> None:
    """Rule: the share rises from 0 at the least iteration to 1 at the greatest."""
    line = _line(_drawn("ecdf", rows(records(["ring"], [4]))), "ring")
    assert list(line.get_ydata()[[0, -1]]) == [0, 1] and "n = 30" in line.get_label()
    assert list(line.get_xdata()) == sorted(line.get_xdata())


def test_a_figure_says_what_is_doubtful() -> None:
    """Rule: the title says that a run was disturbed, the legend why a point is above the limit."""
    above = [
        changed(one, limit_s=1.2 * (one.out.time_s or 0))
        for one in records(["ring"], [4], [1 << 20])
        if one.out
    ]
    beside = [changed(one, noise=Noise(others=(0.9,))) for one in above]
    for found, words in ((above, "caches hold the memory"), (beside, "other programs had cores")):
        legend = _drawn("busbw", rows(found)).get_legend()
        assert words in " ".join(legend.get_title().get_text().split())
    assert "too disturbed to compare" in doubtful(rows(beside))
    assert "too disturbed" not in doubtful(rows(above))
    words = b"2 of 2 rows ran beside other programs, which took up to 90 % of all cores"
    for found, said in ((above, False), (beside, True)):
        drawn = figures(rows(found), "svg")
        assert drawn and all((words in one) == said for one in drawn.values())


def test_scaling_says_that_rows_were_disturbed() -> None:
    """Rule: the figure over ranks has the note, too, also where only some rows were disturbed."""
    found = records(["ring"], [2, 4])
    assert b"ran beside" not in figures(rows(found), "svg")["allreduce-float-sum-scaling"]
    found[0] = changed(found[0], noise=Noise(others=(0.9,)))
    assert (
        b"ran beside other programs" in figures(rows(found), "svg")["allreduce-float-sum-scaling"]
    )


@pytest.mark.parametrize("kind", ["busbw", "ecdf", "latency"])
def test_no_line_passes_behind_a_legend(kind: str) -> None:
    """Rule: lines may cross all of the axes, so the names stand below them."""
    axes = _drawn(kind, rows(records(["ring", "tree"], [4])))
    axes.figure.canvas.draw()
    legend, box = axes.get_legend().get_window_extent(), axes.get_window_extent()
    assert legend.y1 <= box.y0


def test_an_algorithm_keeps_its_colour_in_all_figures() -> None:
    """Rule: also where a figure shows a part of the algorithms only."""
    found = rows(records(["ring", "tree", "torus", "library"]))
    palette = Palette.of(found)
    whole = {s.name: s.style["color"] for s in palette.series(found)}
    part = {
        s.name: s.style["color"]
        for s in palette.series([r for r in found if r.algorithm == "torus"])
    }
    assert {name.split(" (")[0] for name in part} == {"torus mpi"}
    assert set(part.values()) == {c for name, c in whole.items() if name.startswith("torus")}
    assert len(set(whole.values())) == 4
    figure = scaling(found, palette)
    assert figure is not None
    drawn = {line.get_label(): to_hex(line.get_color()).upper() for line in figure.axes[0].lines}
    assert drawn["torus mpi"] == part.popitem()[1].upper()


def test_many_algorithms_are_still_told_apart() -> None:
    """Rule: each has a mark; where colours run out all but the fastest and the library are dimmed.

    Those that are not have a colour each.
    """
    found = rows(records([*(f"a{n}" for n in range(13)), "library"], [4], [1024, 2**20]))
    series = Palette.of(found).series(found)
    styles = [s.style for s in series]
    assert len({s["marker"] for s in styles}) == 14
    assert len({(s["color"], s["linestyle"]) for s in styles}) == 14
    bright = [s for s in series if s.bright]
    assert {"a0 mpi", "library mpi"} <= {s.name for s in bright} and len(bright) <= 4
    assert len({s.style["color"] for s in bright}) == len(bright)
    assert {s.style["alpha"] is None for s in series if not s.bright} == {False}


@pytest.mark.parametrize("form", ["svg", "pdf", "png"])
def test_the_same_rows_give_the_same_files(form: str) -> None:
    """Rule: a figure drawn again from the same rows is the same bytes: no date, no random names."""
    found = rows(records(["ring", "tree"], [4]))
    first, again = figures(found, form=form), figures(found, form=form)
    assert first == again and len(first) > 2
    assert form == "png" or not any(b"Date" in data for data in first.values())


@pytest.mark.parametrize("factor", [1.5, 10.0])
def test_no_point_leaves_its_panel(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Rule: placements share an axis where none is lost on it, else each has its own."""
    drawn: list[Figure] = []
    target = "reports.figures.plot.encode_figure"
    monkeypatch.setattr(target, lambda made, form: drawn.append(made) or b"")
    fast = [
        r
        if r.placement == "out" or not r.time_s or not r.busbw_bytes_per_s
        else replace(
            r,
            time_s=r.time_s / factor,
            low_s=None,
            high_s=None,
            busbw_bytes_per_s=r.busbw_bytes_per_s * factor,
        )
        for r in rows(records(["ring", "tree"], [4]))
    ]
    figures(fast)
    for figure in drawn:
        for axes in figure.axes:
            low, high = axes.get_ylim()
            marks = [y for line in axes.lines for y in line.get_ydata() if line.get_marker()]
            assert all(low <= y <= high for y in marks)
    tops = {axes.get_ylim()[1] for axes in drawn[0].axes}
    assert len(drawn[0].axes) == 2 and len(tops) == (1 if factor < 2 else 2)


@pytest.mark.parametrize(("most", "ticks"), [(40.0, {"1 us", "2 us", "5 us"}), (4e5, {"1 us"})])
def test_times_have_ticks_at_1_2_and_5(most: float, ticks: set[str]) -> None:
    """Rule: ticks are times with units at 1, 2 and 5; over more than three decades at 1 alone."""
    axes = Figure().subplots()
    axes.plot([1, 2], [0.6, most])
    times_axis(axes)
    axes.figure.canvas.draw()
    shown = {label.get_text() for label in axes.get_yticklabels()}
    assert ticks == shown & {"1 us", "2 us", "5 us"} and "10 us" in shown


def test_scaling_puts_ranks_along() -> None:
    """Rule: several files, rank counts across, time at the least and busbw at the largest size."""
    found = [r for p in (2, 4, 8) for r in rows(records(["ring"], [p]), f"p{p}.jsonl")]
    figure = scaling(found, Palette.of(found))
    assert figure is not None
    left, right = figure.axes
    assert [list(line.get_xdata()) for line in right.lines] == [[2, 4, 8]]
    assert "1K" in left.get_ylabel() and "64M" in right.get_ylabel()
    out = [r for r in found if r.size == 2**26 and r.placement == "out"]
    assert right.lines[0].get_ydata() == pytest.approx(
        [(r.busbw_bytes_per_s or 0) / 1e9 for r in out]
    )
    assert scaling(rows(records(["ring"], [4])), Palette.of(found)) is None
    few = [r for r in found if r.ranks != 8 and r.placement == "out"]
    assert "allreduce-float-sum-scaling" in figures(few, "svg")


@pytest.mark.parametrize(("wide", "cut"), [(1.15, False), (6.0, True)])
def test_a_band_that_is_cut_is_said_to_be(wide: float, cut: bool) -> None:
    """Rule: the busbw figure shows all of a band, or says that a very wide one is cut."""
    found = [
        replace(r, low_s=r.time_s / wide, high_s=r.time_s * wide)
        for r in rows(records(["ring"], [8]))
        if r.placement == "out" and r.time_s
    ]
    axes = canvas(6, 4).subplots()
    assert FIGURES["busbw"](axes, Palette.of(found).series(found), None)
    (band,) = axes.collections
    assert (axes.get_ylim()[1] < band.get_datalim(axes.transData).y1) == cut
    legend = axes.get_legend()
    assert legend is not None
    assert ("cut at the top" in legend.get_title().get_text()) == cut


def test_a_barrier_has_a_distribution_and_scales_in_time() -> None:
    """Rule: where nothing is moved there is no busbw and no size, but time all the same."""
    found = [replace(r, busbw_bytes_per_s=0.0) for r in rows(records(["ring"], [2, 4], [0]))]
    assert set(figures(found[:2], "svg")) == {"allreduce-float-sum-2-ranks-ecdf"}
    figure = scaling(found, Palette.of(found))
    assert figure is not None and [axes.get_ylabel() for axes in figure.axes] == ["time at 0"]


def _matrix(*slow: tuple[int, int]) -> Pairs:
    times = {(a, b): (a + b) * 1e-6 for a in range(4) for b in range(4) if a != b}
    cells = {at: Cell(time, time, time, "") for at, time in times.items()}
    return Pairs(
        "latency", False, False, ("R0", "R1", "R2", "R3"), ("",) * 4, cells, frozenset(slow)
    )


def test_a_matrix_shows_numbers_and_frames_the_slow() -> None:
    """Rule: a number a measured pair, nothing on the diagonal, a frame around each slow pair."""
    axes = heat_map(_matrix((3, 1))).axes[0]
    assert {(t.get_position(), t.get_text()) for t in axes.texts} == {
        ((b, a), f"{a + b:g}") for a in range(4) for b in range(4) if a != b
    }
    assert [p.get_xy() for p in axes.patches] == [(0.5, 2.5)] and "framed" in axes.get_title()
    assert not heat_map(_matrix()).axes[0].patches


# -- Markdown


def test_a_comparison_lists_what_changed_first() -> None:
    """Rule: words counted, changed rows in sight, the others folded; every row once."""
    base, new = launches(1, 3), launches(2, 3, slow=1.2, kernel="6.1")
    text = comparison_markdown(compare(join(base, new)[0]), differences(base, new))
    seen, folded = text.split("<details>", 1)
    assert text.startswith("**3 slower, 3 indistinguishable**") and "kernel" in seen
    assert seen.count("| slower |") == 3 and "tree" not in seen
    assert folded.count("| indistinguishable |") == 3 and folded.count("| slower |") == 0
    assert "<summary>3 rows that did not change</summary>" in folded


def test_md_takes_one_run_or_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: ``md BASE NEW`` and ``compare --format md`` print the same; the gate still holds."""
    base, new = tmp_path / "base", tmp_path / "new"
    for side, slow in ((base, 1.0), (new, 1.2)):
        side.mkdir()
        for k in range(3):
            seed = ord(side.name[0]) + 100 * k
            saved(side / f"{k}.jsonl", noisy(seed, slow=slow))
    assert main(["md", str(base)]) == 0 and "| ring |" in capsys.readouterr().out
    text = cli("md", base, new).out
    assert "**3 slower" in text and "+2" in text
    gate = cli("compare", base, new, "--format", "md", "--fail-slower", "5%", status=1)
    assert gate.out.startswith(text)


def test_a_comment_is_not_longer_than_it_may_be() -> None:
    """Rule: rows beyond the bound are counted, not printed."""
    one = rows(records(["ring"], [4], [1024]))[0]
    many = [replace(one, size=8 + n) for n in range(MOST_ROWS + 3)]
    text = markdown(many)
    assert "3 rows more." in text and len(text) < 65_536
    untested = [Comparison(j, 1.0, None, None, None, None, "untested") for j in join(many, many)[0]]
    text = comparison_markdown(untested)
    assert "3 rows more." in text and len(text) < 65_536


@given(st.text(max_size=40))
def test_a_name_is_no_markup(name: str) -> None:
    """Rule: whatever an algorithm is called, its row has as many cells, no link and no mention."""
    one = replace(rows(records(["ring"], [4], [1024]))[0], algorithm=name)
    row = next(line for line in markdown([one]).split("\n") if line.startswith("| 1K"))
    for mark, part in (("@", "<!-- -->"), ("#", "<!-- -->"), (":", "<!-- -->")):
        assert row.count(mark) == row.count(mark + part)
    bare = row.replace("<!-- -->", "").replace("\\\\", "").replace("\\|", "")
    assert bare.count("|") == 9
    assert all(bare[n - 1] == "\\" for n, c in enumerate(bare) if c in "<>[]`*_!")


def test_files_of_one_law_are_one_line_and_one_colour(tmp_path: Path) -> None:
    """Rule: files of one rank count each are one line an algorithm, named without a path.

    A size that another file has again is one point. Runs with the same points stay apart.
    """
    files = [rows(records(["ring", "ps"], [ranks], [1024, 2**20])) for ranks in (2, 4)]
    again = rows(records(["ps"], [4], [2**20]))
    every = [row for one in [*files, again] for row in one if row.placement == "out"]
    palette = Palette.of(every)
    lines = palette.series([row for row in every if row.size == 2**20], ranks=True)
    assert {line.name for line in lines} == {"ring mpi", "ps mpi"}
    assert all([row.ranks for row in line.rows] == [2, 4] for line in lines)
    assert colour_of(["ps", "ring"]) == {
        line.name.split()[0]: line.style["color"] for line in lines
    }
    twice = palette.series([*files[0], *rows(records(["ring", "ps"], [2], [1024, 2**20]))])
    assert all("(run" in line.name for line in twice)
