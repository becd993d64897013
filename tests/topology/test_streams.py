"""The map's command where its output has nowhere to go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPO, environment

MATRIX = "\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n"


@pytest.mark.parametrize("command", [(), ("export", "json"), ("pick", "-k", "2")])
def test_a_full_disk_and_closed_streams(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Rule: a full disk behind standard output is one line and status 2; closed streams do nothing."""
    file = tmp_path / "topo.txt"
    file.write_text(MATRIX)
    line = [sys.executable, "-m", "topology", *command, "--from", str(file)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            line, stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), cwd=REPO
        )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    said = "standard output: cannot be written: No space left on device"
    assert done.stderr.splitlines()[-1] == said
    code = f"import os; os.close(1); os.close(2); os.execv({line[0]!r}, {line!r})"
    assert subprocess.run([sys.executable, "-c", code], env=environment(), cwd=REPO).returncode == 0
