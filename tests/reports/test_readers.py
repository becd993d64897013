"""Our own files, what all readers have in common, and texts that nobody meant to be read."""

import copy
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import ReportError
from reports.exports.formats import CsvLines
from reports.readers.codec import measurements, to_json
from reports.readers.reading import load, parse, read
from reports.records.measurement import Measurement, Placements
from reports.records.table import SHOWN
from tests.reports.logs import BITWISE, DOCUMENT, IMB, INFO, OLD, OSU, RESULTS, result
from tests.reports.runs import allreduce, cli, flat, of_format_2, saved, timed, to_jsonl


@given(RESULTS)
def test_our_records_read_back(results: list[Placements]) -> None:
    """Rule: the record, whichever file it went to, comes back row by row with its figures."""
    whole = parse(to_jsonl(results).decode()).rows
    assert [r.times_s for r in whole[::2]] == [r.every[0].times_s for r in results]
    for export in (to_json, CsvLines().lines):
        rows = parse(export(flat(results)).decode()).rows
        assert [(r.size, r.placement) for r in rows] == [(r.size, r.placement) for r in whole]
        assert [r.time_s for r in rows] == pytest.approx([r.time_s for r in whole])
        assert [r.low_s for r in rows] == [r.low_s for r in whole]


def test_a_power_cut_and_a_newer_format(tmp_path: Path) -> None:
    """Rule: a cut line is said and the rest kept; a format of the future is refused by name."""
    data = to_jsonl([result(1024, (1e-3,) * 6), result(2048, (1e-3,) * 6)])
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(gzip.compress(data[:-30]))
    found = read(path)
    assert [r.size for r in found.rows] == [1024] and found.notes[0].line == 3
    path.write_bytes(gzip.compress(data.replace(b'"format":4', b'"format":99')))
    with pytest.raises(ReportError, match="format 99"):
        read(path)


def test_format_1_loads_for_ever() -> None:
    """Rule: a file of this format, kept as written, gives the same figures in any version."""
    out, skipped = read(Path(__file__).parent / "golden" / "format1.jsonl").rows
    assert (out.collective, out.algorithm, out.ranks, out.size) == ("allreduce", "ring", 4, 1024)
    assert (out.time_s, out.low_s, out.high_s, out.wrong) == (1.01e-3, 0.9e-3, 1.2e-3, 0)
    assert (out.stopped, out.iterations, out.run.library) == ("precise", 7, "MPICH 5.0.2")
    assert out.busbw_bytes_per_s == pytest.approx(1024 / 1.01e-3 * 1.5)
    assert skipped.skipped == "too large" and skipped.time_s is None


def test_format_2_loads_for_ever() -> None:
    """Rule: as for format 1; the environment stands in a line of its own."""
    out, into, other = read(Path(__file__).parent / "golden" / "format2.jsonl").rows
    assert (out.collective, out.algorithm, out.ranks, out.size) == ("allreduce", "ring", 2, 1024)
    assert (out.time_s, out.limit_s, out.wrong) == (3e-5, 2.4e-5, 0)
    assert out.schedule == "1fa61d53bd123f1d"
    assert out.times_s == (3e-5, 2e-5, 4e-5)
    assert out.per_rank_s == ((1e-5, 2e-5, 3e-5), (3e-5, 1e-5, 4e-5))
    assert (out.clock_memory_hz, out.energy_per_op_j) == (3.2e9, 12.98)
    assert (into.clock_memory_hz, into.energy_per_op_j) == (None, None)
    assert (into.skipped, into.time_s, into.per_rank_s) == ("too large", None, ())
    assert other.algorithm == "library" and other.schedule == "" and other.limit_s is None
    environment = out.run.environment
    assert environment is other.run.environment
    assert environment["fingerprint"] == ["7870c998e71c3077"]
    assert environment["mapping"] == {"node": [0, 0], "cpus": ["0", "1"], "gpu": ["", ""]}
    assert (out.sent_bytes, out.received_bytes, out.total_bytes) == (1024, 1024, 2048)
    assert other.sent_bytes is None and not out.worksharing


def test_format_3_loads_for_ever() -> None:
    """Rule: as for format 2; a row says how many ranks a core had, and if work was shared."""
    ring, shared, library = read(Path(__file__).parent / "golden" / "format3.jsonl").rows
    assert (ring.ranks_per_core, ring.worksharing, ring.oversubscribed) == (2.0, False, True)
    assert (ring.sent_bytes, ring.received_bytes, ring.total_bytes) == (1536, 1536, 6144)
    assert (shared.algorithm, shared.worksharing, shared.schedule) == ("worksharing", True, "")
    assert (library.ranks_per_core, library.worksharing) == (2.0, False)


