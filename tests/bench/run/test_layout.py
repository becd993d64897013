"""Which table a run prints: nccl-tests' own, or the one that a narrow terminal has room for."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bench.options.options import parse
from bench.run.table_text import COLUMNS, Compact, Nccl, columns, for_ranks, layout, shown
from reports.exports.run_table import Banner, header
from reports.records.measurement import Noise, Record
from tests.reports.runs import allreduce, timed

DEVICES = [(n, 100 + n, "node", "a processor with quite a long name @ 2.50GHz") for n in range(16)]
BANNER = Banner("allreduce ring (shm)", "busbar 1", 8, 1024, 2, True, 1, None, 1, DEVICES)


def _of(kind: object) -> bool:
    return isinstance(kind, Compact)


def test_a_pipe_gets_nccl_tests_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: compact is for a terminal that is too narrow, unless it is asked for by name."""
    monkeypatch.delenv(COLUMNS, raising=False)
    options, compact = parse(["-b", "8"], "allreduce"), parse(["--layout", "compact"], "allreduce")
    assert columns() is None and not _of(layout(options)) and _of(layout(compact))
    for wide, expected in (
        (80, True),
        (Nccl(options).width - 1, True),
        (Nccl(options).width, False),
    ):
        monkeypatch.setenv(COLUMNS, str(wide))
        assert columns() == wide and _of(layout(options)) == expected
    monkeypatch.setenv(COLUMNS, "80")
    assert not _of(layout(parse(["-I"], "allreduce")))  # its columns are in one table only
    assert not _of(layout(parse(["--layout", "nccl"], "allreduce")))
    monkeypatch.setenv(COLUMNS, "wide")
    assert columns() is None
    assert for_ranks() == {}  # what tests print goes nowhere


SAMPLES = st.builds(
    lambda times, limit, wrong: timed(times, wrong=wrong, limit_s=limit),
    st.lists(st.floats(1e-7, 1e3), min_size=0, max_size=12),
    st.none() | st.floats(1e-7, 1e3),
    st.none() | st.integers(0, 10**6),
)


@given(st.sampled_from([8, 4096, 2**20, 2**33]), SAMPLES, SAMPLES)
def test_compact_rows_fit_their_columns(size: int, out: Record, in_place: Record) -> None:
    """Rule: both placements stand as two lines below their headings, in 60 columns."""
    compact = Compact(parse(["-d", "all"], "allreduce"))
    one = allreduce("ring", 16, size, out, in_place)
    lines = compact.row(one)
    heads = compact.header(BANNER)[-2:]
    assert len(lines) == 2 and all(len(line) <= 68 for line in lines)
    assert lines[0].split()[:2] == [str(size), "out"] and lines[1].split()[0] == "in"
    ends = [
        heads[0].index(word) + len(word) for word in ("place", "time", "busbw", "limit", "#wrong")
    ]
    for line in lines:
        assert all(line[end - 1] != " " and line[end : end + 1] in ("", " ") for end in ends)
    assert lines[0].endswith("float")


def test_ranks_are_listed_once() -> None:
    """Rule: 16 ranks take 16 lines in nccl-tests' first table, 1 in a compact one, then none."""
    compact = Compact(parse([], "allreduce"))
    later = Banner(**{**vars(BANNER), "above": True})
    assert len(header(BANNER)) - len(header(later)) == 16
    assert "# 16 on node: a processor" in "\n".join(compact.header(BANNER))
    assert all(len(line) <= 80 for line in compact.header(BANNER))
    assert not any("node" in line for line in compact.header(later))


def test_remarks_are_no_wider_than_their_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: what disturbed a row stands below it, in lines that fit a terminal of 80 columns.

    If both placements were disturbed, there is one line with the greater figures.
    """
    monkeypatch.setenv(COLUMNS, "80")
    noise = Noise(others=(0.6,))
    out = replace(timed([1e-6] * 6), noise=noise, core_wait=(0.61, 0.6))
    one = allreduce("ring", 2, 8, out, None)
    narrow, wide = (shown(one, kind(parse([], "allreduce")), set())[1:] for kind in (Compact, Nccl))
    assert len(narrow) == 2 and all(len(line) <= 80 and line[:2] == "# " for line in narrow)
    words = [word for line in narrow for word in line[2:].split()]
    assert len(wide) == 1 and wide[0][2:].split() == words
    quieter = replace(out, noise=Noise(others=(0.2,)), core_wait=(0.9, 0.05))
    layout = Compact(parse([], "allreduce"))
    (line,) = shown(allreduce("ring", 2, 8, out, quieter), layout, set())[2:]
    text = "2 ranks waited for a core (rank 0 90 %); other programs took 60 % of all cores"
    assert line == f"# {text}"


@pytest.mark.parametrize("width", [80, 160])
def test_a_terminal_decides(width: int) -> None:
    """Rule: the default follows the width of the terminal that standard output is."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    argv = "--threads 2 --transport inproc -b 8 -e 8 -n 6 -A ring"
    command = [sys.executable, "-m", "bench.allreduce", *argv.split()]
    text = b""
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL) as run:
        os.close(theirs)
        while part := _some(ours):
            text += part
    os.close(ours)
    lines = text.decode().splitlines()
    assert run.returncode == 0 and (max(map(len, lines)) <= 80) == (width == 80)
    assert any("redop" in line for line in lines) == (width == 160)


def _some(terminal: int) -> bytes:
    """What comes next; nothing when the other side has closed it."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
