"""Files of results: whole rows at every moment, whatever ends the run, and readable ever after."""

import gzip
import json
import os
import re
import resource
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import ReportError, StoreError
from reports import load
from reports.exports.store import SINKS, Directory, Store, sink
from reports.readers.codec import Writer
from reports.readers.reading import read
from reports.records.measurement import Measurement
from tests.reports.runs import allreduce, to_jsonl

ENVIRONMENT = {"busbar": "1", "hosts": ["n0"], "variables": {"NCCL_ALGO": "Ring"}}
NAMES = [f"r{ending}" for ending in SINKS]


def _row(size: int = 1024) -> list[Measurement]:
    times = [1e-3] * 8
    return allreduce("ring", 4, size, times, times, environment=ENVIRONMENT).every


def _sizes(path: Path) -> list[int | None]:
    return [r.size for r in read(path).rows if r.placement == "out"]


def _killed_after(path: Path, sizes: Sequence[int]) -> None:
    """A process writes rows of these sizes, and kills itself with the file open."""
    child = os.fork()
    if child == 0:
        try:
            store = Store(sink(str(path)))
            for size in sizes:
                store.add(_row(size))
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_every_file_is_whole_after_every_row(tmp_path: Path) -> None:
    """Rule: after each row every file reads back with all rows so far; no scratch file is left."""
    paths = [tmp_path / name for name in NAMES]
    stores = [Store(sink(str(path))) for path in paths]
    claims = sorted(tmp_path.iterdir())
    assert [path.name for path in claims] == sorted(f".{name}.lock" for name in NAMES)
    for n in (1, 2, 3):
        for store, path in zip(stores, paths, strict=True):
            store.add(_row(1024 * n))
            assert _sizes(path) == [1024, 2048, 3072][:n], path.name
        assert sorted(tmp_path.iterdir()) == sorted([*paths, *claims])
    for store in stores:
        store.end("")
        store.close()
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    for path in paths:
        assert _sizes(path) == [1024, 2048, 3072] and not read(path).notes, path.name
    lines = Writer(running=True)
    whole = lines.lines([one for n in (1, 2, 3) for one in _row(1024 * n)]) + lines.end()
    assert gzip.decompress((tmp_path / "r.jsonl.gz").read_bytes()) == whole


@pytest.mark.parametrize("name", [*NAMES, "run/"])
def test_nothing_is_written_after_the_end(tmp_path: Path, name: str) -> None:
    """Rule: a row that comes after the run was ended from outside costs none of those before it."""
    store = Store(sink(f"{tmp_path}/{name}"))
    store.add(_row(1024))
    store.add(_row(2048))
    store.close()
    store.add(_row(4096))
    store.say(["late"])
    store.close()
    assert _sizes(tmp_path / name) == [1024, 2048]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_has_one_run_that_writes_it(tmp_path: Path, name: str) -> None:
    """Rule: a second run with the same file is refused at once, and each other file is free.

    So is one whose run was killed, and the same file by another name is not.
    """
    path, other = tmp_path / name, tmp_path / f"other-{name}"
    (tmp_path / f"link-{name}").symlink_to(path)
    stores = [Store(sink(str(one))) for one in (path, other)]
    for taken in (path, tmp_path / f"link-{name}"):
        with pytest.raises(StoreError, match="is being written by a run"):
            sink(str(taken))
    for store in stores:
        store.close()
    _killed_after(path, [])
    Store(sink(str(path))).close()


@pytest.mark.parametrize("name", NAMES)
def test_an_old_file_stays_until_there_is_a_row(tmp_path: Path, name: str) -> None:
    """Rule: opening a store destroys nothing; the first row replaces what was there."""
    path = tmp_path / name
    path.write_bytes(b"old")
    store = Store(sink(str(path)))
    assert path.read_bytes() == b"old"
    store.add(_row())
    assert _sizes(path) == [1024]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_link_leads_to_is_written(tmp_path: Path, name: str) -> None:
    """Rule: a link stays a link; its file gets the rows."""
    (tmp_path / "disk").mkdir()
    (tmp_path / name).symlink_to(tmp_path / "disk" / name)
    store = Store(sink(str(tmp_path / name)))
    store.add(_row(1024))
    store.close()
    assert (tmp_path / name).is_symlink() and _sizes(tmp_path / "disk" / name) == [1024]


