"""Terminal tables: what fits into a terminal, and what is given up first."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

import busbar
from busbar.start import python
from reports.readers.reading import parse
from reports.records.measurement import Measurement
from reports.tables.show import _OF_WIDE, SPARE, lines_of, tables, texts
from tests.reports.runs import allreduce, cli, noisy, records, rows, saved

WORDS = ("time", "95 %", "busbw", "limit", "n")


def _lines(found: list[Measurement], width: int) -> list[str]:
    """The lines of the tables, without headings."""
    return [line for line in texts(found, width) if line.strip() and "busbw in GB/s" not in line]


def _cells(found: list[Measurement], width: int) -> list[str]:
    """The marks of the distributions."""
    return [str(cell) for table in tables(found, width) for cell in table.table.columns[-1]._cells]


@pytest.mark.parametrize("width", [80, 100, 110, 120, 140, 160, 240])
def test_a_row_is_a_line(width: int) -> None:
    """Rule: whatever the width from 80 on, no line is longer and none is broken, long names too."""
    found = rows(records(["recursive_doubling", "ring"], [4]))
    lines = _lines(found, width)
    assert max(map(len, lines)) <= width
    assert len(lines) == 2 * (2 + 8)  # a table a placement, with head and rule
    assert sum("recursive_doubling" in line for line in lines) == 8
    assert all(word in lines[0] for word in WORDS)


def test_more_room_shows_more() -> None:
    """Rule: extremes and what ended a row come with the room for them, and never at 80 columns."""
    found = rows(records(["ring"], [4]))
    titles = {"spread"}  # of the last column
    heads = {width: set(_lines(found, width)[0].split()) - titles for width in (80, 110, 160)}
    assert heads[80] < heads[110] < heads[160]
    assert {"min", "p99", "max", "algbw", "cv", "transport"} <= heads[160]


def test_a_distribution_uses_the_room_that_is_left() -> None:
    """Rule: at least six marks, at most twenty-four; plain characters where there is no UTF-8."""
    found = rows(records(["recursive_doubling", "ring"], [4]))
    for width, least, most in ((80, 6, 12), (160, 12, 24), (240, 24, 24)):
        assert least <= max(map(len, _cells(found, width))) <= most
    assert all(line.isascii() for line in texts(found, 160, ascii_only=True))


_OSU = "# OSU MPI Allreduce Latency Test v7.5\n# Size  Avg Latency(us)\n4  1.52\n1024  1.60\n"


def test_a_dash_is_standard_input() -> None:
    """Rule: what is piped into `show -` is read as a file of that text is."""
    show = python("reports", "show", "-", "--ranks", "4")
    done = subprocess.run(show, input=_OSU, capture_output=True, text=True, check=True)
    assert "allreduce, 4 ranks" in done.stdout and "1.52 us" in done.stdout


def test_show_has_the_forms_of_import_and_md(tmp_path: Path) -> None:
    """Rule: --format csv and json are the rows as import prints them, md is the command md."""
    log = tmp_path / "osu.txt"
    log.write_text(_OSU)
    for form, other in {"csv": "import", "json": "import", "md": "md"}.items():
        more = ["--format", form] if other == "import" else []
        shown = cli("show", log, "--ranks", "4", "--format", form)
        assert shown.out and shown == cli(other, log, "--ranks", "4", *more), form
    said = cli("show", log, "--format", "csv", "--expect", "time <= 1s", status=2)
    assert not said.out and "leave out --format csv" in said.err


def test_a_log_without_its_ranks_asks_for_them(tmp_path: Path) -> None:
    """Rule: where busbw is missing for want of the ranks, a line names the option; else none."""
    log = tmp_path / "osu.txt"
    log.write_text(_OSU)
    said = cli("show", log)
    assert "N/A" in said.out and "--ranks N gives busbw" in said.err
    said = cli("show", log, "--ranks", "4")
    assert "N/A" not in said.out and "--ranks" not in said.err
    assert any("; ranks=N gives busbw" in one for one in busbar.load(log).notes)
    assert not busbar.load(log, ranks=4).notes


def test_several_files_begin_with_a_table_of_them(tmp_path: Path) -> None:
    """Rule: each file has a line with its best figure and its state; one file has no such table.

    With --quiet the sentences of each file begin with its name instead.
    """
    good, cut = saved(tmp_path / "good.jsonl", records()), tmp_path / "cut.jsonl"
    cut.write_text(good.read_text()[:-200])
    out = cli("show", good, cut, status=1).out
    line = next(line for line in out.splitlines() if line.lstrip().startswith(cut.name))
    assert "GB/s" in line and "run failed or cut" in line
    quiet = cli("show", good, cut, "--quiet", status=1).out
    assert "files; best:" not in quiet and f"{good}: out-of-place" in quiet
    assert "files; best:" not in cli("show", good).out


def test_a_file_that_cannot_be_read_costs_no_other(tmp_path: Path) -> None:
    """Rule: `show` prints what it can read, names the other files on stderr and ends with 2.

    A gate counts them as failed. Without any readable file nothing is printed.
    """
    good, empty = saved(tmp_path / "good.jsonl", records()), tmp_path / "empty.log"
    empty.write_text("")
    for more in ([], ["--format", "csv"], ["--quiet"]):
        said = cli("show", empty, good, *more, status=2)
        assert "ring" in said.out and said.err.count(f"{empty}: the file is empty") == 1, more
    rule = ["--expect", "time > 0 s"]
    assert f"FAILED {empty}: the file is empty" in cli("show", empty, good, *rule, status=2).out
    gate = json.loads(cli("show", empty, good, *rule, "--format", "json", status=2).out)
    assert gate["broken"] == [f"{empty}: the file is empty"] and not gate["kept"]
    said = cli("show", empty, tmp_path / "no.log", status=2)
    assert not said.out and len(said.err.splitlines()) == 2


def test_extremes_are_shown_where_they_are_the_spread(tmp_path: Path) -> None:
    """Rule: least and greatest time of a log without raw times are shown at 80 columns, too."""
    log = tmp_path / "osu.txt"
    columns = "Avg Latency(us)  Min Latency(us)  Max Latency(us)  Iterations"
    log.write_text(
        f"# OSU MPI Allreduce Latency Test v7.5\n# Size  {columns}\n4 10.05 9.00 11.00 9\n"
    )
    out = cli("show", log, "--ranks", "4").out
    assert "9.00 us" in out and "11.0 us" in out


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "library nccl"])
def test_no_width_cuts_a_number_or_drops_the_key(algorithm: str) -> None:
    """Rule: at any width each row has its size, algorithm, time and busbw whole.

    What is left out are whole columns, in the order of `SPARE`.
    """
    found = [r for r in rows(records([algorithm], [4])) if r.placement == "out"]
    (widest,) = tables(found[:4], 400)
    whole = {str(c.header): [str(cell) for cell in c._cells] for c in widest.table.columns}
    for width in range(20, 161):
        (shown,) = tables(found[:4], width)
        heads = [str(column.header) for column in shown.table.columns]
        assert {"size", "algorithm", "time", "busbw"} <= set(heads)
        left_out = [name in heads for name in SPARE if name in whole and name not in _OF_WIDE]
        assert left_out == sorted(left_out), f"{width}: {heads}"
        text = "\n".join(lines_of([shown], width))
        for column in shown.table.columns:
            for cell in column._cells:
                words = str(cell).split() if column.header == "algorithm" else [str(cell).strip()]
                assert all(word in text for word in words), f"{width}: {cell}"
            if column.header in ("n", "limit", "95 %", "time"):
                assert [str(cell) for cell in column._cells] == whole[str(column.header)]


def test_files_with_rates_alone_have_a_best_figure(tmp_path: Path) -> None:
    """Rule: of files without times the best figure is their rate: OSU's tests of bandwidth."""
    head = "# OSU MPI Multiple Bandwidth / Message Rate Test v7.4\n"
    logs = {
        "a.log": "# OSU MPI Bandwidth Test v7.4\n# Size Bandwidth (MB/s)\n1 4.52\n4096 6120.22\n",
        "b.log": f"{head}# Size MB/s Messages/s\n1 18.2 18231201.1\n4096 21044.2 5137743.0\n",
    }
    for name, text in logs.items():
        (tmp_path / name).write_text(text)
    shown = cli("show", *(tmp_path / name for name in logs)).out
    assert re.search(r"a\.log +\S* *highest bandwidth 6120 MB/s at 4K", shown)
    assert re.search(r"b\.log +\S* *highest bandwidth 21044 MB/s at 4K", shown)


