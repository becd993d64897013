"""Windows and arrival patterns on real ranks: records, tables, and what is said of late ranks.

How many iterations count is the machine's matter: on a busy one nearly none may.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import native
from tests.conftest import Mpi, Run
from tests.together import together

_SMALL = ("-b", "1K", "-e", "1K", "-n", "5", "-A", "ring,library", "--placement", "out")


def _records(file: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return [one for one in found if "collective" in one]


def test_windows_and_patterns_on_one_host(mpich: Mpi, run: Run, tmp_path: Path) -> None:
    """Rule: rows say how they were timed, count what does not count, and keep the other readings.

    On one host the shared clock is named; `--arrival all` ends in its table; a sweep behind
    barriers keeps the operation's time, which no rank's own exceeds.
    """
    shm = "shm" if native.load() is not None else "mpi"
    files = {name: tmp_path / f"{name}.jsonl" for name in ("window", "arrival", "barrier")}
    commands = {
        "window": ("--sync", "window", "--transport", shm),
        "arrival": ("--arrival", "all:20", "--transport", "mpi"),
        "barrier": ("--transport", shm, "--wait-quiet", "1s"),
    }
    ended = together(
        run,
        mpich,
        2,
        *(
            ("-m", "bench.allreduce", *_SMALL, *more, "--out", str(files[name]))
            for name, more in commands.items()
        ),
    )
    assert [one.returncode for one in ended] == [0, 0, 0], ended[0].stderr + ended[1].stderr
    window, arrival, _ = ended
    assert "CLOCK_MONOTONIC of this host" in window.stdout
    assert "earliest start to the latest end" in window.stdout
    assert "last rank's arrival to the latest end (--arrival late:1:20)" in arrival.stdout
    timed = 0
    for name in ("window", "arrival"):
        for record in _records(files[name]):
            window_, times = record["window"], record.get("times_s", [])
            assert window_["begun"] - window_.get("lost", 0) == len(times) <= 5
            assert record.get("wrong") == 0
            for reading in record.get("also", {}).values():
                assert len(reading) == len(times)
            if times:
                timed += 1
                first = record["also"].get("operation", times)
                last = record["also"].get("last arrival", times)
                assert all(a >= b - 1e-9 and b > 0 for a, b in zip(first, last, strict=True))
            else:
                assert "every rank began in time" in record["skipped"]
    patterns = {r["window"]["arrival"] for r in _records(files["arrival"])}
    assert patterns == {"zero", "ramp:20", "late:0:20", "late:1:20", "random:20"}
    assert not timed or _records(files["window"])[0]["across"] == "operation"
    for record in _records(files["barrier"]):
        assert "window" not in record and record["across"] == "max"
        operation = record["also"]["operation"]
        assert all(o >= t - 1e-9 for o, t in zip(operation, record["times_s"], strict=True))
