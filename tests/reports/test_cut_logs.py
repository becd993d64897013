"""Logs that end inside a row, and rows with a changed figure: none gives a figure of nobody's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.readers.gathered import contradiction, span
from reports.readers.reading import CUT, parse
from reports.records.measurement import Measurement, Reading
from tests.conftest import examples, thorough
from tests.reports.logs import IMB, OSU
from tests.reports.runs import cli
from tests.reports.sample_logs import OLD, TODAY, UNCHECKED, write

_ROOT = os.environ.get("BUSBAR_SAMPLES")
PUBLIC = sorted((Path(_ROOT) / "logs").glob("*.txt")) if _ROOT else []

DEVICES = "".join(
    f"#  Rank {rank:2} Group  0 Pid   4000 on n{rank // 4} device {rank % 4:2} [{rank:02x}] GPU\n"
    for rank in range(8)
)
#: Name of a dialect to (words of the columns before the time, what a half's last column is, the
#: columns of -I, whether times are in milliseconds).
DIALECTS = {
    "today": ("redop    root", "#wrong", False, False),
    "per iteration": ("redop    root", "#wrong", True, False),
    "rooted": ("root", "#wrong", False, False),
    "before 2.13": ("redop", " error", False, False),
    "no operation": ("", " error", False, False),
    "milliseconds": ("op", "   res", False, True),
    "cputime": ("redop    root", "#wrong", False, False),
}
CELLS = {"redop": "   sum", "op": "   sum", "root": "    -1"}


def _half(size: int, us: float, wrong: int, dialect: str) -> str:
    """A half of a row as nccl-tests print it: all-reduce on 8 ranks."""
    _, last, each, milli = DIALECTS[dialect]
    rate = size / us / 1e3
    time = us * (0.4 if dialect == "cputime" else 1e-3 if milli else 1)
    printed = (
        f"{time:7.3f}" if milli else f"{time:7.{0 if time >= 1e4 else 1 if time >= 100 else 2}f}"
    )
    tail = f"  {wrong:6}" if last == "#wrong" else f"  {wrong * 1e-7:6.0e}"
    more = (
        f"  {us * 0.9:7.2f}  {us * 1.5:7.2f}  {us * 1.4:7.2f}  {2.5 + wrong:6.2f}" if each else ""
    )
    return f"  {printed}  {rate:6.2f}  {rate * 1.75:6.2f}{tail}{more}"


def _log(dialect: str, rows: list[tuple[int, float, int]], devices: bool = True) -> str:
    """A log of all-reduce, or of the dialect's rows alone where it is a fragment."""
    words, last, each, milli = DIALECTS[dialect]
    time = "cputime" if dialect == "cputime" else "   time"
    extremes = "    i_min    i_max    i_p99   i_cv%" if each else ""
    half = f"  {time}   algbw   busbw  {last}{extremes}"
    first = "      bytes             N" if milli else "       size         count"
    between = f"  {words}" if words else ""
    head = f"#{first}      type{between}{half}{half}\n"
    cells = "".join(f"  {CELLS[word]}" for word in words.split())
    lines = [
        f"{size:12}  {size // 4:12}     float{cells}"
        f"{_half(size, us, wrong, dialect)}{_half(size, us * 1.25, wrong + 1, dialect)}\n"
        for size, us, wrong in rows
    ]
    start = "# Collective test starting: all_reduce_perf\n" + (DEVICES if devices else "")
    rates = [size / us / 1e3 * 1.75 * k for size, us, _ in rows for k in (1, 0.8)]
    average = sum(rates) / len(rates)
    end = f"# Out of bounds values : 13 FAILED\n# Avg bus bandwidth    : {average:.4f}\n#\n"
    return start + head + "".join(lines) + end


ROWS = st.lists(
    st.tuples(
        st.integers(18, 33).map(lambda n: 1 << n), st.floats(20, 2e6), st.sampled_from([0, 13])
    ),
    min_size=1,
    max_size=4,
)


def _figures(row: Measurement) -> tuple[object, ...]:
    return (
        row.line, row.size, row.count, row.placement, row.dtype, row.op, row.root, row.time_s,
        row.min_s, row.max_s, row.p99_s, row.cv, row.algbw_bytes_per_s, row.busbw_bytes_per_s,
        row.wrong, row.error, row.bandwidth_bytes_per_s, row.overall_s, row.overlap,
        row.messages_per_s,
    )  # fmt: skip


def _invented(whole: Reading, text: str) -> list[Measurement]:
    """Rows of a cut text whose figures no row of the whole text has."""
    known = {_figures(row) for row in whole.rows}
    return [row for row in parse(text).rows if _figures(row) not in known]


