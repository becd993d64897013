"""benchmarks/gpu_one.py on a GPU that is not there: a script in its place, for small sizes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(HOME), str(HOME / "benchmarks")]

import gpu_one as one  # noqa: E402
import gpu_processes as processes  # noqa: E402
import gpu_sections as sections  # noqa: E402
from gpu_right import Sizes  # noqa: E402

from busbar.errors import Unsupported  # noqa: E402
from tests.collectives.ipc_stand_in import IpcCupy, IpcMachine  # noqa: E402
from tests.nccl_standin import Nccl  # noqa: E402

TINY = Sizes(right=(4, 9000), some=(4,), large=(1 << 16,), ranks=(2, 3), small=64, repeats=1)


def put_in_place(**given: Any) -> IpcCupy:
    """The stand-in wherever gpu_one.py would find CuPy and NCCL."""
    machine = IpcMachine(1, total=1 << 32, **given)
    cupy, nccl = IpcCupy(machine), Nccl(machine)
    one.load_cupy = lambda: cupy  # type: ignore[attr-defined]
    one.SCRIPT, one.QUICK = __file__, TINY
    processes.SIZES, processes.KINDS = (4, 9000), ("float",)  # type: ignore[assignment]
    for module in (sections, processes):
        module.load_nccl = lambda: nccl  # type: ignore[attr-defined]
    return cupy


if __name__ == "__main__":
    put_in_place()
    try:
        sys.exit(one.main())
    except Unsupported as error:
        sys.exit(str(error))
