"""A command's standard streams, files and interrupts: one line and a status, never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from busbar.process import CLOSED, INTERRUPTED
from tests.conftest import REPO, environment, interruptible

DOORS = (
    ("collectives", ("collectives", "list")),
    ("collectives", ("collectives", "export", "ring", "-c", "allreduce", "-n", "16")),
    ("busbar", ("bench",)),
    ("busbar", ("bench.allreduce", "--ranks", "4", "--dry-run", "-A", "all")),
)


def _run(module: tuple[str, ...], **streams: object) -> subprocess.CompletedProcess[str]:
    extra = dict(streams)
    env = environment(extra.pop("env", None))  # type: ignore[arg-type]
    return subprocess.run(
        [sys.executable, "-m", *module],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **extra},  # type: ignore[call-overload]
        env=env,
        cwd=REPO,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("name", "module"), DOORS)
def test_a_full_disk_is_one_line(name: str, module: tuple[str, ...]) -> None:
    """Rule: where standard output cannot be written there is one line, and status 2."""
    with Path("/dev/full").open("w") as full:
        done = _run(module, stdout=full)
    said = f"{name}: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.parametrize(("name", "module"), DOORS)
def test_a_reader_who_leaves_is_no_error_to_tell_of(name: str, module: tuple[str, ...]) -> None:
    """Rule: `| head` ends a command silently, with the status that a shell has for it."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = _run(module, stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (CLOSED, "")


@pytest.mark.parametrize("module", [module for _, module in DOORS])
def test_closed_streams_are_no_matter(module: tuple[str, ...]) -> None:
    """Rule: with all three streams closed a command does what it did."""
    line = [sys.executable, "-m", *module]
    code = (
        f"import os, sys\nfor number in range(3): os.close(number)\nos.execv({line[0]!r}, {line!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), cwd=REPO, timeout=60, check=False
    )
    assert done.returncode == 0


@pytest.mark.parametrize(
    "module",
    [
        ("collectives", "list"),
        ("collectives", "show", "ring", "-c", "allreduce", "-n", "4"),
        ("collectives", "cost", "-c", "allreduce", "-n", "4", "-b", "1K", "-e", "4K"),
        ("collectives", "simulate", "ring", "-n", "8", "--machine", "dgx1"),
        ("bench.allreduce", "--help"),
        ("bench.tune", "--help"),
    ],
)
def test_a_terminal_without_utf_8_gets_plain_characters(module: tuple[str, ...]) -> None:
    """Rule: what an encoding lacks is shown by what it has, column for column, never a traceback."""
    plain = _run(module, env={"PYTHONIOENCODING": "ascii", "COLUMNS": "160"})
    rich = _run(module, env={"PYTHONIOENCODING": "utf-8", "COLUMNS": "160"})
    assert (plain.returncode, plain.stderr) == (0, "")
    assert plain.stdout.isascii()
    assert [len(line) for line in plain.stdout.splitlines()] == [
        len(line) for line in rich.stdout.splitlines()
    ]
    assert plain.stdout.count("?") == rich.stdout.count("?") + sum(map(rich.stdout.count, "ᵢ²Σ"))


def test_ctrl_c_before_anything_is_silent(tmp_path: Path) -> None:
    """Rule: an interrupt while a command prepares or computes ends it with 130 and no traceback."""
    pipe = tmp_path / "never.xml"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [sys.executable, "-m", "collectives", "import", str(pipe)],
        env=environment(),
        cwd=REPO,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )
    with pipe.open("wb"):  # opens when the command has opened it to read
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (INTERRUPTED, "")
