"""Logs of runs that broke off, and texts that are no benchmark's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from busbar.errors import ReportError
from reports.analysis.launches import over_launches
from reports.readers import reading
from reports.readers.reading import parse, read
from reports.tables.scaling import conclusion_lines
from reports.tables.show import texts
from reports.tables.summary import summary
from tests.command import reports_main as main
from tests.reports.runs import noisy, rows

HEAD = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
ROWS = [f"{size:>12} {size // 4:>12}  float  sum  -1  9.50  0.01  0.01  0\n" for size in (64, 128)]
ENDS = (
    "n7: Test NCCL failure common.cu:383 'unhandled cuda error (run with NCCL_DEBUG=INFO)'",
    "n7: Test CUDA failure common.cu:295 'out of memory'",
    "NCCL failure all_reduce.cu:95 'unhandled cuda error'",
    "n7: Test timeout (1000s) common.cu:402",
    ".. n7 pid 4711: Test failure common.cu:523",
    ".. n7 pid 4711: Test failure",
    "DATA VALIDATION ERROR: osu_allreduce exited with status 1 on message size 4.",
    "The user-provided time limit for job execution has been reached:",
    "[n7:05092] Signal: Segmentation fault (11)",
    "mpirun noticed that process rank 1 with PID 77 on node n7 exited on signal 9 (Killed).",
    "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
    "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
    "slurmstepd: error: *** STEP 9.0 ON n7 CANCELLED AT 2026-03-04T05:06:07 DUE TO TIME LIMIT ***",
    "srun: error: n7: tasks 0-3: Killed",
    "Segmentation fault (core dumped)",
    "./run.sh: line 12:   991 Killed                  ./build/all_reduce_perf",
)
WARNING = "n7:21:33 [0] misc/socket.cc:484 NCCL WARN connect to 10.0.0.2<41234> failed\n"


def _told(text: str) -> list[tuple[int, str]]:
    found = parse(text).notes
    return [(note.line, note.text) for note in found if note.text.startswith(reading.SAYS)]


@pytest.mark.parametrize("kept", [0, 1, 2])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("label", ["", "[1,0]<stdout>:", "0: "])
def test_a_run_that_broke_off_says_so(end: str, kept: int, label: str) -> None:
    """Rule: the rows before the failure are kept, and its first line is said, once, in place."""
    lines = "".join([HEAD, *ROWS[:kept], f"{end}\n", f"{end}\n"]).splitlines()
    text = "".join(f"{label}{line}\n" for line in lines)
    assert len(parse(text).rows) == kept
    assert _told(text) == [(kept + 2, reading.SAYS + end)]


@pytest.mark.parametrize(
    "end",
    [
        *ENDS,
        "# ended early: interrupted by SIGINT",
        "# Out of bounds values : 5 FAILED\n",
        ROWS[1][:-20],
    ],
)
def test_a_run_that_broke_off_keeps_no_expectation(
    end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: a gate does not pass a source whose run failed, was cut or was interrupted.

    Nor one whose count of wrong values is in none of its rows.
    """
    whole, broken = tmp_path / "whole.log", tmp_path / "broken.log"
    whole.write_text("".join([HEAD, *ROWS]))
    broken.write_text("".join([HEAD, *ROWS, end]))
    rule = ["--expect", "busbw >= 0.001GB/s"]
    for argv, fails in (
        (["show", str(whole), *rule], False),
        (["show", str(whole), str(broken), "--quiet", *rule], True),
        (["compare", str(whole), str(broken), *rule], True),
        (["compare", str(whole), str(broken), "--fail-missing"], True),
        (["compare", str(broken), str(whole), "--fail-slower", "5%"], True),
        (["compare", str(whole), str(whole), "--fail-slower", "5%"], False),
        (["compare", str(whole), str(broken)], False),
        (["history", str(whole), str(broken), "--fail-slower", "5%"], True),
        (["history", str(broken), str(whole), "--fail-slower", "5%"], False),
    ):
        assert main(argv) == int(fails), argv
        out = capsys.readouterr().out
        assert out.count(f"FAILED {broken}:{len(ROWS) + 2}: ") == int(fails), out
        assert ("expectation kept" in out) == (not fails and rule[0] in argv), out


