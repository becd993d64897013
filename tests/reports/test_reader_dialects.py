"""Logs as their programs wrote them over the years and as launchers and traces mixed them up."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from busbar.errors import ReportError
from reports.readers.reading import parse, read
from reports.records.measurement import Reading

HEAD = "#       size         count      type   redop    root     time   algbw   busbw #wrong"
HEAD += "     time   algbw   busbw #wrong\n"
START = "        2048           512     float     sum      -1"
OUT = "    20.00    0.10    0.15      0"
IN = "    40.00    0.05    0.08      0"


def _times(found: Reading) -> list[tuple[int | None, str, float | None, int | None]]:
    return [(r.size, r.placement, r.time_s, r.wrong) for r in found.rows]


WHOLE = [(2048, "out", pytest.approx(20e-6), 0), (2048, "in", pytest.approx(40e-6), 0)]

# -- nccl-tests

OLDEST = """\
nThread 1 nGpus 2 minBytes 8 maxBytes 8388608 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
# Using devices
#   Rank  0 on       box1 device  0 [0x0a] Some GPU
#   Rank  1 on       box1 device  1 [0x0b] Some GPU

#                                                 out-of-place                    in-place
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
        8192          2048   float     sum    0.040   0.20   0.20    0e+00    0.050   0.16   0.16    2e-07
     8388608       2097152   float     sum    1.000   8.39   8.39    0e+00    2.000   4.19   4.19  \tN/A
 Out of bounds values : 0 OK
 Avg bus bandwidth    : 3.28
"""


def test_the_tables_before_2019_are_in_milliseconds() -> None:
    """Rule: ``bytes N … res`` is the same table in another unit, and says the ranks as well."""
    found = parse(OLDEST)
    assert [r.time_s for r in found.rows] == pytest.approx([40e-6, 50e-6, 1e-3, 2e-3])
    assert [r.error for r in found.rows] == [0.0, 2e-7, 0.0, None]
    first = found.rows[0]
    assert (first.collective, first.op, first.ranks, first.count) == ("allreduce", "sum", 2, 2048)
    assert first.wrong is None and first.iterations == 20


def test_rows_of_that_time_without_their_header() -> None:
    """Rule: size and rate then say that the times are milliseconds, and that is said in turn."""
    found = parse("\n".join(line for line in OLDEST.split("\n") if not line.startswith("#")))
    assert [r.time_s for r in found.rows] == pytest.approx([40e-6, 50e-6, 1e-3, 2e-3])
    assert [r.error for r in found.rows][:2] == [0.0, 2e-7] and found.rows[0].wrong is None
    assert any("milliseconds" in note.text for note in found.notes)


@pytest.mark.parametrize("name", ["all_gather_perf", "reduce_scatter_perf", ""])
@pytest.mark.parametrize("devices", [4, 0])
def test_algbw_without_a_ranks_own_part(name: str, devices: int) -> None:
    """Rule: until 2020 all-gather's and reduce-scatter's algbw was (n - 1)/n of size / time.

    Such a table is whole: busbw is as printed, algbw is size / time, and that is said. A row that
    fits neither is refused.
    """
    listed = "".join(
        f"#   Rank  {n} Pid 1 on box1 device  {n} [0x0a] GPU\n" for n in range(devices)
    )
    head = "#       size         count    type     time   algbw   busbw  error     time   algbw   busbw"
    rows = (
        "         256            16   float    30.00    0.01    0.01  0e+00    30.00    0.01    0.01  0e+00\n"
        "    33554432       2097152   float    300.0   83.89   83.89  0e+00    310.0   81.18   81.18  0e+00\n"
        "    67108864       4194304   float    600.0   83.89   83.89  0e+00    610.0   81.18   82.51  0e+00\n"
    )
    found = parse(f"$ ./{name} -b 1\n{listed}{head}  error\n{rows}")
    assert [(row.size, row.placement) for row in found.rows][2:] == [
        (33554432, "out"), (33554432, "in"), (67108864, "out"),
    ]  # fmt: skip
    last = found.rows[-1]
    assert last.algbw_bytes_per_s == pytest.approx(67108864 / 600e-6)
    assert last.busbw_bytes_per_s == pytest.approx(83.89e9)
    assert last.ranks == 4
    assert any("own part" in note.text for note in found.notes)
    assert [note.line for note in found.notes if "not read" in note.text] == [devices + 5]


def test_several_jobs_in_one_log_are_said() -> None:
    """Rule: a rank that is listed twice means jobs side by side, of which each row has one."""
    device = "#  Rank  0 Group  0 Pid {} on box1 device  0 [0x1b] Some GPU\n"
    row = START + OUT + IN + "\n"
    for pids, told in (([11], 0), ([11, 12, 13], 1)):
        found = parse("".join(map(device.format, pids)) + HEAD + row * len(pids))
        assert len(found.rows) == 2 * len(pids)
        assert sum("rank 0 is listed again" in note.text for note in found.notes) == told


def test_a_starred_error_is_kept_and_said() -> None:
    """Rule: RCCL's star behind a deviation loses no row and fails the run."""
    head = HEAD.replace("#wrong", " error")
    found = parse(
        head + START + "    20.00    0.10    0.15 1e+00*    40.00    0.05    0.08  0e+00\n"
    )
    assert [(r.placement, r.error) for r in found.rows] == [("out", 1.0), ("in", 0.0)]
    assert [n.line for n in found.notes if "stars the error of 1 row " in n.text and n.broken] == [
        2
    ]


