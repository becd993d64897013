"""A headless Chromium for tests of pages, and runs to make pages of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reports.exports import to_jsonl
from reports.readers.rows import Row
from reports.reading import parse
from reports.record import Result, Sample

# Nothing but the page may want the network, so that what is seen of it is the page's doing.
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
          "--disable-quic", "--no-first-run", "--disable-background-networking",
          "--disable-component-update", "--disable-sync", "--window-size=1280,900")  # fmt: skip
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
LIMIT_S = 60


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


def opened(driver: Any, page: Path) -> None:
    """Open a file and wait until its script has drawn everything; forget the log before it."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get("about:blank")
    driver.get_log("browser")
    driver.get_log("performance")
    driver.get(page.as_uri())
    ready = "return document.documentElement.dataset.ready === 'yes'"
    WebDriverWait(driver, LIMIT_S).until(lambda d: d.execute_script(ready))


def drawn(driver: Any) -> None:
    """Wait until what was changed last stands on the screen."""
    driver.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
    )


def console(driver: Any) -> list[str]:
    """What the console has said since it was last asked."""
    return [entry["message"] for entry in driver.get_log("browser")]


def requests(driver: Any) -> list[str]:
    """The addresses that were asked for since this was last asked, without inline data."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    return [url for url in asked if not url.startswith(("data:", "blob:", "about:", "chrome:"))]


def records(
    algorithms: Sequence[str] = ("ring", "tree", "halving_doubling", "library"),
    ranks: Sequence[int] = (2, 4),
    sizes: Sequence[int] = (1024, 2**16, 2**20, 2**26),
    **environment: Any,
) -> list[Result]:
    """Runs with both placements, raw times and limits; the first algorithm is the fastest."""
    random = np.random.default_rng(7)
    found = []
    for p in ranks:
        known = {"busbar": "0.1", "library": "MPICH 5", "hosts": ["n0"], "cpu": "EPYC",
                 "ranks_per_node": [p], **environment}  # fmt: skip
        for place, algorithm in enumerate(algorithms):
            for size in sizes:
                middle = (1e-5 + size / 1e10) * (1 + 0.2 * place) * p / 2
                halves = [_sample(middle, random) for _ in (0, 1)]
                factor = 2 * (p - 1) / p
                one = Result(
                    "allreduce", algorithm, "mpi", p, size, size // 4, "float", "sum", -1, factor,
                    *halves, environment=known,
                )  # fmt: skip
                found.append(one)
    return found


def _sample(middle: float, random: np.random.Generator) -> Sample:
    times = middle * (1 + 0.02 * random.gamma(2, 1, 30))
    return Sample(tuple(times.tolist()), 30, wrong=0, limit=middle / 2)


def rows(results: Sequence[Result], source: str = "run.jsonl") -> list[Row]:
    """Records as rows."""
    return list(parse(to_jsonl(results).decode(), source).rows)
