"""MPI's segments in /dev/shm and its session folder: check for room, and remove what is left.

A killed rank leaves its segments behind. A container has 64 MB for all of them, and MPICH crashes
with SIGSEGV or SIGBUS when that is full.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from stat import S_ISDIR

from busbar.errors import Unavailable

_SHM = Path("/dev/shm")  # noqa: S108  (where MPI libraries put theirs)
_OURS = ("mpich_shm_", "sm_segment.", "ucx_shm_posix_", "vader_segment.")
# Bytes that MPICH 5 (with UCX) and Open MPI 5 were observed to use: MPICH fills 5.4 MB per rank.
# Open MPI wants room for a whole segment before it makes one, and then fills little of it.
_MPICH_RANK = 5_400_000
_OPEN_MPI_SEGMENT, _OPEN_MPI_RANK = 16_800_000, 400_000


def writable(library: str, shm: Path = _SHM) -> None:
    """Raise Unavailable if the MPI's ranks cannot share memory: those of MPICH would crash.

    Open MPI uses another folder if /dev/shm is mounted read-only.
    """
    if shm.is_dir() and not os.access(shm, os.W_OK) and "Open MPI" not in library:
        raise Unavailable(
            f"{shm} cannot be written, and the ranks of MPICH share memory there; mount it for"
            f" writing (mount -o remount,rw {shm}; docker run --tmpfs {shm}), or use --transport"
            " inproc"
        )


def room(ranks: int, library: str, shm: Path = _SHM) -> None:
    """Raise Unavailable if /dev/shm has too little room for the segments of these MPI ranks.

    Also if they cannot write there, see `writable`.
    """
    writable(library, shm)
    try:
        space = os.statvfs(shm)
    except OSError:  # no such folder: MPI uses another one
        return
    free = space.f_bavail * space.f_frsize
    open_mpi = "Open MPI" in library
    need = _OPEN_MPI_SEGMENT + _OPEN_MPI_RANK * ranks if open_mpi else _MPICH_RANK * ranks
    if free < need:
        raise Unavailable(
            f"{shm} has {free / 1e6:.0f} MB free, and MPI takes about {need / 1e6:.0f} MB there for"
            f" {ranks} ranks; give the container more (docker run --shm-size=1g), remove what"
            f" others left in {shm}, start fewer ranks, or use --transport inproc"
        )


def remove_session(launcher: int, env: Mapping[str, str]) -> None:
    """Remove the session folder of Open MPI's ended launcher; a killed launcher leaves it behind.

    ``launcher``: its process id, which is in the folder's name; ``env``: its environment.
    """
    user = os.geteuid()
    base = next((env[name] for name in ("TMPDIR", "TEMP", "TMP") if env.get(name)), "/tmp")  # noqa: S108
    named = [Path(base) / f"ompi.{launcher}"]  # Open MPI 5.0.11; releases before it:
    with contextlib.suppress(OSError):
        named += Path(base).glob(f"prterun.*.{launcher}.{user}")
    for folder in named:
        with contextlib.suppress(OSError):
            stat = folder.lstat()
            if S_ISDIR(stat.st_mode) and stat.st_uid == user:
                shutil.rmtree(folder, ignore_errors=True)


class Segments:
    """The segments of one run's ranks."""

    def __init__(self, shm: Path = _SHM) -> None:
        self._shm, self._seen = shm, set[Path]()
        self._before, self._since = self._all(), time.time()

    def look(self, pid: int) -> None:
        """Record the segments that a rank has mapped."""
        self._seen |= self._mapped_by(Path(f"/proc/{pid}/maps"))

    def remove(self, *, unseen: bool = False, used: bool = False) -> list[Path]:
        """Remove the segments that the ranks left behind; returns their paths.

        ``unseen``: a rank may have ended before `look`. Then new, unused segments of this user
        count as its segments. ``used``: also remove segments that a process still has mapped; for
        the rank that ends all others.
        """
        mine = {path for path in self._seen if path.exists()}
        if unseen:
            mine |= {path for path in self._all() - self._before if self._is_ours(path)}
        if not mine:
            return []
        if not used:
            mine -= self._used()
        for path in mine:
            with contextlib.suppress(OSError):
                path.unlink()
        return sorted(mine)

    def _all(self) -> set[Path]:
        with contextlib.suppress(OSError):
            return {path for path in self._shm.iterdir() if path.name.startswith(_OURS)}
        return set()

    def _is_ours(self, path: Path) -> bool:
        with contextlib.suppress(OSError):
            stat = path.lstat()
            return stat.st_uid == os.geteuid() and stat.st_ctime >= self._since - 1
        return False

    def _used(self) -> set[Path]:
        """The files that any visible process has mapped or open."""
        used: set[Path] = set()
        for process in Path("/proc").glob("[0-9]*"):
            used |= self._mapped_by(process / "maps")
            used |= self._named(_open_files(process / "fd"))
        return used

    def _mapped_by(self, maps: Path) -> set[Path]:
        try:
            return self._named(
                line.split(None, 5)[5].strip()
                for line in maps.read_text().splitlines()
                if str(self._shm) in line
            )
        except (OSError, UnicodeDecodeError, IndexError):  # it has ended, or is another user's
            return set()

    def _named(self, texts: Iterable[str]) -> set[Path]:
        """The segments among these file names; deleted files have another name."""
        return {
            path
            for path in map(Path, texts)
            if path.parent == self._shm and path.name.startswith(_OURS) and " " not in path.name
        }


def _open_files(folder: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):  # the process has ended, or is another user's
        for link in folder.iterdir():
            with contextlib.suppress(OSError):
                yield str(link.readlink())
