"""Dialects of nccl-tests, OSU, IMB and our own files: what was printed is what is read."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.errors import ReportError
from reports.exports import EXPORTS, nccl_json, to_jsonl
from reports.nccl_table import Banner, footer, header, row
from reports.readers.rows import COLUMNS, Reading, Row
from reports.reading import load, parse, read
from reports.record import Result, Sample

TIMES = st.lists(st.floats(1e-6, 9e-2), min_size=6, max_size=12).map(tuple)


def _result(size: int, out: tuple[float, ...], in_place: tuple[float, ...] | None = None) -> Result:
    halves = [None if t is None else Sample(t, len(t), wrong=0) for t in (out, in_place)]
    return Result(
        "allreduce", "ring", "mpi", 4, size, size // 4, "float", "sum", -1, 1.5, *halves,
        environment={"busbar": "0.1", "library": "MPICH 5", "hosts": ["a", "b"], "cpu": "X"},
    )  # fmt: skip


RESULTS = st.lists(
    st.builds(_result, st.integers(1, 2**24).map(lambda n: 4 * n), TIMES, TIMES),
    min_size=1,
    max_size=5,
)

# -- nccl-tests in all its dialects

OPENMPI = "[1,0]<stdout>:"
PREFIXES = ["", OPENMPI, "   [1,0]<stdout>: ", "[prterun-n1-77@1,0]<stdout>: ", "0: ", "[0] ",
            "2026-11-21T03:20:54.123Z ", "[2026-11-21 03:20:54] INFO: ", "worker-0  | ",
            "[pod/nccl/main] ", "Sat Nov 21 03:20:54 2026" + OPENMPI, "node001: ", "> "]  # fmt: skip
INFO = "node001:4242:4250 [3] NCCL INFO Channel 00/08 : 0[0] -> 1[1] via P2P/IPC 64 1024 float sum"


def _table(results: list[Result], per_iteration: bool = False) -> list[str]:
    devices = [(r, 100 + r, f"node00{r // 2}", "NVIDIA H100") for r in range(4)]
    banner = Banner("all_reduce_perf", "nccl-tests version 2.19.0 nccl-headers=23007"
                    " nccl-library=23007", 8, 1024, 2, True, 5, 20, True, devices)  # fmt: skip
    rows = [row(r, "median", per_iteration) for r in results]
    return [*header(banner, per_iteration), *rows, *footer(results, "all_reduce_perf")]


def _shown(found: Reading) -> list[tuple[int | None, str, str]]:
    return [(r.size, r.placement, f"{(r.time_s or 0) * 1e6:.5g}") for r in found.rows]


@given(RESULTS, st.sampled_from(PREFIXES), st.booleans(), st.booleans(), st.booleans())
def test_a_table_is_read_through_what_others_add(
    results: list[Result], prefix: str, per_iteration: bool, coloured: bool, noisy: bool
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
def test_rows_give_their_figures_back(results: list[Result]) -> None:
    """Rule: time, rates, wrong, extremes and spread are those printed, in seconds and bytes."""
    found = parse("\n".join(_table(results, per_iteration=True)))
    for n, result in enumerate(results):
        times = sorted(result.out.times) if result.out else []
        got = found.rows[2 * n]
        assert got.min_s == pytest.approx(times[0], rel=0.01, abs=6e-9)
        assert got.max_s == pytest.approx(times[-1], rel=0.01, abs=6e-9)
        assert got.wrong == 0 and got.iterations == 20 and got.root == -1
        assert got.size == result.size and got.count == result.count


OLD = """\
#                                                       out-of-place                       in-place
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum    12.50    0.08    0.16  2e-07    13.50    0.08    0.15    N/A
"""
NO_REDOP = """\
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
        1024            64   float    12.50    0.08    0.16  0e+00      N/A     N/A     N/A    N/A