def test_values_out_of_bounds_that_no_row_shows_are_said() -> None:
    """Rule: the count below the table fails the run where no row shows wrong values, only there."""
    below = "\n# Out of bounds values : 3 FAILED\n"
    found = parse(HEAD + START + OUT + IN + below)
    assert [n.line for n in found.notes if "3 values out of bounds" in n.text and n.broken] == [3]
    shown = parse(HEAD + START + OUT[:-1] + "3" + IN + below)
    assert not any("out of bounds" in n.text for n in shown.notes)
    assert shown.rows[0].wrong == 3


def test_a_column_after_both_halves_is_the_rows_iterations() -> None:
    """Rule: ``#iters`` belongs to the row; what the header names is no surplus."""
    found = parse(HEAD.rstrip() + "  #iters\n" + START + OUT + IN + "      33\n")
    assert [r.iterations for r in found.rows] == [33, 33] and _times(found) == WHOLE
    assert not any("beyond" in n.text for n in found.notes)


@pytest.mark.parametrize(
    "lines",
    [
        # A kernel's own message, glued to the type, the operation, the root, the count of errors.
        ["        2048           512     float[enqueue.cu:1097] <k> Rank<4>", "[x.cu:3] more", OUT + IN],
        [START.replace("sum      -1", "sum[enqueue.cu:10] <k> QUIT"), OUT + IN],
        [START + "nChannels in all_reduce: 2", "nChannels in all_reduce: 2", OUT + IN],
        [START + OUT + "box1: Test passed a point", IN],
        # A build that traces itself, before NCCL's messages and before its own.
        ["TimeTest(), common.cu:610," + START + "box1:77:77 [0] ncclEnqueueCheck, 2306 NCCL INFO x",
         "BenchTime(), common.cu:561," + OUT + "BenchTime(), common.cu:561," + IN],
        ["TimeTest(), common.cu:610," + START + "BenchTime(), common.cu:561," + OUT
         + "BenchTime(), common.cu:561," + IN + "TimeTest(), common.cu:613,"],
    ],
)  # fmt: skip
def test_messages_glued_to_a_row_of_any_kind(lines: list[str]) -> None:
    """Rule: what a program writes into a row neither loses it nor becomes a figure of it."""
    hosts = "box1:77:77 [0] someFunction, 12 NCCL INFO comm 0x1 rank 0 nranks 4\n"
    found = parse(hosts + HEAD + "\n".join(lines) + "\n")
    assert _times(found) == WHOLE and found.rows[0].op in ("sum", "")


def test_a_run_that_timed_out_keeps_the_half_that_it_printed() -> None:
    """Rule: an abort's message behind the last figure costs the half that is missing, no more."""
    found = parse(HEAD + START + OUT + "box1: Test timeout (1000s) /src/all_reduce.cu:1\n")
    assert _times(found) == WHOLE[:1]


def test_prose_that_begins_like_a_row_is_no_row() -> None:
    """Rule: two numbers and a word are not reported unless the word is a type."""
    prose = "Last login: Fri Oct  4 12:48:18 2024 from 10.9.8.7\n"
    assert not [n for n in parse(HEAD + START + OUT + IN + "\n" + prose).notes if n.line == 3]


@pytest.mark.parametrize(
    ("name", "collective"),
    [("nccl_allgather.log", "allgather"), ("n2.all_to_all_output.dat.1.txt", "alltoall"),
     ("gather_vs_scatter.log", ""), ("results.log", ""), ("all_reduce.txt", "")],
)  # fmt: skip
def test_the_files_name_tells_what_no_line_and_no_column_tells(
    tmp_path: Path, name: str, collective: str
) -> None:
    """Rule: one collective in the name is taken and said.

    Several, or an impossible one, are not.
    """
    path = tmp_path / name
    path.write_text(HEAD + START.replace(" sum ", "none ") + OUT + IN)
    found = read(path)
    assert {r.collective for r in found.rows} == {collective}
    assert any("file's name" in n.text for n in found.notes) == bool(collective)