@examples(20)
@given(st.sampled_from(sorted(DIALECTS)), ROWS, st.booleans(), st.data())
def test_a_cut_log_invents_nothing(
    dialect: str, rows: list[tuple[int, float, int]], devices: bool, data: st.DataObject
) -> None:
    """Rule: wherever a text ends, each figure of it is one of the whole text's, in its column.

    The rows above stay; their ranks follow from all rates that are there. What ends inside a row
    is said to be cut.
    """
    text = _log(dialect, rows, devices)
    whole = parse(text)
    assert len(whole.rows) == 2 * len(rows) and not any(CUT in n.text for n in whole.notes)
    begin = text.index("float") - 40
    for at in data.draw(st.lists(st.integers(begin, len(text)), min_size=4, max_size=8)):
        found = parse(text[:at])
        assert not _invented(whole, text[:at]), text[:at]
        above = text[:at].count("\n") + 1
        kept, expected = ([r for r in of.rows if r.line < above] for of in (found, whole))
        assert [_figures(row) for row in kept] == [_figures(row) for row in expected]
        last = text[:at].rpartition("\n")[2]
        if last.strip()[:1].isdigit() and len(last.split()) < len(
            text.split("\n")[above - 1].split()
        ):
            assert any(n.text == CUT and n.line == above for n in found.notes), text[:at]


def test_every_position_of_a_last_row() -> None:
    """Rule: the same at each position of one row, where a cell is a digit short or lacks."""
    for dialect in DIALECTS:
        text = _log(dialect, [(1 << 30, 5321.7, 0), (1 << 34, 127962.4, 13)], devices=False)
        whole = parse(text)
        for at in range(text.rindex("float") - 30, text.rindex("# Out of")):
            assert not _invented(whole, text[:at]), text[:at]


@pytest.mark.parametrize("text", [OSU.replace("{model}", ""), IMB], ids=["osu", "imb"])
def test_cut_logs_of_other_benchmarks(text: str) -> None:
    """Rule: a last figure that may be cut is no figure, whatever benchmark it is of."""
    whole = parse(text)
    for at in range(text.rindex("\n#") - 60, len(text)):
        assert not _invented(whole, text[:at]), text[:at]


@pytest.mark.parametrize("path", thorough(*PUBLIC), ids=lambda path: path.stem)
def test_published_logs_cut_everywhere(path: Path) -> None:
    """Rule: as above, of published logs: each position of rows, of footers and of the header."""
    text = path.read_text()
    whole = parse(text, str(path))
    lines = text.split("\n")
    rows = sorted({row.line for row in whole.rows})
    # The last row, and what follows it.
    wanted = {n + k for n in rows[-1:] for k in (0, 1)} or {len(lines)}
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    known = {_figures(row) for row in whole.rows}
    for n in wanted:
        if not 1 <= n <= len(lines):
            continue
        # What stands far above the row changes nothing but the time that a test takes.
        for at in range(starts[n - 1], min(starts[n], len(text)) + 1):
            for row in parse(text[:at], str(path)).rows:
                assert _figures(row) in known, text[starts[n - 1] : at]


@examples(40)
@given(
    st.sampled_from(sorted(set(DIALECTS) - {"cputime"})),
    st.integers(0, 2),
    st.integers(0, 1),
    st.sampled_from("123456789"),
)
def test_a_changed_digit_is_noticed(dialect: str, column: int, half: int, digit: str) -> None:
    """Rule: time, algbw and busbw hold each other; one that was changed loses its row."""
    text = _log(dialect, [(1 << k, 2.0 ** (k - 12), 0) for k in (28, 29, 30)])
    lines = text.split("\n")
    at = next(n for n, line in enumerate(lines) if str(1 << 29) in line and line[0] == " ")
    words = lines[at].split()
    width = (len(words) - 3 - len(DIALECTS[dialect][0].split())) // 2
    place = 3 + len(DIALECTS[dialect][0].split()) + half * width + column
    if words[place][0] == digit:
        return
    words[place] = digit + words[place][1:]
    lines[at] = "  ".join(words)
    found, whole = parse("\n".join(lines)), parse(text)
    placement = ("out", "in")[half]
    assert [(r.size, r.placement) for r in found.rows] == [
        (r.size, r.placement) for r in whole.rows if (r.line, r.placement) != (at + 1, placement)
    ]
    assert any(n.line == at + 1 and "changed" in n.text for n in found.notes)
    average = next(n.text for n in found.notes if "average" in n.text)
    assert "rows were refused" in average and "missing" not in average


def test_a_cut_run_is_called_cut(tmp_path: Path) -> None:
    """Rule: where the first row of a table is cut, the reason is the cut and no inference there."""
    text = _log("today", [(1 << 28, 1000.0, 0)]).partition("\n")[2]  # no line names the collective
    row = next(line for line in text.split("\n") if line.lstrip().startswith(f"{1 << 28}"))
    log = tmp_path / "cut.log"
    for left in (9, 1):  # in the second half, or just before its end
        log.write_text(text[: text.index(row) + len(row) - left])
        out = cli("show", log, status=1).out
        (failed,) = (line for line in out.split("\n") if line.startswith("FAILED"))
        assert "cut" in failed.partition("cut.log:")[2] and "taken for" not in failed
    log.write_text(text[: text.index("  1250.0")])
    assert f"{CUT}\n" in cli("show", log, status=1).out