"""
BITWISE = """\
# Collective test starting: broadcast_perf
#  size  count  type  redop  root  time  algbw  busbw  #wrong  #bitdiff  time  algbw  busbw  #wrong  #bitdiff  timestamp
   1024    256  float  none     2  12.50   0.08   0.08      3        17  13.50   0.08   0.08       0         0  2026-11-21 03:20:54
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
    one = _table([_result(1024, (1e-3,) * 6, (2e-3,) * 6)])
    text = "\n".join([*one, "", *one])
    assert [r.run.number for r in parse(text).rows] == [0, 0, 1, 1]
    mixed = [f"[1,{rank}]<stdout>:{line}" for line in one for rank in (0, 1)]
    assert [r.run.number for r in parse("\n".join(mixed)).rows] == [0, 0, 1, 1]


def test_a_row_that_nccl_wrote_into_is_put_together() -> None:
    """Rule: a message glued to a row's words does not lose the row; a cut row is said by line."""
    lines = _table([_result(1024, (1e-3,) * 6, (2e-3,) * 6)])
    at = next(n for n, line in enumerate(lines) if not line.startswith("#"))
    whole = lines[at]
    cut = whole.index("sum") + 3
    lines[at : at + 1] = [whole[:cut] + INFO, INFO, "Launch mode Parallel", whole[cut + 8 :]]
    found = parse(
        "\n".join([*lines[:at], lines[at], lines[at + 1], lines[at + 3], *lines[at + 4 :]])
    )
    assert [r.time_s for r in found.rows] == [pytest.approx(1e-3), pytest.approx(2e-3)]
    killed = parse("\n".join([*lines[:at], whole, whole[:cut]]))
    assert len(killed.rows) == 2 and [n.line for n in killed.notes] == [at + 2]


def test_missing_rows_are_noticed() -> None:
    """Rule: the average that the log prints must be that of the rows that were read."""
    results = [_result(2**24, (1e-3,) * 6, (1e-3,) * 6), _result(2**26, (1e-3,) * 6, (1e-3,) * 6)]
    lines = _table(results)
    assert not parse("\n".join(lines)).notes
    without = [line for line in lines if str(2**26) not in line]
    assert any("rows are missing" in n.text for n in parse("\n".join(without)).notes)


def test_garbled_cells_are_said_and_the_rest_kept() -> None:
    """Rule: a row with something that is no figure is named by its line, never guessed."""
    lines = _table([_result(2**k, (1e-3,) * 6, (2e-3,) * 6) for k in (10, 11, 12)])
    at = next(n for n, line in enumerate(lines) if str(2**11) in line and line[0] == " ")
    lines[at] = lines[at].replace("1000.00", "XXXX.XX")
    found = parse("\n".join(lines))
    assert [r.size for r in found.rows] == [1024, 1024, 4096, 4096]
    assert any(n.line == at + 1 and "XXXX.XX" in n.text for n in found.notes)


# -- nccl-tests' JSON

DOCUMENT = {
    "version": 4, "args": ["./build/all_reduce_perf", "-b", "8"], "env": ["SECRET=1"],
    "nccl_version": 23007,
    "config": {"nthreads": 1, "ngpus": 2, "iterations": 20, "devices": [
        {"rank": 0, "hostname": "n0", "device_info": "NVIDIA H100"},
        {"rank": 2, "hostname": "n1", "device_info": "NVIDIA H100"}]},
    "results": [{
        "size": 1024, "count": 256, "type": "float", "redop": "sum", "root": "    -1",
        "out_of_place": {"time": 20.0, "alg_bw": 0.05, "bus_bw": 0.0768, "nwrong": 0.0},
        "out_of_place_per_iter": {"min_us": 18.0, "max_us": 30.0, "p99_us": 29.0, "cv_pct": 5.0,
                                  "times_us": [18.0, 20.0, 30.0]},
        "in_place": {"time": 21.0, "alg_bw": 0.05, "bus_bw": "nan", "nwrong": None},
        "actual_iterations": 25, "experiment_name": "AllReduce",
        "tuning": {"implementation": "Coll", "algo": "RING", "proto": "LL", "#channels": 2}}],
}  # fmt: skip


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


