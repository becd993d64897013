"""One map from the sources that a user names: files, folders, standard input, or this machine."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from busbar.errors import ProbeError
from busbar.files import decoded, read_some
from topology.model.merge import merge
from topology.model.topology import Topology
from topology.sources.recognise import LIVE, parse
from topology.sources.text import MAX_BYTES

TIMEOUT_S = 60
#: nvidia-smi's sources, which know less: they are asked only if NVML does not answer.
_INSTEAD_OF_NVML = ("smi_topo", "smi_xml", "smi_nvlink", "smi_p2p")


def gather(files: Iterable[str]) -> tuple[Topology, tuple[str, ...]]:
    """Return the map of the named files, or of this machine if there are none, and notes for users.

    ``-`` is standard input; a folder is a copy of ``/`` with sys and proc. The first file to state
    a fact is believed. Raises ProbeError naming the file that cannot be read or understood, or when
    no source of this machine answers.
    """
    names = list(files)
    return (merge([_file(name) for name in names]), ()) if names else _machine()


def _file(name: str) -> Topology:
    where = "standard input" if name == "-" else name
    try:
        if name != "-" and Path(name).is_dir():
            from topology.sources import sysfs

            return sysfs.read(Path(name))
        return parse(_text(name))
    except OSError as error:
        raise ProbeError(where, f"cannot be read: {error.strerror or error}") from None
    except ProbeError as error:
        raise ProbeError(where, str(error)) from None


def _text(name: str) -> str:
    """The file's text. Raises ProbeError above the limit, where no more is read than one byte."""
    limit = MAX_BYTES
    raw = sys.stdin.buffer.read(limit + 1) if name == "-" else read_some(Path(name), limit)
    if len(raw) > MAX_BYTES:
        raise ProbeError("text", f"more than {MAX_BYTES} bytes; no machine's map is so large")
    return decoded(raw)


def _machine() -> tuple[Topology, tuple[str, ...]]:
    found: list[Topology] = []
    notes: list[str] = []
    tried = [name for name in LIVE if name not in _INSTEAD_OF_NVML]
    for name in tried:
        if name == "hwloc" and shutil.which(LIVE[name][0]) is None:
            continue  # sysfs has said the same; its absence is no news
        _ask(name, found, notes)
    if not any("nvml" in topology.sources for topology in found) and shutil.which("nvidia-smi"):
        for name in _INSTEAD_OF_NVML:
            _ask(name, found, notes)
    if not found:
        raise ProbeError("machine", f"no source answers here ({'; '.join(notes)}); use --from FILE")
    return merge(found), tuple(notes)


def _ask(name: str, found: list[Topology], notes: list[str]) -> None:
    source, command = importlib.import_module(f"topology.sources.{name}"), LIVE[name]
    try:
        found.append(source.parse(_printed(source.NAME, command)) if command else source.read())
    except ProbeError as error:
        notes.append(str(error))


def _printed(source: str, command: Sequence[str]) -> str:
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
