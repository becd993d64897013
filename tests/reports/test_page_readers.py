"""The page in a real browser: phones, preferences, keyboards, screen readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reports.page import page
from tests.reports.browser import ALGORITHMS, LIMIT_S, column, drawn, lines, opened, resized, traces
from tests.reports.runs import records, rows

pytestmark = pytest.mark.timeout(3 * LIMIT_S)


def _look(tab: Any, scheme: str) -> tuple[str, str]:
    from selenium.webdriver.support.ui import WebDriverWait

    features = [{"name": "prefers-color-scheme", "value": scheme}]
    tab.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    # The page hears of it in its own time: waited for is the figures' colour.
    script = """const root = getComputedStyle(document.documentElement);
      const ink = root.getPropertyValue('--ink').trim();
      return matchMedia(`(prefers-color-scheme: ${arguments[0]})`).matches
        && document.querySelector('#busbw .canvas').layout.font.color === ink"""
    WebDriverWait(tab, LIMIT_S).until(lambda d: d.execute_script(script, scheme))
    return tuple(
        tab.execute_script(
            "return [getComputedStyle(document.body).backgroundColor,"
            " document.querySelector('#busbw .canvas').layout.font.color]"
        )
    )


def test_light_and_dark(tab: Any) -> None:
    """Rule: page and figures follow the reader's preference, also while the page is open."""
    light, dark = _look(tab, "light"), _look(tab, "dark")
    assert light == ("rgb(255, 255, 255)", "#1b1f24")
    assert dark[0] != light[0] and dark[1] != light[1]
    assert _look(tab, "light") == light


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_the_page_never_scrolls_sideways(tab: Any, width: int) -> None:
    """Rule: on a phone too everything fits or scrolls within its box; figures fill theirs."""
    from selenium.webdriver.support.ui import WebDriverWait

    resized(tab, width)
    for details in tab.execute_script("return document.querySelectorAll('details')"):
        tab.execute_script("arguments[0].open = true", details)
    # The figures follow the width in their own time: waited for is the state.
    script = """const e = document.documentElement;
      return e.scrollWidth == e.clientWidth && [e.clientWidth]"""
    (room,) = WebDriverWait(tab, LIMIT_S).until(lambda d: d.execute_script(script))
    assert width - 20 <= room <= width  # what is missing is the scroll bar
    script = """return [...document.querySelectorAll('figure .canvas')].filter(c => c.clientWidth)
      .map(c => c.querySelector('.main-svg').clientWidth - c.clientWidth)"""
    WebDriverWait(tab, LIMIT_S).until(lambda d: set(d.execute_script(script)) == {0})


@pytest.mark.parametrize("width", [1400, 420])
def test_many_lines_have_keys_below_the_figure(driver: Any, tmp_path: Path, width: int) -> None:
    """Rule: however many lines there are, no key is printed over the figure or its axes' titles."""
    names = [f"an_algorithm_with_a_long_name_{n}" for n in range(20)]
    target = tmp_path / "many.html"
    target.write_bytes(page(rows(records(names, [4]))))
    opened(driver, target)
    resized(driver, width)
    script = """return [...document.querySelectorAll('figure.plot:not([hidden])')].map(f => [
      f.querySelector('.xtitle').getBoundingClientRect().bottom,
      f.querySelector('.canvas').getBoundingClientRect().bottom,
      f.querySelector('.keys').getBoundingClientRect().top,
      f.querySelector('.nsewdrag').getBoundingClientRect().height])"""
    seen = driver.execute_script(script)
    assert len(seen) == 3
    for title, canvas, keys, high in seen:
        assert title <= canvas <= keys and high > 150, seen
    assert driver.execute_script("return document.querySelectorAll('.legend').length") == 0
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def _page_of(kind: str) -> bytes:
    """A page of so many algorithms, or of two runs; both placements."""
    names = ("ring", "library", "bidirectional_ring", *(f"algorithm_{n}" for n in range(11)))
    if kind == "two runs":
        return page(
            [*rows(records(names[:3], [4]), "a.jsonl"), *rows(records(names[:3]), "b.jsonl")]
        )
    return page(rows(records(names[: int(kind)], [4])))


