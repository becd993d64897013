"""A whole run over threads: tables, records, proof, memory, exit status."""

import json
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import bench.run.memory
import bench.run.rows
import bench.timing.starts
import collectives.execution.plan
from bench.cli import ranks
from bench.options.options import RunOptions
from busbar.host import hostname
from collectives.execution.inproc import transport as inproc
from collectives.execution.lower import lower
from collectives.execution.program import Program
from collectives.execution.transport import Counted
from collectives.schedule.moves import Buffer
from reports.readers.codec import measurements
from reports.records.measurement import FORMAT, Measurement
from tests.conftest import good, in_process, on_threads, table_rows

ROW = re.compile(
    r"^\s*(\d+)\s+(\d+)\s+(\S+)\s+(\S+)\s+(-?\d+)" + r"\s+([\d.e+]+|N/A)" * 8 + r"\s*$"
)


ONE = ("-b", "1K", "-e", "1K", "-n", "1", "-A", "ring")


@pytest.mark.parametrize(
    ("kinds", "operations", "rows"),
    [
        ("bfloat16,int8", "sum,avg", 2 * 2),
        pytest.param("all", "all", 10 * 5, marks=pytest.mark.thorough),
    ],
)
def test_every_algorithm_on_every_type_and_operation(
    kinds: str, operations: str, rows: int
) -> None:
    """Rule: -A all -d all -o all on 4 ranks: every row is right, in and out of place."""
    small = ("--ranks", "4", "-b", "1K", "-e", "1K", "-n", "1", "-w", "0")
    argv = (*small, "-A", "all", "-d", kinds, "-o", operations)
    found = table_rows(good(on_threads("allreduce", *argv)))
    assert len(found) == 12 * rows and all(row[8] == row[12] == "0" for row in found)


def test_the_layout_is_that_of_nccl_tests() -> None:
    """Rule: comment lines start with #, rows have nccl-tests' columns in its widths."""
    _, out, _ = on_threads("allreduce", "--ranks 2 -b 1K -e 4K -n 3 -A ring")
    # On a busy machine a row may be followed by what is said of it.
    remark = re.compile(
        "# (out-of-place:|in-place:|.* waited for a core|other programs|steal|rank)"
    )
    lines = [line for line in out.splitlines() if not remark.match(line)]
    head = next(i for i, line in enumerate(lines) if "#wrong" in line)
    half = " time algbw busbw #wrong"
    assert " ".join(lines[head].split()) == "# size count type redop root" + 2 * half
    assert lines[head - 1].split() == ["#", "out-of-place", "in-place"]
    row = lines[head + 2]
    assert ROW.match(row) and len(row) == 12 + 14 + 10 + 8 + 8 + 2 * (9 + 8 + 8 + 8)
    assert [line[:27] for line in lines if "Out of bounds" in line or "Avg bus" in line] == [
        "# Out of bounds values : 0 ",
        "# Avg bus bandwidth    : " + lines[head + 6].split()[-1][:2],
    ]


def test_what_is_asked_for_is_what_is_printed_and_kept(tmp_path: Path) -> None:
    """Rule: --statistic mean is in the rows and in -J; what goes by medians says so."""
    kept, argv = tmp_path / "run.json", ("-b", "1K", "-e", "1K", "-n", "9", "-A", "ring,tree")
    ours = ("allreduce", "--ranks 2 --statistic mean --placement out", *argv, "-J", str(kept))
    out = good(on_threads(*ours))
    (row, _), (first, _) = table_rows(out), json.loads(kept.read_text())["results"]
    assert float(row[5]) == pytest.approx(first["out_of_place"]["time"], abs=0.01, rel=0.01)
    each = first["out_of_place_per_iter"]["times_us"]
    assert first["out_of_place"]["time"] == pytest.approx(sum(each) / 9)
    assert "# above are means (--statistic)" in out
    assert "are means" not in good(on_threads("allreduce", "--ranks 2", *argv))


