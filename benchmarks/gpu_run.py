"""Runs sections in separate processes, each with a time limit, as many as a piece of time allows.

Independent of GPUs. A section's output is passed on at once, and its standard error goes to a file.
Its result is written when it has ended, so that the next call continues from there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Done", "Part", "piece"]

_LAST = 4000  # characters of standard error that are printed if a section failed


class Part(NamedTuple):
    """A section and its time limit in seconds."""

    name: str
    limit: float


@dataclass
class Done:
    """The sections that failed, and those that did not fit into this piece of time."""

    failed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def piece(
    parts: Sequence[Part], command: Sequence[str], out: Path, stop: float, *, again: bool = False
) -> Done:
    """Run the sections without a result, in order, while the next one can end before ``stop``.

    ``command`` with ``--section NAME`` runs one. ``stop`` is a time of the monotonic clock.
    """
    found = Done()
    todo = [part for part in parts if again or not (out / f"{part.name}.json").exists()]
    for i, part in enumerate(todo):
        if i and time.monotonic() + part.limit > stop:
            found.left += [one.name for one in todo[i:]]
            break
        ended = _run(part, [*command, "--section", part.name], out)
        print(f"gpu_one: {part.name}: {ended['status']}", file=sys.stderr, flush=True)
    for part in parts:
        file = out / f"{part.name}.json"
        if file.exists() and json.loads(file.read_text())["status"] != "done":
            found.failed.append(part.name)
    return found


def _run(part: Part, command: Sequence[str], out: Path) -> dict[str, Any]:
    """Run one section. Its result is in ``out`` when this returns."""
    rows = out / f"{part.name}.rows.jsonl"
    rows.unlink(missing_ok=True)
    began, start = datetime.now(timezone.utc), time.monotonic()
    with (
        (out / f"{part.name}.err").open("wb") as errors,
        (out / f"{part.name}.md").open("wb") as said,
    ):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        status = _watch(process, said, part.limit)
    told = (out / f"{part.name}.err").read_text(errors="replace")
    if status != "done":
        print(f"\n**Section `{part.name}` {status}**\n", flush=True)
        print(told[-_LAST:], file=sys.stderr, flush=True)
    found = {
        "section": part.name,
        "status": status,
        "seconds": round(time.monotonic() - start, 3),
        "started": began.isoformat(timespec="seconds"),
        "limit": part.limit,
        "command": list(command),
        "rows": [json.loads(line) for line in _lines(rows)],
    }
    _write(out / f"{part.name}.json", json.dumps(found, indent=1))
    rows.unlink(missing_ok=True)
    return found


def _watch(process: subprocess.Popen[bytes], said: Any, limit: float) -> str:
    """Pass on the process's output until it ends or its time is over.

    All processes that it started are killed then.
    """
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    stop = time.monotonic() + limit
    try:
        while True:
            ended = process.poll() is not None
            while text := process.stdout.read():
                said.write(text)
                said.flush()
                sys.stdout.write(text.decode(errors="replace"))
                sys.stdout.flush()
            if ended:
                code = process.returncode
                return "done" if not code else f"failed: exit status {code}"
            left = stop - time.monotonic()
            if left <= 0:
                return f"failed: not done after {limit:g} s"
            try:
                process.wait(min(0.05, left))
            except subprocess.TimeoutExpired:
                continue
    finally:
        with suppress(ProcessLookupError):  # all of it has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _write(file: Path, text: str) -> None:
    """Write a file completely or not at all."""
    part = file.with_suffix(".part")
    part.write_text(text + "\n")
    part.replace(file)