# Of what is shown at first: what is cut at the side, and texts of an axis or keys that overlap.
_DEFECTS = """
  const found = [], room = document.documentElement.clientWidth, phone = room < 700;
  const overlap = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const texts = 'h1, h2, h3, p, li, caption, table, figcaption, .keys';
  for (const e of document.querySelectorAll(texts)) {
    if (!e.getClientRects().length || e.closest('details:not([open])')) continue;
    const box = e.getBoundingClientRect(), scroll = e.closest('.scroll');
    if (!phone && scroll?.querySelector('#table')) continue;
    const right = scroll ? scroll.getBoundingClientRect().right : room;
    const folds = getComputedStyle(e).overflowY !== 'visible';
    if (box.left < 0 || box.right > right + 1 || (folds && e.scrollHeight > e.clientHeight + 1))
      found.push(`cut: ${e.tagName} ${e.textContent.slice(0, 40)}`);
  }
  for (const figure of document.querySelectorAll('figure.plot:not([hidden])')) {
    const frame = figure.getBoundingClientRect();
    for (const kind of ['.xtick text, .xtitle', '.ytick text, .ytitle', '.keys button']) {
      const texts = [...figure.querySelectorAll(kind)].filter(e => e.textContent);
      const boxes = texts.map(e => e.getBoundingClientRect());
      boxes.forEach((a, n) => {
        const over = boxes.findIndex((b, m) => m > n && overlap(a, b));
        if (over > 0) found.push(`${texts[n].textContent} over ${texts[over].textContent}`);
        if (a.left < frame.left - 1 || a.right > frame.right + 1)
          found.push(`cut: ${texts[n].textContent}`);
      });
    }
  }
  return found"""


@pytest.mark.parametrize(
    "kind", ["14", "two runs", *(pytest.param(n, marks=pytest.mark.thorough) for n in ("1", "3"))]
)
def test_nothing_is_cut_and_nothing_overlaps(driver: Any, tmp_path: Path, kind: str) -> None:
    """Rule: at 420 and at 1280 px no key, table, caption or tick is cut or lies over another.

    The table of all rows, which has twenty columns, scrolls in its box on a screen; a phone shows
    those that it has room for. The first figure is above the fold, below one sentence of answer.
    """
    target = tmp_path / "page.html"
    target.write_bytes(_page_of(kind))
    opened(driver, target, unfolded=False)
    for width in (420, 1280):
        resized(driver, width)
        assert driver.execute_script(_DEFECTS) == []
    script = """return ['header .lead', '#busbw .canvas']
      .map(s => document.querySelector(s).getBoundingClientRect().bottom)"""
    lead, figure = driver.execute_script(script)
    assert lead < figure <= 740, (lead, figure)
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_of_many_algorithms_the_fastest_and_the_library_stand_out(
    driver: Any, tmp_path: Path
) -> None:
    """Rule: the others are dimmed and have no band; each line has a mark of its own."""
    target = tmp_path / "page.html"
    target.write_bytes(_page_of("14"))
    opened(driver, target)
    marked = traces(
        driver,
        "busbw",
        f"{ALGORITHMS}.map(t => [t.name, t.opacity, t.line.color, t.marker.symbol[0]])",
    )
    bright = [(name, colour) for name, dim, colour, _ in marked if dim == 1]
    assert {"library", "ring", "algorithm_0"} & {name for name, _ in bright} == {"library", "ring"}
    assert 2 <= len(bright) <= 4 and len({colour for _, colour in bright}) == len(bright)
    assert len(marked) == len({symbol for *_, symbol in marked}) == 14
    bands = traces(driver, "busbw", ".filter(t => t.fill === 'toself').map(t => t.legendgroup)")
    assert sorted(bands) == sorted(name for name, _ in bright)
    for name in (
        "algorithm_9",
        "algorithm_8",
        "algorithm_7",
        "algorithm_6",
        "algorithm_5",
        "algorithm_4",
    ):
        driver.execute_script(
            "[...document.querySelectorAll('form label.check')]"
            ".find(l => l.textContent === arguments[0]).firstChild.click()",
            name,
        )
    drawn(driver)
    dims = traces(driver, "busbw", f"{ALGORITHMS}.map(t => t.opacity)")
    assert dims == [1] * 8


