"""Dialects of nccl-tests, as tables and as JSON: what was printed is what is read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.run.noise import disturbances
from reports.exports.run_table import Banner, footer, header, row
from reports.readers.names import ranks_from_rates
from reports.readers.reading import parse
from reports.records.measurement import Noise, Placements, Reading
from tests.reports.logs import BITWISE, DOCUMENT, INFO, OLD, OSU, RESULTS, result
from tests.reports.runs import flat

OPENMPI = "[1,0]<stdout>:"
PREFIXES = ["", OPENMPI, "   [1,0]<stdout>: ", "[prterun-n1-77@1,0]<stdout>: ", "0: ", "[0] ",
            "2026-11-21T03:20:54.123Z ", "[2026-11-21 03:20:54] INFO: ", "worker-0  | ",
            "[pod/nccl/main] ", "Sat Nov 21 03:20:54 2026" + OPENMPI, "node001: ", "> "]  # fmt: skip


def _table(results: list[Placements], per_iteration: bool = False) -> list[str]:
    devices = [(r, 100 + r, f"node00{r // 2}", "NVIDIA H100") for r in range(4)]
    banner = Banner("all_reduce_perf", "nccl-tests version 2.19.0 nccl-headers=23007"
                    " nccl-library=23007", 8, 1024, 2, True, 5, 20, 1, devices)  # fmt: skip
    rows = [row(r, "median", per_iteration) for r in results]
    return [*header(banner, per_iteration), *rows, *footer(flat(results), "all_reduce_perf")]


def _shown(found: Reading) -> list[tuple[int | None, str, str]]:
    return [(r.size, r.placement, f"{(r.time_s or 0) * 1e6:.5g}") for r in found.rows]


@given(RESULTS, st.sampled_from(PREFIXES), st.booleans(), st.booleans(), st.booleans())
def test_a_table_is_read_through_what_others_add(
    results: list[Placements], prefix: str, per_iteration: bool, coloured: bool, noisy: bool
) -> None:
    """Rule: launcher tags, timestamps, colours and NCCL's own lines change nothing that is read."""
    lines = _table(results, per_iteration)
    plain = parse("\n".join(lines))
    lines = [f"\x1b[32m{line}\x1b[0m" if coloured else line for line in lines]
    lines = [part for line in lines for part in ([INFO, line] if noisy else [line])]
    found = parse("\r\n".join(prefix + line for line in lines))
    assert _shown(found) == _shown(plain) and not found.notes
    assert len(found.rows) == 2 * len(results)
    assert {(r.collective, r.ranks, r.dtype, r.op) for r in found.rows} == {
        ("allreduce", 4, "float", "sum")
    }


@given(RESULTS)
def test_later_tables_refer_to_the_first_ones_ranks(results: list[Placements]) -> None:
    """Rule: the list of ranks stands above the first table of a run; the others are of the same ranks."""
    first = _table(results)
    listed = [line for line in first if "  Rank " in line]
    later = [line for line in first if line not in listed]
    at = later.index("# Using devices")
    later[at : at + 1] = [f"# Using devices as above: {len(listed)} ranks, group 0"]
    found = parse("\n".join([*first, *later]))
    assert {(r.ranks, r.run.hosts, r.run.devices) for r in found.rows} == {
        (r.ranks, r.run.hosts, r.run.devices) for r in parse("\n".join(first)).rows
    }
    assert {r.run.number for r in found.rows} == {0, 1}


@given(RESULTS)
def test_rows_give_their_figures_back(results: list[Placements]) -> None:
    """Rule: time, rates, wrong, extremes and spread are those printed, in seconds and bytes."""
    found = parse("\n".join(_table(results, per_iteration=True)))
    for n, one in enumerate(results):
        times = sorted(one.every[0].times_s)
        got = found.rows[2 * n]
        assert got.min_s == pytest.approx(times[0], rel=0.01, abs=6e-9)
        assert got.max_s == pytest.approx(times[-1], rel=0.01, abs=6e-9)
        assert got.wrong == 0 and got.iterations == 20 and got.root == -1
        assert (got.size, got.count) == (one.every[0].size, one.every[0].count)


