"""Several commands in one start of an MPI launcher, each with a status and texts of its own.

A start costs every rank an interpreter with its libraries: more than most cases do themselves. What
a test says of how a process ends needs a launch of its own, as do ranks that are to die.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # the ranks have no pytest
    from tests.conftest import Mpi, Run


class Ended(NamedTuple):
    """How a command ended: the worst status of a rank, and what all ranks wrote."""

    returncode: int
    stdout: str
    stderr: str


def together(
    run: Run, mpi: Mpi, ranks: int, *commands: Sequence[str], env: dict[str, str] | None = None
) -> list[Ended]:
    """Run commands, which are words for Python, one after the other in the same ranks."""
    from tests.conftest import under, without_progress

    done = run(*under(mpi, ranks, "-m", "tests.together", json.dumps(commands)), env=env)
    found = [Ended(*json.loads(line)) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and len(found) == len(commands), (found, done.stderr)
    return [one._replace(stderr=without_progress(one.stderr)) for one in found]


@contextmanager
def _captured(texts: list[str]) -> Iterator[None]:
    """Send standard output and standard error to files, and give what they hold in the end."""
    kept = [os.dup(number) for number in (1, 2)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        for file, number in ((out, 1), (err, 2)):
            os.dup2(file.fileno(), number)
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            for was, file, number in zip(kept, (out, err), (1, 2), strict=True):
                os.dup2(was, number)
                os.close(was)
                file.seek(0)
                texts.append(file.read().decode())
                if sys.exc_info()[0] is not None:
                    os.write(2, texts[-1].encode())  # the launch ends with this


def _call(command: Sequence[str]) -> int:
    """Do what ``python *command`` does; gives the exit status."""
    module = command[0] == "-m"
    name, sys.argv = command[module], list(command[module:])
    try:
        (runpy.run_module if module else runpy.run_path)(name, run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def main(commands: Sequence[Sequence[str]]) -> None:
    """Run the commands; rank 0 prints a line for each."""
    from mpi4py import MPI

    comm: Any = MPI.COMM_WORLD
    for command in commands:
        texts: list[str] = []
        with _captured(texts):
            status = _call(command)
        every = comm.gather((status, *texts))
        if comm.rank == 0:
            statuses, *said = zip(*every, strict=True)
            print(json.dumps([max(statuses), *map("".join, said)]))
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except BaseException:  # noqa: BLE001  (any failure must end every rank)
        from traceback import print_exc

        from mpi4py import MPI

        print_exc()
        MPI.COMM_WORLD.Abort(1)
