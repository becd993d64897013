"""What is built once a test run, whichever of its processes asks for it first."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

_RUN = "BUSBAR_TEST_RUN"


def run_folder() -> Path:
    """The folder of this run, which ends with the process that asked first.

    The environment says where it is, so that processes which tests start find it, too.
    """
    if _RUN not in os.environ:
        os.environ[_RUN] = mkdtemp(prefix="busbar-tests-")
        atexit.register(shutil.rmtree, os.environ[_RUN], ignore_errors=True)
    return Path(os.environ[_RUN])


def once(name: str, make: Callable[[Path], object]) -> Path:
    """The folder that ``make`` has filled; others that want it wait until it has."""
    root = run_folder()
    folder = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = Path(mkdtemp(dir=root))
            make(unfinished)
            unfinished.rename(folder)
    return folder
