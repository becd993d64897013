"""perftest, all_reduce_bench, oneCCL, HCCL, PARAM and shortened tables; programs not read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.readers.reading import parse
from reports.records.measurement import Measurement
from tests.reports import other_logs

TEXTS = {
    name: text
    for name, text in vars(other_logs).items()
    if name.isupper() and isinstance(text, str) and "\n" in text
}


def values(row: Measurement) -> tuple[object, ...]:
    """The figures that a row has from its own line."""
    return (
        row.message, row.time_s, row.min_s, row.max_s, row.p99_s, row.algbw_bytes_per_s,
        row.busbw_bytes_per_s, row.count, row.iterations, row.wrong,
    )  # fmt: skip


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_cut_text_gives_no_other_figure(name: str) -> None:
    """Rule: a text that is cut anywhere gives rows of the whole text, or none; never others."""
    text = TEXTS[name]
    whole = [values(row) for row in parse(text).rows]
    assert whole
    # Cut inside a line that names the table, rates lack their ranks, and busbw is not derived.
    bare = [(*v[:6], None, *v[7:]) for v in whole]
    for at in range(len(text)):
        for row in parse(text[:at]).rows:
            assert values(row) in whole or values(row) in bare, (at, text[:at][-60:])


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_lost_line_end_costs_no_row(name: str) -> None:
    """Rule: a whole text without its last line end, as an editor leaves it, is read whole."""
    text = TEXTS[name]
    assert len(parse(text.rstrip("\n")).rows) == len(parse(text).rows)


@given(st.sampled_from(sorted(TEXTS)), st.data())
def test_damage_is_never_a_traceback(name: str, data: st.DataObject) -> None:
    """Rule: a text in which characters changed is read or refused by line."""
    text = TEXTS[name]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text = text[:at] + data.draw(st.sampled_from("0123456789.|-#eN\t\n ")) + text[at + 1 :]
    for note in parse(text).notes:
        assert str(note)


def test_perftest_bandwidth() -> None:
    """Rule: rates are of the unit of the header, and stand under the name of what was measured."""
    rows = parse(other_logs.WRITE_BW).rows
    assert [row.message for row in rows] == [2, 4096, 1048576]
    assert {row.collective for row in rows} == {"write_bandwidth"}
    assert rows[2].bandwidth_bytes_per_s == pytest.approx(394.87e9 / 8)
    assert (rows[2].time_s, rows[2].busbw_bytes_per_s, rows[2].iterations) == (None, None, 5000)
    assert (rows[2].run.program, rows[2].run.devices) == ("ib_write_bw", ("mlx5_3",))
    (both,) = parse(other_logs.SEND_BIDIRECTIONAL).rows
    assert both.collective == "send_bidirectional_bandwidth"
    assert both.bandwidth_bytes_per_s == pytest.approx(22890.12 * 2**20)


def test_perftest_latency() -> None:
    """Rule: the time is the median where there is one, else the mean; quantiles are kept."""
    small, large = parse(other_logs.READ_LAT).rows
    assert (small.collective, small.statistic) == ("read_latency", "median")
    times = [large.time_s, large.min_s, large.max_s, large.p99_s, large.cv]
    assert times == pytest.approx([3.4e-6, 3.31e-6, 9.02e-6, 3.88e-6, 0.11 / 3.43])
    (mean,) = parse(other_logs.READ_LAT_DURATION).rows
    assert (mean.statistic, mean.time_s) == ("mean", pytest.approx(2.31e-6))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("394.87 ", "494.87 ", "contradict"),
        ("0.047072", "0.04707", "no figure"),
        ("    394.87             0.047072", "    394.87", "4 figures for 5"),
        ("    5000             395.11", "    -5000             395.11", "no whole number"),
    ],
)
def test_perftest_refuses_by_line(old: str, new: str, reason: str) -> None:
    """Rule: a bandwidth is held against the message rate; a bad row costs itself alone."""
    found = parse(other_logs.WRITE_BW.replace(old, new, 1))
    assert len(found.rows) == 2
    assert [reason in note.text and note.line == 17 for note in found.notes] == [True]


def test_perftest_cycles_are_refused() -> None:
    """Rule: latencies in cycles have no seconds, and the note says which option to leave out."""
    found = parse(other_logs.READ_LAT.replace("usec", "cycles"))
    assert not found.rows and "--report-cycles" in found.notes[0].text


def test_a_bare_perftest_table_has_a_plain_name() -> None:
    """Rule: without title and command a table is a bandwidth or a latency, of which verb unsaid."""
    text = other_logs.WRITE_BW[other_logs.WRITE_BW.index(" #bytes") :]
    assert {row.collective for row in parse(text).rows} == {"bandwidth"}


def test_all_reduce_bench() -> None:
    """Rule: payloads are binary, rates decimal; ranks and library stand above the table."""
    found = parse(other_logs.ALL_REDUCE_BENCH)
    last = found.rows[-1]
    assert (last.collective, last.size, last.ranks) == ("allreduce", 2**30, 16)
    assert last.run.library == "NCCL 2.27.3" and last.iterations == 20
    rates = [last.algbw_bytes_per_s, last.busbw_bytes_per_s, last.time_s]
    assert rates == pytest.approx([200e9, 375e9, 2**30 / 200e9])
    assert ["payload over algbw" in note.text for note in found.notes] == [True]
    (old,) = parse(other_logs.ALL_REDUCE_BENCH_OLD).rows
    assert (old.size, old.ranks, old.iterations) == (4 * 10**9, 8, 5)
    assert old.busbw_bytes_per_s == pytest.approx(350e9)


def test_all_reduce_bench_trials_of_one_payload() -> None:
    """Rule: with one payload each line is a trial of it."""
    text = (
        "The 4GiB payload bandwidth of all_reduce over 8 ranks (5 warmups / 2 trials):\n\n"
        "|    busbw   |    algbw   |\n| ---------: | ---------: |\n"
        "| 350.00GBps | 200.00GBps |\n| 175.00GBps | 100.00GBps |\n"
    )
    rows = parse(text).rows
    assert [(row.size, row.iterations) for row in rows] == [(2**32, 1)] * 2
    assert [row.algbw_bytes_per_s for row in rows] == pytest.approx([200e9, 100e9])


def test_all_reduce_bench_refuses_a_changed_digit() -> None:
    """Rule: busbw is held against algbw and the ranks."""
    found = parse(other_logs.ALL_REDUCE_BENCH.replace("375.00GBps", "315.00GBps"))
    assert len(found.rows) == 2
    assert any("times algbw" in note.text and note.line == 11 for note in found.notes)


def test_oneccl() -> None:
    """Rule: oneCCL's tables are not taken for IMB's; an all-gather handles ranks times #bytes."""
    small, large, gathered = parse(other_logs.ONECCL).rows
    assert {row.run.format for row in (small, large, gathered)} == {"oneccl"}
    assert (small.collective, small.ranks, small.dtype, small.op) == (
        "allreduce",
        4,
        "float",
        "sum",
    )
    assert [large.time_s, large.min_s, large.max_s] == pytest.approx([320.25e-6, 310e-6, 330.5e-6])
    assert (gathered.collective, gathered.message, gathered.size) == ("allgatherv", 64, 256)


