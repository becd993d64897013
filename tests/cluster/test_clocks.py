"""Emulated hosts whose clocks are off: what windows recover of them over shaped links."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import Mpi, Run

pytestmark = pytest.mark.usefixtures("namespaces")


def test_clocks_that_are_seconds_off_are_one_again(mpich: Mpi, run: Run, tmp_path: Path) -> None:
    """Rule: over shaped links ranks agree on the time, though clocks are 3 s and 100 ppm off.

    The bounds are loose, and follow the trips' scatter about their line, for other work may hold up
    every trip of a burst; what a quiet machine gives is in docs/measuring-clocks.md. Offset and
    drift are found as they were put in.
    """
    file = tmp_path / "rows.jsonl"
    done = run(
        *(mpich.python, "-m", "bench.cluster", "--hosts", "2", "--clocks", "3s:100ppm", "--"),
        *(mpich.python, "-m", "bench.allreduce", "-A", "ring", "--sync", "window"),
        *("-b", "1K", "-e", "1K", "-n", "3", "-T", "60", "--out", str(file)),
    )
    assert done.returncode == 0 or "every row was skipped" in done.stderr, done.stderr
    environment = json.loads(file.read_text().splitlines()[0])["environment"]
    clock = environment["clock"]
    assert clock["source"] == "HCA3" and clock["hosts"] == 2
    # 16 bursts in half a second: the line's slope has twice the scatter as its standard error.
    (scatter,) = clock["residual_s"]
    assert clock["drift"][0] == pytest.approx(-1e-4, abs=2e-5 + 10 * scatter)
    assert clock["offset_s"][0] == pytest.approx(3.0, abs=0.1)
    found = re.search(r"up to 3 s and 100 ppm off; recovered to ([0-9.e+-]+) us", done.stdout)
    assert found is not None and float(found[1]) < 1000 + 1e8 * scatter, done.stdout
    assert "earliest start to the latest end" in done.stdout