def test_a_key_hides_its_line(tab: Any) -> None:
    """Rule: a key says which line it is of, hides it with its band, and shows it again."""
    from selenium.webdriver.common.by import By

    shown_of = ".filter(t => t.legendgroup === 'ring').map(t => t.visible !== false)"
    key = tab.find_element(By.XPATH, "//figure[@id='busbw']//ul//button[contains(., 'ring')]")
    assert lines(tab, "busbw")[0] in ("ring", "tree") and len(traces(tab, "busbw", shown_of)) == 2
    for shown in (False, True):
        key.click()
        assert traces(tab, "busbw", shown_of) == [shown] * 2
        assert key.get_attribute("aria-pressed") == str(shown).lower()


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_shows_the_figures_of_a_row(tab: Any, width: int) -> None:
    """Rule: size, algorithm, time and busbw can be read without pushing the table aside."""
    resized(tab, width)
    script = """return [...document.querySelectorAll('#table thead th')].slice(0, 4)
      .map(c => [c.textContent, c.getBoundingClientRect().right])"""
    seen = tab.execute_script(script)
    assert [name for name, _ in seen] == ["size", "algorithm", "time", "busbw (GB/s)"]
    assert all(right <= width for _, right in seen), seen


def test_a_phone_shows_the_rules_with_their_reasons(tab: Any) -> None:
    """Rule: title, verdict and reason of each rule stand side by side, wrapped at words."""
    resized(tab, 390)
    script = """const method = 'section[aria-labelledby=method] table';
      const rows = [...document.querySelectorAll(method)].at(-1).querySelectorAll('tbody tr');
      return rows.values().map(row => {
        const box = row.getBoundingClientRect(), cells = [...row.children];
        return [box.height, box.right, ...cells.map(c => c.getBoundingClientRect().width)];
      }).toArray()"""
    seen = tab.execute_script(script)
    assert len(seen) == 12
    for high, right, *widths in seen:
        assert high < 250 and right <= 390 and min(widths) > 40, seen


def test_the_keyboard_reaches_everything_in_order(tab: Any) -> None:
    """Rule: Tab goes from the skip link down the page, always to something visible with a ring."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    script = """const e = document.activeElement, box = e.getBoundingClientRect();
      return [e.tagName, e.textContent.slice(0, 40), getComputedStyle(e).outlineStyle,
              box.width > 0 && box.height > 0];"""
    seen = []
    for _ in range(80):
        tab.switch_to.active_element.send_keys(Keys.TAB)
        tag, text, outline, visible = tab.execute_script(script)
        if tag == "BODY":
            break
        assert outline != "none" and visible, (tag, text)
        seen.append((tag, text))
    assert seen[0] == ("A", "Skip to the content")
    tags = [tag for tag, _ in seen]
    assert [t for t in ("SELECT", "INPUT", "BUTTON", "SUMMARY", "DIV") if t not in tags] == []
    positive = (
        "return [...document.querySelectorAll('[tabindex]')].filter(e => e.tabIndex > 0).length"
    )
    assert tab.execute_script(positive) == 0  # so the order is that of the document
    heading = tab.find_element(By.XPATH, "//table[@id='table']//th/button[text()='size']")
    heading.send_keys(Keys.ENTER)
    assert column(tab, "size")[:4] == ["1K"] * 4


def test_a_screen_reader_finds_its_way(tab: Any) -> None:
    """Rule: axe-core knows no violation, in light and in dark.

    Landmarks and live count are there.
    """
    axe = pytest.importorskip("axe_core_python.selenium").Axe()
    for details in tab.execute_script("return document.querySelectorAll('details')"):
        tab.execute_script("arguments[0].open = true", details)
    for scheme in ("light", "dark"):
        _look(tab, scheme)
        found = axe.run(tab)["violations"]
        assert [(v["id"], [n["html"][:160] for n in v["nodes"]]) for v in found] == []
    roles = (
        "return ['header', 'nav', 'main', 'footer', '[role=status]'].filter(s => "
        "!document.querySelector(s))"
    )
    assert tab.execute_script(roles) == []