def test_a_campaign_of_qualify_names_the_command_of_its_verdicts(tmp_path: Path) -> None:
    """Rule: its run directory has rates to show; the verdicts are printed by another command."""
    saved(tmp_path / "records.jsonl", noisy(1))
    assert "busbar qualify" not in cli("show", tmp_path).err
    (tmp_path / "verdicts.json").touch()
    assert f"its verdicts: busbar qualify --resume {tmp_path}\n" in cli("show", tmp_path).err


@pytest.mark.parametrize(
    "words", [(), ("-q",), ("--format", "json"), ("--expect", "time > 0 s")], ids=" ".join
)
def test_a_file_that_cannot_be_read_is_named_once(tmp_path: Path, words: Sequence[str]) -> None:
    """Rule: of a folder, each file without rows is one line, on one of both streams."""
    saved(tmp_path / "a.jsonl", noisy(1))
    for name in ("b.jsonl", "c.jsonl"):
        (tmp_path / name).write_text("hello\n")
    shown = cli("show", tmp_path, *words, status=1)
    for name in ("b.jsonl", "c.jsonl"):
        assert (shown.out + shown.err).count(f"FAILED {tmp_path / name}: no row of") == 1
        assert (shown.out + shown.err).count(str(tmp_path / name)) == 1


@pytest.mark.parametrize(("share", "explained"), [(0.98, False), (1.015, True), (1.2, False)])
def test_a_share_just_above_the_limit_is_explained(share: float, explained: bool) -> None:
    """Rule: a share of 101.5 % of the limit has its reason below the table; above 105 % a letter
    behind the share stands for the reason.
    """  # noqa: D205
    (one,) = rows([allreduce("ring", 4, 1024, [1e-3] * 9, limit_s=share * 1e-3)])
    shown = tables([one], 200)
    assert ("limit: 100 to 105% is the spread of two medians" in shown[0].footnote) == explained


def test_an_open_interval_is_explained_below_the_table() -> None:
    """Rule: a dash in the column of intervals has its meaning below the table, and only then."""
    for ends, told in (((1e-6, 9e-5), False), ((1e-6, 1.1e-4), True)):
        (row,) = rows([allreduce("ring", 2, 1024, [1e-5] * 9)])
        shown = "\n".join(texts([replace(row, low_s=ends[0], high_s=ends[1])], 100))
        assert ("95 % -: the ends are a factor of 100 apart or more" in shown) == told


def test_iterations_that_a_header_does_not_number_are_not_known() -> None:
    """Rule: ``iters: auto agg iters: 1`` is no number of iterations, ``iters: 20 agg …`` is one."""
    head = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 1 iters: {} agg"
    for said, expected in (("auto", None), ("20", 20)):
        text = f"{head.format(said)} iters: 1 validation: 1 graph: 0\n" + (
            "#       size     count   type  redop  root   time  algbw  busbw  #wrong\n"
            "     1048576    262144  float    sum    -1  18.96  55.31  55.31       0\n"
        )
        (row,) = parse(text).rows
        assert row.iterations == expected