@pytest.mark.parametrize("path", ["/proc/none/x.json", "/proc/x.jsonl", "a.xyz", "/proc/x/"])
def test_what_cannot_be_written_is_refused_at_once(path: str) -> None:
    """Rule: an unwritable file or folder is an error before the sweep, not after."""
    with pytest.raises(StoreError):
        sink(path)


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".csv"])
def test_a_full_disk_leaves_whole_rows(tmp_path: Path, ending: str) -> None:
    """Rule: a row that does not fit is an error that names the file.

    The rows before stay readable.
    """
    path = tmp_path / f"r{ending}"
    store, n = Store(sink(str(path))), 0
    bounds = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, bounds[1]))
    try:
        with pytest.raises(StoreError, match=f"{re.escape(str(path))}.*it holds the rows before"):
            for n in range(100):
                store.add(_row(1024 * (n + 1)))
        first = Store(sink(str(tmp_path / f"first{ending}")))
        resource.setrlimit(resource.RLIMIT_FSIZE, (8, bounds[1]))
        with pytest.raises(StoreError, match="no row of this run is in it"):
            first.add(_row(8))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bounds)
        signal.signal(signal.SIGXFSZ, before)
    assert n > 0 and _sizes(path) == [1024 * (i + 1) for i in range(n)]


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_run_leaves_its_rows(tmp_path: Path, name: str) -> None:
    """Rule: SIGKILL after three rows: three rows; JSON lines have no end, a gzip file is cut."""
    path = tmp_path / name
    _killed_after(path, [1024, 2048, 3072])
    assert [found for found in tmp_path.iterdir() if found.suffix != ".lock"] == [path]
    assert _sizes(path) == [1024, 2048, 3072]
    notes = [n.text for n in read(path).notes if n.broken]
    assert any("has not ended" in text for text in notes) == (".jsonl" in name)
    assert len(notes) == (".jsonl" in name) + name.endswith("gz")


_WHOLE = to_jsonl([one for n in (1, 2, 3) for one in _row(1024 * n)])
_PACKED = gzip.compress(_WHOLE)


