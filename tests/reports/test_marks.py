"""Ranks that shared cores or each other's work are marked wherever a row is shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from msgspec.structs import replace

from reports.analysis.cautions import warnings_of
from reports.analysis.compare import differences
from reports.figures.plot import FIGURES, figures, scaling
from reports.figures.series import Palette
from reports.page import page
from reports.page.payload import payload
from reports.records.cores import SHARED, marked, per_core_text
from reports.records.measurement import Measurement, Placements
from reports.tables.markdown import markdown
from reports.tables.show import texts
from tests.reports.browser import ALGORITHMS, column, opened, traces
from tests.reports.runs import allreduce, changed, cli, records, rows, saved, timed

MOVED = {
    "sent_bytes": 3 << 19,
    "received_bytes": 3 << 20,
    "total_bytes": 3 << 21,
}  # of 1 MiB: 1.5, 3 and 6 times


def _made(
    per_core: float, *, worksharing: bool = False, ranks: Sequence[int] = (4,)
) -> list[Placements]:
    """Rings and libraries of 1 MiB; ``worksharing``: the rings'."""
    return [
        changed(
            Placements(one.out),
            ranks_per_core=per_core * (one.every[0].ranks or 0) / 4 or None,
            worksharing=worksharing and ring,
            **(MOVED if ring else {}),
        )
        for one in records(["ring", "library"], ranks, [1 << 20])
        for ring in (one.every[0].algorithm == "ring",)
    ]


def _shown(found: Sequence[Measurement]) -> str:
    return "\n".join(texts(found, 160))


