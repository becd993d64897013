"""The page in a real browser: phones, preferences, keyboards, screen readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reports.page import page
from tests.reports.browser import LIMIT_S, column, lines, opened, resized, traces
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


def test_a_key_hides_its_line(tab: Any) -> None:
    """Rule: a key says which line it is of, hides it with its band and fit, and shows it again."""
    from selenium.webdriver.common.by import By

    shown_of = ".filter(t => t.legendgroup === 'ring').map(t => t.visible !== false)"
    key = tab.find_element(By.XPATH, "//figure[@id='busbw']//ul//button[contains(., 'ring')]")
    assert lines(tab, "busbw")[0] in ("ring", "tree") and len(traces(tab, "busbw", shown_of)) == 3
    for shown in (False, True):
        key.click()
        assert traces(tab, "busbw", shown_of) == [shown] * 3
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
