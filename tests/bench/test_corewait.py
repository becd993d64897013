"""Whether ranks had a core while a row ran: what the kernel counts, and when a row says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.run.corewait import CoreWait, noted


@pytest.fixture
def schedstat(tmp_path: Path) -> Path:
    """A thread's file, that has so far waited a second."""
    path = tmp_path / "schedstat"
    path.write_text("5000000000 1000000000 7\n")
    return path


def test_the_share_is_of_the_time_since(schedstat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: only what was waited since counts, as a share of the time that has passed since."""
    now = iter([100.0, 104.0])
    monkeypatch.setattr("bench.run.corewait.time.monotonic", lambda: next(now))
    wait = CoreWait(schedstat)
    schedstat.write_text("5500000000 2000000000 9\n")
    assert wait.share() == 0.25


@pytest.mark.parametrize("text", ["", "12", "a b c"])
def test_a_kernel_that_does_not_tell(tmp_path: Path, text: str) -> None:
    """Rule: without the file, or with another one in its place, no share is made up."""
    assert CoreWait(tmp_path / "missing").share() == 0
    (tmp_path / "other").write_text(text)
    assert CoreWait(tmp_path / "other").share() == 0


def test_a_row_names_the_ranks_that_waited() -> None:
    """Rule: ranks that waited a tenth of the time and more are named, others are not."""
    assert noted([0.02, 0.48, 0.1]) == "rank 1 48%, rank 2 10%"
    assert noted([0.0, 0.09]) == ""
