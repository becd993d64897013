"""One writer for each file: two runs that write one file would lose each other's rows."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from busbar.errors import StoreError
from busbar.files import resolved, special

# Some network file systems have no locks.
_NONE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class Claim:
    """A lock on a file, held until `release` or until the process ends.

    The lock is on a hidden file beside it, since the file itself is replaced. Raises StoreError if
    another run holds the lock, or this run for another option. Only regular files are locked.
    """

    def __init__(self, path: Path) -> None:
        self._file: int | None = None
        self._named = self._path = path
        self._take()

    def renew(self) -> None:
        """Lock again where the lock's file was removed. Raises StoreError as the start does."""
        if self._file is not None and not self._is_ours(self._file):
            self.release()
            self._take()

    def _take(self) -> None:
        path = self._named
        if special(path):
            return
        try:
            place = resolved(path)
            self._path = place.with_name(f".{place.name}.lock")
            self._file = self._locked()
        except BlockingIOError:
            raise StoreError(f"{path}: is being written by a run; name another file") from None
        except OSError as error:
            if error.errno not in _NONE:
                raise StoreError(f"{path}: cannot be locked: {error.strerror}") from None

    def _locked(self) -> int:
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(self._path, flags, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_ours(file):  # whoever had it may have removed it since it was opened
                    return file
            except OSError:
                os.close(file)
                raise
            os.close(file)

    def _is_ours(self, file: int) -> bool:
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(file), self._path.stat())
        return False

    def release(self) -> None:
        """Let another run write."""
        if self._file is not None:
            if self._is_ours(self._file):
                self._path.unlink(missing_ok=True)  # while it is locked
            os.close(self._file)
            self._file = None
