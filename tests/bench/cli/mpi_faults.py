"""Run under mpirun by test_mpi: the benchmark, with one rank that fails in a chosen way."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from bench.cli.main import main
from collectives.execution.mpi import calls


def spoil(how: str) -> None:
    """Make the last rank raise, wait for ever, or stop (SIGSTOP) at its 5th iteration."""
    calls.load = lambda: None  # this rank's calls go through Python; the others' do not
    real = calls.PersistentCalls.__call__

    def spoiled(self: Any) -> None:
        real(self)
        if self._runs == 5 and how == "raise":
            raise ValueError("boom")
        if self._runs == 5 and how == "wait":
            threading.Event().wait()
        if self._runs == 5 and how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)

    calls.PersistentCalls.__call__ = spoiled  # type: ignore[method-assign]


if __name__ == "__main__":
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
        spoil(sys.argv[1])
    sys.exit(main("allreduce", sys.argv[2:]))
