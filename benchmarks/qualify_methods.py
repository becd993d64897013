"""Other methods to find a bad host, on the emulated clusters of `qualify_campaigns`.

    python benchmarks/qualify_methods.py run --from 0 --to 5 --out methods.jsonl
    python benchmarks/qualify_methods.py show methods.jsonl campaigns.jsonl

The methods are those of `qualify_simulation`. Their launches are those of ``busbar qualify``, with
its deadlines. They know the rate of a good host: a launch of two hosts is bad below 0.95 of it, a
launch of more hosts below 0.8 of the rate predicted from it. `show` also shows ``busbar qualify``,
from the campaigns with the same faults.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from qualify_campaigns import HERE, HOSTS, RATE_MBIT, described, drawn, in_cluster, judged, where
from qualify_simulation import METHODS, Runner, hosts_of

from bench.qualify.engine import Engine
from bench.qualify.launchers import choose
from bench.qualify.main import QualifyCommand
from bench.qualify.model import Decision, Launch, Observation
from bench.qualify.together import SHORT

OTHERS = ("bisection", "one reference", "growing ring")
_LIMIT_S = 900
# The share of the port's rate that a pair of good hosts reaches (median of 120 pairs: 0.993).
_PORT, _SLOW = 0.99 * RATE_MBIT * 1e6 / 8, 0.95


class _Kept:
    """Stores observations in memory; see `bench.qualify.engine.Watcher`."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def decided(self, decision: Decision) -> None:
        """Do nothing."""

    def observed(self, observation: Observation) -> None:
        """Store the observation."""
        self.seen.append(observation)


def inside(method: str) -> dict[str, object]:
    """Run a method on the hosts of the cluster that this process runs in."""
    words = ["--hosts", ",".join(hosts_of(HOSTS)), "-o", "none"]
    command = QualifyCommand.parse(words, QualifyCommand.make_parser())
    engine: Engine = command._engine(command._new(), choose(None, (), "ssh", {}))

    def observe(launches: Sequence[Launch]) -> list[Observation]:
        kept, batch = _Kept(), Decision(tuple(launches), ())
        engine.campaign(lambda known: Decision((), ()) if known else batch, [], kept, "")
        return kept.seen

    run = Runner(observe, _PORT, _SLOW, SHORT)
    start = time.monotonic()
    accused = METHODS[method](run, hosts_of(HOSTS))
    seconds = round(time.monotonic() - start, 1)
    return {"accused": sorted(accused), "seconds": seconds, "launches": run.launches}


def one(number: int, method: str) -> dict[str, object]:
    """Run a method on the cluster and faults of a campaign. Returns its line."""
    with tempfile.TemporaryDirectory() as folder:
        faults = drawn(number, Path(folder))
        words = in_cluster(faults, [sys.executable, __file__, "inside", method])
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_LIMIT_S, check=False, cwd=HERE.parent
        )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found = json.loads(done.stdout.splitlines()[-1])
    return {"number": number, "method": method, **where(), "faults": described(faults), **found}


def _of_method(line: dict[str, Any]) -> tuple[int, int, set[str]]:
    """Number of bad hosts accused, number of bad hosts, and the healthy hosts that were accused."""
    bad = {
        fault["subject"][0]
        for fault in line["faults"]
        # Only `busbar qualify` checks software, links and uplinks.
        if fault["kind"] == "host" and fault["what"] != "other version"
    }
    odd = {f["subject"][0] for f in line["faults"] if f["what"] == "other version"}
    accused = {*line["accused"]}
    return len(bad & accused), len(bad), accused - bad - odd


def shown(methods: Sequence[dict[str, Any]], campaigns: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The lines of ``show``, in Markdown."""
    numbers = {line["number"] for line in methods}
    rows: dict[str, list[tuple[int, float, int, int, set[str]]]] = defaultdict(list)
    for line in methods:
        rows[line["method"]].append((line["launches"], line["seconds"], *_of_method(line)))
    for line in campaigns:
        if line["number"] in numbers and not line["healthy"]:
            verdicts = judged(line)
            fine = ("good", "cannot tell")
            accused = [
                v["subject"][0]
                for v in line["verdicts"]
                if v["kind"] == "host" and v["state"] not in fine
            ]
            found, bad, _ = _of_method({**line, "accused": accused})
            wrong = {text for text in verdicts.accused if text.startswith("host ")}
            row = (line["launches"], line["seconds"], found, bad, wrong)
            rows["busbar qualify"].append(row)
    yield "| | campaigns | launches | seconds | bad hosts found | healthy hosts accused |"
    yield "|---|--:|--:|--:|--:|--:|"
    for name in sorted(rows, key=lambda name: name != "busbar qualify"):
        mine = rows[name]
        launches, seconds = ([row[n] for row in mine] for n in (0, 1))
        found, bad = (sum(row[n] for row in mine) for n in (2, 3))
        cells = (
            *(name, len(mine), f"{median(launches):g} ({min(launches)} to {max(launches)})"),
            f"{median(seconds):.0f} ({min(seconds):.0f} to {max(seconds):.0f})",
            *(f"{found} of {bad}", sum(len(row[4]) for row in mine)),
        )
        yield f"| {' | '.join(map(str, cells))} |"


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    """Run methods, run one method inside a cluster, or show the results in files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--from", dest="first", type=int, default=0)
    run.add_argument("--to", type=int, default=5)
    run.add_argument("--out", type=Path, required=True)
    commands.add_parser("inside").add_argument("method", choices=OTHERS)
    show = commands.add_parser("show")
    show.add_argument("methods", type=Path)
    show.add_argument("campaigns", type=Path)
    options = parser.parse_args()
    if options.command == "inside":
        print(json.dumps(inside(options.method)))
        return
    if options.command == "show":
        print("\n".join(shown(_lines(options.methods), _lines(options.campaigns))))
        return
    done = {(line["number"], line["method"]) for line in _lines(options.out)}
    for number in range(options.first, options.to):
        for method in OTHERS:
            if (number, method) not in done:
                line = one(number, method)
                with options.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(line, flush=True)


if __name__ == "__main__":
    main()
