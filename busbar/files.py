"""Write files and figures completely or not at all, lock them, and read files up to a size."""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import io
import os
import secrets
import select
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from stat import S_IMODE, S_ISBLK, S_ISFIFO
from typing import Any, BinaryIO, Literal, get_args

from busbar.errors import BusbarError, MissingFile, StoreError, Unavailable, Unsupported
from busbar.installation import extra
from busbar.terminal import make_lines_printable
from busbar.units import format_bytes

# Seconds to wait for a pipe's writer, seconds between two checks, and bytes that are read at once.
_WRITER_S, _TICK_S, _PIECE = 5.0, 0.05, 1 << 20


def write(path: Path, data: bytes) -> None:
    """Write a file completely or not at all. Raises StoreError."""
    write_all([(path, data)])


def write_all(files: Iterable[tuple[Path, bytes]]) -> None:
    """Write all of these files or none: temporary files are written, then renamed.

    If a rename fails or is interrupted, the files that were replaced before get their old content
    back. Each file is whole at every moment, but if the process is killed or the machine fails
    between two renames, some files are new and others old.

    ``files`` is iterated once, so that not all data must be in memory. A pipe, a terminal or
    /dev/null is written to directly and never replaced; what it was given stays there. Raises
    StoreError.
    """
    parts: dict[Path, Path] = {}
    old: dict[Path, Path] = {}
    path = Path()
    try:
        for path, data in files:
            if path.is_dir():
                raise StoreError(f"{path}: is a folder; name a file in it")
            if special(path):
                _through(path, data)
                continue
            if path in parts:  # named twice: the last content counts
                parts[path].unlink()
            parts[path] = _neighbour(path)
            _beside(parts[path], data)
        try:
            for path, part in parts.items():
                if len(parts) > 1 and resolved(path).exists():
                    old[path] = _neighbour(path)
                    _keep(path, old[path])
                _take(part, path)
        except BaseException:
            _put_back(parts, old)
            raise
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {reason(path, error)}") from None
    finally:  # an interrupt leaves no half file either
        for part in (*parts.values(), *old.values()):
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def _keep(path: Path, old: Path) -> None:
    """Give a file a second name, from which `_put_back` restores it; a copy if links fail."""
    path = resolved(path)
    try:
        old.hardlink_to(path)
    except OSError:  # a file system without hard links, or another user's file
        _beside(old, path.read_bytes())
        old.chmod(S_IMODE(path.stat().st_mode))


def _put_back(parts: Mapping[Path, Path], old: Mapping[Path, Path]) -> None:
    """Undo the renames from ``parts`` to files, unless all are done; remove files that were new."""
    renamed = [path for path, part in parts.items() if not os.path.lexists(part)]
    for path in reversed(renamed if len(renamed) < len(parts) else []):
        with contextlib.suppress(OSError):
            if path in old:
                old[path].replace(resolved(path))
            else:
                resolved(path).unlink()


def make_folder(path: Path) -> None:
    """Create a folder if it is missing. Raises StoreError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{path}: cannot be made: {reason(path, error)}") from None


def replace(path: Path, data: bytes) -> None:
    """Replace a file's content atomically and wait for the disk.

    A symbolic link stays; its target is replaced. Raises OSError and leaves the file as it was.
    """
    if special(path):
        _through(path, data)
        return
    part = _neighbour(path)
    try:
        _beside(part, data)
        _take(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def check(path: Path) -> None:
    """Raise StoreError if a file cannot be written; called before hours of measuring."""
    folder = path.parent
    if path.is_dir():
        raise StoreError(f"{path}: is a folder; name a file in it")
    if not folder.is_dir():
        raise StoreError(f"{path}: there is no folder {folder}")
    try:
        if path.is_fifo():  # not opened: closing it would be the end of file for its reader
            if os.access(path, os.W_OK):
                return
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if special(path):
            os.close(open_special(path))
            return
        probe = _neighbour(path)
        try:
            with _fresh(probe) as file:
                file.write(b"\n")
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {reason(path, error)}") from None


def special(path: Path) -> bool:
    """True for a pipe, a terminal or a device: these are written to and never replaced."""
    return path.exists() and not path.is_file()


def has_content(path: Path) -> bool:
    """True for a regular file that is not empty."""
    return path.is_file() and path.stat().st_size > 0


def open_special(path: Path) -> int:
    """Open a `special` file for appending; returns its file descriptor.

    Raises OSError, also for a pipe without a reader, since opening it would block.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        file = os.open(path, flags)
    except OSError as error:
        if error.errno != errno.ENXIO or not path.is_fifo():
            raise
        raise OSError(error.errno, "no process reads this pipe; start its reader first") from None
    os.set_blocking(file, True)
    if S_ISBLK(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is a disk, and not a file on one")
    return file


def resolved(path: Path) -> Path:
    """`Path.resolve` that raises OSError if links form a loop, as Python 3.13 does."""
    try:
        return path.resolve()
    except RuntimeError:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None


class GrowingFile:
    """A file that is appended to. If it was removed or replaced, it is written again completely.

    A user may remove the file or its folder, or put another file in its place. Appended data would
    then be lost without an error; on NFS, if that happens on another host, the open file is stale
    (ESTALE). A `special` file is opened at once and stays open. Raises OSError.
    """

    def __init__(self, path: Path, whole: Callable[[], bytes]) -> None:
        """``whole`` returns the file's complete content, including the data to be appended."""
        self.path, self._whole = path, whole
        self._special = special(path)
        self._file = open_special(path) if self._special else None

    @property
    def special(self) -> bool:
        """True for a pipe, a terminal or a device."""
        return self._special

    def grow(self, data: Callable[[], bytes], wait: bool = True) -> None:
        """Append data, or write the complete file again. ``wait``: wait for the disk."""
        if self._file is not None and (self._special or self._is_there(self._file)):
            try:
                append(self._file, data(), wait)
                return
            except OSError as error:
                if error.errno != errno.ESTALE or self._special:
                    raise
        if self._file is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        replace(self.path, self._whole())
        with contextlib.suppress(OSError):  # of a stale file
            self.close()
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    @property
    def began(self) -> bool:
        """True if this object has written to the file, or has opened a `special` file."""
        return self._file is not None

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _is_there(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self.path.stat())
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
                raise
        return False


def append(file: int, data: bytes, wait: bool = True) -> None:
    """Append all of the data. ``wait``: wait for the disk.

    Raises OSError and leaves the file as it was.
    """
    size = os.fstat(file).st_size
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        if wait:
            _sync(file)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file, size)
        raise