@pytest.mark.parametrize("name", ["format1.jsonl", "format2.jsonl"])
def test_what_pooled_plans_measured_is_marked_when_loaded(name: str) -> None:
    """Rule: of formats 1 and 2 every schedule over shm may have been carried out by other ranks."""
    text = (Path(__file__).parent / "golden" / name).read_text()
    assert not any(row.worksharing for row in parse(text).rows)
    rows = parse(text.replace('"transport": "mpi"', '"transport":"shm"').replace('"mpi"', '"shm"'))
    marked = {row.algorithm: row.worksharing for row in rows.rows}
    assert marked.pop("library", False) is False and set(marked.values()) == {True}
    for one in measurements(text.replace('"transport":"mpi"', '"transport":"shm"')):
        if one.transport == "shm":
            assert one.worksharing == (one.algorithm != "library")


@pytest.mark.parametrize(
    ("environment", "transport", "expected"),
    [
        ({"mapping": {"node": [0] * 4, "cpus": ["0-1"] * 4}}, "mpi", 2.0),
        ({"mapping": {"node": [0] * 4, "cpus": ["0", "0", "1", "2-9"]}}, "shm", 2.0),
        ({"mapping": {"node": [0, 0, 1, 1], "cpus": ["0-1"] * 4}}, "mpi", 1.0),
        ({"mapping": {"node": [0, 0, 0, 1], "cpus": ["0-1"] * 4}}, "mpi", 1.5),
        ({"mapping": {"node": [0] * 4, "cpus": ["", "", "", ""]}, "cpus": 8}, "mpi", 0.5),
        ({"cpus": 2, "ranks_per_node": [3, 1]}, "mpi", 1.5),
        ({"cpus": 2}, "mpi", 2.0),
        ({"cpus": 2, "hosts": ["a", "b"]}, "mpi", None),
        ({"cpus": 2, "group": {"number": 0}}, "mpi", None),
        ({"cpus": 2, "devices": ["H100"]}, "mpi", None),
        ({"cpus": 2}, "nccl", None),
        ({"cpus": True}, "mpi", None),
        ({"cpus": 0, "mapping": {"node": "x", "cpus": [7]}}, "mpi", None),
    ],
)
def test_ranks_per_core_of_old_records(
    environment: dict[str, object], transport: str, expected: float | None
) -> None:
    """Rule: by the mapping, else by the number of CPUs.

    What says neither, or is of GPUs, is unknown.
    """
    old = of_format_2(transport, environment)
    (row,) = parse(json.dumps(old)).rows
    assert row.ranks_per_core == expected and row.ranks == 4


def test_a_record_without_its_run_is_kept_and_said() -> None:
    """Rule: records that were cut out of a file keep their figures.

    Only their machine is unknown.
    """
    lines = (Path(__file__).parent / "golden" / "format2.jsonl").read_text().splitlines()
    found = parse("\n".join(lines[1:]))
    assert len(found.rows) == 3 and found.rows[0].run.environment == {}
    assert ["missing" in note.text for note in found.notes] == [True]


def test_a_run_directory_is_all_its_records(tmp_path: Path) -> None:
    """Rule: a folder reads as the records in it; one without any is an error."""
    with pytest.raises(ReportError, match="without records"):
        read(tmp_path)
    for name in ("a.jsonl", "b.jsonl"):
        saved(tmp_path / name, [result(1024, (1e-3,) * 6)])
    assert len(read(tmp_path).rows) == 2


def test_the_frame_has_the_documented_columns(tmp_path: Path) -> None:
    """Rule: one DataFrame whatever the source: same columns, same types, None as missing."""
    frames = []
    for name, text in (("a", OSU), ("b", IMB), ("c", OLD), ("d", json.dumps(DOCUMENT))):
        (tmp_path / name).write_text(text)
        frames.append(load(tmp_path / name))
    assert all(list(f.columns) == list(SHOWN) for f in frames)
    assert len({tuple(map(str, f.dtypes)) for f in frames}) == 1
    documented = Path(__file__).parents[2] / "docs" / "logs.md"
    assert all(f"`{c}`" in documented.read_text() for c in SHOWN)


def test_rows_quoted_in_a_text_are_said_to_be(tmp_path: Path) -> None:
    """Rule: rows that a page quotes are shown with a note, which counts them; a log's are not."""
    for name, count in (("page.md", 1), ("run.log", 0)):
        path = tmp_path / name
        path.write_text(OSU)
        reading = read(path)
        rows = f"{len(reading.rows)} rows are taken from a text"
        assert reading.rows and sum(rows in n.text for n in reading.notes) == count


