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


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    """Rule: what does not fit on the disk leaves the file that was there, and nothing beside it."""
    file, page = tmp_path / "topo.txt", tmp_path / "page.html"
    file.write_text(MATRIX)
    page.write_text("old")
    code = (
        "import resource, signal, sys\n"
        "from topology.cli import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    argv = ["--from", str(file), "--html", str(page)]
    line = [sys.executable, "-c", code, *argv]
    done = subprocess.run(line, capture_output=True, text=True, env=environment(), cwd=REPO)
    assert done.returncode == 2 and done.stderr == f"{page}: cannot be written: File too large\n"
    assert page.read_text() == "old" and sorted(tmp_path.iterdir()) == [page, file]