NO_REDOP = """\
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
        1024            64   float    12.50    0.08    0.16  0e+00      N/A     N/A     N/A    N/A
"""
BLANK_REDOP = (
    OLD.split("\n", 3)[1]
    + """
   268435456       1048576     float           520935    0.52    0.51  0e+00   519562    0.52    0.51  1e+00
"""
)
FORK = """\
# size count type redop root time algbw busbw #wrong algo proto time algbw busbw #wrong algo proto
  1024 256 float sum -1 12.50 0.08 0.08 3 RING LL 13.50 0.08 0.08 0 TREE LL128
"""
CPU = OLD.replace("    time", " cputime")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (OLD, [("out", 12.5e-6, None, 2e-7), ("in", 13.5e-6, None, None)]),
        (CPU, [("out", 12.5e-6, None, 2e-7), ("in", 13.5e-6, None, None)]),
        (BLANK_REDOP, [("out", 520935e-6, None, 0.0), ("in", 519562e-6, None, 1.0)]),
        (FORK, [("out", 12.5e-6, 3, None), ("in", 13.5e-6, 0, None)]),
        (NO_REDOP, [("out", 12.5e-6, None, 0.0)]),
        (BITWISE, [("out", 12.5e-6, 3, None), ("in", 13.5e-6, 0, None)]),
        (OLD.split("\n", 3)[3], [("out", 12.5e-6, None, None), ("in", 13.5e-6, None, None)]),
    ],
)
def test_dialects(text: str, rows: list[tuple[str, float, int | None, float | None]]) -> None:
    """Rule: columns are those of the header, or of the row itself; N/A is no row and no zero."""
    found = parse(text).rows
    got = [(r.placement, pytest.approx(r.time_s), r.wrong, r.error) for r in found]
    if text.startswith("#"):
        assert got == rows
    else:
        assert [g[:2] for g in got] == [r[:2] for r in rows]


def test_a_replayed_trace_has_a_blank_out_of_place_half() -> None:
    """Rule: figures right of a blank half are the in-place ones."""
    line = "%12i  %12i  %8s  %6s  %6i" % (1024, 256, "float", "sum", -1) + " " * 32  # noqa: UP031
    text = BITWISE.split("\n")[0].replace("broadcast", "all_reduce") + "\n"
    text += "#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    found = parse(text + line + "    12.50    0.08    0.12       0\n").rows
    assert [(r.placement, r.time_s) for r in found] == [("in", pytest.approx(12.5e-6))]


def test_several_runs_and_ranks_in_one_file() -> None:
    """Rule: each table is a run; two ranks that print at once are two streams, not one mix."""
    one = _table([result(1024, (1e-3,) * 6, (2e-3,) * 6)])
    text = "\n".join([*one, "", *one])
    assert [r.run.number for r in parse(text).rows] == [0, 0, 1, 1]
    mixed = [f"[1,{rank}]<stdout>:{line}" for line in one for rank in (0, 1)]
    assert [r.run.number for r in parse("\n".join(mixed)).rows] == [0, 0, 1, 1]


def test_a_row_that_nccl_wrote_into_is_put_together() -> None:
    """Rule: a message glued to a row's words does not lose the row; a cut row is said by line."""
    lines = _table([result(1024, (1e-3,) * 6, (2e-3,) * 6)])
    at = next(n for n, line in enumerate(lines) if not line.startswith("#"))
    whole = lines[at]
    cut = whole.index("sum") + 3
    lines[at : at + 1] = [whole[:cut] + INFO, INFO, "Launch mode Parallel", whole[cut + 8 :]]
    found = parse(
        "\n".join([*lines[:at], lines[at], lines[at + 1], lines[at + 3], *lines[at + 4 :]])
    )
    assert [r.time_s for r in found.rows] == [pytest.approx(1e-3), pytest.approx(2e-3)]
    killed = parse("\n".join([*lines[:at], whole, whole[:cut]]))
    assert len(killed.rows) == 2 and {n.line for n in killed.notes} == {at + 2}
    assert "the run was cut" in killed.notes[-1].text


def test_missing_rows_are_noticed() -> None:
    """Rule: the average that the log prints must be that of the rows that were read."""
    results = [result(2**24, (1e-3,) * 6, (1e-3,) * 6), result(2**26, (1e-3,) * 6, (1e-3,) * 6)]
    lines = _table(results)
    assert not parse("\n".join(lines)).notes
    without = [line for line in lines if str(2**26) not in line]
    assert any("rows are missing" in n.text for n in parse("\n".join(without)).notes)


def test_garbled_cells_are_said_and_the_rest_kept() -> None:
    """Rule: a row with something that is no figure is named by its line, never guessed."""
    lines = _table([result(2**k, (1e-3,) * 6, (2e-3,) * 6) for k in (10, 11, 12)])
    at = next(n for n, line in enumerate(lines) if str(2**11) in line and line[0] == " ")
    lines[at] = lines[at].replace("1000.00", "XXXX.XX")
    found = parse("\n".join(lines))
    assert [r.size for r in found.rows] == [1024, 1024, 4096, 4096]
    assert any(n.line == at + 1 and "XXXX.XX" in n.text for n in found.notes)


