"""A rank's guard: how the rank ended comes out as a line, and no rank outlives its guard."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from bench.qualify.lines import Line, parse
from bench.qualify.task import Task
from tests.conftest import REPO, is_running, wait_until

# The worker with another rank in place of what measures.
_START = """
import sys
from types import ModuleType
from bench.qualify import worker
stand_in = ModuleType("bench.qualify.measures")
exec(sys.argv[1], stand_in.__dict__)
sys.modules["bench.qualify.measures"] = stand_in
sys.exit(worker.main(sys.argv[2:]))
"""
TASK = Task("pairs", 2, 1 << 20, 3, 60.0, "auto")


def _guarded(body: str, task: Task = TASK) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", _START, f"def measure(task, send):\n    {body}", *task.words()]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, cwd=REPO)


def _lines(process: subprocess.Popen[str]) -> list[Line]:
    out, _ = process.communicate(timeout=60)
    return [line for line in map(parse, out.splitlines()) if line]


@pytest.mark.parametrize(
    ("body", "event", "status", "detail"),
    [
        ("raise ValueError('out of order')", "ended", 1, "ValueError: out of order"),
        ("import os; os.kill(os.getpid(), 9)", "ended", 137, ""),
        ("import os; os.kill(os.getpid(), 19)", "stopped", 137, ""),
        ("import os; os.close(2); os.kill(os.getpid(), 11)", "ended", 139, ""),
    ],
)
def test_how_a_rank_ended_is_sent(body: str, event: str, status: int, detail: str) -> None:
    """An error, a signal and a rank that is stopped: each by its line, with the last words."""
    begun, ended = _lines(_guarded(body))
    assert begun.event == "begun"
    assert begun.boot
    assert (ended.event, ended.status, ended.detail) == (event, status, detail)


def test_a_rank_loads_only_what_measures() -> None:
    """Rule: a qualification starts hundreds of ranks: none loads more than it needs."""
    unused = ("bench.options.options", "collectives.formats.load", "urllib.request", "pandas")
    code = f"import bench.qualify.measures, sys; print([m for m in {unused} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True)
    assert done.stdout == "[]\n", done


def test_a_rank_that_is_late_is_ended() -> None:
    """After its seconds the guard kills the rank, though nobody asks for it."""
    process = _guarded("import time; time.sleep(600)", TASK._replace(seconds=0.5))
    assert [line.event for line in _lines(process)] == ["begun", "late"]


def test_a_rank_that_ends_well_sends_no_more_than_its_results() -> None:
    """The lines of a good rank are its own."""
    process = _guarded("send('finished', wrong=0)")
    assert [line.event for line in _lines(process)] == ["begun", "finished"]
    assert process.returncode == 0


def test_a_rank_ends_with_its_guard() -> None:
    """What a launcher kills is the guard; the kernel then kills the rank."""
    process = _guarded(
        "import os; send('pid', detail=str(os.getpid())); import time; time.sleep(600)"
    )
    assert process.stdout is not None
    pids = (line.detail for text in process.stdout if (line := parse(text)) and line.detail)
    rank = int(next(pids))
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    wait_until(lambda: not is_running(rank))
