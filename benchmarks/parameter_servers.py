"""The table of docs/parameter-servers.md: measured over formula, learners as threads and as ranks.

    python benchmarks/parameter_servers.py DIR [SECONDS]

Writes all records and output to DIR, and prints the table. SECONDS: the budget of each of the
fourteen rows (default 14); those at exp:100 take twice as long. Nothing else should run on the
machine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from busbar.start import python
from reports.readers.codec import measurements
from reports.records.measurement import Measurement

EVERY = "sync,k-sync:4,k-batch-sync:4,async,k-async:4,k-batch-async:4"
#: A column: its name, how ranks are made, the law, the updates, and how often the budget.
COLUMNS = (
    ("threads, exp:30", "--threads", "exp:30", EVERY, 1),
    ("MPI, exp:50", "--ranks", "exp:50", EVERY, 1),
    ("threads, exp:100", "--threads", "exp:100", "k-sync:4,k-batch-sync:4", 2),
)


def measured(folder: Path, number: int, budget: float) -> dict[str, Measurement]:
    """A column's rows, by update."""
    _, ranks, law, updates, times = COLUMNS[number]
    rows = folder / f"{number}.jsonl"
    command = [
        *python("bench.step", ranks, "17", "--model", "toy", "--scale", "64"),
        *("--compute", law, "--update", updates, "--budget", f"{times * budget:g}"),
        *("--out", str(rows), "--overwrite"),
    ]
    with (folder / f"{number}.txt").open("w") as said:
        subprocess.run(command, stdout=said, stderr=subprocess.STDOUT, check=True, timeout=300)
    return {one.step.update: one for one in measurements(rows.read_text()) if one.step is not None}


def cell(row: Measurement | None) -> str:
    """Time over the formula's, (over the drawn times with the server's), half the interval in %."""
    if row is None or not row.time_s or row.step is None or not row.step.formula_s:
        return "-"
    mean, step = row.time_s, row.step
    server = step.with_server_s
    wide = "" if row.high_s is None else f" ±{100 * (row.high_s / mean - 1):.1f} %"
    beside = "-" if server is None else f"{mean / server:.3f}"
    return f"{mean / step.formula_s:.3f} ({beside}){wide}"


def main() -> None:
    """Measure every column, then print the table."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    budget = float(sys.argv[2]) if len(sys.argv) > 2 else 14.0
    found = [measured(folder, number, budget) for number in range(len(COLUMNS))]
    print("| | " + " | ".join(name for name, *_ in COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for update in EVERY.split(","):
        cells = " | ".join(cell(column.get(update)) for column in found)
        print(f"| `{update}` | {cells} |")


if __name__ == "__main__":
    main()
