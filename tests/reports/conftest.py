"""One browser for all tests of pages, and the page that most of them look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reports.analysis.machine import read_machine
from reports.page import page
from tests.reports.browser import chromium, opened
from tests.reports.runs import MEASURED, TOPO, records, rows


@pytest.fixture(scope="package")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser for all tests; pages are opened anew."""
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="package")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with two rank counts, four algorithms, both placements, a map and a matrix."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "topo.txt").write_text(TOPO)
    (folder / "measured.json").write_text(MEASURED)
    machine = read_machine([folder / "topo.txt", folder / "measured.json"])
    target = folder / "page.html"
    target.write_bytes(page(rows(records()), machine))
    return target


@pytest.fixture
def tab(driver: Any, file: Path) -> Iterator[Any]:
    """The page, opened; the window and the preferences are as they were before."""
    opened(driver, file)
    yield driver
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