def read(path: Path, most: int, error: type[BusbarError] = Unsupported) -> bytes:
    """The content of a user's file. Reads at most ``most`` bytes and one more.

    Raises ``error``, with the file and the reason, if the file is larger or cannot be read, and
    MissingFile if it does not exist.
    """
    try:
        data = read_some(path, most)
    except OSError as why:
        raise unreadable(path, why, error) from None
    if len(data) > most:
        raise error(f"{path}: more than {format_bytes(most)}; no file of this kind is so large")
    return data


def unreadable(path: Path, why: OSError, error: type[BusbarError]) -> BusbarError:
    """The error for a file that cannot be read: MissingFile if there is none, else ``error``."""
    text = f"{str(path)[:255]}: cannot be read: {reason(path, why)}{similar_name(path)}"
    return MissingFile(text, path) if isinstance(why, FileNotFoundError) else error(text)


def reason(path: Path, why: OSError) -> str:
    """Why a file cannot be read or written; names a working directory that was removed."""
    if isinstance(why, FileNotFoundError) and not path.is_absolute():
        try:
            Path.cwd()
        except FileNotFoundError:
            return "the working directory was removed; change to another one, or name a whole path"
    return why.strerror or str(why)


def read_some(path: Path, most: int) -> bytes:
    """The content of a user's file, cut off at ``most + 1`` bytes.

    Memory is allocated as bytes arrive. Raises OSError, also for a pipe that has no writer for a
    few seconds, since a plain open would block for ever.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        stream = os.fdopen(file, "rb")
    except OSError:  # a folder
        os.close(file)
        raise
    with stream:
        about = os.fstat(file)
        data = _await_writer(file) if S_ISFIFO(about.st_mode) else b""
        os.set_blocking(file, True)
        data += stream.read(min(about.st_size, most) + 1)
        parts, size = [data], len(data)
        while size <= most and (part := stream.read(min(_PIECE, most + 1 - size))):
            parts.append(part)
            size += len(part)
    return b"".join(parts)


def _await_writer(pipe: int) -> bytes:
    """Wait until a non-blocking pipe has or had a writer; returns the bytes read meanwhile."""
    until = time.monotonic() + _WRITER_S
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while not poll.poll(0):  # there are no bytes, and no writer has closed the pipe
        try:
            if came := os.read(pipe, 1):
                return came
        except BlockingIOError:  # a writer that has written nothing yet
            return b""
        if time.monotonic() > until:
            raise OSError(errno.ENXIO, "no process writes to this pipe")
        time.sleep(_TICK_S)
    return b""


def similar_name(path: Path) -> str:
    """``; did you mean NAME?`` with a file of the same folder that has a similar name, or empty.

    Hidden files are left out, such as the lock of a run that was killed (`Claim`).
    """
    with contextlib.suppress(OSError):
        names = [one for one in os.listdir(path.parent) if not one.startswith(".")]  # noqa: PTH208
        # difflib compares with each name, which takes long in a folder of very many.
        near = difflib.get_close_matches(path.name, names, 1, 0.7) if len(names) < 10_000 else []
        if near and not path.exists():
            return f"; did you mean {path.with_name(near[0])}?"
    return ""


def read_text(path: Path, most: int) -> str:
    """The content of a file as UTF-8 text; see `read`. Raises Unsupported."""
    try:
        return read(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unsupported(f"{path}: no UTF-8 text (byte {error.start})") from None


def decoded(data: bytes) -> str:
    """Decode a file: UTF-16 if it has the byte order mark or every other byte is 0, else UTF-8."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    begin = data[:64]
    for order, at in (("utf-16-le", 1), ("utf-16-be", 0)):
        if len(begin) > 3 and not any(begin[at::2]):
            return data.decode(order, "replace")
    return data.decode("utf-8-sig", "replace")


