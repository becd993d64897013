"""The page in a real browser: what it asks for, shows and lets be done with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from busbar.terminal import make_printable
from busbar.units import format_interval, format_percent, format_rate, format_seconds, format_size
from reports.analysis.cautions import share_of_limit
from reports.analysis.machine import read_machine
from reports.page import page
from tests.reports.browser import (
    ALGORITHMS,
    LIMIT_S,
    cells,
    choose,
    column,
    console,
    drawn,
    lines,
    opened,
    requests,
    traces,
)
from tests.reports.runs import EVIL, MEASURED, records, rows

pytestmark = pytest.mark.timeout(3 * LIMIT_S)


def test_it_opens_from_a_file_and_asks_for_nothing(tab: Any, file: Path) -> None:
    """Rule: no word on the console and no request but for the file, whatever a script tries."""
    assert console(tab) == []
    assert requests(tab) == [file.as_uri()]
    tried = tab.execute_async_script(
        "const done = arguments[0]; fetch('https://example.org/').then(() => done('sent'), () "
        "=> done('refused'))"
    )
    assert tried == "refused" and requests(tab) == []
    assert any("Content Security Policy" in line for line in console(tab))


def _fits(tab: Any) -> int:
    """How many fitted lines the first figure has."""
    texts = traces(tab, "busbw", ".map(t => t.hovertext?.[0] ?? '')")
    return sum(text.startswith("fit of") for text in texts)


def test_every_figure_is_drawn(tab: Any) -> None:
    """Rule: busbw with limit, time, distribution, scaling, matrix, each in words too.

    Fitted lines are drawn on request.
    """
    from selenium.webdriver.common.by import By

    shown = {
        "busbw": "Bus bandwidth",
        "latency": "Time",
        "iterations": "Distribution",
        "scaling": "Scaling",
    }
    for plot, words in shown.items():
        label = tab.execute_script(
            "return document.querySelector(`#${arguments[0]} .canvas`).getAttribute('aria-label')",
            plot,
        )
        assert words in label and "ring" in label
        assert {"ring", "tree", "halving_doubling", "library"} <= set(lines(tab, plot))
    widths = (
        "return [...document.querySelectorAll('.canvas')].map(c => "
        "[c.querySelector('.main-svg').clientWidth, c.clientWidth])"
    )
    assert all(drawn == room for drawn, room in tab.execute_script(widths))
    assert "limit" in lines(tab, "busbw") and "limit" in lines(tab, "latency")
    assert _fits(tab) == 0
    tab.find_element(By.XPATH, "//form//label[span[text()='Fitted lines']]/input").click()
    drawn(tab)
    assert _fits(tab) == 4
    z = tab.execute_script("return document.getElementById('matrix-latency').data[0].z")
    assert z == [[None, 1.25], [3.5, None]]


@pytest.mark.parametrize("held", [(), (2,), (1, 3), (1, 2)])
def test_a_key_for_the_limit_has_its_mark(
    driver: Any, tmp_path: Path, held: tuple[int, ...]
) -> None:
    """Rule: the legend has the limit only if it held at some size, and each such size is drawn.

    A row at four times its limit shows that the limit did not hold; ``held``: sizes where it did.
    """
    one = rows(records(["ring"], [4], [1024]))[0]
    limits = [5e-6 if n in held else 4e-5 for n in range(5)]
    found = [
        replace(one, size=1024 << n, time_s=1e-5, busbw_bytes_per_s=1e9, limit_s=limit)
        for n, limit in enumerate(limits)
    ]
    target = tmp_path / "limits.html"
    target.write_bytes(page(found))
    opened(driver, target)
    for plot in ("busbw", "latency"):
        assert ("limit" in lines(driver, plot)) == bool(held)
        script = f"""const all = document.querySelectorAll('#{plot} .scatterlayer .trace');
          return [...all].map(t => t.querySelectorAll('.points path').length)"""
        assert sorted(n for n in driver.execute_script(script) if n) == sorted(
            filter(None, (5, len(held)))
        )


def test_one_colour_an_algorithm(tab: Any) -> None:
    """Rule: in all figures, and in the filter, an algorithm has one colour; no two share one."""
    found: dict[str, set[str]] = {}
    for plot in ("busbw", "latency", "iterations", "scaling"):
        marked = traces(
            tab,
            plot,
            f"{ALGORITHMS}.map(t => [t.name, t.line.color])",
        )
        for name, colour in marked:
            found.setdefault(name, set()).add(colour)
    assert len(found) == 4 and all(len(colours) == 1 for colours in found.values())
    assert len(set().union(*found.values())) == 4


def test_the_filter_filters(tab: Any) -> None:
    """Rule: choices, words and switches act on table, count and figures; one button undoes them."""
    from selenium.webdriver.common.by import By

    def count() -> str:
        return tab.find_element(By.ID, "count").text

    assert len(cells(tab)) == 16 and count() == "16 of 64 rows: ranks 4, placement out-of-place"
    choose(tab, "Ranks", "all")  # what rows share has no column; what they do not has one
    assert set(column(tab, "ranks")) == {"2", "4"} and len(cells(tab)) == 32
    choose(tab, "Placement", "all")
    choose(tab, "Ranks", "2")
    assert set(column(tab, "placement")) == {"out-of-place", "in-place"} and len(cells(tab)) == 32
    choose(tab, "Placement", "in-place")
    assert len(cells(tab)) == 16 and count() == "16 of 64 rows: ranks 2, placement in-place"
    choose(tab, "Sizes from", "1M")
    assert set(column(tab, "size")) == {"1M", "64M"}
    tab.find_element(By.XPATH, "//form//label[span[text()='ring']]/input").click()
    drawn(tab)
    assert "ring" not in column(tab, "algorithm") and "ring" not in lines(tab, "busbw")
    tab.find_element(By.CSS_SELECTOR, "input[type=search]").send_keys("lib")
    drawn(tab)
    assert set(column(tab, "algorithm")) == {"library"} and "tree" not in lines(tab, "latency")
    tab.find_element(By.XPATH, "//button[text()='Show everything']").click()
    drawn(tab)
    assert count() == "All 64 rows" and len(cells(tab)) == 64
    # Lines that differ in more than the algorithm say so.
    assert "ring, 2 ranks, in-place" in lines(tab, "busbw")


def test_it_opens_on_ranks_with_cores_of_their_own(driver: Any, tmp_path: Path) -> None:
    """Rule: the filter begins at a rank count whose ranks shared no cores, if there is one."""
    found = [
        replace(r, ranks_per_core=2.0) if r.ranks == 4 else r
        for r in rows(records(["ring", "library"], [2, 4]))
    ]
    file = tmp_path / "page.html"
    file.write_bytes(page(found))
    opened(driver, file)
    assert driver.find_element("id", "count").text.endswith("ranks 2, placement out-of-place")


def test_an_interval_that_is_a_dash_has_no_band(driver: Any, tmp_path: Path) -> None:
    """Rule: an interval of a factor of 100 or more, ``-`` in the table, is in no figure's band."""
    found = [r for r in rows(records(["ring"], [4])) if r.placement == "out"]
    last = replace(found[-1], low_s=found[-1].time_s / 2, high_s=found[-1].time_s * 60)
    file = tmp_path / "page.html"
    file.write_bytes(page([*found[:-1], last]))
    opened(driver, file)
    assert column(driver, "95 %")[-1] == "-"
    for plot in ("busbw", "latency"):
        (reached,) = traces(driver, plot, ".filter(t => t.fill).map(t => Math.max(...t.x))")
        assert reached == found[-2].nbytes