def test_hccl() -> None:
    """Rule: the bandwidth says whether it counts one rank's data; a failed check is wrong."""
    small, large = parse(other_logs.HCCL).rows
    assert (large.collective, large.ranks, large.size) == ("allreduce", 8, 2**26)
    assert (large.dtype, large.op, large.wrong) == ("float", "sum", 0)
    assert large.busbw_bytes_per_s == pytest.approx(67.10886e9 * 14 / 8)
    gathered = parse(other_logs.HCCL_GATHER)
    (row,) = gathered.rows
    assert (row.message, row.size, row.wrong) == (2**26, 2**29, 1)
    assert "check_result is failed" in gathered.notes[0].text
    wrong = parse(other_logs.HCCL.replace("67.10886 ", "57.10886 "))
    assert len(wrong.rows) == 1 and "contradict" in wrong.notes[0].text
    assert small.time_s == pytest.approx(50e-6)
    rows = [line.split("|") for line in other_logs.HCCL.splitlines()[2:]]
    moved = "\n".join("|".join([cells[3], *cells[:3]]) for cells in rows)
    assert [row.algbw_bytes_per_s for row in parse(moved + "\n").rows] == pytest.approx(
        [0.16384e9, 67.10886e9]
    )
    assert len(parse(moved).rows) == 1  # the last figure may be cut


