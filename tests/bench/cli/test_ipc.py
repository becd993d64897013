"""Whole runs over peer GPU memory, on the stand-in: tables, options, refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from busbar.errors import Unavailable
from collectives.execution.gpu import take
from tests.collectives.ipc_stand_in import IpcCupy, IpcMachine
from tests.conftest import good, in_process, table_rows
from tests.nccl_standin import Nccl

SMALL = ["--transport", "ipc", "-b", "1K", "-e", "2K", "-n", "3"]
Here = Callable[..., IpcMachine]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    """``here(gpus, nccl=…)``: as if this machine had so many GPUs and CuPy, and NCCL or none."""

    def made(gpus: int, *, nccl: bool = True) -> IpcMachine:
        machine = IpcMachine(gpus)
        cupy, found = IpcCupy(machine), Nccl(machine)

        def load_nccl() -> Nccl:
            if not nccl:
                raise Unavailable("CuPy finds no NCCL")
            return found

        monkeypatch.setattr(take, "load_cupy", lambda: cupy)
        monkeypatch.setattr(take, "load_nccl", load_nccl)
        return machine

    return made


def test_every_rank_on_a_gpu_of_its_own(here: Here) -> None:
    """Rule: rows over ipc are right in both placements, of every type that was asked for."""
    here(3)
    more = ["--threads", "3", "-A", "ring,one_shot", "-d", "float,f8e4m3", "-o", "sum,avg"]
    out = good(in_process("allreduce", *SMALL, *more))
    rows = table_rows(out)
    assert len(rows) == 16 and all(row[8] == row[12] == "0" for row in rows)
    assert "allreduce one_shot (ipc)" in out
    # Less than an element a rank: some messages are empty.
    small = ["--transport", "ipc", "-b", "4", "-e", "16", "-n", "2", "-g", "3"]
    out = good(in_process("allreduce", *small, "-A ring,one_shot,ps"))
    assert len(table_rows(out)) == 9 and all(row[8] == row[12] == "0" for row in table_rows(out))


def test_the_librarys_rows_stand_beside_ours(here: Here) -> None:
    """Rule: NCCL's own collective is the baseline where NCCL is there.

    Without it ours run alone.
    """
    here(2)
    more = ["--threads", "2", "-A", "sharded_ps,library"]
    out = good(in_process("allreduce", *SMALL, *more))
    assert "sharded_ps (ipc)" in out and "library (nccl)" in out and len(table_rows(out)) == 4
    here(2, nccl=False)
    good(in_process("allreduce", *SMALL, "--threads 2 -A sharded_ps"))


def test_threads_share_a_gpu_only_when_asked(here: Here) -> None:
    """Rule: two ranks on one GPU are refused with the advice, or said above the table."""
    here(1, nccl=False)
    status, out, err = in_process("allreduce", *SMALL, "--threads 2 -A ring")
    assert (status, out) == (2, "") and "--oversubscribe-gpu" in err and err.count("\n") == 1
    more = ["--threads", "2", "-A", "ring", "--oversubscribe-gpu"]
    out = good(in_process("allreduce", *SMALL, *more))
    assert "share GPU" in out and "run side by side" in out


def test_groups_have_transports_of_their_own(here: Here) -> None:
    """Rule: --split works over ipc, and each group has its table."""
    here(4, nccl=False)
    more = ["--threads", "4", "-A", "ring", "--split", "mod:2"]
    out = good(in_process("allreduce", *SMALL, *more))
    assert len(table_rows(out)) == 4
