"""Runs beside two busy processes: none hangs, none is wrong, none is far slower than its like.

``python -m tests.torture.neighbours --seconds 60 --seed 1 --keep DIR`` prints the range of the
medians of each kind of run. A second mode would stand apart from the rest.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from tests.conftest import REPO, environment
from tests.torture.campaign import Failure, pythons, run_campaign

LIMIT_S = 300
#: A run is another mode if its median is this many times that of all runs of its kind.
MODE = 50.0
_MEDIANS: dict[str, list[float]] = {}


@dataclass(frozen=True)
class Case:
    """One run."""

    mpi: str
    transport: str
    ranks: int
    algorithm: str


def drawn(rng: random.Random) -> Iterator[Case]:
    """Cases without end."""
    while True:
        transport = rng.choice(("shm", "mpi", "inproc"))
        yield Case(
            rng.choice(sorted(pythons())),
            transport,
            rng.choice((2, 3, 4)),
            rng.choice(("ring", "tree", "halving_doubling")),
        )


def play(case: Case) -> Failure | None:
    """Run a case beside two processes that never rest."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    argv = ["--ranks", str(case.ranks), "--transport", case.transport, "-A", case.algorithm]
    argv += ["-b", "64K", "-e", "64K", "-n", "20", "-T", "60", "--limit", "none"]
    try:
        done = subprocess.run(
            [pythons()[case.mpi], "-m", "bench.allreduce", *argv],
            cwd=REPO, env=environment(), capture_output=True, text=True, timeout=LIMIT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return Failure(f"not over after {LIMIT_S} s", asdict(case), str(error.stderr)[-2000:])
    finally:
        for one in busy:
            one.kill()
            one.wait()
    found = re.findall(r"^ +65536 +\d+ +float +sum +-1 +([\d.]+)", done.stdout, re.MULTILINE)
    said = f"{done.stdout[-1500:]}\n--\n{done.stderr[-1500:]}"
    if done.returncode or len(found) != 1:
        return Failure(f"status {done.returncode}, {len(found)} rows", asdict(case), said)
    # Each MPI by itself: with more ranks than cores one spins where another yields.
    kind = json.dumps([case.mpi, case.transport, case.ranks, case.algorithm])
    before = _MEDIANS.setdefault(kind, [])
    before.append(float(found[0]))
    middle = statistics.median(before)
    if len(before) > 4 and not middle / MODE < before[-1] < middle * MODE:
        return Failure(f"{before[-1]} us where others take {middle} us", asdict(case), said)
    return None


if __name__ == "__main__":
    try:
        run_campaign(
            __doc__,
            "neighbours",
            drawn,
            play,
            Case,
            kind=lambda case: f"{case.transport}, {case.ranks} ranks",
            shm=True,
        )
    finally:
        for name, times in sorted(_MEDIANS.items()):
            spread = (
                f"{min(times):.0f} to {max(times):.0f} us, median {statistics.median(times):.0f}"
            )
            print(f"  {name}: {len(times)} runs, {spread}")