def test_per_iteration_columns() -> None:
    """Rule: -I adds i_min i_max i_p99 i_cv% to each half."""
    _, out, _ = on_threads("allreduce", "--ranks 2 -b 1K -e 1K -n 7 -A ring -I")
    row = next(line for line in out.splitlines() if not line.startswith("#"))
    assert len(row.split()) == 5 + 2 * 8 and out.count("i_p99") == 2


def test_bytes_counted_while_running_are_the_formula() -> None:
    """Rule: the closing table shows 2(P-1)/P for the ring, P-1 for the server, the same total."""
    _, out, _ = on_threads("allreduce", "--ranks 4 -b 4K -e 4K -n 1 -A ring,ps,library")
    tail = out[out.index("bytes moved") :].split("\n#\n")[0].splitlines()
    figures = {line.split()[1]: [float(x) for x in line.split()[2:]] for line in tail[2:]}
    assert figures == {"ring": [1.5, 1.5, 6.0], "ps": [3.0, 3.0, 6.0]}


def _spoiled(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any], None]) -> None:
    """Have every action among threads do this once it has run."""
    real = inproc._InprocAction.__call__

    def action(self: Any) -> None:
        real(self)
        spoil(self)

    monkeypatch.setattr(inproc._InprocAction, "__call__", action)


def test_wrong_elements_are_counted_and_the_first_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: #wrong is the sum over ranks, in either placement; rank, index and values are named."""

    def spoil(action: Any) -> None:
        action._buffers[1][3 : 3 + action._world.rank] = 77.0

    _spoiled(monkeypatch, spoil)
    status, out, err = on_threads("allreduce", "--ranks 4", *ONE)
    (row,) = table_rows(out)
    assert status == 1 and "FAILED" in out and (row[8], row[12]) == ("6", "6")
    assert re.search(r"rank 1: out\[3\] is 77.0, expected \d", err)


def test_what_is_not_checked_is_not_called_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: -c 0 shows N/A for #wrong, also where everything is wrong."""
    monkeypatch.setattr(inproc._InprocAction, "__call__", lambda self: None)
    (row,) = table_rows(on_threads("allreduce", "--ranks 2 -c 0", *ONE)[1])
    assert row[8] == row[12] == "N/A"
    status, out, _ = on_threads("allreduce", "--ranks 2 -c 1", *ONE)
    assert status == 1 and int(table_rows(out)[0][8]) > 0


@pytest.mark.parametrize("more", ["", "--sync window"])
@pytest.mark.parametrize("size", ["1K", "256K"])
def test_one_corrupted_iteration_of_those_timed_is_found(
    monkeypatch: pytest.MonkeyPatch, size: str, more: str
) -> None:
    """Rule: --check timed sees a single wrong element of a single timed iteration.

    -c 1 does not see it, which its heading says: it compares one iteration more. From 64 KiB on
    the comparison is by digest.
    """
    fired, lock = Counter[int](), threading.Lock()
    alive = list[Any]()  # so that no later action gets the identity of an earlier one

    def spoil(action: Any) -> None:
        with lock:
            fired[id(action)] += 1
            alive.append(action)
        if fired[id(action)] == 7 and action._world.rank == 1:
            action._buffers[1][5] += 1

    _spoiled(monkeypatch, spoil)
    argv = ("--ranks", "2", "-b", size, "-e", size, "-n", "10", "-A", "ring", *more.split())
    status, out, err = on_threads("allreduce", *argv)
    assert status == ("every row was skipped" in err)  # on a busy machine
    assert "# checked: one more iteration after the timed ones" in out
    fired.clear()
    status, out, err = on_threads("allreduce", *argv, "-c", "timed")
    (row,) = table_rows(out)
    # On a busy machine no window may begin in time; what was wrong in it is said all the same.
    assert (row[8], row[12]) == ("1", "1") or (more and "N/A" in row)
    assert status == 1 and "# checked: every timed iteration" in out
    assert re.search(r"rank 1: out\[5\] is \d", err)


