"""Dialects of OSU and IMB: what was printed is what is read."""

import pytest

from reports.readers.reading import parse
from tests.reports.logs import IMB, OSU


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
        ("# OSU MPI Bandwidth Test v7.5\n# Size   Bandwidth (MB/s)   P50 Tail BW(MB/s)   P99 Tail"
         " BW(MB/s)\n64   500.0   480.0   210.0\n", "bandwidth", 64, None, 5e8),
        ("# OSU MPI Latency Test v7.0\n# Size   Latency (us)   Transmit Size\n64   2.0   48\n",
         "latency", 64, 2e-6, 32e6),
        ("# OSU MPI-CUDA Latency Test v4.4.1\n# Send Buffer on DEVICE (D) and Receive Buffer on"
         " DEVICE (D)\n# Size          Latency (us)\n1024   2.0\n", "latency", 1024, 2e-6, 5.12e8),
        ("# OSU MPI Non-blocking Allreduce Latency Test v5.6.3\n# Overall = Coll. Init + Compute"
         " + MPI_Test + MPI_Wait\n\n# Size           Overall(us)       Compute(us)    Pure"
         " Comm.(us)        Overlap(%)\n4    8.0    5.3    4.4   22.0\n",
         "iallreduce", 4, 4.4e-6, 4 / 4.4e-6),
        ("# OSU MPI Multiple Bandwidth / Message Rate Test v5.6.2\n# [ pairs: 1 ] [ window size:"
         " 64 ]\n# Size                  MB/s        Messages/s\n2   16.0   7962625.43\n",
         "mbw_mr", 2, None, 16e6),
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
    found = row.bandwidth_bytes_per_s if row.time_s is None else row.algbw_bytes_per_s
    assert found == (None if rate is None else pytest.approx(rate))


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


def _imb(name: str, columns: str, *rows: str) -> str:
    return "\n".join([f"# Benchmarking {name}", "# #processes = 4", columns, *rows, ""])


@pytest.mark.parametrize("unit", [1e6, 2**20])
@pytest.mark.parametrize(("name", "times"), [("PingPong", 1), ("Sendrecv", 2), ("Exchange", 4)])
def test_imbs_megabytes_are_those_of_its_figures(name: str, times: int, unit: float) -> None:
    """Rule: Mbytes/sec are 2^20 bytes up to IMB 4 and 10^6 later; size and time say which."""
    head, cells = "#bytes #repetitions t[usec] Mbytes/sec", "{0} 9 {1:.2f} {2:.2f}"
    if times > 1:
        head = "#bytes #repetitions t_min[usec] t_max[usec] t_avg[usec] Mbytes/sec"
        cells = "{0} 9 1.00 {1:.2f} 1.20 {2:.2f}"
    sizes = {0: 1.59, 1: 1.77, 64: 1.8, 65536: 18.11, 4194304: 711.98}
    rows = [cells.format(n, us, times * n / us * 1e6 / unit) for n, us in sizes.items()]
    *_, last = parse(_imb(name, head, *rows)).rows
    expected = times * 4194304 / 711.98e-6
    assert last.bandwidth_bytes_per_s == pytest.approx(expected, rel=1e-4)
    uniband = f"1024 9 {1e9 / unit * 1.024:.2f} 1000000"
    (row,) = parse(_imb("Uniband", "#bytes #repetitions Mbytes/sec Msg/sec", uniband)).rows
    assert row.bandwidth_bytes_per_s == pytest.approx(1.024e9, rel=1e-4)


def test_a_part_a_rank_in_imb_is_the_whole_in_osu() -> None:
    """Rule: IMB's Reduce_scatter_block counts one rank's part, OSU's the whole vector."""
    head = "#bytes #repetitions t_min[usec] t_max[usec] t_avg[usec]"
    (row,) = parse(_imb("Reduce_scatter_block", head, "1024 9 4.00 6.00 5.00")).rows
    assert (row.collective, row.message, row.size) == ("reduce_scatter", 1024, 4096)
    assert row.algbw_bytes_per_s == pytest.approx(4096 / 5e-6)
    (row,) = parse(_imb("Reduce_scatter", head, "1024 9 4.00 6.00 5.00")).rows
    assert (row.message, row.size) == (1024, 1024)
    osu = "$ mpirun -np 4 x\n# OSU MPI Reduce_scatter_block Latency Test v7.4\n"
    assert parse(f"{osu}# Size Avg Latency(us)\n1024 5.0\n").rows[0].size == 1024


