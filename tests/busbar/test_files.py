"""Files are whole at every moment, and what is no file is left what it is."""

from __future__ import annotations

import errno
import os
import resource
import secrets
import signal
import threading
from pathlib import Path

import pytest

from busbar import files
from busbar.errors import ReportError, StoreError, Unsupported
from busbar.files import (
    Claim,
    GrowingFile,
    check,
    read,
    read_text,
    similar_name,
    write,
    write_all,
    write_figure,
)
from reports.readers.text import read_bytes


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    """Rule: of several files all are written or none, and nothing else is left beside them."""
    write_all([(tmp_path / "a", b"1"), (tmp_path / "b", b"2")])
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="folder: is a folder"):
        write_all([(tmp_path / "a", b"3"), (tmp_path / "folder", b"4")])
    assert (tmp_path / "a").read_bytes() == b"1"
    write_all([(tmp_path / "link", b"5")])
    assert (tmp_path / "a").read_bytes() == b"5" and (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "folder", "link"]


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_rename_that_fails_leaves_all_files_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, links: bool
) -> None:
    """Rule: where the second of several files cannot be put in place, the first is the old one."""
    old, new, last = (tmp_path / name for name in ("old", "new", "last"))
    old.write_bytes(b"before")
    old.chmod(0o600)
    last.write_bytes(b"stays")
    replace = Path.replace

    def rename(part: Path, path: Path) -> Path:
        if path == last:
            raise error
        return replace(part, path)

    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "replace", rename)
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    with pytest.raises((StoreError, KeyboardInterrupt)):
        write_all([(old, b"1"), (new, b"2"), (last, b"3")])
    assert old.read_bytes() == b"before" and old.stat().st_mode & 0o777 == 0o600
    assert last.read_bytes() == b"stays"
    assert sorted(tmp_path.iterdir()) == [last, old]
    monkeypatch.setattr(Path, "replace", replace)
    write_all([(old, b"1"), (new, b"0"), (last, b"3"), (new, b"2")])
    assert [path.read_bytes() for path in (old, new, last)] == [b"1", b"2", b"3"]
    assert sorted(tmp_path.iterdir()) == [last, new, old]


def test_only_a_figure_is_replaced_by_a_figure(tmp_path: Path) -> None:
    """Rule: a figure or page is made anew; any other file with content stays as it is."""
    path = tmp_path / "a.png"
    for old in (b"", b"\x89PNG old", b"%PDF-1.4", b"\xef\xbb\xbf\n<svg/>", b"<!doctype html>"):
        path.write_bytes(old)
        write_figure(path, b"new")
        assert path.read_bytes() == b"new"
    path.write_bytes(b'{"format":4}\n')
    with pytest.raises(StoreError, match="is no figure, and is not replaced"):
        write_figure(path, b"new")
    assert path.read_bytes() == b'{"format":4}\n'


def test_a_name_that_is_no_file_gets_the_nearest(tmp_path: Path) -> None:
    """Rule: a mistyped name is answered with a file of its folder; an odd one with nothing."""
    (tmp_path / "first.jsonl").touch()
    assert similar_name(tmp_path / "firts.jsonl") == f"; did you mean {tmp_path}/first.jsonl?"
    (tmp_path / ".kill.jsonl.lock").touch()
    assert not similar_name(tmp_path / "kill.jsonl")
    assert not similar_name(tmp_path / "other.csv") and not similar_name(tmp_path / "no" / "first")
    with pytest.raises(ReportError, match="did you mean"):
        read_bytes(tmp_path / "firts.jsonl")


