"""Pairs of ranks: what OSU's users ask for, over messages and one-sided, proven and kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.options.options import Pairing, parse
from bench.run.contenders import Contender, each, pair_jobs, rows
from bench.run.rows import Overlap
from busbar.errors import Unsupported
from collectives.schedule.dtypes import dtype
from reports.readers.codec import measurements
from reports.readers.reading import parse as parse_log
from reports.readers.reading import read
from reports.records.measurement import GpuSample, Record
from tests.conftest import Mpi, Run, good, on_threads, table_rows
from tests.slow_ends import HELD, slower_ends
from tests.together import together

TESTS = ("latency", "bandwidth", "bidirectional_bandwidth")


def test_threads_have_messages_and_no_reach() -> None:
    """Rule: every test is right over messages; where no rank reaches another's memory N/A says so.

    An odd rank has no partner and takes no part. A table says once why rows are left out.
    """
    argv = ("--ranks", "5", "-b", "1", "-e", "32K", "-f", "181", "-n", "2", "-A", "two_sided,put")
    out = good(on_threads("pt2pt", *argv))
    found = table_rows(out)
    assert len(found) == 3 * 2 * 3
    messages = [row for row in found if row[5] != "N/A"]
    assert len(messages) == 3 * 3 and all(row[8] == "0" for row in messages)
    assert out.count("--transport inproc has no put: no rank reaches another's memory") == 3
    for test in TESTS:
        assert re.search(rf"# {test}, .*5 ranks over inproc", out)


@pytest.mark.parametrize("test", TESTS)
@given(st.integers(1, 70), HELD)
def test_no_message_takes_no_time_however_late_an_end_is(
    test: str, window: int, held: list[tuple[float, float]]
) -> None:
    """Rule: the slower end's clock has the time that a message travels, in every iteration."""
    options = parse(["-A", "two_sided", "-b", "16", "-e", "16"], "pt2pt")
    (job,) = pair_jobs(options, Pairing((test,), window, None), 2)
    (wanted,) = job.chosen
    chosen = wanted.at(16)
    assert isinstance(chosen, Contender)
    times = slower_ends(chosen.schedule(0), 1.0, (0.0, 0.0), held)
    assert all(took >= 1 - 1e-9 for took in times)


