"""What other benchmarks measure beside time: read, shown, compared, followed, exported, drawn."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from reports.analysis.compare import compare, join
from reports.analysis.expect import check
from reports.analysis.expect import parse_rule as rule
from reports.analysis.history import history
from reports.exports.formats import rows_csv as to_csv
from reports.figures.plot import figures
from reports.page.payload import payload
from reports.readers.reading import load, parse
from reports.records.metrics import BANDWIDTH, BESIDE, MESSAGE_RATE, PURE, TIME, metric_of
from reports.tables.comparison import comparison_tables, history_csv, history_tables
from reports.tables.markdown import comparison_markdown, markdown
from reports.tables.show import texts

MBW = """\
# OSU MPI Multiple Bandwidth / Message Rate Test v7.4
# [ pairs: 1 ] [ window size: 64 ]
# Size                  MB/s        Messages/s
{rows}"""
FAST, SLOW = (
    MBW.format(rows=f"1024              {rate:8.2f}        {rate * 976.5625:10.2f}\n")
    for rate in (4016.0, 1004.0)
)
OVERLAPPED = """\
# OSU MPI Non-blocking Allreduce Latency Test v7.4
# Size  Overall(us)  Compute(us)  Coll. Init(us)  Pure Comm.(us)  Min Comm.(us)  Max Comm.(us) \
  Overlap(%)
1024         18.00        15.30            1.00           14.40          13.00          16.00  72.00
"""
IMB = """\
# Benchmarking Iallreduce
# #processes = 4
       #bytes #repetitions t_ovrl[usec] t_pure[usec]  t_CPU[usec]   overlap[%]
         1024         1000        18.00        14.40        15.30       -25.00
# Benchmarking Sendrecv
# #processes = 2
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]   Mbytes/sec
         1024         1000         2.00         2.00         2.00      1024.00