def _neighbour(path: Path) -> Path:
    """The name of a temporary file in the file's folder (or its target's, if it is a link).

    The name is random, so that other users of a shared folder cannot guess it.
    """
    path = resolved(path)
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")


def _fresh(path: Path) -> BinaryIO:
    """Create and open a file. Raises OSError if the name exists already, even as a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def _through(path: Path, data: bytes) -> None:
    """Write to a `special` file."""
    with os.fdopen(open_special(path), "wb") as file:
        file.write(data)


def _beside(part: Path, data: bytes) -> None:
    with _fresh(part) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _take(part: Path, path: Path) -> None:
    path = resolved(path)
    with contextlib.suppress(OSError):  # a file that only its owner may read stays so
        part.chmod(S_IMODE(path.stat().st_mode))
    part.replace(path)
    # The new name is on disk when its folder is. Not every file system can sync folders.
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _sync(file: int) -> None:
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a pipe has no disk to wait for
            raise


# Some network file systems have no locks.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class Claim:
    """A lock on a file, held until `release` or until the process ends.

    The lock is on a hidden file in the same folder, since the file itself is replaced. Raises
    StoreError if the lock is held by another run or option. Only regular files are locked.
    """

    def __init__(self, path: Path) -> None:
        self._file: int | None = None
        self._named = self._path = path
        self._take()

    def renew(self) -> None:
        """Lock again if the hidden file was removed. Raises StoreError if another run has it."""
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
            if error.errno not in _NO_LOCKS:
                raise StoreError(f"{path}: cannot be locked: {error.strerror}") from None

    def _locked(self) -> int:
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(self._path, flags, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_ours(file):  # its last holder may have removed it since it was opened
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
        """Release the lock."""
        if self._file is not None:
            if self._is_ours(self._file):
                self._path.unlink(missing_ok=True)  # while it is locked
            os.close(self._file)
            self._file = None


#: The forms in which figures are written.
FigureForm = Literal["svg", "png", "pdf"]
FIGURE_FORMS: tuple[FigureForm, ...] = get_args(FigureForm)
# How PNG, PDF, and SVG and HTML begin.
_FIGURES = (b"\x89PNG", b"%PDF", b"<")
_ENDINGS = tuple(f".{form}" for form in FIGURE_FORMS)


def check_figure(path: Path) -> None:
    """Check that a figure can be written to a file later.

    Raises Unsupported for another file type, StoreError, and Unavailable without matplotlib.
    """
    if path.suffix not in _ENDINGS:
        raise Unsupported(f"cannot draw to {path}: it should end in {', '.join(_ENDINGS)}")
    check(path)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Unavailable(f"drawing needs matplotlib: {extra('reports')}") from None


def write_figure(path: Path, data: bytes) -> None:
    """Write a figure or a page, in place of an older one. Raises StoreError for any other file."""
    try:
        if has_content(path):
            with path.open("rb") as file:
                begin = file.read(64).lstrip(b"\xef\xbb\xbf \r\n\t")
            if not begin.startswith(_FIGURES):
                raise StoreError(f"{path}: is no figure, and is not replaced; name another file")
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from None
    write(path, data)


def save_figure(figure: Any, path: Path, dpi: int) -> None:
    """Write a matplotlib figure in the format of the file's extension. Raises StoreError."""
    write_figure(path, encode_figure(figure, path.suffix[1:], dpi))


def encode_figure(figure: Any, form: str, dpi: int = 130) -> bytes:
    """Return a matplotlib figure as svg, png or pdf, with its texts made printable.

    The same figure gives the same bytes: an svg and a pdf have no date.
    """
    import matplotlib as mpl
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if (plain := make_lines_printable(text.get_text())) != text.get_text():
            text.set_text(plain)
    drawn = io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
    with mpl.rc_context({"svg.hashsalt": "busbar"}):
        figure.savefig(drawn, format=form, dpi=dpi, metadata=undated)
    return drawn.getvalue()