def test_a_table_that_scrolls_has_a_shadow_at_its_cut_end(driver: Any, tmp_path: Path) -> None:
    """Rule: the scrolling box of a table marks the side on which columns are hidden."""
    file = tmp_path / "page.html"
    file.write_bytes(page(rows(records())))
    opened(driver, file)
    box = "document.querySelector('.scroll[aria-label=\"All rows\"]')"
    style = f"return getComputedStyle({box}).backgroundAttachment"
    assert driver.execute_script(style) == "local, local, scroll, scroll"


def test_the_table_sorts(tab: Any) -> None:
    """Rule: a heading sorts by the number behind the text, both ways, and says which way."""
    from selenium.webdriver.common.by import By

    def heading(name: str) -> Any:
        return tab.find_element(By.XPATH, f"//table[@id='table']//th[button[text()='{name}']]")

    def microseconds(text: str) -> float:
        value, unit = text.split()
        return float(value) * {"us": 1.0, "ms": 1e3, "s": 1e6}[unit]

    heading("time").find_element(By.TAG_NAME, "button").click()
    times = list(map(microseconds, column(tab, "time")))
    assert times == sorted(times) and len(set(times)) > 8
    assert heading("time").get_attribute("aria-sort") == "ascending"
    heading("time").find_element(By.TAG_NAME, "button").click()
    assert list(map(microseconds, column(tab, "time"))) == sorted(times, reverse=True)
    assert heading("time").get_attribute("aria-sort") == "descending"
    assert heading("size").get_attribute("aria-sort") == "none"
    heading("algorithm").find_element(By.TAG_NAME, "button").click()
    assert column(tab, "algorithm") == sorted(column(tab, "algorithm"))


