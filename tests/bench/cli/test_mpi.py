"""Real MPI, with both wheels: right results, one voice, and no hang whatever goes wrong.

Every process here runs under the time-out of the `run` fixture.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import native
from tests.conftest import (
    LIMIT_S,
    REPO,
    Mpi,
    Run,
    good,
    is_running,
    popen,
    table_rows,
    thorough,
    under,
)
from tests.together import together

PROPERTY = str(REPO / "tests/bench/cli/mpi_property.py")
FAULTS = str(REPO / "tests/bench/cli/mpi_faults.py")
BENCH = ("-m", "bench.allreduce")
# A run that never ends by itself, whose rows are short however many ranks share a core.
FAULTY = ("-b", "1K", "-e", "1K", "-n", "100", "--transport", "mpi", "-A", "ring")
ENDLESS = ("-b", "1K", "-e", "1K", "-n", "10", "-A", "ring", "-N", "0")


needs_native = pytest.mark.skipif(native.load() is None, reason=native.why_not() or "")


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> str:
    """A transport; shm needs the extension, and is skipped without, saying so."""
    if request.param == "shm" and native.load() is None:
        pytest.skip(native.why_not())
    return str(request.param)


@pytest.mark.parametrize(
    ("mpi", "ranks"),
    [
        *(("mpich", 4), ("openmpi", 3)),
        *thorough(*(("mpich", n) for n in (1, 2, 3)), *(("openmpi", n) for n in (1, 2, 4))),
    ],
    indirect=["mpi"],
)
def test_everything_is_right(mpi: Mpi, run: Run, ranks: int) -> None:
    """Rule: any algorithm is right on real MPI, of any type, operation, size and placement.

    Random cases agree with NumPy, and -A all checks out on every row; only rank 0 prints. MPICH's
    ranks sweep shm, which is the same under either MPI; `test_doors` has -A all on its messages.
    """
    transport = "shm" if mpi.name == "mpich" and native.load() is not None else "mpi"
    small = [*("-b", "1K", "-e", "64K", "-f", "64"), *("-n", "2", "-w", "0", "-A", "all")]
    sweep = [*BENCH, "--transport", transport, *small]
    random, swept = together(run, mpi, ranks, [PROPERTY, "60"], sweep)
    assert not random.returncode, random.stderr
    assert int(random.stdout.split()[-1]) > 30
    assert not swept.returncode, swept.stderr
    tables = swept.stdout.count("Out of bounds values : 0 OK")
    left_out = swept.stderr.count("left out")
    assert tables == 14 - left_out and "FAILED" not in swept.stdout


@needs_native
@pytest.mark.parametrize("ranks", [3, *thorough(2, 5)])
def test_work_sharing_stands_beside_the_library(
    mpich: Mpi, run: Run, tmp_path: Path, ranks: int
) -> None:
    """Rule: all collectives have it on shm, right in both placements; records and tables say so."""
    out = tmp_path / "run.jsonl"
    rest = ["-A", "worksharing,library", "-b", "64K", "-e", "64K", "-n", "2", "--out", str(out)]
    text = good(run(*under(mpich, ranks, "-m", "bench", "all", "--transport", "shm", *rest)))
    assert "FAILED" not in text and "worksharing (shm)" in text
    found = [json.loads(line) for line in out.read_text().splitlines()]
    ours = [one for one in found if one.get("algorithm") == "worksharing"]
    assert len({one["collective"] for one in ours}) > 10
    for one in ours:
        assert one["worksharing"] and not one.get("schedule") and one["transport"] == "shm"
        assert one.get("skipped") or (one["wrong"] == 0 and one["sent_bytes"] is not None)


# Open MPI oversubscribes without a flag where the documented variable says so.
PLAIN = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


@pytest.mark.parametrize(
    ("mpi", "transport"),
    [("openmpi", "mpi"), *thorough(("mpich", "shm"), ("mpich", "mpi"), ("openmpi", "shm"))],
    indirect=True,
)
def test_sixteen_ranks_on_however_few_cores(mpi: Mpi, transport: str, run: Run) -> None:
    """Rule: mpirun -n 16 python -m bench.allreduce works oversubscribed, with no flag."""
    where = ["--transport", transport, "-b", "64K", "-e", "64K", "-n", "1", "-w", "0"]
    ranks = under(mpi._replace(flags=()), 16, *BENCH, *where, "-A", "ring,ps")
    out = good(run(*ranks, env=PLAIN))
    assert out.count("Out of bounds values : 0 OK") == 2
    assert re.search(r"ring +1\.8750 +1\.8750 +30\.0000", out)
    assert re.search(r" ps +15\.0000 +15\.0000 +30\.0000", out)


@pytest.mark.parametrize("mpi", ["mpich", *thorough("openmpi")], indirect=True)
def test_bad_input_is_said_once(mpi: Mpi, run: Run) -> None:
    """Rule: three ranks, one line, exit status 2, and no table."""
    bad = ("-A nosuch", "--out /proc/none/a.json", "-A torus:grid=2x2", "-b 1 -e 2")
    for done in together(run, mpi, 3, *((*BENCH, *argv.split()) for argv in bad)):
        assert done.returncode == 2
        assert done.stderr.count("busbar:") == 1 and "Traceback" not in done.stderr
        assert "size" not in done.stdout


@pytest.mark.parametrize("mpi", ["mpich", *thorough("openmpi")], indirect=True)
def test_a_rank_that_raises_ends_all_with_its_error(mpi: Mpi, run: Run) -> None:
    """Rule: a failing rank aborts the world, named, instead of leaving the others waiting."""
    done = run(*under(mpi, 3, FAULTS, "raise", *FAULTY))
    assert done.returncode != 0
    assert "busbar: rank 2: ValueError: boom" in done.stderr


@pytest.mark.parametrize("mpi", ["mpich", *thorough("openmpi")], indirect=True)
def test_a_stuck_row_ends_and_names_who_is_missing(mpi: Mpi, run: Run) -> None:
    """Rule: -T ends a row whose last rank never arrives, and says that it is rank 2."""
    done = run(*under(mpi, 3, FAULTS, "wait", *FAULTY, "-T", "6"))
    assert done.returncode != 0
    # On a starved machine rank 1, too, may be too late to say where it is.
    assert re.search(r"no progress for 6 s \(-T\); ranks? (1, )?2 had not arrived", done.stderr)


@pytest.mark.parametrize("timing", ["each", *thorough("loop")])
@pytest.mark.parametrize("transport", ["shm", *thorough("mpi")], indirect=True)
def test_a_long_row_that_makes_progress_goes_on(
    mpich: Mpi, transport: str, timing: str, run: Run
) -> None:
    """Rule: -T counts from the last progress, inside a batch or a loop that C++ times, too.

    So neither a rank nor the starter ends a row that takes several times as long.
    """
    # MPICH below MULTIPLE never yields a core: one iteration may then take 2 s beside other tests.
    library = ("library", "--mpi-threads", "multiple")
    algorithm, times = (("ring",), "2000") if transport == "shm" else (library, "600")
    long = ("--sizes", "16M", "-n", times, "-w", "0", "-T", "4", "--placement", "out")
    more = ("--limit", "none", "-c", "0", "--timing", timing, "-A", *algorithm)
    done = run(mpich.python, *BENCH, "--ranks", "2", "--transport", transport, *long, *more)
    assert done.returncode == 0, done.stderr
    assert len(table_rows(done.stdout)) == 1


@pytest.mark.parametrize("mpi", ["mpich", *thorough("openmpi")], indirect=True)
def test_a_stopped_rank_ends_a_run_that_has_no_starter(mpi: Mpi, run: Run) -> None:
    """Rule: under plain mpirun its neighbour names a rank that stays stopped, without -T."""
    done = run(*under(mpi, 2, FAULTS, "stop", *FAULTY))
    assert done.returncode != 0
    assert re.search(r"# ended early: rank 1 \(pid \d+\) is stopped", done.stdout), done.stdout
    assert re.search(r"^busbar: rank 1 \(pid \d+\) is stopped$", done.stderr, re.MULTILINE)


def _until_a_row(process: "subprocess.Popen[str]") -> str:
    """Read output up to the third row."""
    assert process.stdout is not None
    text = ""
    while len(re.findall(r"^ +\d+ +\d+ +float", text, re.MULTILINE)) < 3:
        line = process.stdout.readline()
        assert line, text
        text += line
    return text


@contextmanager
def _endless(command: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    """A run that would not end by itself, in a session that is killed if it is left behind."""
    process = popen([*command, *ENDLESS], start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("mpi", "transport", "which"),
    [
        *(("mpich", "mpi", signal.SIGINT), ("openmpi", "shm", signal.SIGTERM)),
        *thorough(("mpich", "shm", signal.SIGTERM), ("openmpi", "mpi", signal.SIGINT)),
    ],
    indirect=["mpi", "transport"],
)
def test_a_signal_ends_all_ranks_with_the_report_so_far(
    mpi: Mpi, transport: str, tmp_path: Path, which: signal.Signals
) -> None:
    """Rule: Ctrl-C and SIGTERM end all ranks quickly; what was printed is on disk.

    Open MPI's launcher stops passing output on as soon as it is interrupted, so the closing
    report is asked for under MPICH only.
    """
    out = tmp_path / "rows.jsonl"
    argv = (*BENCH, "--transport", transport, "--out", str(out))
    with _endless(under(mpi, 3, *argv)) as process:
        printed = _until_a_row(process)
        os.killpg(process.pid, which)
        rest, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode != 0
    assert len(out.read_text().splitlines()) >= 3 and "1024" in printed
    if mpi.name == "mpich":
        assert f"ended early: interrupted by {which.name}" in rest, err
        assert "Abort(" not in err  # MPICH's line, which looks like a crash


@pytest.mark.parametrize("mpi", ["openmpi", *thorough("mpich")], indirect=True)
def test_who_started_the_launcher_hands_a_signal_on(mpi: Mpi, tmp_path: Path) -> None:
    """Rule: under --ranks a signal to the one process that was started ends all, report and all.

    It is all that ``timeout``, a scheduler or another program knows of, and no rank is left behind.
    The note names the file of what was measured.
    """
    out = tmp_path / "rows.jsonl"
    with _endless([mpi.python, *BENCH, "--ranks", "2", "--out", str(out)]) as process:
        text = _until_a_row(process)
        process.send_signal(signal.SIGTERM)
        rest, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert "ended early: interrupted" in rest and "Traceback" not in err, err
    assert f"SIGTERM; for what was measured: busbar reports show {out}\n" in err
    assert len(out.read_text().splitlines()) >= 3
    _all_gone(text)


@pytest.mark.parametrize(
    ("mpi", "transport"),
    [*(("mpich", "mpi"), ("openmpi", "shm")), *thorough(("mpich", "shm"), ("openmpi", "mpi"))],
    indirect=True,
)
def test_a_killed_rank_ends_the_others(mpi: Mpi, transport: str, tmp_path: Path) -> None:
    """Rule: SIGKILL of one rank ends the run; rows that were printed are on disk."""
    out = tmp_path / "rows.jsonl"
    argv = (*BENCH, "--transport", transport, "--out", str(out))
    with _endless(under(mpi, 3, *argv)) as process:
        text = _until_a_row(process)
        pids = re.findall(r"#  Rank +2 Group +0 Pid +(\d+)", text)
        os.kill(int(pids[0]), signal.SIGKILL)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode != 0 and len(out.read_text().splitlines()) >= 3
    _all_gone(text)


@pytest.mark.parametrize(
    ("mpi", "transport"),
    [*(("mpich", "shm"), ("openmpi", "mpi")), *thorough(("mpich", "mpi"), ("openmpi", "shm"))],
    indirect=True,
)
def test_a_killed_rank_is_named_and_what_there_is_reported(
    mpi: Mpi, transport: str, tmp_path: Path
) -> None:
    """Rule: under --ranks a lost rank gives 4, its name and the rows so far; no segment stays.

    A launcher kills the others at once, rank 0 and its report among them.
    """
    out = tmp_path / "rows.jsonl"
    argv = ("--ranks", "3", "--transport", transport, "--out", str(out))
    with _endless([mpi.python, *BENCH, *argv]) as process:
        text = _until_a_row(process)
        (pid,) = re.findall(r"#  Rank +2 Group +0 Pid +(\d+)", text)[:1]
        maps = Path(f"/proc/{pid}/maps").read_text()
        segments = set(re.findall(r"(/dev/shm/(?:mpich_shm|sm_segment)\S*)$", maps, re.MULTILINE))
        os.kill(int(pid), signal.SIGKILL)
        rest, err = process.communicate(timeout=LIMIT_S)
    lost = rf"busbar: rank 2 \(pid {pid}\) was lost in row \d+ \(allreduce \w+ \d+K? (out|in)\)"
    lost += r"(: Killed \(signal 9\))?;"  # unless its launcher has waited for it already
    assert process.returncode == 4 and re.search(lost, err)
    report = (text + rest).partition("# ended early: ")
    assert "rank 2" in report[2].splitlines()[0] and "float sum, time in us" in report[2]
    printed = len(re.findall(r"^ +\d+ +\d+ +float .*\n", report[0], re.MULTILINE))
    assert printed <= out.read_text().count('"collective"')
    assert segments and not any(Path(path).exists() for path in segments)
    _all_gone(text)


def test_a_hangup_ends_what_has_started_mpi(mpi: Mpi, run: Run) -> None:
    """Rule: before a rank has a watch SIGHUP does what it always does; UCX would let it live."""
    code = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
        "from busbar.mpi import start_mpi; start_mpi(); "
        "assert 'UCX_DEBUG_SIGNO' not in os.environ; "
        "os.kill(os.getpid(), signal.SIGHUP); print('alive')"
    )
    done = run(mpi.python, "-c", code)
    assert (done.returncode, done.stdout) == (-signal.SIGHUP, ""), done


@pytest.mark.parametrize("mpi", ["openmpi", *thorough("mpich")], indirect=True)
def test_a_full_disk_behind_a_launcher_is_told(mpi: Mpi, run: Run) -> None:
    """Rule: with --ranks and nothing that can be printed the status is 2, in one line of ours."""
    argv = ["--ranks", "2", "-b", "1K", "-e", "1K", "-n", "1", "-A", "ring"]
    done = run("sh", "-c", 'exec "$@" >/dev/full', "sh", mpi.python, *BENCH, *argv)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.count("busbar: standard output cannot be written") == 1


def _all_gone(text: str) -> None:
    """Wait for the end of every rank that a table names; the test's time-out is the limit."""
    pids = re.findall(r"#  Rank +\d+ Group +0 Pid +(\d+)", text)
    assert pids
    while any(is_running(pid) for pid in pids):
        pass