def test_what_a_killed_run_left_of_its_json() -> None:
    """Rule: whole results are kept, the end is said."""
    text = json.dumps({**DOCUMENT, "results": DOCUMENT["results"] * 3})
    found = parse(text[: text.rindex('"in_place"')])
    assert len(found.rows) == 4 and "ends early" in found.notes[-1].text
    assert found.rows[0].ranks == 4


@given(RESULTS)
def test_our_nccl_json_reads_back(results: list[Result]) -> None:
    """Rule: what ``-J`` writes is read with its raw times."""
    found = parse(nccl_json(results).decode()).rows
    assert [r.size for r in found] == [r.size for r in results for _ in (0, 1)]
    assert found[0].times_s == pytest.approx(results[0].out.times if results[0].out else ())


# -- OSU and IMB

OSU = """\
$ mpirun -np 8 ./osu_allgather -f -T mpi_float,mpi_int
# OSU MPI{model} Allgather Latency Test v7.5
# Datatype: MPI_FLOAT.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations   P99 Tail Lat(us)
4                      10.05              9.00             11.00        1000              12.00
broker.info[0]: something
8                      10.84              9.50             11.50        1000              13.00

# OSU MPI{model} Allgather Latency Test v7.5
# Datatype: MPI_INT.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations   P99 Tail Lat(us)
4                      11.05             10.00             12.00        1000              14.00
8                        bad             10.00             12.00        1000              14.00
"""


def test_rccl_tests_and_a_table_without_its_marks() -> None:
    """Rule: RCCL's version lines are taken; a paste that lost its # is read all the same."""
    text = "rccl-tests: Version develop:33cc4df\nRCCL version : 2.27.7-develop:29e1567\n" + OLD
    (row, _) = parse(text).rows
    assert row.run.library == "RCCL 2.27.7-develop:29e1567"
    assert row.run.version == "rccl-tests: Version develop:33cc4df"
    assert len(parse(OSU.replace("{model}", "").replace("# ", "")).rows) == 3
    assert len(parse(OLD.replace("#", " ")).rows) == 2


@pytest.mark.parametrize("model", ["", "-CUDA"])
def test_osu(model: str) -> None:
    """Rule: -f columns, -T tables; one rank's message becomes the size of the whole collective."""
    found = parse(OSU.replace("{model}", model))
    first, _, third = found.rows
    assert (first.collective, first.ranks, first.message, first.size) == ("allgather", 8, 4, 32)
    assert (first.dtype, third.dtype) == ("float", "int32")
    assert [first.time_s, first.min_s, first.max_s] == pytest.approx([10.05e-6, 9e-6, 11e-6])
    assert first.iterations == 1000 and first.p99_s == pytest.approx(12e-6)
    assert first.busbw_bytes_per_s == pytest.approx(32 / 10.05e-6 * 7 / 8)
    assert [(n.line, "'bad'" in n.text) for n in found.notes] == [(13, True)]


@pytest.mark.parametrize(
    ("text", "collective", "size", "time_s", "rate"),
    [
        ("# OSU MPI Barrier Latency Test v7.3\n# Avg Latency(us)\n             1.41\n",
         "barrier", 0, 1.41e-6, 0.0),
        ("# OSU MPI Bandwidth Test v5.6\n# Size      Bandwidth (MB/s)\n1024     500.0\n",
         "bandwidth", 1024, None, 5e8),
        ("# OSU MPI-CUDA Latency Test v4.4.1\n# Send Buffer on DEVICE (D) and Receive Buffer on"
         " DEVICE (D)\n# Size          Latency (us)\n1024   2.0\n", "latency", 1024, 2e-6, 5.12e8),
        ("# OSU MPI Non-blocking Allreduce Latency Test v5.6.3\n# Overall = Coll. Init + Compute"
         " + MPI_Test + MPI_Wait\n\n# Size           Overall(us)       Compute(us)    Pure"
         " Comm.(us)        Overlap(%)\n4    8.0    5.3    4.4   22.0\n",
         "iallreduce", 4, 8e-6, 5e5),
        ("# OSU MPI Multiple Bandwidth / Message Rate Test v5.6.2\n# [ pairs: 1 ] [ window size:"
         " 64 ]\n# Size                  MB/s        Messages/s\n2   16.0   7962625.43\n",
         "multiplebandwidthmessagerate", 2, None, 16e6),
        ("# OSU MPI All-to-All Personalized Exchange Latency Test v5.8\n# Size  Avg Latency(us)"
         "  Validation\n1 7.59 Pass\n", "alltoall", None, 7.59e-6, None),
    ],
)  # fmt: skip
def test_osu_tables(
    text: str, collective: str, size: int | None, time_s: float | None, rate: float | None
) -> None:
    """Rule: every kind of OSU table; a size that would need unknown ranks stays unknown."""
    (row,) = parse(text).rows
    assert (row.collective, row.size) == (collective, size)
    assert row.time_s == (None if time_s is None else pytest.approx(time_s))
    assert row.algbw_bytes_per_s == (None if rate is None else pytest.approx(rate))