RCCL = [
    {"numCycle": 1, "name": "AllReduce", "ranks": 8, "size": 1024, "type": "float", "redop": "sum",
     "inPlace": place, "time": 20.0 + place, "algBw": 0.05, "busBw": 0.09, "wrong": wrong}
    for place, wrong in ((0, "0"), (1, "N/A"))
]  # fmt: skip


def test_rccl_json() -> None:
    """Rule: each object is a row, its placement a number; what is not counted is no zero.

    An object without a time is said.
    """
    found = parse(json.dumps([*RCCL, {**RCCL[0], "time": "N/A"}]))
    (note,), (out, into) = found.notes, found.rows
    assert "object 2 not read" in note.text
    assert (out.collective, out.ranks, out.dtype, out.op) == ("allreduce", 8, "float", "sum")
    assert [(r.placement, r.wrong) for r in (out, into)] == [("out", 0), ("in", None)]
    assert out.time_s == pytest.approx(20e-6) and out.busbw_bytes_per_s == pytest.approx(9e7)


# -- OSU and IMB

OSU = """\
# OSU MPI Allgather Latency Test v7.5
# Size       Avg Latency(us)
4                      10.05
8                      12.05
"""
IMB = """\
# Benchmarking Bcast
# #processes = 4
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
         1024         1000         4.00         6.00         5.00
"""
LABELS = [
    "    ", "2026-05-01T12:00:00.123456789Z stdout F ", "May 01 12:00:00 box1 job[123]: ",
    "2026-05-01 12:00:00,123 - root - INFO - ", "(head, rank=0, pid=1234) ", "[rank0]:",
    "#12 3.456 ", "[1714564800.123456] ", "Rank 0: ", "task 0: ", "│ ", "[box1:12345,1,0]<stdout>: ",
    " 0: ", "gpu-node-012: ", "10.0.0.12: ", "node[01-12]: ", "[pod/launcher-x12/main] ", "worker-12  | ",
    "[pod/a-b12/main] 2026-05-01T12:00:00.123456789Z ", "build\tRun tests\t2026-05-01T12:00:12.1234567Z ",
]  # fmt: skip


def test_a_failed_validation_is_no_lost_row() -> None:
    """Rule: the row stays, counts as wrong, and that the number is not known is said."""
    text = "# OSU MPI Allreduce Latency Test v7.5\n# Size  Avg Latency(us)  Validation\n"
    found = parse(text + "4 10.00 Pass\n8 12.00 Fail\n16 12.00 What\n")
    assert [r.wrong for r in found.rows] == [0, 1]
    assert [n.line for n in found.notes] == [4, 5] and "not said" in found.notes[0].text


def _bytes(text: str) -> dict[str, bytes]:
    """A log in the shapes that files take on their way."""
    ends = {"dos": "\r\n", "mac": "\r", "twice": "\r\r\n"}
    found = {name: text.replace("\n", end).encode() for name, end in ends.items()}
    found |= {"bom": b"\xef\xbb\xbf" + text.encode(), "utf-16": text.encode("utf-16")}
    found |= {name: text.encode(name) for name in ("utf-16-le", "utf-16-be")}
    found |= {
        "gzip": gzip.compress(text.encode("utf-16")),
        "blanks": text.replace("  ", "\xa0 ").encode(),
    }
    found["overwritten"] = text.replace("# Using", "loading 10%\rloading 99%\r# Using").encode()
    return found


@pytest.mark.parametrize("shape", _bytes(""))
def test_a_log_is_read_whatever_its_bytes(tmp_path: Path, shape: str) -> None:
    """Rule: line ends, byte orders, with a mark or without, gzip, and a web page's blanks."""
    nccl = (
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 8\n# Using devices\n"
        + HEAD
        + START
        + OUT
        + IN
        + "\n"
    )
    path = tmp_path / "log"
    for text in (OSU, IMB, nccl):
        path.write_bytes(_bytes(text)[shape])
        figures = [(r.collective, r.message, r.time_s) for r in read(path).rows]
        assert figures == [(r.collective, r.message, r.time_s) for r in parse(text).rows]


@pytest.mark.parametrize(
    ("magic", "name"),
    [(b"BZh91AY", "bzip2"), (b"\xfd7zXZ\0", "xz"), (b"PK\x03\x04", "zip"), (b"(\xb5/\xfd", "zstd")],
)
def test_what_is_packed_otherwise_is_said(tmp_path: Path, magic: bytes, name: str) -> None:
    """Rule: no search for rows in what has none; the message says what to do."""
    (tmp_path / "log").write_bytes(magic + bytes(100))
    with pytest.raises(ReportError, match=f"{name} data; unpack it first"):
        read(tmp_path / "log")


