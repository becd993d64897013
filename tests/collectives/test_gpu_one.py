"""benchmarks/gpu_one.py on the stand-in: sections run, judge rightly, end singly, resume."""

from __future__ import annotations

import importlib
import io
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collectives.execution.gpu.action import QUEUE
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.gpu.lane import Lane
from collectives.schedule.dtypes import dtype
from tests.collectives.ipc_stand_in import IpcCupy, IpcMachine
from tests.conftest import LIMIT_S, REPO, Run, environment, is_running, wait_until
from tests.gpu_standin import Cupy, Machine, alone, library
from tests.nccl_standin import Nccl

SCRIPT = str(REPO / "benchmarks" / "gpu_one.py")
STAND_IN = str(REPO / "tests" / "collectives" / "gpu_one_standin.py")

DRY_S = 3 * LIMIT_S


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    """A function that imports one of the benchmark's own parts."""
    monkeypatch.syspath_prepend(str(REPO / "benchmarks"))

    def find(name: str) -> ModuleType:
        return importlib.import_module(name)

    return find


def _cupy() -> IpcCupy:
    return IpcCupy(IpcMachine(1, total=1 << 32))


def _page(module: Any) -> Any:
    return module("gpu_page").Page(out=io.StringIO())


def test_right_results_are_called_right(module) -> None:
    """Rule: every algorithm that serves the rank count is judged, for every type and size."""
    page, right = _page(module), module("gpu_right")
    right.right(page, _cupy(), (4,), (2,))
    right.right(page, _cupy(), (20_000,), (3,))
    assert len(page.kept) == 2 * len(right.KINDS)
    for row in page.kept:
        n, of = map(int, row["algorithms right"].split(" of "))
        assert n == of == len(row["algorithms"]) > 5 and row["wrong"] == ""
        assert ("swing" in row["algorithms"]) == (row["ranks"] == 2)


@pytest.mark.parametrize("kind", ["float", "bfloat16", "double"])
def test_a_wrong_byte_is_found(module, kind: str) -> None:
    """Rule: one element that differs anywhere makes a result wrong."""
    right, of = module("gpu_right"), dtype(kind)

    def body(lane: Lane) -> None:
        tile = right.inputs(0, kind)
        array = lane.device.allocate(10_000 * of.itemsize).view(of)
        right.fill(lane.device, lane.stream, array, tile)
        transport: Any = type("T", (), {"device": lane.device, "lane": lane})
        judge = right.Judge(transport, array, tile)
        assert judge.wrong() == 0
        array.view(np.uint8)[array.nbytes - 1 :] = 7
        assert judge.wrong() == 1

    alone(body)