def test_a_private_file_stays_private(tmp_path: Path) -> None:
    """Rule: a file that is replaced keeps its permissions."""
    file = tmp_path / "private"
    write(file, b"1")
    file.chmod(0o600)
    write(file, b"2")
    assert file.read_bytes() == b"2" and file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_does_not_fit_leaves_the_old_one(tmp_path: Path) -> None:
    """Rule: where a disk or a limit is too small the old file stays, and nothing beside it."""
    file = tmp_path / "page.html"
    file.write_text("old")
    bounds = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, bounds[1]))
    try:
        with pytest.raises(StoreError, match=r"page.html: cannot be written: File too large"):
            write(file, bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bounds)
        signal.signal(signal.SIGXFSZ, ignored)
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("call", ["fstat", "write", "fsync", "close"])
def test_a_file_that_another_host_removed_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Rule: a file that is stale on NFS is written again whole, whichever call finds out first.

    Here nothing is on NFS, so the system call fails for the file that was open before.
    """
    lines: list[bytes] = []
    file, path = GrowingFile(tmp_path / "rows", lambda: b"".join(lines)), tmp_path / "rows"
    lines.append(b"1\n")
    file.grow(lambda: lines[-1])
    old, real = path.stat().st_ino, getattr(os, call)

    def stale(number: int, *more: object) -> object:
        if Path(f"/proc/self/fd/{number}").stat().st_ino == old:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(number, *more)

    if call == "close":
        path.unlink()
    monkeypatch.setattr(os, call, stale)
    lines.append(b"2\n")
    file.grow(lambda: lines[-1])
    assert path.read_bytes() == b"1\n2\n" and path.stat().st_ino != old
    monkeypatch.undo()
    file.close()


def test_what_is_no_file_is_never_replaced(tmp_path: Path) -> None:
    """Rule: a pipe (so also /dev/null, /dev/full) is written to and stays what it is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_all([(pipe, b"text")])
        assert os.read(reading, 10) == b"text"
    finally:
        os.close(reading)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_what_is_written_beside_a_file_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a link that waits where a probe or a part goes is refused; what it leads to stays."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    monkeypatch.setattr(secrets, "token_hex", lambda n: "guessed")
    (tmp_path / ".r.csv.guessed.part").symlink_to(precious)
    with pytest.raises(StoreError, match="cannot be written"):
        check(tmp_path / "r.csv")
    (tmp_path / ".r.csv.guessed.part").symlink_to(precious)
    with pytest.raises(StoreError, match="cannot be written"):
        write(tmp_path / "r.csv", b"new")
    assert precious.read_text() == "kept"


def test_a_users_file_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    """Rule: a file within the bound is read; the message names the file and what is wrong."""
    path = tmp_path / "table.csv"
    path.write_bytes(b"\xef\xbb\xbfname,shape\n")
    assert read_text(path, 100) == "name,shape\n" and len(read(path, 14)) == 14
    with pytest.raises(Unsupported, match=r"table\.csv: more than 13 B"):
        read(path, 13)
    path.write_bytes(b"name\xff")
    with pytest.raises(Unsupported, match=r"table\.csv: no UTF-8 text \(byte 4\)"):
        read_text(path, 100)
    for missing, why in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ReportError, match=f"{missing.name}: cannot be read: {why}"):
            read(missing, 100, ReportError)


def _pipe(folder: Path) -> Path:
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    return pipe


@pytest.mark.timeout(60)
def test_a_pipe_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    """Rule: writing to a pipe never waits for a reader; one line says that there is none."""
    pipe = _pipe(tmp_path)
    check(pipe)
    for writes in (lambda: write(pipe, b"x"), lambda: write_all([(pipe, b"x")])):
        with pytest.raises(StoreError, match="pipe: cannot be written: no process reads this pipe"):
            writes()
    with pytest.raises(OSError, match="no process reads"):
        files.GrowingFile(pipe, bytes)


@pytest.mark.timeout(60)
def test_a_check_does_not_end_a_pipes_reader(tmp_path: Path) -> None:
    """Rule: a pipe is checked without being opened, which its reader would take for the end."""
    pipe = _pipe(tmp_path)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    watched = files.select.poll()
    watched.register(reading, files.select.POLLIN)
    check(pipe)
    assert watched.poll(0) == [], "the reader has seen the end"
    write(pipe, b"text")
    assert os.read(reading, 10) == b"text"
    os.close(reading)


@pytest.mark.timeout(60)
def test_a_pipe_that_nobody_writes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: reading waits for a writer a few seconds, and for a writer's bytes as long as it is."""
    pipe = _pipe(tmp_path)
    monkeypatch.setattr(files, "_WRITER_S", 0.1)
    with pytest.raises(Unsupported, match="pipe: cannot be read: no process writes to this pipe"):
        read(pipe, 100)
    monkeypatch.undo()
    writer = threading.Thread(target=pipe.write_bytes, args=(b"name,shape\n" * 9000,))
    writer.start()
    assert read(pipe, 1 << 20) == b"name,shape\n" * 9000
    writer.join()
    one, other = os.pipe()  # as a shell's <(command) gives it, silent so far
    late = threading.Timer(0.3, lambda: (os.write(other, b"late"), os.close(other)))
    late.start()
    assert read(Path(f"/dev/fd/{one}"), 100) == b"late"
    os.close(one)


@pytest.mark.parametrize("name", ["r.csv", "folder/r.csv"])
def test_links_in_a_circle_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    """Rule: a link that leads to itself is no traceback on any Python."""
    (tmp_path / "folder").mkdir()
    path = tmp_path / name
    path.symlink_to(path.name)
    for uses in (check, lambda path: write(path, b""), Claim):
        with pytest.raises(StoreError, match=r"r\.csv: cannot be \w+: Too many levels"):
            uses(path)
    with pytest.raises(Unsupported, match="Too many levels"):
        read(path, 10)