def test_a_gate_does_not_pass_a_row_that_was_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: a row whose figures contradict each other, or are cut, fails every gate with its place.

    `show` without a gate has it as a note. A failed run of the same source is named before it.
    """
    whole, odd, failed = (tmp_path / name for name in ("whole.log", "odd.log", "failed.log"))
    whole.write_text("".join([HEAD, *ROWS]))
    changed = ROWS[1].replace("0.01  0.01", "7.00  0.01")  # not size over time
    odd.write_text("".join([HEAD, ROWS[0], changed]))
    failed.write_text("".join([HEAD, ROWS[0], changed, *ROWS[1:], ENDS[0], "\n"]))
    rule = ["--expect", "busbw >= 0.001GB/s"]
    line = HEAD.count("\n") + 2
    for argv, status in (
        (["compare", str(whole), str(odd), "--fail-slower", "5%", "--allow-missing"], 1),
        (["compare", str(odd), str(whole), "--fail-missing"], 1),
        (["compare", str(whole), str(odd), *rule], 1),
        (["show", str(odd), *rule], 1),
        (["history", str(whole), str(odd), "--fail-slower", "5%"], 1),
        (["compare", str(whole), str(odd)], 0),
        (["show", str(odd)], 0),
    ):
        assert main(argv) == status, argv
        out = capsys.readouterr().out
        assert (f"FAILED {odd}:{line}: row of " in out) == bool(status), out
    assert main(["show", str(failed), *rule]) == 1
    assert f"FAILED {failed}:{line + 2}: the run failed" in capsys.readouterr().out
    argv = ["compare", str(whole), str(odd), "--fail-slower", "5%", "--format", "json"]
    assert main(argv) == 1
    (broken,) = json.loads(capsys.readouterr().out)["expectations"]["broken"]
    assert f"odd.log:{line}: " in broken and "a figure was cut or changed" in broken


def test_a_failed_or_wrong_log_does_not_end_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: `show` ends with 1 and a line if a run failed or has wrong elements, in every form.

    A run that somebody ended did not fail.
    """
    log = tmp_path / "run.log"
    wrong = ROWS[1].replace("0.01  0\n", "0.01  7\n")
    for text, line in (
        ("".join([HEAD, *ROWS]), ""),
        ("".join([HEAD, ROWS[0], wrong]), f"FAILED {log}: wrong elements in 1 row\n"),
        ("".join([HEAD, *ROWS, ENDS[0], "\n"]), f"FAILED {log}:4: the run failed: {ENDS[0]}\n"),
        ("".join([HEAD, *ROWS, "# ended early: interrupted by SIGINT\n"]), ""),
        ("".join([HEAD, *ROWS, "# ended early: the time of --total is over\n"]), ""),
        (
            "".join([HEAD, *ROWS, "# ended early: rank 1 (pid 7) is stopped\n"]),
            f"FAILED {log}:4: the run ended early: rank 1 (pid 7) is stopped\n",
        ),
    ):
        log.write_text(text)
        for more in ([], ["--quiet"], ["--format", "csv"], ["--format", "md"]):
            assert main(["show", str(log), *more]) == bool(line), more
            said = capsys.readouterr()
            out = said.err if "--format" in more else said.out
            assert out.endswith(line) and out.count("FAILED") == bool(line), more


def test_quiet_is_one_line_of_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: `show --quiet` of a log prints its average, else its best figure, and says no more.

    What was inferred from its columns is said without --quiet only.
    """
    log = tmp_path / "run.log"
    for end, line in (
        ("# Avg bus bandwidth    : 0.0123 \n", "average busbw 0.0123 GB/s, as the log states it"),
        ("", "highest busbw"),
    ):
        log.write_text("".join([HEAD, *ROWS, end]))
        assert main(["show", str(log), "--ranks", "4", "--quiet"]) == 0
        said = capsys.readouterr()
        assert said.out.startswith(line) and len(said.out.splitlines()) == 1
        assert "taken for" not in said.err
        assert main(["show", str(log), "--ranks", "4"]) == 0
        assert capsys.readouterr().err.count("taken for allreduce by its columns") == 1


def test_tables_of_several_logs_name_their_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: logs beside each other are told apart, and have nccl-tests' average and no rules."""
    files = [tmp_path / name for name in ("a.log", "b.log")]
    devices = "#  Rank  0 Group  0 Pid   40 on n7 device  0 [0x1b] GPU\n"
    files[0].write_text("".join([devices, HEAD, *ROWS, "# Avg bus bandwidth    : 0.0123 \n"]))
    files[1].write_text("".join([HEAD, *ROWS]))
    assert main(["show", *map(str, files)]) == 0
    out = capsys.readouterr().out
    assert f"{files[0]} (n7): allreduce" in out and f"{files[1]}: allreduce" in out
    assert out.count("average busbw 0.0123 GB/s") == 1 and "Hoefler" not in out
    assert main(["show", str(files[1]), "--rules"]) == 0
    out = capsys.readouterr().out
    assert "a.log" not in out and "b.log" not in out and "Hoefler" in out


