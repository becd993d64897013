"""Files too large, damaged or hostile: one line of ours, bounded memory, no escapes."""

from __future__ import annotations

import csv
import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from busbar.errors import ReportError
from busbar.tables import escape_cell, unescape_cell
from busbar.terminal import make_printable
from reports.analysis.expect import parse_rate, parse_rule, parse_share
from reports.exports.formats import CsvLines
from reports.exports.formats import rows_csv as imported_csv
from reports.readers.codec import to_jsonl
from reports.readers.nccl_text import number
from reports.readers.own_exports import to_parquet
from reports.readers.reading import load, parse, read
from reports.records.measurement import Measurement
from tests.command import reports_main
from tests.reports.logs import DOCUMENT, IMB, OLD, OSU
from tests.reports.runs import allreduce, changed, saved
from tests.torture.bounds import bounded

ESCAPES = "\x1b[2J\x1b]0;title\x07ring\r\nFAILED\u202e\x9b"
LONG = (10**399, "9" * 5000)


def one(**fields: Any) -> Measurement:
    """A measurement with three times."""
    return changed(allreduce("ring", 2, 1024, (1e-5, 2e-5, 3e-5)), **fields).every[0]


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    """Rule: memory is taken for what a file holds, so that a limit on addresses stops nobody."""
    saved(tmp_path / "a.jsonl", [one()])
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31));"
        "from reports.readers.reading import read; print(len(read(sys.argv[1]).rows))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "a.jsonl")],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_gzip_file_that_holds_a_multitude_is_refused(tmp_path: Path) -> None:
    """Rule: what unpacks to much more than logs and records do is not unpacked to its end."""
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(200 << 20)))
    with pytest.raises(ReportError, match="unpacks to more than 64 MiB"):
        read(path)
    path.write_bytes(gzip.compress(to_jsonl([one()] * 3000)))
    assert len(read(path).rows) == 3000


@pytest.mark.parametrize(
    ("most", "text"), [("MOST_TEXT", OLD), ("MOST_JSON", json.dumps(DOCUMENT))]
)
def test_texts_of_hours_are_refused(most: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a log or a JSON document that would take minutes is refused, with what to do."""
    assert parse(text).rows
    monkeypatch.setattr(f"reports.readers.reading.{most}", len(text) - 1)
    found = parse(text)
    assert not found.rows and "is not read; split it" in found.notes[0].text


@pytest.mark.parametrize("at", [5, -9, -60, 300])
def test_damaged_parquet_is_a_damaged_file(
    at: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: the file is named, not standard output."""
    data = bytearray(to_parquet([one()]))
    data[at : at + 4] = b"\xff\xff\xff\xff"
    path = tmp_path / "a.parquet"
    path.write_bytes(bytes(data))
    assert reports_main(["show", str(path)]) in (0, 2)
    assert "standard output" not in capsys.readouterr().err
    for cut in (bytes(data[:-40]) + b"PAR1", bytes(data[:-20]), bytes(data[:10])):
        path.write_bytes(cut)
        with pytest.raises(ReportError, match=r"a\.parquet: no Parquet file .* damaged"):
            read(path)


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [("per_rank_s", [[[1e-5, 2e-5]]], "number of times"), ("placement", ["up"], "neither")],
)
def test_parquet_of_rows_that_are_none(
    column: str, values: list[object], said: str, tmp_path: Path
) -> None:
    """Rule: ranks with fewer times than their row, and other placements, are damage in Parquet."""
    table = pa.parquet.read_table(io.BytesIO(to_parquet([one()])))
    changed = table.set_column(table.column_names.index(column), column, pa.array(values))
    pa.parquet.write_table(changed, tmp_path / "a.parquet")
    with pytest.raises(ReportError, match=said):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("average", ["14.9.9966", "..", "1e999", "9" * 400, "1.5"])
def test_an_average_that_is_no_number_is_no_average(average: str) -> None:
    """Rule: the log's own mean is compared where it is one number."""
    found = parse(f"{OLD}# Avg bus bandwidth    : {average}\n")
    assert len(found.rows) == 2
    assert any("average busbw" in note.text for note in found.notes) == (average == "1.5")


@pytest.mark.parametrize("number", LONG, ids=["400 digits", "5000 digits"])
def test_numbers_of_hundreds_of_digits(number: object, tmp_path: Path) -> None:
    """Rule: a number beyond every type costs its row, not the file, and is never a traceback."""
    line = to_jsonl([one()]).decode()
    for old in ("1024", "2,", "1e-05", "[1e-05,2e-05,3e-05]"):
        parse(line + line.replace(old, old.replace(old.rstrip(","), str(number)), 1))
    text = json.dumps(DOCUMENT)
    for old in ("1024", "20.0", "23007", "25", "18.0"):
        parse(text.replace(old, str(number), 1))
    parse(f'[{{"size": {number}}}]')
    path = tmp_path / "a.json"
    path.write_text(f'{{"results": [{{"size": {number}}}]}}')
    with pytest.raises(ReportError):
        read(path)


@pytest.mark.parametrize(
    ("text", "old"),
    [
        (CsvLines().lines([one()]).decode(), ",1024,"),
        (OLD, " 256 "), (OSU, "\n4 "), (IMB, " 1024 "),
        (OLD.replace("error", "#wrong").replace("2e-07", " 7"), "  7 "),
    ],
    ids=["csv", "nccl", "osu", "imb", "wrong"],
)  # fmt: skip
def test_a_whole_number_beyond_every_column_costs_its_row(
    text: str, old: str, tmp_path: Path
) -> None:
    """Rule: a number of more than 63 bits makes its row invalid, which is said, in every log."""
    path = tmp_path / "run"
    path.write_text(text + text.replace(old, old.replace(old.strip(" ,\n"), "9" * 19)))
    table = load(path)
    assert table["size"].max() < 1 << 40 and (table["count"].dropna() < 1 << 40).all()
    assert any("more than 63 bits" in note for note in table.attrs["notes"])


