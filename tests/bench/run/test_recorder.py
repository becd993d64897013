"""A row is on disk and printed, in that order, or neither; after the closing report nothing is."""

from __future__ import annotations

import gzip
import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.launch.control_socket import ControlSocket
from bench.run.recorder import Recorder, so_far
from bench.run.screen import Screen
from collectives.execution.inproc.world import InprocWorld
from reports.readers.reading import read
from reports.records.measurement import Measurement
from tests.command import reports_main
from tests.conftest import Run, in_process, on_threads
from tests.reports.runs import allreduce

_KILLED = "the run has not ended: it was killed, or goes on"
# A run that kills itself as it enters, or leaves, the step that is named, for the fourth time.
KILLED = """
import os, sys
from bench.cli.main import main
from bench.run import screen
from reports.exports import store

def fatal(where, name, first):
    real, seen = getattr(where, name), []
    def step(*words):
        seen.append(1)
        if first and len(seen) == 4: os.kill(os.getpid(), 9)
        done = real(*words)
        if not first and len(seen) == 4: os.kill(os.getpid(), 9)
        return done
    setattr(where, name, step)

steps = {"add": (store.Store, "add"), "print": (screen.Screen, "lines")}
fatal(*steps[sys.argv[2]], sys.argv[3] == "before")
main("allreduce", ["--transport", "inproc", "--ranks", "2", "-b", "1K", "-e", "8K", "-n", "2",
                   "-A", "ring", "-N", "0", "--limit", "none", "--out", sys.argv[1]])
"""