@pytest.mark.parametrize("label", LABELS)
def test_any_label_before_each_line_is_learned(label: str) -> None:
    """Rule: what stands before a benchmark's title stands before its rows, with other numbers."""
    nccl = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8\n" + HEAD + START + OUT + IN + "\n"
    for text in (OSU, IMB, nccl):
        plain = [(r.collective, r.message, r.time_s) for r in parse(text).rows]
        labels = [label, label.replace("12", "47")]
        mixed = [labels[n % 2] + line for n, line in enumerate(text.split("\n"))]
        found = parse("\n".join(mixed))
        assert [(r.collective, r.message, r.time_s) for r in found.rows] == plain and plain


@pytest.mark.parametrize(
    ("launch", "ranks"),
    [
        ("srun -N2 --ntasks-per-node=4 ./osu_allgather", 8),
        ("srun -N2 --mpi=pmi2 ./osu_allgather", 2),
        ("[0] MPI startup(): 0       29790    box-0  {0,4}\n"
         "[0] MPI startup(): 1       3243     box-1  {0,4}", 2),
    ],
)  # fmt: skip
def test_ranks_of_osu_from_the_lines_above(launch: str, ranks: int) -> None:
    """Rule: Slurm's nodes and tasks, and Intel MPI's list of ranks, say how many there were."""
    row = parse(launch + "\n\n" + OSU).rows[0]
    assert (row.ranks, row.message, row.size) == (ranks, 4, 4 * ranks)


@pytest.mark.parametrize(
    ("title", "collective", "ranks"),
    [("MPI_Get latency", "getlatency", 2), ("MPI_Put Bandwidth", "putbandwidth", 2),
     ("MPI Multi Latency", "multilatency", None), ("MPI Latency", "latency", 2),
     ("MPI Multi-threaded Latency", "multithreadedlatency", 2)],
)  # fmt: skip
def test_osu_benchmarks_are_told_apart(title: str, collective: str, ranks: int | None) -> None:
    """Rule: one-sided and multiple pairs are not the latency of two processes."""
    row = parse(f"# OSU {title} Test v5.7.1\n# Size          Latency (us)\n4   2.0\n").rows[0]
    assert (row.collective, row.ranks, row.transport) == (collective, ranks, "mpi")


def test_tables_of_neighbours() -> None:
    """Rule: Neuron's nccom-test, OSU in Python and IMB's rates without times are the same rows."""
    for time in ("time(us)", "time:avg(us)"):
        neuron = f"     size(B)    count(elems)     type    {time}    algbw(GB/s)    busbw(GB/s)\n"
        neuron += "    33554432   33554432    uint8         768          43.69   43.69\n"
        row = parse(neuron).rows[0]
        assert (row.size, row.dtype, row.time_s) == (2**25, "uint8", pytest.approx(768e-6))
        assert row.algbw_bytes_per_s == row.busbw_bytes_per_s == pytest.approx(43.69e9)
    row = parse(
        "# OMB-Py MPI Allreduce Latency Test\n# Size (B)   Avg Latency(us)\n4     8.0\n"
    ).rows[0]
    assert (row.collective, row.message, row.time_s) == ("allreduce", 4, pytest.approx(8e-6))
    head = "# Benchmarking Uniband\n# #processes = 2\n"
    row = parse(
        head + "  #bytes #repetitions   Mbytes/sec   Msg/sec\n  1024  1000  1500.00  1464843\n"
    ).rows[0]
    assert (row.time_s, row.algbw_bytes_per_s, row.ranks) == (None, None, 2)
    assert (row.bandwidth_bytes_per_s, row.messages_per_s) == (pytest.approx(1.5e9), 1464843)


def test_imb_modes_of_one_benchmark_are_two() -> None:
    """Rule: IMB-EXT's aggregated and single operations do not become samples of one row."""
    text = "# Benchmarking Unidir_Get\n# #processes = 2\n"
    for mode in ("AGGREGATE", "NON-AGGREGATE"):
        text += f"# Benchmarking Unidir_Get\n# #processes = 2\n#    MODE: {mode}\n"
        text += "  #bytes #repetitions  t[usec]  Mbytes/sec\n  4  1000  2.00  2.00\n"
    names = [row.collective for row in parse(text).rows]
    assert names == ["unidirgetaggregate", "unidirget"]


def test_a_table_without_rows_is_said() -> None:
    """Rule: a run that died after its header is a note, not silence, and so is what it died of."""
    assert [n.line for n in parse(OSU.split("4   ")[0] + "Segmentation fault\n").notes] == [2, 3]
    assert [n.line for n in parse(IMB.rsplit("\n", 2)[0] + "\n").notes] == [3]


@pytest.mark.parametrize("escape", ["\x1b", "", "\ufffd", "^[", "\\u001b"])
def test_colours_whose_escape_characters_were_lost(escape: str) -> None:
    """Rule: a colour is no text, whatever became of the character that begins it."""
    row = f"{escape}[32m{START}{OUT}{IN}{escape}[0m"
    assert _times(parse(HEAD + row)) == WHOLE
