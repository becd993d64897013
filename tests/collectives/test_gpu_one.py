"""benchmarks/gpu_one.py on the stand-in: its sections run, judge rightly, and fail one by one."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from collectives.gpu.device import Device
from tests.collectives.ipc_stand_in import IpcCupy, IpcMachine
from tests.conftest import REPO, Run
from tests.gpu_standin import Cupy, Machine
from tests.nccl_standin import Nccl

SCRIPT = str(REPO / "benchmarks" / "gpu_one.py")

needs_gcc = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    """A function that imports one of the benchmark's own parts."""
    monkeypatch.syspath_prepend(str(REPO / "benchmarks"))

    def find(name: str) -> ModuleType:
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return find


def _cupy() -> IpcCupy:
    return IpcCupy(IpcMachine(1, total=1 << 32))


@needs_gcc
def test_right_results_are_called_right(module) -> None:
    """Rule: every algorithm that serves the rank count gets a verdict for every rank count."""
    lines = module("gpu_right").right(_cupy(), sizes=(4, 20_000), ranks=(2, 3))
    table = [line.split("|")[1:-1] for line in lines if line.startswith("|")][2:]
    verdicts = {name.strip(): [cell.strip() for cell in cells] for name, *cells in table}
    assert verdicts["ring"] == verdicts["one_shot"] == ["right", "right"]
    assert verdicts["swing"] == ["right", "refused"]
    assert {cell for cells in verdicts.values() for cell in cells} <= {"right", "refused"}


@needs_gcc
def test_a_wrong_byte_is_found(module) -> None:
    """Rule: one byte that differs anywhere makes a result wrong."""
    right, cupy = module("gpu_right"), _cupy()
    device = Device(cupy, 0)
    device.use()
    tile = right.inputs(0, "float")
    array = device.allocate(40_000).view(np.float32)
    stream = device.stream()
    right.fill(device, stream, array, tile)
    assert not right.differ(device, array, tile)
    array.view(np.uint8)[39_999:][:] = 7
    assert right.differ(device, array, tile)


@needs_gcc
def test_the_figures_have_their_rows(module) -> None:
    """Rule: each section on speed gives one row for each case that it names."""
    speed = module("gpu_speed")

    def rows(lines: list[str]) -> int:
        return sum(line.startswith("|") for line in lines) - 2

    assert rows(speed.two_shot(_cupy(), sizes=(1 << 16,), ranks=(2,))) == 2
    assert rows(speed.small(_cupy(), size=64, ranks=(2,))) == 3
    assert rows(speed.overhead(_cupy(), ranks=(2,))) == 3


def test_nccl_has_its_sections(module) -> None:
    """Rule: the same judge serves nccl, and one rank's baseline has out-of-place and in-place."""
    machine = Machine(1)
    machine.shared_gpus = True

    cupy, nccl = Cupy(machine), Nccl(machine)
    lines = module("gpu_right").right_over_nccl(cupy, nccl, sizes=(4, 5000), ranks=(2,))
    assert "| ring | right |" in lines
    lines = module("gpu_speed").baseline(cupy, nccl, sizes=(4096,))
    assert lines[-1].startswith("| 4096 |") and lines[-1].endswith("| 0 |")


@needs_gcc
def test_processes_meet_without_a_launcher(module, tmp_path: Path) -> None:
    """Rule: ranks as processes give the verdicts through JSON; a process that fails is an error."""
    script = tmp_path / "rank.py"
    script.write_text(
        "import sys\n"
        f"sys.path[:0] = [{str(REPO)!r}, {str(REPO / 'benchmarks')!r}]\n"
        "import gpu_processes as processes\n"
        "from tests.collectives.test_gpu_one import _cupy\n"
        "processes.SIZES, processes.KINDS = (4, 9000), ('float',)\n"
        "rank, size, address = sys.argv[1:]\n"
        "processes.play(_cupy(), int(rank), int(size), address)\n"
    )
    processes = module("gpu_processes")
    lines = processes.right([str(script)], ranks=(2,))
    assert "| ring | right |" in lines
    script.write_text("raise SystemExit(9)\n")
    with pytest.raises(RuntimeError, match="9"):
        processes.right([str(script)], ranks=(2,))


def test_without_a_gpu_it_says_so_in_one_line(run: Run) -> None:
    """Rule: no GPU is one line and exit status 3; an unknown section is 2."""
    done = run(sys.executable, SCRIPT)
    if not done.returncode:
        pytest.skip("there is a GPU here")
    assert (done.returncode, done.stdout) == (3, "") and len(done.stderr.splitlines()) == 1
    done = run(sys.executable, SCRIPT, "--sections", "fast")
    assert done.returncode == 2 and "threads, processes" in done.stderr


def test_a_section_that_fails_is_reported_and_the_rest_goes_on(
    module, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a failing section is one line of the page with its reason."""
    one = module("gpu_one")
    monkeypatch.setattr(one, "__file__", "/nonexistent/gpu_one.py")
    assert not one.apart("small", True, 60)
    assert "**Section `small` failed:**" in capsys.readouterr().out