def test_so_many_more_iterations_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: -c N compares N more iterations, each from inputs of its own, as nccl-tests does.

    What is left in the result of an iteration before is wrong in the next.
    """
    real, fired = inproc._InprocAction.__call__, Counter[int]()

    def lazy(self: Any) -> None:
        fired[id(self)] += 1
        kept = self._buffers[Buffer.OUT].copy()
        real(self)
        if fired[id(self)] == 1 + 1 + 3:  # the warm-up, the timed one, and the third to be checked
            self._buffers[Buffer.OUT][:] = self.__dict__.get("before", kept)
        self.before = self._buffers[Buffer.OUT].copy()

    monkeypatch.setattr(inproc._InprocAction, "__call__", lazy)
    argv = ("--ranks", "2", *ONE, "-w", "1", "--placement", "out")
    for checks, wrong in (("1", "0"), ("2", "0"), ("3", "512"), ("5", "512")):
        fired.clear()
        _, out, _ = on_threads("allreduce", *argv, "-c", checks)
        assert table_rows(out)[0][8] == wrong and f"validation: {checks} " in out


@pytest.mark.parametrize("name", ["allreduce", "allgather", "alltoall", "reduce", "scatter"])
def test_every_timed_iteration_is_right(name: str) -> None:
    """Rule: --check timed passes what is right, of every kind of result and in either placement."""
    argv = ("--ranks", "3", "-b", "1K", "-e", "512K", "-f", "512", "-n", "9", "-A", "all")
    for row in table_rows(good(on_threads(name, *argv, "-c", "timed"))):
        assert {row[8], row[12]} <= {"0", "N/A"}


@pytest.mark.parametrize(
    ("name", "placement", "wrong"),
    [
        ("allreduce", "out", "512"),
        ("allgather", "in", "256"),
        ("broadcast", "in", "256"),
        ("gather", "in", "128"),
        ("scatter", "in", "128"),
    ],
)
def test_a_result_that_was_there_before_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str, placement: str, wrong: str
) -> None:
    """Rule: the checked launch starts from a poisoned result: what is not written is wrong.

    In place that is all but the inputs.
    """
    real, fired = inproc._InprocAction.__call__, Counter[int]()

    def lazy(self: Any) -> None:
        fired[id(self)] += 1
        if fired[id(self)] == 1:
            real(self)

    monkeypatch.setattr(inproc._InprocAction, "__call__", lazy)
    ours = ("-b", "1K", "-e", "1K", "-n", "1", "-w", "0")
    status, out, err = on_threads(name, "--ranks 2", *ours, "--placement", placement)
    assert status == 1 and table_rows(out)[0][8 if placement == "out" else 12] == wrong, err


def test_a_row_without_a_time_has_no_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a non-blocking collective none of whose windows counts is N/A, with the reason."""
    monkeypatch.setattr(bench.timing.starts, "_LATE_S", -1e9)
    monkeypatch.setattr(bench.timing.starts, "_LATE", -1e9)
    transport = inproc.InprocTransport
    monkeypatch.setattr(transport, "has_library", True)
    monkeypatch.setattr(transport, "has_nonblocking", True)
    monkeypatch.setattr(transport, "library", lambda self, call: _Idle())
    small = ("-b", "1K", "-e", "1K", "-n", "1", "-c", "0", "-A", "nonblocking")
    status, out, err = on_threads("allreduce", "--ranks 2 --sync window", *small)
    assert status == 1 and table_rows(out)[0][5] == "N/A", err
    assert "use --sync barrier" in out


class _Idle(Counted):
    """Something that is over at once."""

    def __init__(self) -> None:
        super().__init__(0, 0)

    def __call__(self) -> None:
        """See `Action.__call__`."""

    def close(self) -> None:
        """See `Action.close`."""