def test_figures_look_as_in_the_terminal(driver: Any, tmp_path: Path) -> None:
    """Rule: the page's script writes figures of every kind as busbar.units does."""
    one = rows(records(["ring"], [4], [1024]))[0]
    found = []
    for n in range(90):
        time = 1.07e-7 * 1.31**n
        size = (1 << n % 41) * (1 + n % 3)
        busbw = float(f"{1.37 ** (n % 60) * 1e4:.6g}")  # the digits that a page holds
        found.append(
            replace(one, size=size, time_s=time, low_s=time * 0.9,
                    high_s=time * (1 + n / 30 + n**4 / 1e5), cv=n / 77,
                    busbw_bytes_per_s=busbw, limit_s=time / (1 + 0.37 * (n % 7)), transport=f"t{n}")
        )  # fmt: skip
    target = tmp_path / "figures.html"
    target.write_bytes(page(found))
    opened(driver, target)
    assert column(driver, "size") == [format_size(r.size) for r in found]
    assert column(driver, "time") == [format_seconds(r.time_s) for r in found]
    assert column(driver, "95 %") == [format_interval(r.low_s, r.high_s, r.time_s) for r in found]
    assert column(driver, "busbw (GB/s)") == [format_rate(r.busbw_bytes_per_s) for r in found]
    assert column(driver, "cv") == [format_percent(r.cv) for r in found]
    assert column(driver, "% of limit") == [format_percent(share_of_limit(r)) for r in found]


def test_the_limit_has_gaps_where_it_does_not_hold(driver: Any, tmp_path: Path) -> None:
    """Rule: the limit's line is broken at a size without one, and where a row is above it.

    Of nine sizes the third has no limit, and the row of the sixth is at 110 % of it. What stands on
    the screen is three pieces, in both figures; a joined line would claim a limit in between.
    """
    one = rows(records(["ring"], [4], [1024]))[0]
    share = {2: None, 5: 1.1}
    found = [
        replace(one, size=1024 << n, time_s=(time := 1e-5 * 2**n), placement="out",
                limit_s=(part := share.get(n, 0.5)) and time * part)
        for n in range(9)
    ]  # fmt: skip
    target = tmp_path / "gaps.html"
    target.write_bytes(page(found))
    opened(driver, target)
    for plot in ("busbw", "latency"):
        (heights,) = traces(driver, plot, ".filter(t => t.name === 'limit').map(t => t.y)")
        assert [n for n, height in enumerate(heights) if height is None] == [2, 5]
        pieces = driver.execute_script(
            "const canvas = document.querySelector(`#${arguments[0]} .canvas`);"
            "const limit = canvas.calcdata.findIndex(c => c[0].trace.name === 'limit');"
            "const line = canvas.calcdata[limit][0].node3.node();"
            "return [...line.querySelectorAll('path.js-line')].map(p => p.getAttribute('d'))",
            plot,
        )
        assert sum(path.count("M") for path in pieces) == 3, pieces