def test_rccl_tests_and_a_table_without_its_marks() -> None:
    """Rule: RCCL's version lines are taken; a paste that lost its # is read all the same."""
    text = "rccl-tests: Version develop:33cc4df\nRCCL version : 2.27.7-develop:29e1567\n" + OLD
    (row, _) = parse(text).rows
    assert row.run.library == "RCCL 2.27.7-develop:29e1567"
    assert row.run.version == "rccl-tests: Version develop:33cc4df"
    assert len(parse(OSU.replace("{model}", "").replace("# ", "")).rows) == 3
    assert len(parse(OLD.replace("#", " ")).rows) == 2


@given(st.integers(2, 2000), st.floats(1, 2000))
def test_ranks_follow_from_rates(ranks: int, rate: float) -> None:
    """Rule: rates as printed give the ranks, or nothing where several numbers of ranks fit."""
    printed = [round(rate, 2), round(rate * (ranks - 1) / ranks, 2)]
    assert ranks_from_rates("allgather", *printed) in (ranks, None)


def test_rates_next_to_each_other_cost_nothing() -> None:
    """Rule: where every large number of ranks fits, the rates do not tell it, and at once."""
    assert ranks_from_rates("allgather", 100.00, 99.99) is None
    assert ranks_from_rates("allreduce", 1000.00, 1999.99) is None


@pytest.mark.parametrize("listed", [1, 2, 7])
def test_a_cut_list_of_devices_is_told(listed: int) -> None:
    """Rule: ranks are those of the rates where fewer devices are listed, which is said."""
    devices = "".join(
        f"#  Rank {n} Group  0 Pid 7 on n1 device {n} [0] H100\n" for n in range(listed)
    )
    head = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    line = "1073741824 268435456 float sum -1 3977.0 270.00 472.50 0 3977.0 270.00 472.50 0\n"
    found = parse(f"{devices}...\n{head}{line}")
    assert {row.ranks for row in found.rows} == {8}
    assert any(f"{listed} ranks are listed" in note.text for note in found.notes)


def test_what_disturbed_a_printed_row_is_told() -> None:
    """Rule: lines of Busbar below a row stay as notes, with the row; other comments are none."""
    noise = Noise(others=(0.68,), steal=(0.04,), hz=(2.0e9, 3.1e9))
    said = [
        disturbances((0.69, 0.2), noise),
        f"in-place: {disturbances((0.0, 0.76), None)}",
        disturbances((), Noise(steal=(0.31,))),
    ]
    head = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    row = "1073741824 268435456 float sum -1 3977.0 270.00 472.50 0 3977.0 270.00 472.50 0\n"
    other = "# times may be disturbed: other programs took up to 68 % of all cores in 4 of 4 rows\n"
    log = head + "".join(f"{row}# {text}\n" for text in said) + other
    told = [n.text for n in parse(log).notes if n.text.startswith("row of ")]
    assert told == [f"row of 1073741824 B: {text}" for text in said]
    assert "other programs took 68 % of all cores" in told[0] and "waited for a core" in told[1]


@pytest.mark.parametrize("differ", [0, 3])
def test_what_a_footer_tells_is_told(differ: int) -> None:
    """Rule: results that differ from run to run, and NCCL's last error, are said, also of JSON."""
    text = f"{BITWISE}# Bitwise mismatches   : {differ} OK\n" + "# error: no route\n" * (differ > 0)
    document = {**DOCUMENT, "bitwise_mismatches": {"count": differ, "okay": "true"}}
    document["errors"] = ["no route" if differ else ""]
    for log in (text, json.dumps(document)):
        told = [n.text for n in parse(log).notes if n.text.startswith("the log says")]
        assert told == (
            ["the log says: Bitwise mismatches : 3", "the log says: error: no route"]
            if differ
            else []
        )


# -- as JSON


def test_nccl_json() -> None:
    """Rule: the figures, the raw times, the ranks of all processes; nothing of its environment."""
    out, in_place = parse(json.dumps(DOCUMENT)).rows
    assert (out.collective, out.ranks, out.algorithm) == ("allreduce", 4, "ring ll")
    assert out.time_s == pytest.approx(20e-6) and out.times_s == pytest.approx(
        (18e-6, 20e-6, 30e-6)
    )
    assert out.cv == pytest.approx(0.05) and out.iterations == 25 and out.root == -1
    assert in_place.busbw_bytes_per_s is None and in_place.wrong is None
    assert "SECRET" not in repr(out)
