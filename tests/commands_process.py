"""Carries out commands for `test_commands`, each in a fork: one start serves them all.

For each line of standard input, a JSON list of cases, prints one: how they ended.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import IO, Any

from busbar.cli import COMMANDS as DOORS
from busbar.cli import main
from busbar.door import leave

_PATIENCE_S = 300
#: What commands load, loaded once.
_LOADED = (
    "rich.table",
    "bench.cli.main",
    "bench.cli.start",
    "bench.launch.control_socket",
    "bench.run.session",
    "bench.steps.main",
)


class _Interrupting(MetaPathFinder):
    """Sends Ctrl-C when a module is looked for."""

    def __init__(self, module: str) -> None:
        self._module = module

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == self._module:
            os.kill(os.getpid(), signal.SIGINT)


def _run(case: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            signal.alarm(_PATIENCE_S)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _streams(case["stdout"], out, err)
            for name in case["lacking"]:
                sys.modules[name] = None  # type: ignore[assignment]
            _end(_command(case))
        if case["interrupt"].startswith("/"):
            # It opens when the command has opened it to read; held until the command has ended.
            with Path(case["interrupt"]).open("wb"):
                while not _waits(child):
                    pass
                os.kill(child, signal.SIGINT)
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        else:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        texts = [stream.read().decode(errors="replace") for stream in (out, err)]
        return {"status": status, "out": texts[0], "err": texts[1]}


def _waits(pid: int) -> bool:
    """Whether a process waits, or has ended.

    Python does not see a signal between its last look and the system call that then blocks.
    """
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] in "SZ"


def _end(status: int) -> None:
    """End this fork, with the status that an interpreter has whose last flush fails."""
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except OSError:
        status = 120
    os._exit(status)


def _command(case: dict[str, Any]) -> int:
    loading, _, function = case["interrupt"].partition(":")
    if not function:
        return main(case["argv"])
    sys.modules.pop(loading, None)
    sys.meta_path.insert(0, _Interrupting(loading))
    try:
        leave("name", case["interrupt"], *case["argv"])
    except SystemExit as end:
        return int(end.code or 0)


def _streams(kind: str, out: IO[bytes], err: IO[bytes]) -> None:
    """Standard streams as an interpreter that starts now would find and make them."""
    encoding, errors = sys.stdout.encoding, sys.stdout.errors
    if kind == "closed":
        for number in range(3):
            os.close(number)
        sys.stdin = sys.stdout = sys.stderr = None  # type: ignore[assignment]
        return
    os.dup2(err.fileno(), 2)
    os.dup2(_target(kind, out)(), 1)
    sys.stdout = open(1, "w", encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _target(kind: str, out: IO[bytes]) -> Callable[[], int]:
    if kind == "full":
        return lambda: os.open("/dev/full", os.O_WRONLY)
    if kind == "left":
        reading, writing = os.pipe()
        os.close(reading)
        return lambda: writing
    return out.fileno


if __name__ == "__main__":
    for module in (*_LOADED, *(target.partition(":")[0] for _, target in DOORS.values())):
        import_module(module)
    gc.freeze()  # so that forks share what is loaded
    for line in sys.stdin:
        print(json.dumps([_run(one) for one in json.loads(line)]), flush=True)
