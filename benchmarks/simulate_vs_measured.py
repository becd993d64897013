"""Measured all-reduces and simulations with machine parameters from `topology measure`.

    python benchmarks/simulate_vs_measured.py [ROUNDS]

Each round maps two ranks of this host over MPI with a sweep of sizes, measures all-reduces out of
place at three sizes, and simulates them on that map, and on the same map without its sweep. Prints
medians over the rounds with the least and the greatest value, as a table in Markdown.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import reports
from busbar.start import python
from collectives.predict.machine import Network
from collectives.predict.maps import network_from_map
from collectives.predict.simulation import Simulation
from collectives.schedule.catalogue import draft, spec
from topology.model.measured import swept
from topology.sources.gather import gather

RANKS, SIZES, LARGEST = 2, (64 << 10, 1 << 20, 16 << 20), 16 << 20
NAMES = ("ring", "ps", "recursive_doubling")
Times = dict[tuple[str, int], float]


def _under_mpi(*rest: str) -> None:
    launcher = str(Path(sys.prefix) / "bin" / "mpirun")
    command = [launcher, "-bind-to", "core", "-n", str(RANKS), *python(*rest)]
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)


def _measured(file: Path) -> Times:
    """Median seconds of every algorithm and size."""
    _under_mpi(
        *("bench.allreduce", "--transport", "mpi", "-A", ",".join(NAMES), "--placement", "out"),
        *("-b", str(SIZES[0]), "-e", str(SIZES[-1]), "-f", "16", "-n", "40", "-c", "0"),
        *("--out", str(file), "--overwrite"),
    )
    rows = reports.load(file)
    found = zip(rows["algorithm"], rows["size"], rows["time_s"], strict=True)
    return {(str(name), int(size)): float(seconds) for name, size, seconds in found}


def _simulated(made: Network) -> Times:
    """Simulated seconds of every algorithm and size."""
    what = spec("allreduce")
    return {
        (name, size): Simulation(draft("allreduce", name, RANKS), what, made).run(size).seconds
        for name in NAMES
        for size in SIZES
    }


def _round(folder: Path) -> tuple[Times, Times, Times]:
    """Measured times, simulated times, and times simulated without the sweep."""
    file, record = folder / "map.json", folder / "rows.jsonl"
    record.unlink(missing_ok=True)
    _under_mpi(
        *("topology", "measure", "--isolated", "--repetitions", "100"),
        *("--sweep", str(LARGEST), "-o", str(file)),
    )
    whole, _ = gather([str(file)])
    names = {f"{one.quantity}_{one.nbytes}" for one in swept(whole)}
    bare = replace(whole, pairs=tuple(p for p in whole.pairs if p.fact.name not in names))
    return (
        _measured(record),
        _simulated(network_from_map(whole)),
        _simulated(network_from_map(bare)),
    )


def main() -> None:
    """Print the table."""
    count = int(sys.argv[1]) if sys.argv[1:] else 5
    with tempfile.TemporaryDirectory() as folder:
        rounds = [_round(Path(folder)) for _ in range(count)]
    print(f"| {RANKS} ranks | bytes | measured, µs | simulated/measured | without the sweep |")
    print("|---|--:|--:|--:|--:|")
    for name in NAMES:
        for size in SIZES:
            key = name, size
            cells = [_cell([1e6 * measured[key] for measured, *_ in rounds], 1)]
            for side in (1, 2):
                cells.append(_cell([each[side][key] / each[0][key] for each in rounds], 2))
            print(f"| `{name}` | {size} | {' | '.join(cells)} |")


def _cell(values: list[float], digits: int) -> str:
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


if __name__ == "__main__":
    main()