def test_a_wrong_byte_fails_a_section(module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a result that is not right is a failure of its section, over threads or processes."""
    page, right = _page(module), module("gpu_right")
    monkeypatch.setattr(right.Judge, "wrong", lambda self: 1)
    monkeypatch.setattr(right, "KINDS", ("float",))
    right.right(page, _cupy(), (4,), (2,))
    assert "ring: wrong bytes at 4 B float on ranks [0, 1]" in page.failures
    assert len(page.failures) == len(page.kept[0]["algorithms"])
    among, rows = _page(module), [row for row in page.kept if "failed" in row][:1]
    processes = module("gpu_processes")
    monkeypatch.setattr(processes, "_run", lambda command, n: rows)
    processes.right(among, ["script"], (2,))
    assert among.failures == [f"2 processes: {rows[0]['failed']}"]


def test_a_command_that_fails_fails_its_section(
    module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a failed test or command fails the section, what it printed is shown and kept."""
    sections, page = module("gpu_sections"), _page(module)
    monkeypatch.setattr(sections, "python", lambda *words: [sys.executable, *words])
    code = "import sys; print('first'); sys.exit(int(sys.argv[1]))"
    sections._command(page, tmp_path, "one", "-c", code, "0")
    assert not page.failures and (tmp_path / "one.txt").read_text() == "first\n"
    sections._command(page, tmp_path, "two", "-c", code, "1")
    assert page.failures == ["two ended with exit status 1"]


def test_a_queue_that_is_too_short_fails_the_probe(module, monkeypatch: Any) -> None:
    """Rule: launches that block before a batch is full are a failure, not a row that hangs."""
    sections, page = module("gpu_sections"), _page(module)
    ticks = iter(range(10_000))
    slow = SimpleNamespace(perf_counter=lambda: float(next(ticks)))  # every launch takes a second
    sections._queue(page, GpuDevice(_cupy(), 0), most=100)
    assert page.kept[-1]["launches"] == "over 100" and not page.failures
    monkeypatch.setattr(sections, "time", slow)
    sections._queue(page, GpuDevice(_cupy(), 0))
    assert page.failures == [f"a stream's queue takes 1 launches, and batches are of {QUEUE}"]


def test_the_figures_have_their_rows(module) -> None:
    """Rule: each section on speed gives one row for each case that it names."""
    speed, page = module("gpu_speed"), _page(module)
    speed.two_shot(page, _cupy(), (1 << 16,), (2,), 2)
    assert {round(row["at most (%)"]) for row in page.kept} == {80, 100}
    speed.small(page, _cupy(), 64, (2,), 2)
    assert len(page.kept) == 4 + 3
    speed.overhead(page, _cupy(), (1, 2))
    assert len(page.kept) == 7 + 2 and page.kept[-1]["graph (us)"] > 0
    assert {row["ranks"] for row in page.kept[7:]} == {1, 2}


def test_nccl_has_its_sections(module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: the same judge serves nccl, where it takes threads; the baseline is timed both ways."""
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    machine, page = Machine(1), _page(module)
    cupy, nccl = Cupy(machine), Nccl(machine)
    module("gpu_right").right_over_nccl(page, cupy, nccl, (4, 5000), (2,))
    assert len(page.kept) == 8 and not any(row["wrong"] for row in page.kept)
    module("gpu_speed").baseline(page, cupy, nccl, (4096,))
    # Launches take part of a small size's time, so that only iterations back to back compare.
    assert [row["held against it"] for row in page.kept[8:]] == ["loop"]
    assert not machine.stuck and not page.failures


def test_an_nccl_that_refuses_is_said_before_anything_starts(module) -> None:
    """Rule: before 2.30 no two ranks of a process share a GPU: a row says so, nothing is tried."""
    machine, page = Machine(1, nccl=22907), _page(module)
    nccl = Nccl(machine)
    module("gpu_right").right_over_nccl(page, Cupy(machine), nccl, (4,), (2,))
    assert not nccl.communicators
    assert "NCCL 2.29.7 takes no two ranks of a process" in page.kept[0]["algorithms right"]


def test_what_fails_in_a_section_leaves_nobody_waiting(module) -> None:
    """Rule: a rank that fails gives up first, so that no communicator waits for graphs for ever."""
    machine = Machine(1)
    nccl, right = Nccl(machine), module("gpu_right")
    from collectives.execution.nccl.transport import NcclTransport

    def fails(transport: NcclTransport) -> None:
        source = transport.allocate(64).view(np.float32)
        one = right.bound(transport, "ring", source, source, True)
        one.action()
        one.action()
        raise ValueError("the section's own mistake")

    with pytest.raises(ValueError, match="own mistake"):
        right.on_threads(
            Cupy(machine), 1, fails, lambda world, device: NcclTransport(world, device, nccl)
        )
    assert [comm.gone for comm in nccl.communicators] == ["aborted"] and not machine.stuck


# -- pieces, processes, results


def _started(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    library()  # built once, and found by the others through the environment
    command = [sys.executable, STAND_IN, "--out", str(out), "--quick", *more]
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=DRY_S, check=False
    )


def _result(out: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / f"{name}.json").read_text())
    return found


@pytest.mark.thorough
@pytest.mark.timeout(2 * DRY_S)
def test_the_whole_of_it_runs_dry(tmp_path: Path) -> None:
    """Rule: every section but the other commands' ends well on the stand-in, with rows as JSON."""
    ours = "probe,threads,small,two_shot,overhead,baseline,right,processes"
    done = _started(tmp_path, "--sections", ours)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ours.split(","):
        found = _result(tmp_path, name)
        assert found["status"] == "done" and found["rows"], name
        assert (tmp_path / f"{name}.md").read_text() in done.stdout
    assert "| GPU | Stand-in GPU |" in done.stdout
    # What has a result is not run again.
    assert _started(tmp_path, "--sections", ours).stdout == ""


def test_work_goes_on_where_a_piece_of_time_ended(tmp_path: Path) -> None:
    """Rule: a section that might not end in time is left for the next call.

    Exit status 75 says so.
    """
    few = ("--sections", "probe,threads", "--piece", "1", "--ranks", "3")
    for name, left in (("probe", "threads"), ("threads", "")):
        done = _started(tmp_path, *few)
        assert done.returncode == (75 if left else 0), done.stderr
        assert _result(tmp_path, name)["status"] == "done"
        assert (f"still to do: {left}" in done.stderr) == bool(left)
        with tarfile.open(tmp_path.with_name(f"{tmp_path.name}.tar.gz")) as archive:
            assert f"{tmp_path.name}/{name}.json" in archive.getnames()
    rows = _result(tmp_path, "threads")["rows"]
    assert {row["ranks"] for row in rows} == {3}


def _piece(module: Any, out: Path, code: str) -> Any:
    """A piece of one section, which is a script of its own."""
    script = out / "section.py"
    script.write_text(code)
    parts = [module("gpu_run").Part("mine", 30.0)]
    stop = time.monotonic() + 60
    return module("gpu_run").piece(parts, [sys.executable, str(script)], out, stop)


def test_a_section_that_fails_is_told_with_all_that_it_said(
    module, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rule: its rows so far are kept, and all of its standard error; the exit status is told."""
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(REPO / 'benchmarks')!r})\n"
        "from gpu_page import Page\nfrom pathlib import Path\n"
        f"page = Page(Path({str(tmp_path)!r}) / 'mine.rows.jsonl')\n"
        "page.table('T', '', ('a',))\npage.row(1)\n"
        "print('first line\\n' * 3, file=sys.stderr)\nraise ValueError('the reason')\n"
    )
    found = _piece(module, tmp_path, code)
    assert found.failed == ["mine"]
    kept = _result(tmp_path, "mine")
    assert kept["status"] == "failed: exit status 1" and kept["rows"] == [{"table": "T", "a": 1}]
    said = (tmp_path / "mine.err").read_text()
    assert said.count("first line") == 3 and "ValueError: the reason" in said
    out, err = capfd.readouterr()
    assert "| 1 |" in out and "**Section `mine` failed" in out and "the reason" in err


def test_a_section_that_hangs_ends_with_all_that_it_started(
    module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: at its limit the whole group of processes is killed, and what was printed is kept."""
    said = tmp_path / "mine.md"

    def clock() -> float:
        """Its time is over as soon as it has said whom it started, on any machine."""
        return 1e9 if said.exists() and said.stat().st_size else 0.0

    monkeypatch.setattr(module("gpu_run"), "time", SimpleNamespace(monotonic=clock))
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\ntime.sleep(600)\n"
    )
    found = _piece(module, tmp_path, code)
    assert found.failed == ["mine"]
    assert _result(tmp_path, "mine")["status"] == "failed: not done after 30 s"
    child = int(said.read_text())
    wait_until(lambda: not is_running(child))


def test_without_a_gpu_it_says_so_in_one_line(run: Run, tmp_path: Path) -> None:
    """Rule: no GPU is one line and exit status 3; an unknown section, or no folder, is 2."""
    done = run(sys.executable, SCRIPT, "--out", str(tmp_path))
    if not done.returncode:
        pytest.skip("there is a GPU here")
    assert (done.returncode, done.stdout) == (3, "") and len(done.stderr.splitlines()) == 1
    done = run(sys.executable, SCRIPT, "--out", str(tmp_path), "--sections", "fast")
    assert done.returncode == 2 and "probe, threads, small" in done.stderr
    assert run(sys.executable, SCRIPT).returncode == 2


def test_a_bare_machine_needs_a_checkout_and_wheels(
    module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: wheels of a folder are installed from there alone, once, into an environment there."""
    bare, commands = module("gpu_bare"), list[list[str]]()
    assert "No module named 'cupy'" in bare.missing(sys.executable)
    monkeypatch.setattr(bare, "NEEDED", "import numpy")
    assert not bare.missing(sys.executable)
    with pytest.raises(SystemExit, match="no wheels in"):
        bare.environment(tmp_path)
    (tmp_path / "a-1-py3-none-any.whl").touch()
    monkeypatch.setattr(bare.venv, "create", lambda folder, **given: folder.mkdir())
    monkeypatch.setattr(bare.subprocess, "run", lambda command, check: commands.append(command))
    python = bare.environment(tmp_path)
    assert bare.environment(tmp_path) == python and len(commands) == 1
    assert commands[0][0] == str(python) and "--no-index" in commands[0]
    assert commands[0][-1].endswith("a-1-py3-none-any.whl")