@given(
    st.integers(2, 9), st.data(), st.integers(1, 70), st.sampled_from(["two_sided", "put", "get"])
)
def test_any_pairing_is_proven_and_moves_what_it_times(
    nranks: int, data: st.DataObject, window: int, way: str
) -> None:
    """Rule: each message arrives in a place of its own; an iteration moves as many as it holds."""
    count = data.draw(st.none() | st.integers(1, nranks // 2))
    options = parse(["-A", way, "-b", "16", "-e", "16"], "pt2pt")
    for job in pair_jobs(options, Pairing(TESTS, window, count), nranks):
        (row,) = rows(job.spec, job.options, nranks)
        (wanted,) = job.chosen
        wanted.prove()
        chosen = wanted.at(row.size)
        assert isinstance(chosen, Contender)
        sent, received = chosen.traffic(row.elements, dtype(row.dtype).itemsize, 0)
        both = job.spec.name == "bidirectional_bandwidth"
        answer = 0 if way != "two_sided" or job.spec.name != "bandwidth" else 4
        if job.spec.name == "latency" and way == "two_sided":
            assert sent == received == chosen.holds * 16 // 2
        else:
            assert {sent, received} <= {chosen.holds * 16, max(answer, chosen.holds * 16)}
        pairs = nranks // 2 if count is None else count
        aggregate = 1 if job.spec.name == "latency" else pairs * (1 + both)
        assert job.spec.bus_factor(nranks) == aggregate


def test_more_pairs_than_ranks_are_refused() -> None:
    """Rule: one line with the ranks that it takes."""
    with pytest.raises(Unsupported, match="--pairs 3 takes 6 ranks, and there are 4; --ranks 6"):
        pair_jobs(parse([], "pt2pt"), Pairing(TESTS, 64, 3), 4)
    with pytest.raises(Unsupported, match="a pair takes 2 ranks, and there is 1; --ranks 2"):
        pair_jobs(parse([], "pt2pt"), Pairing(TESTS), 1)


def test_a_row_times_one_of_what_an_iteration_holds() -> None:
    """Rule: times, also every rank's own, and joules are those of one message.

    Counts of bytes are of iterations.
    """
    times = (64e-6, 128e-6)
    whole = Record(times_s=times, warm_up_s=times, per_rank_s=(times,), sent_bytes=64, wrong=0)
    one = each(whole, 64)
    assert one.times_s == (1e-6, 2e-6) == one.per_rank_s[0] == one.warm_up_s
    assert one.sent_bytes is None and one.wrong == 0 and one.per_iteration == 64
    assert each(whole, 1) == whole
    silent = GpuSample(operations=5)
    whole = Record(gpus=(GpuSample(operations=5, energy_j=640.0, energy_per_op_j=128.0), silent))
    loud, silent = each(whole, 64).gpus
    assert (loud.operations, loud.energy_j, loud.energy_per_op_j) == (320, 640.0, 2.0)
    assert (silent.operations, silent.energy_per_op_j) == (320, None)


def test_osus_logs_have_the_same_names() -> None:
    """Rule: what OSU calls a test is read by the name that ours writes."""
    titles = ("Latency", "Bandwidth", "Bi-Directional Bandwidth")
    text = "".join(
        f"# OSU MPI {t} Test v7.4\n# Size      {u}\n8     1.5\n"
        for t, u in zip(
            titles, ("Latency (us)", "Bandwidth (MB/s)", "Bandwidth (MB/s)"), strict=True
        )
    )
    assert tuple(row.collective for row in parse_log(text).rows) == TESTS


def test_overlap_is_imbs() -> None:
    """Rule: all is hidden where both take as long as the longer, nothing where one waits."""
    assert Overlap(1.0, 2.0, 2.0).share == 1.0 and Overlap(1.0, 2.0, 3.0).share == 0.0
    assert Overlap(1.0, 2.0, 2.5).share == 0.5 and Overlap(1.0, 2.0, 2.5).exposed == 0.5
    assert Overlap(1.0, 1.0, 9.0).share == 0.0 and Overlap(0.0, 1.0, 1.0).share == 0.0
    assert Overlap(1.0, 2.0, 1.9).share == 1.0 and Overlap(1.0, 2.0, 1.9).exposed == 0.0


def test_mpi_and_shared_memory(mpi: Mpi, run: Run, tmp_path: Path) -> None:
    """Rule: messages, puts and gets are right over MPI and shm, in several pairs as in one.

    Records are read again with the rates of all pairs. Every collective has a non-blocking form
    that is as right, and says what computing hid of it. Under Open MPI a pair stands for several.
    """
    ranks = 4 if mpi.name == "mpich" else 2
    file = tmp_path / "pairs.jsonl"
    once = ("-n", "1", "-w", "0", "-b", "16K", "-e", "16K")
    pairs = ("-m", "bench.pt2pt", "-A", "all", *once)
    begun = ("-m", "bench", "all", "-A", "nonblocking", "--transport", "mpi", "--placement", "out")
    shm = ("--transport", "shm", "--pairs", "1", "--window", "3", "--tests", "bandwidth")
    done = together(
        run,
        mpi,
        ranks,
        (*pairs, "--transport", "mpi", "--out", str(file)),
        (*pairs, *shm, "-b", "1", "-f", "16384"),
        (*pairs, "--ranks", "3"),
        (*pairs, "--ranks", str(ranks), "--host", "a"),
        (*begun, *once, "-d", "int32"),
    )
    for one, lines in zip(done, (9, 6), strict=False):
        assert one.returncode == 0, one.stderr
        found = table_rows(one.stdout)
        assert len(found) == lines and all(row[8] == "0" for row in found), one.stdout
    assert "put:pairs=1:window=3" in done[1].stdout
    assert "messages/s" in done[0].stdout
    refused = f"--ranks 3, but the launcher started {ranks}"
    assert done[2].returncode == 2 and refused in done[2].stderr
    assert done[3].returncode == 2 and "a launcher has started these" in done[3].stderr
    found = table_rows(done[4].stdout)
    assert done[4].returncode == 0 and len(found) == 12, done[4].stderr
    assert all(row[8] in ("0", "N/A") for row in found)
    assert done[4].stdout.count(" %, exposed ") >= 12
    records = measurements(file.read_text())
    assert {r.algorithm for r in records} == {"two_sided", "put", "get"}
    shown = read(file).rows
    two = next(r for r in shown if r.collective == "bandwidth" and r.size == 16384)
    all_pairs = ranks // 2 * 16384
    assert two.time_s and two.busbw_bytes_per_s == pytest.approx(all_pairs / two.time_s)