@pytest.mark.parametrize("step", ["add", "print"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_row_is_on_disk_before_it_is_printed(
    tmp_path: Path, run: Run, step: str, when: str
) -> None:
    """Rule: whichever step a run is killed at, every row that was printed is on disk."""
    out = tmp_path / "rows.jsonl"
    done = run(sys.executable, "-c", KILLED, str(out), step, when)
    printed = len(re.findall(r"^ +\d+ +\d+ +float ", done.stdout, re.MULTILINE))
    kept = out.read_text().count('"collective"') / 2 if out.exists() else 0  # both placements
    assert done.returncode == -9 and kept - printed in (0, 1), (printed, kept)
    assert kept >= 1 or step == "print"
    notes = [note.text for note in read(out).notes if note.broken] if kept else [_KILLED]
    assert notes == [_KILLED]


def _keeper(folder: Path, **sentences: Any) -> tuple[Recorder, Path]:
    file = str(folder / "r.jsonl")
    options = SimpleNamespace(
        after=None, out=(file,), nccl_json=None, overwrite=False, append=False
    )
    world = SimpleNamespace(rank=0, broadcast=lambda value: value)
    return (
        Recorder(
            cast("InprocWorld", world),
            Screen(0),
            cast("Any", options),
            ControlSocket(),
            **sentences,
        ),
        folder / "r.jsonl",
    )


def _result() -> list[Measurement]:
    return allreduce("ring", 2, 8, (1e-3,) * 3).every


def test_after_the_closing_report_there_is_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: a thread that measures on prints and stores nothing more, however often it tries."""
    keeper, path = _keeper(tmp_path)
    go, ended = threading.Event(), threading.Event()

    def measure() -> None:
        while not ended.is_set() or keeper_rows.append(1) or len(keeper_rows) < 50:
            keeper.row(_result(), ["a row"])
            keeper.say(["a header"])
            go.set()

    keeper_rows: list[int] = []
    thread = threading.Thread(target=measure)
    thread.start()
    assert go.wait(30)
    keeper.end(lambda: ["the report"], "interrupted")
    ended.set()
    thread.join()
    keeper.end(lambda: ["another report"])
    out, err = capsys.readouterr()
    rows, _, after = out.partition("the report\n")
    assert rows.count("a row") == path.read_text().count("times_s") == len(keeper.results)
    assert after == "" and err == "busbar: interrupted\n"


def test_a_quiet_run_that_ends_early_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: a quiet run prints why it ended early and its sentences, and nothing else."""
    keeper, _ = _keeper(tmp_path, sentences=lambda rows: [f"{len(rows)} rows"])
    keeper.row(_result(), ["a row"])
    keeper.end(lambda: ["a table"], "interrupted", lambda: ["# ended early: interrupted"])
    rows = len(_result())
    assert capsys.readouterr().out == f"# ended early: interrupted\n{rows} rows\n"


def test_the_end_of_a_run_is_on_disk_before_its_report(tmp_path: Path) -> None:
    """Rule: if the report cannot be printed, as into a closed pipe, the file has its end line."""
    keeper, path = _keeper(tmp_path)
    keeper.row(_result(), ())

    def report() -> list[str]:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        keeper.end(report)
    assert not read(path).notes and '"end":"complete"' in path.read_text()


def test_a_run_that_ends_early_says_what_it_measured() -> None:
    """Rule: each algorithm has its rows of all; with one algorithm the text says how to compare."""
    planned = ["ring", "ring", "ps", "ps"]

    def told(names: str, by_size: bool = False) -> str:
        sizes = Counter[str]()
        rows = list[Measurement]()
        for name in names.split():
            sizes[name] += 1
            rows += allreduce(name, 2, 8 * sizes[name], (1e-3,) * 9).every
        return " ".join(line.removeprefix("# ") for line in so_far(rows, planned, by_size=by_size))

    assert told("ring ring ps ps") == ""
    assert told("ring ps ring") == "rows measured: ring 2 of 2, ps 1 of 2"
    alone = told("ring ring")
    assert alone.startswith("rows measured: ring 2 of 2, ps 0 of 2; nothing to compare yet")
    assert "--order size" in alone and "--order size" not in told("ring", by_size=True)


def test_by_size_has_the_tables_of_by_algorithm() -> None:
    """Rule: --order size measures all algorithms at a size first; tables and closing are the same.

    Launches draw their own order, so both options are refused together.
    """
    row = "--ranks 2 -b 1K -e 4K -n 2 -A ring,ps --placement out --limit none"
    usual, sized = (on_threads("allreduce", row, more) for more in ("", "--order size"))
    line = re.compile(r"^ +\d+ +\d+ +float|^# Collective test .*", re.MULTILINE)
    tables = [line.findall(out) for _, out, _ in (usual, sized)]
    assert usual[0] == sized[0] == 0 and tables[0] == tables[1] and len(tables[0]) == 10
    status, _, err = on_threads("allreduce", row, "--order size --launches 2")
    assert status == 2 and "--order" in err


def test_whoever_ends_a_run_does_not_wait_for_a_pager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a row that nobody reads holds up neither the display nor the end."""
    monkeypatch.setattr("bench.run.recorder._PATIENCE_S", 0.01)
    keeper, _ = _keeper(tmp_path)
    inside, go = threading.Event(), threading.Event()

    @contextmanager
    def blocked() -> Iterator[None]:
        inside.set()
        go.wait(30)
        yield

    monkeypatch.setattr("bench.run.screen.output", blocked)
    thread = threading.Thread(target=keeper.row, args=(_result(), ["a row"]))
    thread.start()
    assert inside.wait(30)
    keeper.end(lambda: ["the report"], "interrupted")
    assert thread.is_alive()
    go.set()
    thread.join()


@pytest.mark.parametrize(
    ("early", "told"),
    [
        ([], []),
        (["# ended early: interrupted"], ["the run ended early: interrupted"]),
        (None, [_KILLED]),
    ],
)
def test_records_state_the_end_of_their_run(
    tmp_path: Path, early: list[str] | None, told: list[str]
) -> None:
    """Rule: no gate passes a run that ended early or was killed; older files are unknown."""
    keeper, path = _keeper(tmp_path)
    keeper.row(_result(), ["a row"])
    if early is not None:
        keeper.end(lambda: ["the report"], early=lambda: early)
    gate = ["show", str(path), "--quiet", "--expect", "time > 0 s"]
    assert [note.text for note in read(path).notes if note.broken] == told
    assert reports_main(gate) == int(bool(told))
    lines = path.read_text().replace(',"ends":true', "").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"end":' not in line))
    assert not read(path).notes and reports_main(gate) == 0
    keeper.end(list)


def test_two_runs_with_one_file(tmp_path: Path) -> None:
    """Rule: the second is refused in one line, before it measures."""
    keeper, path = _keeper(tmp_path)
    status, out, err = on_threads("allreduce", "--ranks 2 --out", str(path))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "is being written by a run" in err
    keeper.end(list)


_ROW = "--ranks 2 -b 1K -e 1K -n 1 -A ring --placement out"


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".json", ".parquet", ".csv"])
def test_results_are_only_replaced_where_that_is_said(tmp_path: Path, ending: str) -> None:
    """Rule: a file with results is refused before anything is measured, added to, or replaced.

    Only JSON lines are added to, and they stay as they were.
    """
    file = tmp_path / f"run{ending}"

    def sizes(*more: str) -> tuple[int, str]:
        status, out, err = on_threads("allreduce", _ROW, "--out", str(file), *more)
        assert (status == 2) == (not out)
        return status, err

    assert sizes()[0] == 0
    before = file.read_bytes()
    status, err = sizes()
    assert status == 2 and err.count("\n") == 1
    assert "run" + ending in err and "--append" in err and "--overwrite" in err
    assert file.read_bytes() == before
    if ".jsonl" not in ending:
        assert sizes("--append")[0] == 2 and file.read_bytes() == before
        file.unlink()  # before the first launch, not before the second
        assert sizes("--append")[0] == 2 and not file.exists()
    else:
        assert sizes("--append", "-b 2K -e 2K")[0] == 0
        assert [row.size for row in read(file).rows] == [1024, 2048]
    assert sizes("--overwrite", "-b 4K -e 4K")[0] == 0
    assert [row.size for row in read(file).rows] == [4096]


@pytest.mark.parametrize("packed", [False, True])
def test_earlier_records_survive_byte_for_byte(tmp_path: Path, packed: bool) -> None:
    """Rule: --append leaves earlier lines as they are: spaces, unknown fields, noise, a cut line.

    Also in a gzip file of several members, or without an end, as killed runs leave it.
    """
    plain = tmp_path / "plain.jsonl"
    assert on_threads("allreduce", _ROW, "--out", str(plain))[0] == 0
    environment, line, _ = plain.read_bytes().splitlines()
    record = json.loads(line)
    odd = {**record, "noise": {"others": [0.25]}, "of_a_newer_version": [1, {"a": "\x1b"}]}
    lines = [environment, json.dumps(odd).encode(), b"no record", line, line[:-9]]
    before = b"\n".join(lines)
    file = tmp_path / ("run.jsonl.gz" if packed else "run.jsonl")
    half = len(before) // 2
    members = gzip.compress(before[:half]) + gzip.compress(before[half:])
    file.write_bytes(members[:-8] if packed else before)  # 8: the check at a member's end
    for _ in range(2):
        assert on_threads("allreduce", _ROW, "--append --out", str(file))[0] == 0
        after = gzip.decompress(file.read_bytes()) if packed else file.read_bytes()
        assert after.startswith(before + b"\n") and len(after) > len(before) + len(line)
        before = after.removesuffix(b"\n")
    assert [row.size for row in read(file).rows] == [1024] * 4


def test_append_adds_to_no_other_file(tmp_path: Path) -> None:
    """Rule: a file without a record is refused with --append, and left alone."""
    file = tmp_path / "notes.jsonl"
    file.write_text('{"mine": 1}\n')
    status, out, err = on_threads("allreduce", _ROW, "--append --out", str(file))
    assert (status, out, err.count("\n")) == (2, "", 1) and "no records in it" in err
    assert file.read_text() == '{"mine": 1}\n'


def test_several_launches_add_to_one_file(tmp_path: Path) -> None:
    """Rule: with --append the rows of all launches stand behind the older ones."""
    file = tmp_path / "run.jsonl"
    launches = f"--launches 2 {_ROW} --out {file} --transport inproc"
    assert on_threads("allreduce", _ROW, "--out", str(file))[0] == 0
    status, out, err = in_process("allreduce", launches)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert in_process("allreduce", launches, "--append")[0] == 0
    assert len(read(file).rows) == 3
    assert in_process("allreduce", launches, "--overwrite")[0] == 0
    assert len(read(file).rows) == 2


def test_a_folder_of_other_files_is_no_run_directory(tmp_path: Path) -> None:
    """Rule: an empty folder, or one with runs, takes a run; another one stays as it is.

    A line says that a run is added to others, unless that was asked for.
    """
    (tmp_path / "mine").mkdir()
    for more, launches in ((), ""), ((), "1 launch"), ((), "2 launches"), (("--append",), ""):
        done = on_threads("allreduce", _ROW, "--out", f"{tmp_path}/mine/", *more)
        assert done[0] == 0
        told = [line for line in done[2].splitlines() if "has the records" in line]
        said = f"{tmp_path}/mine/: has the records of {launches}, to which this run's are added"
        assert told == [f"busbar: {said}"] * bool(launches)
    assert len(read(tmp_path / "mine").rows) == 4
    status, out, err = on_threads("allreduce", _ROW, "--out", str(tmp_path))
    assert (status, out, err.count("\n")) == (2, "", 1) and "has files, and no run" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