def test_a_header_with_root_requires_it() -> None:
    """Rule: with one cell missing the root is not taken for the time."""
    head = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    row = "17179869184 4294967296 float sum 13.43 1279.62 2399.29 0 13.43 1279.62 2399.29 0\n"
    found = parse(head + row)
    assert not found.rows and any("where the root should" in n.text for n in found.notes)


def test_cputime_is_no_part_of_algbw_and_said() -> None:
    """Rule: the column of -C 1 is marked, and costs no row."""
    found = parse(_log("cputime", [(1 << 28, 1000.0, 0)]))
    assert [r.time_of for r in found.rows] == ["CPU time until the calls returned"] * 2
    assert found.rows[0].time_s == pytest.approx(400e-6)
    assert parse(_log("today", [(1 << 28, 1000.0, 0)])).rows[0].time_of == ""


@given(st.integers(1, 1 << 40), st.floats(1e-2, 1e7), st.integers(2, 4096))
def test_printing_contradicts_nothing(size: int, us: float, ranks: int) -> None:
    """Rule: figures that nccl-tests' formats round, or that a fork truncates, belong together."""
    time = f"{us:.{0 if us >= 1e4 else 1 if us >= 100 else 2}f}"
    rate, factor = size / us / 1e3, 2 * (ranks - 1) / ranks
    seconds = span(time)
    assert seconds is not None
    for printed in (lambda x: f"{x:.2f}", lambda x: f"{int(x * 100) / 100:.2f}", repr):
        told = contradiction(
            size, seconds.scaled(1e-6), printed(rate), printed(rate * factor), factor
        )
        assert not told


def test_missing_rows_and_changed_figures_are_told_apart() -> None:
    """Rule: where the log says which sizes it measured, a false average says what is the matter."""
    sizes = [1 << k for k in (27, 28, 29)]
    asked = (
        f"# nThread 1 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: 2(factor) iters: 20\n"
    )
    text = asked + _log("today", [(size, size / 1e5 / n, 0) for n, size in enumerate(sizes, 1)])
    assert not [n for n in parse(text).notes if "average" in n.text]
    without = "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith(f"{sizes[2]:12}")
    )
    # All three figures are changed, so that the row agrees with itself.
    other = [(size, size / 1e5 / n, 0) for n, size in zip((1, 5, 3), sizes, strict=True)]
    changed = asked + _log("today", other).rpartition("# Avg")[0] + text[text.index("# Avg") :]
    for found, why in ((without, ": rows are missing"), (changed, "changed, or a row is missing")):
        (note,) = [n.text for n in parse(found).notes if "average" in n.text]
        assert note.endswith(why)


def test_a_log_cut_behind_a_row_is_told_and_fails_a_gate(tmp_path: Path) -> None:
    """Rule: a table that lacks announced sizes and nccl-tests' last lines has a note.

    `show` goes on, and a gate fails. A table with these lines, or with all sizes, has no such note.
    """
    asked = "# nThread 1 nGpus 1 minBytes 1024 maxBytes 8192 step: 2(factor) iters: 20\n"
    rows = [(1 << k, 20.0 * k, 0) for k in (10, 11, 12, 13)]
    whole = asked + _log("today", rows).replace("13 FAILED", "0 OK").replace(f"{1:6}\n", f"{0:6}\n")
    lines = whole.splitlines(keepends=True)
    end = next(n for n, line in enumerate(lines) if line.startswith(f"{8192:12}"))
    told = "2 announced sizes not read: the log ends here, before nccl-tests' last lines"
    path = tmp_path / "cut.log"
    for text, count in (("".join(lines[: end - 1]), 1), ("".join(lines[: end + 1]), 0), (whole, 0)):
        path.write_text(text)
        shown = cli("show", str(path))
        assert shown.err.count(told) == count
        cli("show", str(path), "--expect", "busbw >= 0", status=count)


@pytest.mark.parametrize("name", [TODAY, OLD, UNCHECKED])
def test_our_own_logs_cut_everywhere(name: str, tmp_path: Path) -> None:
    """Rule: as above, of the logs that other tests read."""
    write(tmp_path)
    text = (tmp_path / name).read_text()
    whole = parse(text, name)
    begin = text.index(" float") - 30
    for at in range(begin, len(text)):
        known = {_figures(row) for row in whole.rows}
        assert all(_figures(row) in known for row in parse(text[:at], name).rows), text[:at]
