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