@pytest.mark.parametrize("number", LONG, ids=["400 digits", "5000 digits"])
def test_thresholds_of_hundreds_of_digits(number: object) -> None:
    """Rule: --expect, --limit and shares take finite numbers only."""
    for text in (f">={number}M: busbw > 1", f"{number} ranks: busbw > 1", f"busbw > {number}GB/s"):
        with pytest.raises(ReportError):
            parse_rule(text)
    for reader, text in ((parse_rate, f"{number}GB/s"), (parse_share, f"{number}%")):
        with pytest.raises(ReportError):
            reader(text)


@pytest.mark.parametrize("root", ["--5", "9" * 5000, "²", "0x1"])
def test_a_root_that_is_no_number_is_no_root(root: str) -> None:
    """Rule: nccl-tests writes the root as a text; what is no number there is none."""
    text = json.dumps(DOCUMENT).replace('"    -1"', json.dumps(root))
    assert parse(text).rows[0].root is None
    line = f"#  Rank  0 Group {root} Pid  1 on  n0 device  0 [0x07] H100\n"
    assert len(parse(line + OLD).rows) == 2


def test_a_note_quotes_no_more_than_a_line(tmp_path: Path) -> None:
    """Rule: what is said of a file does not repeat it."""
    path = tmp_path / "a.txt"
    path.write_text(OLD.replace("12.50", "12.50" + "A" * 9000))
    with pytest.raises(ReportError) as caught:
        read(path)
    assert len(str(caught.value)) < 1000


def test_long_digits_are_read_in_one_pass() -> None:
    """Rule: a number matches in one way only: 50,000 digits and a letter cost no square of it."""
    word = "9" * 50_000 + "x"
    with bounded(60, 1 << 30), pytest.raises(ReportError):  # two ways would take an hour
        parse_rule(f"busbw > {word}")
    with bounded(60, 1 << 30):
        assert number(word) is None


def test_ragged_times_of_ranks_are_no_record() -> None:
    """Rule: every rank has as many times as the placement, however the record is read."""
    ragged = one(times_s=(1e-5, 2e-5), per_rank_s=((1e-5, 2e-5), (1e-5,)))
    text = to_jsonl([one(), ragged]).decode()
    found = parse(text)
    assert len(found.rows) == 1 and "another number of times" in found.notes[0].text


def test_another_placement_in_csv_is_a_note() -> None:
    """Rule: a placement is out or in; another word costs its row."""
    text = CsvLines().lines([one()]).decode()
    found = parse(text + text.splitlines()[1].replace(",out,", ",sideways,") + "\n")
    assert len(found.rows) == 1 and "sideways" in found.notes[0].text


@given(st.text())
@example("=HYPERLINK(1)")
@example("'=1")
@example("'x")
def test_cells_come_back_and_are_no_formulas(text: str) -> None:
    """Rule: no text in CSV begins as a formula does, and what was written is what is read."""
    cell = escape_cell(text)
    assert unescape_cell(cell) == text
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))


def test_no_export_writes_formulas() -> None:
    """Rule: names in records are texts in every CSV; figures stay figures."""
    evil = one(algorithm="=1+1", transport="@x", dtype="+x", environment={"hosts": ["-x"]})
    rows = list(parse(to_jsonl([evil]).decode()).rows)
    for text in (CsvLines().lines([evil]).decode(), imported_csv(rows)):
        cells = [cell for line in csv.reader(io.StringIO(text)) for cell in line]
        assert "'=1+1" in cells and "'@x" in cells and "-1" in cells
        assert not any(cell.startswith(("=", "+", "@")) for cell in cells)
    assert parse(CsvLines().lines([evil]).decode()).rows[0].algorithm == "=1+1"


@pytest.mark.parametrize("command", [["show"], ["md"], ["import"], ["scaling"], ["compare"]])
def test_nothing_reaches_the_terminal_but_text(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: escapes and line breaks in a record's names or in a file's name are question marks."""
    evil = one(
        algorithm=ESCAPES, transport=ESCAPES, dtype=ESCAPES, schedule=ESCAPES,
        environment={"hosts": [ESCAPES], "library": ESCAPES, "cpu": ESCAPES, "busbar": ESCAPES},
    )  # fmt: skip
    path = saved(
        tmp_path / "a\x1b[2Jb.jsonl",
        [evil, replace(evil, wrong=1)],
    )
    files = [str(path)] * (2 if command == ["compare"] else 1)
    assert reports_main([*command, *files]) in (0, 1, 2)  # `show`: wrong; one row: no scaling
    assert reports_main([*command, str(tmp_path / "\x1b[2J\nabsent"), *files[1:]]) == 2
    said = capsys.readouterr()
    for text in (said.out, said.err):
        assert all(c == "\n" or c.isprintable() for c in text)
        lines = [line.lstrip("│ ") for line in text.splitlines() if str(tmp_path) not in line]
        assert not any(line.startswith("FAILED") for line in lines)


def test_what_people_write_stays_as_it_is() -> None:
    """Rule: letters of every script, signs and all kinds of blanks are printable."""
    for text in ("größe µs", "算法", "a\u00a0b\u2009c", "≥ 64M", "🚌"):
        assert make_printable(text) == text
    assert make_printable("a\tb\x00c\ud800") == "a?b?c?"