def test_records_that_were_cut_keep_no_expectation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: records whose last line was cut do not pass a gate, nor those with a damaged line."""
    lines = (Path(__file__).parent / "golden" / "format3.jsonl").read_text().splitlines()
    file = tmp_path / "run.jsonl"
    for text, fails in (
        ("\n".join(lines)[:-9], True),
        ("\n".join(["{", *lines, ""]), True),
        ("\n".join([*lines, ""]), False),
    ):
        file.write_text(text)
        assert main(["show", str(file), "--quiet", "--expect", "time > 0 s"]) == int(fails)
        assert ("FAILED" in capsys.readouterr().out) == fails


def test_a_whole_run_has_not_failed() -> None:
    """Rule: NCCL's warnings, settings and words that occur in a good run are no failure."""
    chatter = (
        WARNING,
        "n7:21:33 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22\n",
        "slurmstepd: error: mpi/pmix_v4: no such option\n",
        "# Out of bounds values : 0 OK\n",
    )
    assert _told("".join([*chatter, HEAD, *ROWS, *chatter])) == []


def test_why_there_is_no_row(tmp_path: Path) -> None:
    """Rule: of a log without rows the message says why the run ended, before what is missing."""
    of = ({"launch": {"number": n, "of": 3, "seed": 1}} for n in (1, 2, 3))
    measured = [row for n, facts in enumerate(of) for row in rows(noisy(n, **facts))]
    shown = "\n".join(texts(over_launches(measured), 80))
    file = tmp_path / "run.log"
    for text, said in (
        (HEAD + ENDS[0] + "\n", f"{ENDS[0]} (line 2)"),
        (WARNING, "misc/socket.cc:484 NCCL WARN"),
        ("n7:21:21 [0] NCCL INFO Bootstrap : Using eth0\n", "NCCL's own lines"),
        ("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n", "a map of a machine"),
        ('<system version="1"></system>', "a map of a machine"),
        ('<algo name="x" nchunksperloop="2"></algo>', "an MSCCL schedule"),
        (shown, "Busbar's summary"),
        ("\n".join(summary(measured)), "Busbar's summary"),
        ("\n".join(conclusion_lines(measured, 80)), "Busbar's summary"),
    ):
        file.write_text(text)
        with pytest.raises(ReportError) as error:
            read(file)
        assert said in str(error.value) and "\n" not in str(error.value)


def test_the_collective_that_a_script_was_told() -> None:
    """Rule: where no line of the tests names the collective, the command before them may.

    One that names none, or several, does not; and none outlives the next command.
    """
    row = "          64            4     float    none      -1     9.50    0.01    0.01      0\n"
    asks = "me@n7:~/bench$ ./scripts/run.sh -t all_gather -b 1K n7 n8\n"
    other = "me@n7:~/bench$ ./scripts/run.sh -b 1K n7 n8\n"
    both = "me@n7:~/bench$ ./scripts/run.sh all_gather alltoall\n"
    bare = "$ kubectl exec pod -it -- run.sh -t all_gather\n"
    assert [r.collective for r in parse(asks + HEAD + row).rows] == ["allgather"]
    assert [r.collective for r in parse(bare + HEAD + row).rows] == ["allgather"]
    assert [r.collective for r in parse(both + HEAD + row).rows] == [""]
    again = asks + HEAD + row + "# nThread 1 minBytes 64\n" + other + HEAD + row
    assert [r.collective for r in parse(again).rows] == ["allgather", ""]


@pytest.mark.parametrize("reached", ["devices", "header"])
def test_a_failed_run_leaves_nothing_to_the_next(reached: str) -> None:
    """Rule: ranks, hosts and collective of a run that failed are not those of the run after it."""

    def begun(program: str, hosts: list[str]) -> str:
        devices = (
            f"#  Rank {n:>2} Group  0 Pid {70 + n} on {host} device  0 [0x1b] H100\n"
            for n, host in enumerate(hosts)
        )
        began = f"$ mpirun ./build/{program} -b 64 -e 128\n# nThread 1 nGpus 1 minBytes 64\n"
        return f"{began}# Using devices\n{''.join(devices)}"

    failed_run = begun("alltoall_perf", ["n7", "n8", "n9"]) + (HEAD if reached == "header" else "")
    good_run = begun("sendrecv_perf", ["n1", "n2"]) + HEAD + "".join(ROWS)
    rows = parse(f"{failed_run}{ENDS[0]}\n{good_run}").rows
    assert {(row.collective, row.ranks, row.run.hosts) for row in rows} == {
        ("sendrecv", 2, ("n1", "n2"))
    }