IMB = """\
#----------------------------------------------------------------
#    Intel(R) MPI Benchmarks 2021.3, MPI-1 part
#----------------------------------------------------------------
# MPI_Datatype                   :   MPI_BYTE
# MPI_Datatype for reductions    :   MPI_FLOAT
# MPI_Op                         :   MPI_SUM
#----------------------------------------------------------------
# Benchmarking Allreduce
# #processes = 4
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            0         1000         0.04         0.05         0.04
         1024         1000         4.00         6.00         5.00
         2048    time-out
#---------------------------------------------------
# Benchmarking PingPong
# #processes = 2
# ( 2 additional processes waiting in MPI_Barrier)
#---------------------------------------------------
       #bytes #repetitions      t[usec]   Mbytes/sec
         1024         1000         2.00       512.00
# Benchmarking Barrier
# #processes = 4
 #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
         1000         1.00         3.00         2.00
# Benchmarking Alltoall
# #processes = 4
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]      defects
          256         1000         4.00         6.00         5.00         2.00
"""


def test_imb() -> None:
    """Rule: every kind of IMB table, with the element type and operation of reductions."""
    found = parse(IMB)
    _, reduced, pingpong, barrier, exchanged = found.rows
    assert (reduced.dtype, reduced.op, reduced.ranks, reduced.size) == ("float", "sum", 4, 1024)
    assert [reduced.time_s, reduced.min_s, reduced.max_s] == pytest.approx([5e-6, 4e-6, 6e-6])
    assert reduced.busbw_bytes_per_s == pytest.approx(1024 / 5e-6 * 1.5)
    assert pingpong.algbw_bytes_per_s == pytest.approx(512e6) and pingpong.ranks == 2
    assert (barrier.collective, barrier.size, barrier.time_s) == ("barrier", 0, pytest.approx(2e-6))
    assert (exchanged.size, exchanged.message, exchanged.wrong) == (1024, 256, 2)
    assert exchanged.dtype == "uint8" and [n.line for n in found.notes] == [14]


# -- our own files


@given(RESULTS)
def test_our_records_read_back(results: list[Result]) -> None:
    """Rule: the record, whichever file it went to, comes back row by row with its figures."""
    whole = parse(to_jsonl(results).decode()).rows
    assert [r.times_s for r in whole[::2]] == [r.out.times for r in results if r.out]
    for ending, export in EXPORTS.items():
        rows = parse(export(results).decode()).rows
        assert [(r.size, r.placement) for r in rows] == [(r.size, r.placement) for r in whole], (
            ending
        )
        assert [r.time_s for r in rows] == pytest.approx([r.time_s for r in whole])
        assert [r.low_s for r in rows] == [r.low_s for r in whole]