def test_a_transport_that_miscounts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: bytes counted by the transport must equal the schedule's own count."""

    def spoil(action: Any) -> None:
        action._sent += 8

    _spoiled(monkeypatch, spoil)
    status, _, err = on_threads("allreduce", "--ranks 2", *ONE)
    assert status == 1 and "counted 1032 bytes out" in err and "schedule says 1024" in err


def test_what_does_not_fit_is_skipped_with_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: nothing that does not fit is tried; in-place alone may be.

    The row says what would fit.
    """
    node = bench.run.memory.Pool("node 0", "on node 0", int(1.5 * 2**20 / 0.85))
    monkeypatch.setattr(bench.run.memory, "pools", lambda _: [node])
    status, out, _ = on_threads("allreduce", "--ranks 4 -b 128K -e 512K -n 1 -A ring")
    rows = {row[0]: row for row in table_rows(out)}
    assert status == 0
    assert "N/A" not in rows["131072"]
    assert rows["262144"].count("N/A") == 4 and rows["524288"].count("N/A") == 8
    assert "# skipped out-of-place at 262144 B: 4 ranks x 512 KiB = 2 MiB on node 0" in out
    assert "up to 128 KiB" in out


def test_a_run_without_any_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: where every row was skipped, and only there, standard error says so and why.

    With --quiet nothing else would be printed.
    """
    node = bench.run.memory.Pool("node 0", "on node 0", int(1.5 * 2**20 / 0.85))
    monkeypatch.setattr(bench.run.memory, "pools", lambda _: [node])
    status, out, err = on_threads("allreduce", "--ranks 4 -b 1M -e 2M -n 1 -A ring --quiet")
    assert status == 1
    assert not out.strip() and err.count("every row was skipped, the first because 4 ranks x") == 1
    status, _, err = on_threads("allreduce", "--ranks 4 -b 128K -e 2M -n 1 -A ring --quiet")
    assert status == 0 and "every row" not in err


