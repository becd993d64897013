"""Scarce resources: disk, streams, descriptors, address space, /dev/shm, /proc, a locale.

``python -m tests.torture.resources --seconds 60 --seed 1 --keep DIR``. A case is one shell command
and the exit statuses that it may have. No command ends in a traceback, or after `LIMIT_S`. Cases
that mount something need root and are left out without it.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.conftest import REPO, environment
from tests.torture.campaign import Failure, pythons, run_campaign

LIMIT_S = 300
BENCH = "{python} -m bench.{collective} -b 1K -e 4K -n 3 -A {algorithm} --limit none"
INPROC = f"{BENCH} --transport inproc --ranks 2"
RANKS = f"{BENCH} --ranks 2"
# The scarce resource: the command, its exit statuses, its message.
SCARCE: dict[str, tuple[str, set[int], str]] = {
    "full disk": (
        "mkdir {folder}/d && mount -t tmpfs -o size={kilobytes}k none {folder}/d && "
        + INPROC + " -N 40 -I --out {folder}/d/rows.jsonl", {0, 1, 2}, "",
    ),
    "/dev/full": (INPROC + " >/dev/full", {2}, "standard output cannot be written"),
    "/dev/full, ranks": (RANKS + " >/dev/full", {2}, "standard output cannot be written"),
    "no stdout": (INPROC + " >&-", {0}, ""),
    "no stderr": (INPROC + " 2>&-", {0}, ""),
    "no streams": (RANKS + " <&- >&- 2>&-", {0}, ""),
    "few descriptors": ("ulimit -n {descriptors}; " + INPROC, {0, 2, 3, 4}, ""),
    "few descriptors, ranks": ("ulimit -n 32; " + RANKS, {3}, "ulimit -n"),
    "address space": ("ulimit -v {kilobytes}000; " + INPROC, {0, 1, 2, 3, 4}, ""),
    "64 MB of shared memory": (
        "mount -t tmpfs -o size=64m none /dev/shm && " + BENCH + " --ranks 4", {0}, "",
    ),
    "64 MB of shared memory, MPICH, 16 ranks": (
        "mount -t tmpfs -o size=64m none /dev/shm && " + BENCH.replace("{python}", sys.executable)
        + " --ranks 16", {3}, "--shm-size",
    ),
    "no /proc": ("mount -t tmpfs none /proc && " + INPROC, {0, 3}, ""),
    "C locale": ("LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 " + RANKS, {0}, ""),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A command that lacks a resource."""

    scarce: str
    mpi: str
    collective: str
    algorithm: str
    kilobytes: int
    descriptors: int


def drawn(rng: random.Random) -> Iterator[Case]:
    """Yield cases without end: every kind in turn, with random amounts."""
    root = os.geteuid() == 0 and shutil.which("unshare")
    while True:
        for scarce in rng.sample(sorted(SCARCE), len(SCARCE)):
            if "mount" in SCARCE[scarce][0] and not root:
                continue
            collective, algorithm = rng.choice(
                [("allreduce", "ring"), ("allgather", "ring"), ("broadcast", "binomial")]
            )
            low, high = (700, 4000) if scarce == "address space" else (8, 200)
            yield Case(
                scarce, rng.choice(sorted(pythons())), collective, algorithm,
                rng.randint(low, high), rng.randint(8, 40),
            )  # fmt: skip


def play(case: Case) -> Failure | None:
    """Run a case."""
    command, statuses, said = SCARCE[case.scarce]
    with tempfile.TemporaryDirectory(prefix="busbar-torture-") as folder:
        words = asdict(case) | {"python": pythons()[case.mpi], "folder": folder}
        line = command.format(**words)
        shell = ["sh", "-c", line]
        try:
            done = subprocess.run(
                ["unshare", "-m", *shell] if "mount" in line else shell,
                cwd=REPO, env=environment(), capture_output=True, text=True, timeout=LIMIT_S,
                errors="replace", check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            return Failure(f"not over after {LIMIT_S} s", asdict(case), str(error.stderr)[-2000:])
        wrong = _wrong(done, statuses, said)
        rows = Path(folder) / "d/rows.jsonl"
        if rows.exists() and not _whole(rows.read_bytes()):
            wrong.append("half a row is left")
    text = f"{line}\n{done.stdout[-1500:]}\n--\n{done.stderr[-2500:]}"
    return Failure("; ".join(wrong), asdict(case), text) if wrong else None


def _wrong(done: subprocess.CompletedProcess[str], statuses: set[int], said: str) -> list[str]:
    found = []
    if done.returncode not in statuses:
        found.append(f"status {done.returncode}, expected one of {sorted(statuses)}")
    if re.search(r"^Traceback", done.stderr, re.MULTILINE):
        found.append("a traceback")
    if said not in done.stderr:
        found.append(f"{said!r} is not said")
    return found


def _whole(data: bytes) -> bool:
    return not data or data.endswith(b"\n")


if __name__ == "__main__":
    run_campaign(__doc__, "resources", drawn, play, Case, kind=lambda case: case.scarce, shm=True)