def test_hovering_tells_numbers(tab: Any) -> None:
    """Rule: a point says algorithm, size, time with its interval, and busbw."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    canvas = tab.find_element(By.CSS_SELECTOR, "#busbw .canvas")
    tab.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", canvas
    )

    def told(d: Any) -> str:
        """Move to the third point of the first line; what stands in the label then."""
        point = d.find_elements(By.CSS_SELECTOR, "#busbw .scatterlayer .points path")[2]
        ActionChains(d).move_by_offset(0, 1).move_to_element(point).perform()
        return d.execute_script("return document.querySelector('#busbw .hovertext')?.textContent")

    text = WebDriverWait(tab, LIMIT_S).until(told)
    assert "1M" in text and "GB/s" in text and "time" in text and "95 %" in text
    assert any(name in text for name in ("ring", "tree", "halving_doubling", "library"))


def test_numbers_of_a_figure_as_a_table(tab: Any) -> None:
    """Rule: what a figure draws can be read as a table, a column a line, and follows the filter."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    tab.find_element(By.CSS_SELECTOR, "#busbw summary").click()
    script = (
        "return [...document.querySelectorAll('#busbw details tr')].map(r => "
        "[...r.cells].map(c => c.textContent))"
    )
    # The page hears in its own time that it was opened.
    table = WebDriverWait(tab, LIMIT_S).until(lambda d: d.execute_script(script))
    assert table[0] == ["size", "ring", "tree", "halving_doubling", "library"]
    assert [row[0] for row in table[1:]] == ["1K", "64K", "1M", "64M"]
    assert all(cell.endswith(" GB/s") for row in table[1:] for cell in row[1:])
    choose(tab, "Sizes from", "64M")
    assert [row[0] for row in tab.execute_script(script)[1:]] == ["64M"]


def test_hostile_names_do_nothing(driver: Any, tmp_path: Path) -> None:
    """Rule: names with scripts in them are shown, and do nothing, in table, figure, filter and map.

    A character that cannot be seen is shown as a question mark.
    """
    target = tmp_path / "evil.html"
    (tmp_path / "m.json").write_text(MEASURED.replace("RANK1", "RANK1<img src=x onerror=hit()>"))
    hostile = records(
        [EVIL, "<b>x</b><a href='javascript:1'>y</a>"], hosts=[EVIL], library=EVIL, cpu=EVIL
    )
    target.write_bytes(page(rows(hostile, EVIL), read_machine([tmp_path / "m.json"]), title=EVIL))
    opened(driver, target)
    assert console(driver) == [] and requests(driver) == [target.as_uri()]
    assert driver.execute_script("return window.hit") is None
    script = (
        "return document.querySelectorAll('img, .canvas a[href], .canvas "
        "[href^=javascript]').length"
    )
    assert driver.execute_script(script) == 0
    assert driver.execute_script(
        "return document.querySelector('h1').textContent"
    ) == make_printable(EVIL)
    assert EVIL in column(driver, "algorithm")
    legends = "return [...document.querySelectorAll('#busbw .keys button')].map(t => t.textContent)"
    assert any("<img src=x" in text for text in driver.execute_script(legends))


@pytest.mark.thorough
def test_a_hundred_thousand_rows_stay_usable(driver: Any, tmp_path: Path) -> None:
    """Rule: all rows can be filtered and sorted.

    The document holds few, figures few points and say so.
    """
    from selenium.webdriver.common.by import By

    one = rows(records(["ring"], [4], [1024]))[0]
    many = [
        replace(one, algorithm=f"a{n % 50}", size=8 + n // 50, time_s=1e-6 * (1 + n), times_s=())
        for n in range(100_000)
    ]
    target = tmp_path / "large.html"
    target.write_bytes(page(many))
    opened(driver, target)
    assert "All 100,000 rows" in driver.find_element(By.ID, "count").text
    assert len(cells(driver)) == 100
    assert "24 of 50 series" in driver.find_element(By.CSS_SELECTOR, "#busbw .said").text
    assert sum(traces(driver, "busbw", ".map(t => t.x.length)")) < 60_000
    driver.find_element(By.ID, "more").click()
    assert len(cells(driver)) == 600
    driver.find_element(By.XPATH, "//table[@id='table']//th/button[text()='time']").click()
    driver.find_element(By.XPATH, "//table[@id='table']//th/button[text()='time']").click()
    assert cells(driver)[0][0] == str(8 + 99_999 // 50)
    search = driver.find_element(By.CSS_SELECTOR, "input[type=search]")
    search.send_keys("a17")
    drawn(driver)
    assert "2,000 of 100,000 rows" in driver.find_element(By.ID, "count").text
    assert lines(driver, "busbw") == ["a17", "limit"]
