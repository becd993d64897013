"""A headless Chromium for tests of pages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# Nothing but the page may want the network, so that what is seen of it is the page's doing.
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
          "--disable-quic", "--no-first-run", "--disable-background-networking",
          "--disable-component-update", "--disable-sync", "--window-size=1280,900")  # fmt: skip
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
#: Of a figure's data the lines of algorithms, without bands and limits, for `traces`.
ALGORITHMS = ".filter(t => t.marker && !t.name.includes('limit'))"
#: Seconds for what a page does; axe-core needs most.
LIMIT_S = 180


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A driver with a profile of its own; skips, saying why, where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no chromium with chromedriver here (.ci/run installs them)")
    options = Options()
    options.binary_location = browser
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    try:
        found.set_script_timeout(LIMIT_S)
        yield found
    finally:
        found.quit()


def opened(driver: Any, page: Path, unfolded: bool = True) -> None:
    """Open a file and wait until its script has drawn everything; forget the log before it.

    ``unfolded``: with the filter open, which a reader has to open.
    """
    driver.get("about:blank")
    driver.get_log("browser")
    driver.get_log("performance")
    driver.get(page.as_uri())
    drawn(driver)
    if unfolded:
        driver.execute_script("document.getElementById('filter').open = true")


def drawn(driver: Any) -> None:
    """Wait until what was changed last stands on the screen, and the figures fill their boxes."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
    )
    state = """return document.documentElement.dataset.ready === 'yes'
      && [...document.querySelectorAll('figure .canvas')].filter(c => c.clientWidth)
      .every(c => c.querySelector('.main-svg').clientWidth === c.clientWidth)"""
    WebDriverWait(driver, LIMIT_S).until(lambda d: d.execute_script(state))


def resized(driver: Any, width: int) -> None:
    """Give the page another width, as a phone's or a desk's, and wait until it has it."""
    from selenium.webdriver.support.ui import WebDriverWait

    metrics = {"width": width, "height": 740, "deviceScaleFactor": 2, "mobile": width < 700}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    WebDriverWait(driver, LIMIT_S).until(lambda d: d.execute_script("return innerWidth") == width)
    drawn(driver)


def console(driver: Any) -> list[str]:
    """The lines of the console since it was last asked."""
    return [entry["message"] for entry in driver.get_log("browser")]


def requests(driver: Any) -> list[str]:
    """The addresses that were asked for since this was last asked, without inline data."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    return [url for url in asked if not url.startswith(("data:", "blob:", "about:", "chrome:"))]


def cells(tab: Any) -> list[list[str]]:
    """The text of the table's rows, cell by cell."""
    script = (
        "return [...document.querySelectorAll('#table tbody tr')].map(r => "
        "[...r.cells].map(c => c.textContent))"
    )
    return tab.execute_script(script)


def column(tab: Any, name: str) -> list[str]:
    """The table's cells under a heading."""
    script = "return [...document.querySelectorAll('#table thead th')].map(c => c.textContent)"
    at = tab.execute_script(script).index(name)
    return [row[at] for row in cells(tab)]


def traces(tab: Any, plot: str, of: str) -> Any:
    """An expression of JavaScript on the data of a figure, as ``.map(t => t.name)``."""
    return tab.execute_script(f"return document.querySelector('#{plot} .canvas').data{of}")


def lines(tab: Any, plot: str) -> list[str]:
    """The names of a figure's lines that have a legend."""
    return traces(tab, plot, ".filter(t => t.showlegend !== false).map(t => t.name)")


def choose(tab: Any, label: str, option: str) -> None:
    """Choose in the filter's list of this label, and wait until all is drawn anew."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    path = f"//form//label[span[text()='{label}']]/select"
    Select(tab.find_element(By.XPATH, path)).select_by_visible_text(option)
    drawn(tab)
