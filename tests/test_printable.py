"""Names and texts of others reach no terminal and no page with their control characters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.cli.main import main as bench_main
from bench.run import rules
from bench.steps.workloads import file as model
from busbar.printable import note
from reports.cli import main as reports_main
from reports.exports.formats import to_jsonl
from reports.page.markup import text
from reports.readers.own import results
from tests.reports.runs import allreduce

EVIL = "\x1b]0;title\x07\x1b[2Jx\x9by\u202e\x7f"


def _clean(said: str) -> bool:
    return all(c.isprintable() or c in "\n\t" for c in said)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Our record with control characters in its texts."""
    environment = {"busbar": "1", "hosts": [f"n0{EVIL}"], "library": f"MPI{EVIL}"}
    made = [
        allreduce(f"ring{EVIL}", 2, size, [1e-3] * 30, [1e-3] * 30, environment=environment)
        for size in (1024, 2048)
    ]
    path = tmp_path / f"r{EVIL}.jsonl"
    path.write_bytes(to_jsonl(made))
    return path


@pytest.mark.parametrize(
    "command", ["show", "warmup", "md", "compare", "winners", "expect", "history", "html", "plot"]
)
def test_reports_print_no_control_character(
    command: str,
    record: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule: whatever a record, a host or a file is called, a terminal and a page get plain text."""
    monkeypatch.chdir(tmp_path)  # where plot puts its figures
    page = tmp_path / "page.html"
    more = {"compare": [str(record)], "html": ["--out", str(page)]}.get(command, [])
    reports_main([command, str(record), *more])
    said = capsys.readouterr()
    assert said.out + said.err and _clean(said.out + said.err), said
    if page.exists():
        assert _clean(page.read_text().replace("\r", ""))


def test_records_of_results_are_plain(record: Path) -> None:
    """Rule: records that are read whole have plain texts, too; their numbers are untouched."""
    (first, _) = results(record.read_text())
    assert _clean(first.algorithm + str(first.environment)) and first.out is not None
    assert first.out.times == (1e-3,) * 30


@pytest.mark.parametrize("ending", ["json", "csv"])
def test_a_models_names_are_plain(ending: str, tmp_path: Path) -> None:
    """Rule: the name of a model, from its file or in it, and its tensors' names are plain."""
    texts = {
        "json": '{"name": "m\\u001b[2J", "tensors": [{"name": "t\\u001b", "shape": "4x4"}]}',
        "csv": "name,shape\nt\x1b,4x4\n",
    }
    path = tmp_path / f"m{EVIL}.{ending}"
    path.write_text(texts[ending])
    found = model.read(path)
    assert _clean(found.name + found.tensors[0].name)


@pytest.mark.parametrize("says", [note], ids=["note"])
def test_notes_are_plain(says: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: what is said on standard error is one line of plain text."""
    says(f"a{EVIL}\nb")
    err = capsys.readouterr().err
    assert _clean(err) and err.count("\n") == 1 and _clean(text(EVIL))


def test_an_error_of_tuning_is_plain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: a benchmark says what is wrong with a tuning file in plain text."""
    path = tmp_path / f"t{EVIL}.json"
    path.write_text(json.dumps({"format": rules.FORMAT, "rules": 1}))
    words = ["--threads", "2", "-A", "auto", "--tuning", str(path), "-b", "8", "-e", "8"]
    assert bench_main("allreduce", words) == 2
    err = capsys.readouterr().err
    assert "a list is missing" in err and _clean(err)