@pytest.mark.parametrize("per_core", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("worksharing", [False, True])
def test_tables_say_who_shared_what(per_core: float, worksharing: bool) -> None:
    """Rule: above 1 rank per core a heading says it.

    An algorithm whose work was shared has a mark.
    """
    found = rows(_made(per_core, worksharing=worksharing))
    for text in (_shown(found), markdown(found), " ".join(warnings_of(found))):
        assert ("2 ranks per core" in text) == (per_core > 1)
    assert ("ring* " in _shown(found)) == worksharing and "library*" not in _shown(found)
    assert (SHARED in _shown(found)) == worksharing
    assert ("ring\\*" in markdown(found)) == worksharing
    assert ("any rank may have carried out" in " ".join(warnings_of(found))) == worksharing


def test_the_contender_of_that_name_needs_no_mark() -> None:
    """Rule: worksharing is what it says; only a row that names an algorithm is marked."""
    (ring, *_) = rows(_made(2.0, worksharing=True))
    assert marked(ring) == "ring*"
    assert marked(replace(ring, algorithm="worksharing")) == "worksharing"
    assert not any(
        "carried out" in w for w in warnings_of([replace(ring, algorithm="worksharing")])
    )


def test_bytes_by_port_stand_beside_the_times() -> None:
    """Rule: busiest port out, in, and all links, in units of the size; nothing for a library."""
    lines = _shown(rows(_made(1.0))).splitlines()
    head = next(line for line in lines if "busbw" in line and "algorithm" in line)
    assert [name in head for name in ("port out", "port in", "links")] == [True] * 3
    ring = next(line for line in lines if " ring " in line).split()
    library = next(line for line in lines if " library " in line)
    assert ring[ring.index("1.5N") :][:3] == ["1.5N", "3N", "6N"] and "N  " not in library[90:100]


def test_ranks_per_core_in_words() -> None:
    """Rule: nothing where each has a core; one figure, the range, or the most of a mixture."""
    assert per_core_text([]) == per_core_text([None, 0.5, 1.0]) == ""
    assert per_core_text([8.0, 8.0, None]) == "8 ranks per core"
    assert per_core_text([2.0, 8.0]) == "2 to 8 ranks per core"
    assert per_core_text([1.0, 2.0, 8.0]) == "up to 8 ranks per core"


@pytest.mark.parametrize(
    ("base", "new", "said"),
    [
        ((2.0, False), (2.0, False), []),
        ((1.0, False), (0.5, False), []),
        ((2.0, False), (0.0, False), []),  # not known is no difference
        ((1.0, False), (2.0, False), ["cores: 2 of 2 rows are oversubscribed on one side only:"]),
        ((2.0, True), (2.0, False), ["work: 1 of 2 rows: a rank's work was shared -> its own"]),
        ((2.0, True), (1.0, False), ["cores:", "work:"]),
    ],
)
def test_a_comparison_warns_where_one_side_only_shared(
    base: tuple[float, bool], new: tuple[float, bool], said: list[str]
) -> None:
    """Rule: cores or work shared on one side of the same rows is a difference, forbids nothing."""
    sides = [rows(_made(per_core, worksharing=work)) for per_core, work in (base, new)]
    found = [d for d in differences(*sides) if d.kind in ("cores", "work")]
    assert len(found) == len(said) and not any(d.forbids for d in found)
    assert all(str(d).startswith(words) for d, words in zip(found, said, strict=True))


def test_a_comparison_warns_where_rows_were_timed_otherwise() -> None:
    """Rule: rank 0's time against the slowest rank's is said, and so is back to back."""

    def made(**how: str) -> list[Measurement]:
        return rows([allreduce("ring", 4, 1024, timed((1e-5, 2e-5), **how))])

    usual = made()
    for other, said in (
        ({"across": "rank0"}, "each, max over ranks -> --timing each, rank0 over ranks"),
        ({"timing": "loop"}, "each, max over ranks -> --timing loop, max over ranks"),
        ({"checked": "timed"}, "max over ranks -> --timing each, max over ranks, --check timed"),
    ):
        (one,) = [d for d in differences(usual, made(**other)) if d.kind == "timing"]
        assert not one.forbids and said in str(one)
    assert not differences(usual, made())


def test_compare_says_it(tmp_path: Path) -> None:
    """Rule: the command warns on stderr, and in Markdown, before anything is believed."""
    files = [tmp_path / name for name in ("base.jsonl", "new.jsonl")]
    for file, per_core in zip(files, (2.0, 1.0), strict=True):
        saved(file, _made(per_core, worksharing=per_core > 1))
    err = cli("compare", *files).err
    assert "oversubscribed on one side only: 2 ranks per core -> a core a rank" in err
    assert "a rank's work was shared -> its own" in err
    assert "one side only" in cli("compare", *files, "--format", "md").out


# -- figures and the page


def _hollow(axes: Any) -> list[list[float]]:
    return [list(line.get_xdata()) for line in axes.lines if line.get_markerfacecolor() == "white"]


def test_figures_have_hollow_marks_where_cores_were_shared() -> None:
    """Rule: a point whose ranks shared cores is hollow, in every figure with points.

    The title says it.
    """
    for per_core, expected in ((1.0, []), (2.0, [[1 << 20]] * 2)):
        found = rows(_made(per_core))
        for kind in ("busbw", "latency"):
            axes = Figure().subplots()
            assert FIGURES[kind](axes, Palette.of(found).series(found), None)
            assert _hollow(axes) == expected, kind
            notes = " ".join(axes.get_legend().get_title().get_text().split())
            assert ("hollow: oversubscribed" in notes) == bool(expected)
    found = rows(_made(2.0, ranks=(2, 4, 8)))
    figure = scaling(found, Palette.of(found))
    assert figure is not None and [_hollow(axes) for axes in figure.axes] == [[[4, 8]] * 2] * 2
    made = figures(rows(_made(2.0)), "svg")  # which has its texts as comments, too
    assert all(b"oversubscribed: 2 ranks per core" in data for data in made.values())


def test_a_series_whose_work_was_shared_is_named_so() -> None:
    """Rule: the legend marks it, calls it a bound, and says what the mark means."""
    found = rows(_made(2.0, worksharing=True))
    axes = Figure().subplots()
    FIGURES["busbw"](axes, Palette.of(found).series(found), None)
    legend = axes.get_legend()
    assert "*: work shared by ranks" in " ".join(legend.get_title().get_text().split())
    assert {"bound: ring* mpi", "library mpi"} <= {t.get_text() for t in legend.get_texts()}


def test_the_data_of_a_page() -> None:
    """Rule: ranks per core, bytes by port and shared work are in a page as they are in the rows."""
    found = rows(_made(2.0, worksharing=True))
    data = payload(found)
    assert data["perCore"] == [2.0, 2.0]
    assert [data[name.removesuffix("_bytes")] for name in MOVED] == [
        [value, None] for value in MOVED.values()
    ]
    assert [s["worksharing"] for s in data["series"]] == [True, False]


def test_a_page_shows_them(driver: Any, tmp_path: Path) -> None:
    """Rule: the table's columns, explained hollow marks, findings, and figures of the best."""
    file = tmp_path / "page.html"
    file.write_bytes(page(rows(_made(2.0, worksharing=True))))
    opened(driver, file)
    assert column(driver, "algorithm") == ["ring*", "library"]
    assert column(driver, "ranks per core") == ["2.00", "2.00"]
    assert column(driver, "busiest port out (x size)") == ["1.5", ""]
    assert column(driver, "busiest port in (x size)") == ["3", ""]
    assert column(driver, "all links (x size)") == ["6", ""]
    assert column(driver, "work") == ["shared by ranks", "its own"]
    symbols = traces(driver, "busbw", f"{ALGORITHMS}.map(t => t.marker.symbol)")
    assert all(one.endswith("-open") for some in symbols for one in some)
    said = "return document.querySelector('#busbw .said').textContent"
    assert "Hollow marks: ranks shared cores" in driver.execute_script(said)
    text = driver.execute_script("return document.body.textContent")
    assert "times may be disturbed: ranks share cores (2 ranks per core)" in text
