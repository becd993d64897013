"""The steady state: verdicts on made series, the command, and its graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reports.figures.warmup import settlings
from reports.readers.codec import measurements
from reports.statistics.steady import steady
from tests.reports.runs import changed, cli, flat, noisy, saved

HERE = np.arange(400)


def _series(seed: int) -> np.ndarray:
    """Independent iterations that scatter by 1 %."""
    return 1e-5 * (1 + 0.01 * np.random.default_rng(seed).standard_normal(400))


def test_a_series_of_one_level_is_steady() -> None:
    """Rule: of 60 series without a change two at most are called anything but steady from 0."""
    found = [str(steady(_series(seed).tolist())) for seed in range(60)]
    assert found.count("steady") >= 58, found


def test_a_warm_up_is_left_out_to_its_end() -> None:
    """Rule: where the first iterations are slower, the verdict has where they end."""
    for end in (20, 60, 150):
        found = steady((_series(1) * (1 + 0.3 * (end > HERE))).tolist())
        assert found.verdict == "steady" and abs(found.warm_up - end) <= 4
        assert str(found) == f"steady from iteration {found.start}"
    slowly = steady((_series(2) * (1 + 0.5 * np.exp(-HERE / 25))).tolist())
    assert slowly.verdict == "steady" and 20 <= slowly.warm_up <= 160


def test_what_never_settles_is_called_so() -> None:
    """Rule: a level that comes late is none; what only rises drifts; two levels are two."""
    late = steady((_series(3) * (1 + 0.3 * (HERE > 300))).tolist())
    assert late.verdict == "never" and late.warm_up == 0 and len(late.changes) == 1
    assert steady((_series(4) * (1 + HERE / 400)).tolist()).verdict == "drifting"
    two = np.random.default_rng(0).integers(0, 2, 400)
    assert steady((_series(5) * (1 + 0.3 * two)).tolist()).verdict == "bimodal"
    assert steady([1.0] * 19).verdict == steady([0.0] * 50).verdict == "few"


def test_likeness_of_neighbours_is_no_change() -> None:
    """Rule: iterations that resemble the one before are mostly steady all the same."""
    random, steady_ones = np.random.default_rng(6), 0
    for _ in range(30):
        x = random.standard_normal(400)
        for i in range(1, 400):
            x[i] = 0.5 * x[i - 1] + 0.87 * x[i]
        steady_ones += steady((1e-5 * np.exp(0.02 * x)).tolist()).start == 0
    assert steady_ones >= 25


def test_the_command_tells_and_draws(tmp_path: Path) -> None:
    """Rule: a line a row with its verdict and what it left out, and the graphs as files."""
    made = noisy(0)[:2]
    times = tuple((_series(1)).tolist())
    slow = tuple(2 * t for t in times[:40])
    made[0] = changed(made[0], times_s=times, warm_up_s=slow)
    path = saved(tmp_path / "r.jsonl", made)
    assert measurements(path.read_text())[0].warm_up_s == slow
    assert settlings(flat(made))[0].verdict.start == pytest.approx(40, abs=4)
    out = cli("warmup", path, "--out", tmp_path / "g").out.splitlines()
    assert "steady from iteration" in out[0] and "of 440, 40 left out" in out[0]
    assert out[2] == str(tmp_path / "g" / "warmup-r-1.png")
    assert (tmp_path / "g" / "warmup-r-1.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "log.txt").write_text("# nccl-tests\n")
    assert "not our records" in cli("warmup", tmp_path / "log.txt", status=2).err
