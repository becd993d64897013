"""NCCL's choice of algorithm, protocol and channels, from its debug output.

NCCL reads its NCCL_DEBUG variables once, before its first communicator. They are set for that
moment only, and not at all where the user has set them.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path

# Since 2.24: AllReduce: 1048576 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..23}
_CHOICE = re.compile(
    r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d{1,9})\.\.(\d{1,9})\}"
)
_NAMES = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
_MOST = 1 << 20  # most bytes of the log to read at once


def parse(text: str) -> dict[str, str | int]:
    """NCCL's last choice in a piece of its output: algorithm, protocol and number of channels.

    Empty if there is none.
    """
    choices = _CHOICE.findall(text)
    if not choices:
        return {}
    _, _, algorithm, protocol, low, high = choices[-1]
    return {
        "algorithm": algorithm.lower(),
        "protocol": protocol.lower(),
        "channels": int(high) - int(low) + 1,
    }


class Log:
    """A log file of NCCL; each reading begins where the last one ended.

    Without a path it stays empty.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path, self._at = path, 0

    def skip(self) -> None:
        """Skip NCCL's output so far."""
        if self.path is not None:
            with suppress(OSError):
                self._at = self.path.stat().st_size

    def chosen(self) -> dict[str, str | int]:
        """NCCL's last choice since `skip`; empty if there is none."""
        if self.path is None:
            return {}
        try:
            with self.path.open("rb") as file:
                file.seek(self._at)
                text = file.read(_MOST)
        except OSError:
            return {}
        self._at += len(text)
        return parse(text.decode(errors="replace"))

    def close(self) -> None:
        """Remove the file."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


@contextmanager
def capture_debug_log(wanted: bool, env: MutableMapping[str, str] = os.environ) -> Iterator[Log]:
    """Let NCCL write its tuning to a temporary file; NCCL's first communicator must be made inside.

    Gives a log that stays empty where it is not ``wanted`` or the user has set NCCL_DEBUG.
    """
    if not wanted or any(name in env for name in _NAMES):
        yield Log()
        return
    handle, name = tempfile.mkstemp(prefix="busbar-nccl-", suffix=".log")
    os.close(handle)
    env.update(zip(_NAMES, ("INFO", "TUNING", name), strict=True))
    try:
        yield Log(Path(name))
    finally:
        for variable in _NAMES:
            del env[variable]