def test_a_power_cut_and_a_newer_format(tmp_path: Path) -> None:
    """Rule: a cut line is said and the rest kept; a format of the future is refused by name."""
    data = to_jsonl([_result(1024, (1e-3,) * 6), _result(2048, (1e-3,) * 6)])
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(gzip.compress(data[:-30]))
    found = read(path)
    assert [r.size for r in found.rows] == [1024] and found.notes[0].line == 3
    path.write_bytes(gzip.compress(data.replace(b'"format":2', b'"format":99')))
    with pytest.raises(ReportError, match="format 99"):
        read(path)


def test_format_1_loads_for_ever() -> None:
    """Rule: a file of this format, kept as it was written, gives the same figures in any version."""
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
    assert (out.time_s, out.limit_s, out.wrong, out.schedule) == (3e-5, 2.4e-5, 0, "1fa61d53bd123f1d")  # fmt: skip
    assert out.times_s == (3e-5, 2e-5, 4e-5)
    assert out.per_rank_s == ((1e-5, 2e-5, 3e-5), (3e-5, 1e-5, 4e-5))
    assert (out.clock_memory_hz, out.energy_per_op_j) == (3.2e9, 12.98)
    assert (into.clock_memory_hz, into.energy_per_op_j) == (None, None)
    assert (into.skipped, into.time_s, into.per_rank_s) == ("too large", None, ())
    assert other.algorithm == "library" and other.schedule == "" and other.limit_s is None
    environment = out.run.environment
    assert environment is other.run.environment and environment["fingerprint"] == [
        "7870c998e71c3077"
    ]
    assert environment["mapping"] == {"node": [0, 0], "cpus": ["0", "1"], "gpu": ["", ""]}


def test_a_record_without_its_run_is_kept_and_said() -> None:
    """Rule: records that were cut out of a file keep their figures; only their machine is unknown."""
    lines = (Path(__file__).parent / "golden" / "format2.jsonl").read_text().splitlines()
    found = parse("\n".join(lines[1:]))
    assert len(found.rows) == 3 and found.rows[0].run.environment == {}
    assert ["missing" in note.text for note in found.notes] == [True]


def test_a_run_directory_is_all_its_records(tmp_path: Path) -> None:
    """Rule: a folder reads as the records in it; one without any is an error."""
    with pytest.raises(ReportError, match="without records"):
        read(tmp_path)
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(to_jsonl([_result(1024, (1e-3,) * 6)]))
    assert len(read(tmp_path).rows) == 2


def test_the_frame_has_the_documented_columns(tmp_path: Path) -> None:
    """Rule: one DataFrame whatever the source: the same columns, the same types, None as missing."""
    frames = []
    for name, text in (("a", OSU), ("b", IMB), ("c", OLD), ("d", json.dumps(DOCUMENT))):
        (tmp_path / name).write_text(text)
        frames.append(load(tmp_path / name))
    assert all(list(f.columns) == list(COLUMNS) for f in frames)
    assert len({tuple(map(str, f.dtypes)) for f in frames}) == 1
    documented = Path(__file__).parents[2] / "docs" / "reports.md"
    assert all(f"`{c}`" in documented.read_text() for c in COLUMNS)


def test_ranks_can_be_given(tmp_path: Path) -> None:
    """Rule: what a log does not say can be said, and what follows from it is filled in."""
    path = tmp_path / "log"
    path.write_text("# OSU MPI Allgather Latency Test v5\n# Size  Avg Latency(us)\n1024 2.0\n")
    assert read(path).rows[0].size is None
    row: Row = read(path, ranks=4).rows[0]
    assert row.size == 4096 and row.busbw_bytes_per_s == pytest.approx(4096 / 2e-6 * 0.75)


# -- anything at all

PIECES = st.sampled_from([*OLD.split("\n"), *OSU.split("\n"), *IMB.split("\n"), *BITWISE.split("\n"),
                          INFO, json.dumps(DOCUMENT), "{", "[", '{"results":[', "\x00", "size algbw time",
                          to_jsonl([_result(8, (1e-3,) * 6)]).decode(), "collective,algorithm,\n"])  # fmt: skip


@given(st.lists(st.one_of(PIECES, st.text(max_size=40), st.from_regex(r"[\d .e#+-]{0,60}")), max_size=12),
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