@given(st.integers(0, len(_WHOLE)), st.booleans())
def test_a_cut_file_gives_what_it_has(
    tmp_path_factory: pytest.TempPathFactory, at: int, packed: bool
) -> None:
    """Rule: cut anywhere, a file gives its whole rows, and says what is missing."""
    path = tmp_path_factory.mktemp("cut") / "r"
    data = _PACKED[: at * len(_PACKED) // len(_WHOLE)] if packed else _WHOLE[:at]
    path.write_bytes(data)
    ends = [i for i, byte in enumerate(_WHOLE) if byte == ord("\n")]
    try:
        found = read(path)
    except ReportError as error:
        assert str(path) in str(error)
        return
    sizes = [r.size for r in found.rows if r.placement == "out"]
    assert sizes == [1024, 2048, 3072][: len(sizes)] and len(sizes) > 0
    if not packed:
        assert len(sizes) == sum(at >= end for end in ends[1::2])  # one line a placement
        assert bool(found.notes) == (at not in (*ends, *(e + 1 for e in ends)))


def test_a_run_directory(tmp_path: Path) -> None:
    """Rule: DIR/ holds records, environment, topology and what was printed.

    A second run is beside it.
    """
    for run in (1, 2):
        store = Store(sink(f"{tmp_path / 'runs'}/", lambda: '{"busbar_topology": 1}'))
        store.say(["# header"])
        store.add(_row(1024 * run))
        store.say(["a row"])
        store.close()
    names = ("records", "environment", "topology", "output")
    there = {path.name for path in (tmp_path / "runs").iterdir()}
    assert {name.split(".")[0] for name in there} == {*names, *(f"{name}-2" for name in names)}
    assert json.loads((tmp_path / "runs/environment-2.json").read_text()) == ENVIRONMENT
    assert (tmp_path / "runs/output.txt").read_text() == "# header\na row\n"
    frame = load(tmp_path / "runs")
    assert sorted(frame["size"].unique()) == [1024, 2048] and len(frame) == 4


def test_a_directory_with_a_run_that_never_had_a_row(tmp_path: Path) -> None:
    """Rule: an empty record beside others is said and does not hide them; alone it is an error."""
    Directory(tmp_path)
    with pytest.raises(ReportError, match=r"records\.jsonl"):
        read(tmp_path)
    sink(str(tmp_path)).add(_row())
    found = read(tmp_path)
    assert len(found.rows) == 2
    assert any("records.jsonl: the file is empty" in str(note) for note in found.notes)


@pytest.mark.parametrize("change", [lambda p: p, lambda p: p + os.sep])
def test_an_existing_folder_is_a_run_directory(
    tmp_path: Path, change: Callable[[str], str]
) -> None:
    """Rule: --out DIR and --out DIR/ mean the same where DIR exists."""
    assert isinstance(sink(change(str(tmp_path))), Directory)


@pytest.mark.parametrize("name", [*NAMES, "run/"])
@pytest.mark.parametrize("when", ["before a row", "before the end"])
def test_what_is_removed_during_a_run_is_written_anew(tmp_path: Path, name: str, when: str) -> None:
    """Rule: a file, or its folder, that goes during a run comes again with all of its rows."""
    folder = tmp_path / "here"
    folder.mkdir()
    store = Store(sink(f"{folder}/{name}", lambda: '{"busbar_topology": 1}'))
    store.say(["# header"])
    store.add(_row(1024))
    if when == "before a row":
        shutil.rmtree(folder)
    store.add(_row(2048))
    if when == "before the end":
        store.add(_row(4096))
        shutil.rmtree(folder)
    store.say(["a row"])
    store.end("")
    store.close()
    expected = [1024, 2048] + [4096] * (when == "before the end")
    assert _sizes(folder / name) == expected and not read(folder / name).notes
    if name == "run/":
        assert (folder / "run/output.txt").read_text() == "# header\na row\n"
        assert json.loads((folder / "run/topology.json").read_text()) == {"busbar_topology": 1}
        assert json.loads((folder / "run/environment.json").read_text())["busbar"]


def test_a_file_in_the_place_of_ours_is_replaced(tmp_path: Path) -> None:
    """Rule: rows go where the name is, also where another file was put there."""
    path = tmp_path / "r.jsonl"
    store = Store(sink(str(path)))
    store.add(_row(1024))
    path.rename(tmp_path / "r.1.jsonl")
    path.write_text("another")
    store.add(_row(2048))
    store.close()
    assert _sizes(path) == [1024, 2048] and _sizes(tmp_path / "r.1.jsonl") == [1024]


@pytest.mark.parametrize("name", ["r.jsonl", "r.json"])
def test_another_run_that_took_the_place_keeps_it(tmp_path: Path, name: str) -> None:
    """Rule: where a file was removed and another run writes its name, the first one says so."""
    folder = tmp_path / "here"
    folder.mkdir()
    first = Store(sink(str(folder / name)))
    first.add(_row(1024))
    shutil.rmtree(folder)
    folder.mkdir()
    second = Store(sink(str(folder / name)))
    second.add(_row(2048))
    with pytest.raises(StoreError, match="is being written by a run"):
        first.add(_row(4096))
    with pytest.raises(StoreError, match="is being written by a run"):
        sink(str(folder / name))
    second.close()
    assert _sizes(folder / name) == [2048]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["r.jsonl", "r.csv", "r.json", "r.jsonl.gz"])
def test_a_pipe_gets_all_rows_and_one_end(tmp_path: Path, name: str) -> None:
    """Rule: a pipe is opened once: its reader sees one end, after the last row; else it is said."""
    pipe, kept = tmp_path / name, tmp_path / "kept" / name
    os.mkfifo(pipe)
    kept.parent.mkdir()
    with pytest.raises(StoreError, match="no process reads this pipe"):
        sink(str(pipe))
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    store = Store(sink(str(pipe)))
    os.set_blocking(reading, True)
    store.add(_row(1024))
    store.add(_row(2048))
    store.close()
    with os.fdopen(reading, "rb") as file:
        kept.write_bytes(file.read())
    assert _sizes(kept) == [1024, 2048] and pipe.is_fifo()
