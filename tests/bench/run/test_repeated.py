"""The command that repeats a run has the options of the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.options.options import parse
from bench.run.recorder import repeated
from bench.steps.options import StepOptions


def test_a_repeated_run_keeps_what_no_record_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: files, --quiet and the like are kept; a file that would be refused has a free name.

    With --append and --overwrite it is the same file. What the record or the remedy says is left
    out, and a launch of several says nothing.
    """
    monkeypatch.chdir(tmp_path)
    base = ["--ranks", "2", "-b", "1K", "-e", "64K", "--budget", "0.1"]

    def words(*more: str) -> str:
        return repeated(parse([*base, *more], "allreduce"))

    assert words() == ""
    assert words("--quiet", "--out", "x.jsonl", "--per-rank") == "-q --out x-2.jsonl --per-rank"
    (tmp_path / "x-2.jsonl").touch()
    assert words("--out", "x.jsonl") == "--out x-3.jsonl"
    assert words("--out", "x.jsonl.gz", "--out", "run/") == "--out x-2.jsonl.gz --out run-2/"
    assert words("--out", "x.jsonl", "--append") == "--out x.jsonl --append"
    assert words("--out", "x.jsonl", "--overwrite") == "--out x.jsonl --overwrite"
    assert words("-J", "y.json") == "-J y-2.json"
    assert words("--host", "a,b", "--out", "my run.csv") == "-H a,b --out 'my run-2.csv'"
    assert words("--out", "x.jsonl", "--after", "rows.jsonl") == ""
    recorded = parse([*base, "--quiet", "--out", "x.jsonl"], "allreduce").recorded
    assert "64K" in recorded and "out" not in recorded and "-q" not in recorded


def test_a_repeated_step_names_no_file_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a record has --plot, so the words beside it do not; a timeline is not replaced."""
    monkeypatch.chdir(tmp_path)
    words = ["--update", "ring", "--plot", "curves.png", "--trace", "step.json", "--out", "a.jsonl"]
    options = StepOptions.parse(words, StepOptions.make_parser())
    assert options.recorded.count("--plot") == 1
    assert repeated(options) == "--trace step-2.json --out a-2.jsonl"