def test_param() -> None:
    """Rule: the time of a COMMS-RES line is its median; algbw is held against it."""
    small, large = parse(other_logs.PARAM).rows
    assert (large.collective, large.ranks, large.count) == ("allreduce", 16, 268435456)
    assert (large.statistic, large.time_s) == ("median", pytest.approx(5368.7e-6))
    assert large.busbw_bytes_per_s == pytest.approx(375.002e9)
    assert small.min_s == pytest.approx(51.8e-6)
    wrong = parse(other_logs.PARAM.replace(" 200.001", " 300.001"))
    assert len(wrong.rows) == 1 and "contradict" in wrong.notes[0].text
    line = other_logs.PARAM.splitlines()[-1] + "\n"
    assert values(parse(line).rows[0]) == values(large)  # a line alone, as grep gives it
    pair = parse(other_logs.PARAM_PAIR).rows
    assert [row.collective for row in pair] == ["latency", "bandwidth", "bidirectional_bandwidth"]
    assert pair[2].bandwidth_bytes_per_s == pytest.approx(40.25e9)


def test_shortened_tables() -> None:
    """Rule: size, time and busbw make a row; units from the header; ranks from the rates."""
    rows = parse(other_logs.SHORT).rows
    assert [row.size for row in rows] == [2**20, 2**23, 2**30]
    assert {(row.collective, row.ranks) for row in rows} == {("allreduce", 8)}
    assert rows[0].time_s == pytest.approx(52.4e-6)
    found = parse(other_logs.SHORT_MARKDOWN)
    assert [(row.size, row.collective) for row in found.rows] == [
        (2**30, "allreduce"), (2**33, "allreduce")
    ]  # fmt: skip
    assert found.rows[0].time_s == pytest.approx(5.37e-3) and not found.notes


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("374.88", "974.88", "times size / time"),
        ("113.71", "93.71", "in the other rows"),
        ("129.10", "12.910", "times size / time"),
        ("35.02", "35.O2", "no figure"),
    ],
)
def test_shortened_tables_refuse_what_cannot_be(old: str, new: str, reason: str) -> None:
    """Rule: busbw is held against size and time, and against the other rows."""
    found = parse(other_logs.SHORT.replace(old, new))
    assert len(found.rows) == 2 and any(reason in note.text for note in found.notes)


def test_nccl_tests_own_tables_are_not_shortened_ones() -> None:
    """Rule: a table with count and type is read by one reader."""
    text = (
        "# size count type redop root time algbw busbw #wrong\n"
        "1048576 262144 float sum -1 52.40 20.01 35.02 0\n"
    )
    assert [row.run.format for row in parse(text).rows] == ["nccl-tests"]


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("[ ID] Interval           Transfer     Bitrate\n[  5]   0.00-1.00   sec  1.1 GBytes\n",
         "iperf"),
        ("|    Stage     | # iterations | typical | average | overall |\n", "ucx_perftest"),
        ('{\n"results": {\n"MsgSize": 2,\n"n_iterations": 5000,\n"BW_peak": 1.0,\n"BW_average": 1\n'
         "}}", "perftest"),
        ('{"name": "x", "gpus": [{"id": 0, "threadblocks": []}]}', "MSCCL++"),
        ('{"traceEvents": []}', "PyTorch"),
        ("======= ROCm System Management Interface =======\n== Hops between two GPUs ==\n",
         "topology"),
        ("TransferBench v1.50\n", "TransferBench"),
        ("# Initializing MSCCL++\n# Launching MSCCL++ proxy threads\n", "MSCCL++"),
    ],
)  # fmt: skip
def test_a_program_that_is_not_read_is_named(text: str, program: str) -> None:
    """Rule: the reason why a text has no row names the program that wrote it."""
    found = parse(text)
    assert not found.rows and any(program in note.text for note in found.notes)


def test_a_page_that_mentions_a_program_is_not_its_output() -> None:
    """Rule: prose about MSCCL++ is no output of it."""
    notes = parse("Busbar reads XML of MSCCL and plans of MSCCL++.\n").notes
    assert not any("MSCCL++" in note.text for note in notes)
