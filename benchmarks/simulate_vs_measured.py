"""Measured all-reduces beside simulations of a machine whose parameters `topology measure` gives.

    python benchmarks/simulate_vs_measured.py [ROUNDS]

Each round maps two ranks of this host over MPI with a sweep of sizes, measures `ring` and `ps` at 16 MiB,
and simulates both on that map, with additions at the rate that its sweep shows and with none. Prints
medians over the rounds with the least and the greatest, as a table in Markdown.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from collectives.catalogue import draft, spec
from collectives.simulate.machines.machine import Machine
from collectives.simulate.machines.maps import from_file
from collectives.simulate.outcome import simulate

RANKS, SIZE = 2, 16 << 20
NAMES = ("ring", "ps")


def _under_mpi(*rest: str) -> str:
    launcher = str(Path(sys.prefix) / "bin" / "mpirun")
    command = [launcher, "-n", str(RANKS), sys.executable, "-m", *rest]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout


def _measured() -> list[float]:
    """Bus bandwidth of every algorithm, GB/s."""
    size = str(SIZE)
    text = _under_mpi(
        *("bench.allreduce", "--transport", "mpi", "-A", ",".join(NAMES)),
        *("-b", size, "-e", size, "-n", "40"),
    )
    found = re.search(rf"out-of-place .* busbw in GB/s\n.*\n#\s+{size}\s+(\S+)\s+(\S+)", text)
    assert found, text
    return [float(value) for value in found.groups()]


def _simulated(made: Machine) -> list[float]:
    """The same of a simulation."""
    found = (
        simulate(draft("allreduce", name, RANKS), spec("allreduce"), made, SIZE) for name in NAMES
    )
    return [SIZE / one.seconds / 1e9 for one in found]


def main() -> None:
    """Print the table."""
    rounds = int(sys.argv[1]) if sys.argv[1:] else 5
    rows: list[tuple[list[float], ...]] = []
    rates: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "map.json"
        for _ in range(rounds):
            _under_mpi(
                *("topology", "measure", "--isolated", "--repetitions", "100"),
                *("--sweep", str(SIZE), "-o", str(file)),
            )
            made = from_file(str(file))
            free = made.adding(0.0)
            gamma = made.at(SIZE).gamma
            rates.append(1e-9 / gamma if gamma else float("inf"))
            rows.append((_measured(), _simulated(made), _simulated(free)))
    print(
        "| 16 MiB, 2 ranks, busbw GB/s | measured | simulated | additions free |\n|---|---|---|---|"
    )
    for i, name in enumerate(NAMES):
        cells = [_cell([row[side][i] for row in rows]) for side in range(3)]
        print(f"| `{name}` | {' | '.join(cells)} |")
    print("| ring over ps | " + " | ".join(
        _cell([row[side][0] / row[side][1] for row in rows]) for side in range(3)
    ) + " |")  # fmt: skip
    print(f"\nadditions at {_cell(rates)} GB/s")


def _cell(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