@pytest.mark.parametrize(
    ("title", "collective", "ranks", "size", "transport"),
    [
        ("MPI Allreduce Persistent Latency", "persistent_allreduce", 4, 1024, "mpi"),
        ("MPI All-to-All Personalized Exchange Persistent Latency", "persistent_alltoall", 4, 4096,
         "mpi"),
        ("MPI-CUDA Bi-Directional Bandwidth Persistent", "persistent_bidirectional_bandwidth", 2,
         1024, "cuda"),
        ("MPI All-to-Allw Personalized Exchange Latency", "alltoallw", 4, 4096, "mpi"),
        ("MPI_Put-ROCM Latency", "putlatency", 2, 1024, "rocm"),
        ("MPI_Get Multi Latency", "getmultilatency", 4, 1024, "mpi"),
        ("NCCL-CUDA Allreduce Latency", "allreduce", 4, 1024, "nccl"),
    ],
)  # fmt: skip
def test_titles_of_osu_7(
    title: str, collective: str, ranks: int, size: int, transport: str
) -> None:
    """Rule: Persistent may stand behind the name, and an accelerator is no part of the name."""
    text = f"$ mpirun -np 4 x\n# OSU {title} Test v7.4\n# Size  Avg Latency(us)\n1024  10.00\n"
    (row,) = parse(text).rows
    assert (row.collective, row.ranks, row.size) == (collective, ranks, size)
    assert row.transport == transport


def test_versions_of_osu_may_stand_in_brackets_or_be_a_forks() -> None:
    """Rule: titles of 2008 and of a changed OSU are titles."""
    found = parse("# OSU MPI Latency Test v7.0-own+3\n# Size  Latency (us)\n8   0.24\n")
    assert [row.run.version for row in found.rows] == ["OSU 7.0-own+3"]
    found = parse(
        "# OSU MPI Bandwidth Test (Version 2.1)\n# Size\t\tBandwidth (MB/s)\n1\t\t0.425\n"
    )
    (row,) = found.rows
    assert (row.run.version, row.bandwidth_bytes_per_s) == ("OSU 2.1", 425000.0)


@pytest.mark.parametrize("launch", ["", "mpirun -np 16 ./osu_mbw_mr\n"])
def test_pairs_of_osu_mbw_mr_are_its_ranks(launch: str) -> None:
    """Rule: pairs times two take part, whatever was launched beside them."""
    title = "# OSU MPI Multiple Bandwidth / Message Rate Test v5.7.1\n"
    head = "# [ pairs: 4 ] [ window size: 64 ]\n# Size                  MB/s        Messages/s\n"
    (row,) = parse(f"{launch}{title}{head}2   16.0   7962625.43\n").rows
    assert row.ranks == 8


def test_an_imb_table_without_its_title_is_said_to_be_unnamed() -> None:
    """Rule: an empty name is told, as for tables of nccl-tests."""
    found = parse("#bytes #repetitions t_min[usec] t_max[usec] t_avg[usec]\n8 1000 1.0 1.2 1.1\n")
    (row,) = found.rows
    assert row.collective == "" and row.run.program == "IMB"
    assert [note.text for note in found.notes] == ["no line names the benchmark of this table"]


def test_oneccls_point_to_point_table_is_not_imbs() -> None:
    """Rule: equal columns make no IMB table; the program is named."""
    text = "# Benchmarking: ccl_bw\n# #processes: 2\n#bytes #repetitions Mbytes/sec\n64 9 1200.5\n"
    assert not parse(text).rows
    assert "oneCCL's point-to-point" in parse(text).notes[0].text
