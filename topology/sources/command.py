"""Run a tool that prints what we parse. Arguments are a list, never a shell string."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from busbar.errors import ProbeError

TIMEOUT_S = 60


def run(source: str, command: Sequence[str]) -> str:
    """Return what a command prints. Raises ProbeError when it is absent, fails or hangs."""
    path = shutil.which(command[0])
    if path is None:
        raise ProbeError(source, f"{command[0]} is not installed here; give its output with --from")
    try:
        done = subprocess.run(  # a fixed command of ours, found by which
            [path, *command[1:]], capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeError(source, f"{' '.join(command)}: {error}") from None
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0:
        said = (done.stderr.decode("utf-8", "replace") or text).strip().splitlines() or ["nothing"]
        raise ProbeError(source, f"{' '.join(command)} failed ({done.returncode}): {said[-1]}")
    return text