@pytest.mark.parametrize("order", ["algorithm", "size"])
def test_a_reason_that_holds_for_a_table_is_one_line(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a table says once why its rows were skipped, and has no average of no rows."""
    monkeypatch.setattr(bench.run.rows.Bench, "_refusal", lambda *_: "there is no such type")
    sweep = f"--ranks 2 -b 1K -e 4K -n 1 -A ring,tree --order {order}"
    status, out, err = on_threads("allreduce", sweep)
    assert status == 1 and "every row was skipped" in err
    assert out.count("# skipped at 1024 B: there is no such type\n") == 2  # of two tables
    assert out.count("skipped") == 2 == out.count("# Avg bus bandwidth    : N/A \n")


def test_records_are_on_disk_in_every_format(tmp_path: Path) -> None:
    """Rule: --out and -J hold every row with its raw times, and only the allowed environment."""
    files = [tmp_path / name for name in ("a.jsonl", "a.json", "a.csv")]
    argv = [x for f in files for x in ("--out", str(f))] + ["-J", str(tmp_path / "n.json")]
    status, _, _ = on_threads("allreduce", "--ranks 2 -b 1K -e 2K -n 6 -A ring", *argv)
    run, *lines, end = [json.loads(line) for line in files[0].read_text().splitlines()]
    whole = json.loads(files[1].read_text())
    assert status == 0 and len(lines) == 4 and {x["run"] for x in lines} == {run["run"]}
    assert end == {"format": FORMAT, "run": run["run"], "end": "complete"} and run.pop("ends")
    assert whole == [run, *lines]
    first, second = lines[:2]
    assert first["format"] == FORMAT and len(first["times_s"]) == 6
    assert first["stopped"] == "iterations" and (second["placement"], second["wrong"]) == ("in", 0)
    assert "PATH" not in run["environment"]["variables"]
    assert len(files[2].read_text().splitlines()) == 1 + 2 * 2
    theirs = json.loads((tmp_path / "n.json").read_text())
    assert theirs["results"][0]["out_of_place"]["nwrong"] == 0 and "env" not in theirs


def test_records_say_where_every_rank_was() -> None:
    """Rule: records name schedule, mapping, fingerprint, versions; ranks' own times on request."""
    results = _kept(
        "--per-rank", "--ranks", "3", "-b", "1K", "-e", "1K", "-n", "4", "-A", "ring,tree"
    )
    environment = results[0].run.environment
    assert environment["mapping"]["node"] == [0, 0, 0] and environment["ranks_per_node"] == [3]
    assert len(environment["mapping"]["cpus"]) == 3 and environment["hosts"] == [hostname()]
    assert re.fullmatch("[0-9a-f]{16}", environment["fingerprint"][0])
    assert len({r.schedule for r in results} | {""}) == 3, "two algorithms, neither nameless"
    for result in results:
        assert [len(own) for own in result.per_rank_s] == [4, 4, 4]
        assert result.times_s == tuple(map(max, *result.per_rank_s))


def _kept(*argv: str) -> list[Measurement]:
    """The results of a run on threads."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        good(on_threads("allreduce", *argv, "--out", str(path)))
        return measurements(path.read_text())


def test_a_full_disk_is_said_and_costs_no_row(tmp_path: Path) -> None:
    """Rule: when a result file cannot be written any more, all else goes on; exit status 1.

    It is said when it happens, and again below the report.
    """
    other = tmp_path / "run.jsonl"
    full = tmp_path / "full.jsonl"
    full.symlink_to("/dev/full")
    argv = ["--ranks", "2", "-b", "1K", "-e", "4K", "-n", "1", "-A", "ring", "--out", str(full)]
    status, out, err = on_threads("allreduce", *argv, "--out", str(other), "-J", "/dev/full")
    assert len(measurements(other.read_text())) == 6
    assert "busbar: /dev/full: cannot be written" in err
    notes = [line for line in err.splitlines() if f"{full}: cannot be written" in line]
    assert "goes on without it" in notes[0] and "rows are missing" in notes[1]
    assert status == 1 and len(notes) == 2 and "Traceback" not in err
    assert len(table_rows(out)) == 3


def test_a_file_that_has_results_is_not_replaced_unasked(tmp_path: Path) -> None:
    """Rule: -J and --out replace a file with content with --overwrite alone, whatever it holds."""
    file = tmp_path / "log.json"
    file.write_text("a log\n")
    for name in ("-J", "--out"):
        argv = ("allreduce", "--ranks 2 -b 1K -e 1K -n 1 -A ring", name, str(file))
        status, out, err = on_threads(*argv)
        assert status == 2 and not out and f"{file}: has results already; " in err
        assert file.read_text() == "a log\n"
    good(on_threads("allreduce", "--ranks 2 -b 1K -e 1K -n 1 -A ring --overwrite -J", str(file)))
    assert len(json.loads(file.read_text())["results"]) == 1


def test_a_dry_run_prints_the_plan_and_runs_nothing() -> None:
    """Rule: --dry-run shows steps, memory and predicted bytes for every row."""
    status, out, _ = on_threads("allreduce", "--ranks 16 -b 1M -e 2M --dry-run -A ring")
    line = out.splitlines()[3].split()
    assert status == 0 and line[:2] == ["ring", "30"] and line[-4:-2] == ["1966080", "B"]


def test_a_dry_run_counts_what_a_library_takes_for_itself() -> None:
    """Rule: a library's row needs a vector a rank beside the buffers.

    What has no schedule but is ours not.
    """
    argv = ["--ranks", "4", "-b", "1M", "-e", "1M", "--dry-run", "-A", "worksharing,library"]
    _, out, _ = in_process("allreduce", *argv)
    rows = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert [(row[0], row[3], row[4]) for row in rows] == [
        ("worksharing", "out", "8"), ("worksharing", "in", "4"),
        ("library", "out", "12"), ("library", "in", "8"),
    ]  # fmt: skip


def test_work_sharing_needs_memory_of_all_ranks() -> None:
    """Rule: where ranks have no common memory, work sharing is left out or refused in one line.

    So is the library of threads, with the remedy.
    """
    status, out, err = on_threads("allreduce", "--threads 2 -b 8 -e 8 -n 2 -A ring,worksharing")
    assert status == 0 and "allreduce ring (inproc)" in out and "worksharing" not in out
    assert "left out: worksharing, since --transport inproc" in err
    for name, remedy in (("worksharing", ""), ("library", "; use --ranks 2")):
        status, out, err = on_threads("allreduce", f"--threads 2 -A {name}")
        assert status == 2 and not table_rows(out) and len(err.strip().splitlines()) == 1
        assert f"nothing is left to run: {name}, since " in err and remedy in err


def test_one_rank_works_and_says_that_busbw_is_zero() -> None:
    """Rule: a single rank measures; busbw is 0 by definition, and that is said.

    Who has not asked for one rank by --ranks is told how to have more.
    """
    for asked in ("--ranks 1", "-t 1"):
        status, out, err = on_threads("allreduce", asked, "-b 1K -e 1K -n 1 -A ring")
        (row,) = table_rows(out)
        assert status == 0 and float(row[7]) == 0 and "0 by definition" in err
        assert ("--ranks N (or mpirun -n N) starts more" in err) == (asked == "-t 1")


def test_without_a_number_of_ranks_there_is_one_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: without a launcher and an option of ranks a run is that of --ranks N, and says so.

    N is the number of cores that the process may use, at least two. What a launcher starts, and one
    rank that was asked for, stays one rank.
    """
    started: list[tuple[Sequence[str], int, RunOptions]] = []
    monkeypatch.setattr(ranks, "start", lambda *given: started.append(given) or 0)
    note = "no launcher and no --ranks: 3 ranks, one a core; --ranks N chooses"
    small = ["-b", "1K", "-e", "1K"]
    monkeypatch.setattr(ranks, "core_share", lambda: 3.5)
    for name in ("allreduce", "pt2pt", "all"):
        status, _, err = in_process(name, *small)
        module, count, options = started.pop()
        assert (status, count, module[-1].split(".")[-1]) == (0, 3, name) and note in err
        assert options.argv == (*small, "--ranks", "3")
        out = good(in_process(name, *small, "--dry-run"))
        assert " on 3 ranks of this host" in out and " on 1 rank " not in out
    _, out, err = on_threads("allreduce", *small, "-n 1 -A ring")
    assert out.count("\n#  Rank") == 3 and note in err
    monkeypatch.setattr(ranks, "core_share", lambda: 1.0)
    assert " on 2 ranks " in good(in_process("allreduce", *small, "--dry-run"))
    for one in ("--ranks 1", "-t 1", "--threads 1", "--expected-ranks 1"):
        _, out, err = in_process("allreduce", *small, "--dry-run", one)
        assert " on 1 rank " in out and "no launcher" not in err
    monkeypatch.setenv("PMIX_RANK", "0")  # a launcher that is not known
    assert " on 1 rank " in good(in_process("allreduce", *small, "--dry-run"))


def test_a_schedule_is_lowered_once_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: what a row needs and what it runs come from one program, lowered once a placement."""
    lowered = []

    def counted(*args: Any, **more: Any) -> Program:
        lowered.append(args)
        return lower(*args, **more)

    for module in (bench.run.rows, collectives.execution.plan):
        monkeypatch.setattr(module, "lower", counted)
    assert on_threads("allreduce", "--ranks 2 -b 1K -e 2K -n 1 -A ring")[0] == 0
    ranks, sizes, placements = 2, 2, 2
    assert len(lowered) == ranks * sizes * placements