"""
ALL = FAST + OVERLAPPED


def test_every_quantity_is_read() -> None:
    """Rule: rates, overall time, compute and overlap are read; the time is pure."""
    rated, overlapped = parse(ALL).rows
    assert (rated.time_s, rated.algbw_bytes_per_s) == (None, None)
    assert (rated.bandwidth_bytes_per_s, rated.messages_per_s) == (4.016e9, 3921875.0)
    assert overlapped.time_of == PURE
    times = (overlapped.time_s, overlapped.overall_s, overlapped.compute_s)
    assert times == pytest.approx((14.4e-6, 18e-6, 15.3e-6))
    assert (overlapped.min_s, overlapped.max_s) == pytest.approx((13e-6, 16e-6))
    assert overlapped.overlap == pytest.approx(0.72)
    assert [n.text for n in parse(OVERLAPPED).notes] == ["columns left out: Coll. Init(us)"]
    own, exchanged = parse(IMB).rows
    assert own.time_of == PURE and own.overlap == pytest.approx(-0.25)
    assert (own.time_s, own.overall_s) == pytest.approx((14.4e-6, 18e-6))
    assert exchanged.bandwidth_bytes_per_s == pytest.approx(1.024e9)
    assert exchanged.algbw_bytes_per_s == pytest.approx(0.512e9)


def test_a_row_has_one_chief_metric() -> None:
    """Rule: a time where there is one, else bandwidth, else message rate."""
    rated, overlapped = parse(ALL).rows
    assert (metric_of(rated), metric_of(overlapped)) == (BANDWIDTH, TIME)
    bare = parse("# OSU MPI Message Rate Test v7\n# Size   Messages/s\n8    2000.00\n").rows[0]
    assert metric_of(bare) is MESSAGE_RATE


def test_every_view_shows_it_by_name_and_unit(tmp_path: Path) -> None:
    """Rule: terminal, Markdown, CSV, DataFrame, page and figures have each, and no N/A instead."""
    rows = parse(ALL).rows
    shown, marked = "\n".join(texts(rows, 160)), markdown(rows)
    for text in (shown, marked):
        assert "bandwidth in MB/s, message rate in messages/s" in text and "N/A" not in text
        for figure in ("4016", "3921875", "14.4 us", "18.0 us", "15.3 us", "72.0%", PURE):
            assert figure in text
    cells = next(csv.DictReader(io.StringIO(to_csv(rows))))
    assert float(cells["bandwidth_bytes_per_s"]) == 4.016e9
    (tmp_path / "log").write_text(ALL)
    frame = load(tmp_path / "log")
    assert frame["messages_per_s"][0] == 3921875 and frame["overlap"][1] == pytest.approx(0.72)
    data = payload(rows)
    assert [m["name"] for m in data["metrics"]] == [m.name for m in BESIDE]
    assert data["bandwidth_bytes_per_s"][0] == 4.016e9 and data["series"][1]["reading"] == PURE
    drawn = "\n".join(figures(rows))
    for kind in ("-bandwidth", "-message-rate", "-overall", "-compute", "-overlap"):
        assert f"{kind}\n" in f"{drawn}\n"


def test_a_rate_that_falls_is_slower() -> None:
    """Rule: compare and history show the rate and its own change, and call less of it slower."""
    base, new = parse(FAST).rows, parse(SLOW).rows
    (one,) = compare(join(base, new)[0])
    assert (one.base, one.new) == (pytest.approx(4.016e9), pytest.approx(1.004e9))
    assert one.change == pytest.approx(0.25) and one.ratio == pytest.approx(4)
    (table,) = comparison_tables([one], 160)
    assert "bandwidth in MB/s of NEW against BASE" in table.heading
    text = comparison_markdown([one])
    assert "4016 MB/s | 1004 MB/s | -75.0%" in text
    many = [(f"{n}", rows) for n, rows in enumerate([base] * 6 + [new] * 6)]
    found = history(many)
    (cut,) = found.series[0].cuts
    assert found.series[0].change(cut.ratio) == pytest.approx(0.25)
    assert "bandwidth in MB/s" in history_tables(found, 160)[0].heading
    lines = list(csv.DictReader(io.StringIO(history_csv(found))))
    rates = [float(line["bandwidth_bytes_per_s"]) for line in lines]
    assert rates == pytest.approx([4.016e9] * 6 + [1.004e9] * 6)
    assert {line["time_s"] for line in lines} == {""}


def test_times_of_different_things_are_not_compared() -> None:
    """Rule: the CPU's time of -C 1 is marked, and stands in another row than the operation's."""
    head = "# Collective test starting: all_reduce_perf\n"
    head += "# size count type redop root {0} algbw busbw #wrong {0} algbw busbw #wrong\n"
    row = "1048576 262144 float sum -1 100.0 10.49 19.66 0 100.0 10.49 19.66 0\n"
    whole, cpu = (parse(head.format(name) + row).rows for name in ("time", "cputime"))
    assert "CPU time until the calls returned" in "\n".join(texts(cpu, 120))
    assert join([*whole, *cpu], cpu)[0][0].base.time_of == cpu[0].time_of
    assert len(join([*whole, *cpu], cpu)[0]) == 2


def test_expectations_speak_of_them() -> None:
    """Rule: a bound on a bandwidth, a message rate or an overlap is held against its own figure."""
    rows = parse(ALL).rows
    kept = ("mbw*: bandwidth >= 4 GB/s", "1K,mbw*: message_rate > 3e6", "iall*: overlap >= 70%")
    assert not check([rule(text) for text in kept], rows)
    broken = ("mbw*: bandwidth >= 5 GB/s", "mbw*: message_rate > 4e6", "iall*: overlap > 80%")
    assert len(check([rule(text) for text in broken], rows)) == 3


@pytest.mark.parametrize(
    ("title", "collective"),
    [
        ("Persistent Allreduce", "persistent_allreduce"), ("Non-blocking Broadcast", "ibroadcast"),
        ("Neighborhood Allgather", "neighbor_allgather"),
        ("Non-blocking Neighborhood All-to-All", "ineighbor_alltoall"),
        ("Persistent", "persistent_latency"),
    ],
)  # fmt: skip
def test_names_of_osus_collectives(title: str, collective: str) -> None:
    """Rule: persistent and neighbourhood collectives have MPI's names, ncclFloat is float."""
    text = f"# OSU MPI {title} Latency Test v7.4\n# Datatype: ncclFloat.\n"
    row = parse(f"$ mpirun -np 4 x\n{text}# Size  Avg Latency(us)\n1024    10.00\n").rows[0]
    assert (row.collective, row.dtype) == (collective, "float")
    if collective == "persistent_allreduce":
        assert row.busbw_bytes_per_s == pytest.approx(1024 / 10e-6 * 1.5)
    if collective == "persistent_latency":
        assert row.ranks == 2
