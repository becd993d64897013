"""Time to load, group and show a large record.

    python benchmarks/reports_load.py                      # a million rows, 413 MB
    python benchmarks/reports_load.py --ending .parquet    # the same from the Parquet export
    python benchmarks/reports_load.py --rows 100000 --keep big.jsonl

Writes a record like that of a long run (every size and algorithm many times). Then times, each in a
process of its own: ``reports.load``, a pandas ``groupby``, ``python -m reports show``. Prints the
median and the range of the repetitions, in seconds of the clock and of processor time. Processor
time means more if other programs share the machine.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from reports.readers.codec import Writer, run_of
from reports.readers.own_exports import to_parquet
from reports.records.measurement import Measurement

HERE = Path(__file__).resolve().parent.parent
ALGORITHMS = ("ring", "tree", "halving_doubling", "sharded_ps", "library")
SIZES = tuple(1 << n for n in range(20, 31))
ENVIRONMENT = {"busbar": "1", "library": "MPICH 5.0.2", "hosts": ["n0"], "cpu": "Xeon", "cpus": 2}
LOADED = """
import resource, sys, time
marks = [(time.perf_counter(), time.process_time())]
import reports
frame = reports.load(sys.argv[1])
marks.append((time.perf_counter(), time.process_time()))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
frame.groupby(["algorithm", "size", "placement"])["busbw_bytes_per_s"].median()
marks.append((time.perf_counter(), time.process_time()))
print(len(frame), peak, *(b - a for one, two in zip(marks, marks[1:]) for a, b in zip(one, two)))
"""


def main() -> None:
    """Write a record, time the reports on it, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="measurements")
    parser.add_argument("--iterations", type=int, default=10, help="raw times of each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ending", default=".jsonl", choices=(".jsonl", ".parquet"))
    parser.add_argument("--keep", type=Path, help="write the record here, or use the one that is")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.keep or Path(folder) / f"large{given.ending}"
        if not path.exists():
            _write(path, given.rows, given.iterations)
        print(f"{path.stat().st_size / 1e6:.0f} MB")
        found: dict[str, list[tuple[float, float]]] = {"load": [], "group": [], "show": []}
        for _ in range(given.rounds):
            said = list(map(float, _run("-c", LOADED, str(path)).split()))
            found["load"].append((said[2], said[3]))
            found["group"].append((said[4], said[5]))
            start, spent = time.perf_counter(), _children()
            _run("-m", "reports", "show", str(path))
            found["show"].append((time.perf_counter() - start, _children() - spent))
        print(
            f"{said[0]:.0f} rows, {said[1]:.0f} MB at most to load;"
            " seconds by the clock, of processor time"
        )
        for name, times in found.items():
            texts = [
                f"{statistics.median(column):6.2f} ({min(column):.2f}-{max(column):.2f})"
                for column in zip(*times, strict=True)
            ]
            print(f"{name:>6} {'   '.join(texts)}")


def _children() -> float:
    """Processor time of child processes that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(*command: str) -> str:
    """The standard output of a new Python process."""
    done = subprocess.run(
        [sys.executable, *command], cwd=HERE, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def _write(path: Path, rows: int, iterations: int) -> None:
    """Write a record of ``rows`` measurements, as JSON lines or Parquet by the path's ending."""
    made = _measurements(rows, iterations)
    if path.suffix == ".parquet":
        path.write_bytes(to_parquet(made))
        return
    lines = Writer()
    with path.open("wb") as file:
        for one in made:
            file.write(lines.lines([one]))


def _measurements(rows: int, iterations: int) -> Iterator[Measurement]:
    """``rows`` measurements, each with times that vary randomly."""
    random, run = np.random.default_rng(1), run_of(ENVIRONMENT, "allreduce")
    for n in range(rows // 2):
        size = SIZES[n // len(ALGORITHMS) % len(SIZES)]
        times = np.round(size / 1e10 * random.lognormal(0, 0.1, (2, iterations)), 9).tolist()
        for placement, series in zip(("out", "in"), times, strict=True):
            yield Measurement(
                run=run, collective="allreduce", algorithm=ALGORITHMS[n % len(ALGORITHMS)],
                transport="shm", ranks=2, size=size, count=size // 4, dtype="float", op="sum",
                root=-1, placement=placement, bus_factor=1.0, timing="each", across="max",
                stopped="precise", wrong=0, times_s=tuple(series), iterations=iterations,
            )  # fmt: skip


if __name__ == "__main__":
    main()
