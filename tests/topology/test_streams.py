"""Files that the map's command writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import REPO, environment

MATRIX = "\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n"


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
    assert (
        done.returncode == 2
        and done.stderr == f"topology: {page}: cannot be written: File too large\n"
    )
    assert page.read_text() == "old" and sorted(tmp_path.iterdir()) == [page, file]