def test_ranks_can_be_given(tmp_path: Path) -> None:
    """Rule: what a log does not say can be said, and what follows from it is filled in."""
    path = tmp_path / "log"
    path.write_text("# OSU MPI Allgather Latency Test v5\n# Size  Avg Latency(us)\n1024 2.0\n")
    assert read(path).rows[0].size is None
    row: Measurement = read(path, ranks=4).rows[0]
    assert row.size == 4096 and row.busbw_bytes_per_s == pytest.approx(4096 / 2e-6 * 0.75)


# -- anything at all

ODD = ("{", "[", '{"results":[', "\x00", "size algbw time", "collective,algorithm,\n")
RECORD = to_jsonl([result(8, (1e-3,) * 6)]).decode()
LINES = "\n".join((OLD, OSU, IMB, BITWISE)).split("\n")
PIECES = st.sampled_from([*LINES, INFO, json.dumps(DOCUMENT), RECORD, *ODD])


@given(st.lists(st.one_of(PIECES, st.text(max_size=40), st.from_regex(r"[\d .e#+-]{0,60}")),
    max_size=12),
       st.integers(0, 400), st.characters())  # fmt: skip
def test_any_text_gives_rows_or_nothing(pieces: list[str], at: int, odd: str) -> None:
    """Rule: no text, however broken, raises; every figure is finite or missing."""
    text = "\n".join(pieces)
    found = parse(text[:at] + odd + text[at:])
    for r in found.rows:
        assert r.time_s is None or 0 <= abs(r.time_s) < float("inf")


@given(st.binary(max_size=300))
def test_any_bytes_give_rows_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    """Rule: reading raises one kind of error and nothing else."""
    path = tmp_path_factory.mktemp("fuzz") / "log"
    for content in (data, b"\x1f\x8b" + data, gzip.compress(data)):
        path.write_bytes(content)
        try:
            assert read(path).rows
        except ReportError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("seconds", [1e-320, 1e308, 5e-16])
def test_times_that_nothing_takes_are_refused(seconds: float, tmp_path: Path) -> None:
    """Rule: a time whose rates and pictures overflow is refused where it is read, with its line."""
    record = tmp_path / "r.jsonl"
    record.write_bytes(to_jsonl([allreduce("ring", 2, 1024, [seconds] * 8, [seconds] * 8)]))
    with pytest.raises(ReportError, match=r"times are not a list of seconds \(line 2\)"):
        read(record)


@pytest.mark.parametrize(
    ("place", "name", "value", "said"),
    [
        ("out_of_place", "bus_bw", 1e300, "busbw_bytes_per_s of inf is a rate that nothing has"),
        ("out_of_place", "bus_bw", 1e-30, "busbw_bytes_per_s of 1e-21 is a rate"),
        ("out_of_place", "bus_bw", -5.0, "busbw_bytes_per_s of -5e+09 is a rate"),
        ("out_of_place_per_iter", "min_us", 1e-12, "min_s of 1e-18 is a time"),
        ("out_of_place_per_iter", "max_us", 1e300, "max_s of 1e+294 is a time"),
        ("out_of_place_per_iter", "times_us", [1, 1e-12], "an iteration of 1e-18 s"),
    ],
)  # fmt: skip
def test_impossible_values_of_a_log_cost_their_row(
    place: str, name: str, value: object, said: str, tmp_path: Path
) -> None:
    """Rule: a time or rate that nothing has costs its row, which is said; the others are shown.

    On a page or in a picture it would overflow.
    """
    document = copy.deepcopy(DOCUMENT)
    document["results"][0][place][name] = value  # type: ignore[index]
    log = tmp_path / "run.json"
    log.write_text(json.dumps(document))
    found = read(log)
    assert [row.placement for row in found.rows] == ["in"]
    assert any(f"row not read: {said}" in note.text for note in found.notes), found.notes
    assert "row not read" in cli("html", log, "--out", tmp_path / "page.html").err


def test_figures_at_their_bounds_are_read(tmp_path: Path) -> None:
    """Rule: what can be, is read: a rate or a time that a log rounds to 0, the longest time."""
    document = copy.deepcopy(DOCUMENT)
    document["results"][0]["out_of_place"] |= {"time": 1e18, "alg_bw": 0.0, "bus_bw": 1e15}  # type: ignore[index]
    log = tmp_path / "run.json"
    log.write_text(json.dumps(document))
    assert [row.time_s for row in read(log).rows] == [1e12, 21e-6]


@pytest.mark.parametrize("limit", [1e-320, 1e308, 0])
def test_an_impossible_limit_of_a_record_is_refused(limit: float, tmp_path: Path) -> None:
    """Rule: a roofline's time is one that something takes; a page divides by it."""
    one = timed((1e-3,) * 8, limit_s=limit)
    record = saved(tmp_path / "r.jsonl", [allreduce("ring", 2, 1024, one)])
    with pytest.raises(ReportError, match="limit_s is no number of seconds"):
        read(record)
