"""A run under --ranks is seen to its end: a launcher and ranks that are ours stand in for MPI's."""

from __future__ import annotations

import mmap
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.cli import ranks, start
from bench.launch import child
from bench.launch import ranks as starter
from bench.launch.control_socket import VARIABLE, ControlSocket, Phase
from bench.launch.ranks import RankRun
from bench.launch.segments import Segments, room, writable
from bench.options.options import parse
from busbar import launchers
from busbar.errors import Unavailable
from tests.conftest import Run, environment, in_process, table_rows

# Starts ranks, each a piece of Python with `line` and `rank`, and then does what it is told itself.
LAUNCHER = """
import os, signal, subprocess, sys, time
own, *ranks = sys.argv[1:]
head = "import os, signal, sys, time; from bench.launch.control_socket import ControlSocket; "
head += "rank = int(sys.argv[1]); line = ControlSocket.open(rank); "
begin = [sys.executable, "-c"]
started = [subprocess.Popen([*begin, head + code, str(n)]) for n, code in enumerate(ranks)]
exec(own)
status = [one.wait() for one in started]
sys.exit(next((s for s in status if s > 0), 0))
"""
ROWS = "line.stage('rows'); line.send(row=0); "
STAYS = ROWS + "time.sleep(60)"
LEAVES = ROWS + "line.stage('ending'); line.leave(%d)"
KILLS = "os.kill(os.getppid(), signal.SIGKILL); "  # the launcher
# Ends as `bench.run.watch` does when it hears a word.
LISTENS = (
    ROWS
    + """
import select
select.select([line], [], []); print('heard', line.stop_request(), flush=True); line.leave(4)"""
)


def _made(own: str, ranks: Sequence[str], timeout: float | None = None) -> RankRun:
    line = [sys.executable, "-c", LAUNCHER, own, *ranks]
    return RankRun(line, environment(), len(ranks), timeout)


def _ended(run: RankRun) -> tuple[int, RankRun]:
    before = child.below(os.getpid())
    status = run.wait()
    assert child.below(os.getpid()) == before
    return status, run


def _run(own: str, ranks: Sequence[str]) -> tuple[int, RankRun]:
    return _ended(_made(own, ranks))


def _places(run: RankRun) -> dict[int, tuple[str, int]]:
    """How far each rank has told."""
    return {peer.rank: (peer.stage, peer.row) for peer in run._peers.inside()}


def _impatient(
    ranks: Sequence[str], come: Callable[[RankRun], bool], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, RankRun]:
    """Run with a time-out that is over as soon as it has come that far, on any machine."""
    run = _made("", ranks, 60.0)
    looks = run._look

    def look() -> None:
        if come(run):
            run._timeout = run._limit = 0.0
        looks()

    monkeypatch.setattr(run, "_look", look)
    monkeypatch.setattr(starter, "_LATER_S", 0.1)
    return _ended(run)


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (1, 1), (2, 2)])
def test_ranks_that_leave_give_the_status(status: int, expected: int) -> None:
    """Rule: a run that ends in good order has its ranks' status, and nothing ended it."""
    found, run = _run("", [LEAVES % 0, LEAVES % status])
    assert (found, run.why) == (expected, "")


def test_ranks_that_left_before_anyone_looked_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a starter that comes late, on a busy machine, still hears what ranks left with."""
    start = child.popen

    class Done(threading.Thread):
        def start(self) -> None:
            super().start()
            self.join()

    def late(*args: Any, **streams: Any) -> subprocess.Popen[str]:
        made = start(*args, **streams)
        made.wait()
        return made

    monkeypatch.setattr(child, "popen", late)
    monkeypatch.setattr(threading, "Thread", Done)
    found, run = _run("", [LEAVES % 0, LEAVES % 1])
    assert (found, run.why) == (1, "")


def test_output_is_handed_on_in_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a piece of a line waits for its rest, so that a note cannot come between them."""
    pieces, written = iter([b"# a\n# ende", b"d early: b\n#", b" c", b""]), list[bytes]()
    monkeypatch.setattr(os, "read", lambda *_: next(pieces))
    monkeypatch.setattr(os, "write", lambda _, data: written.append(data) or len(data))
    pipe = SimpleNamespace(stdout=SimpleNamespace(fileno=lambda: 0))
    run = SimpleNamespace(_launcher=pipe, _early=False, _output_lost=None, came=0)
    starter.RankRun._pump(cast("Any", run))
    monkeypatch.undo()
    assert written == [b"# a\n", b"# ended early: b\n", b"# c"] and run._early


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_lost_rank_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    """Rule: whatever the launcher makes of it, the run ends with 4, that rank and its row by name.

    The others hear of it; what they print is handed on, and who does not end is ended.
    """
    monkeypatch.setattr(starter, "_CLEANS_S", 1.0)
    named = "line.send(row=6, what='allreduce ring 64M out')"
    dies = ROWS + f"{named}; os.kill(os.getpid(), {int(number)})"
    status, run = _run("", [LISTENS, STAYS, dies])
    assert status == 4 and run.why.startswith("rank 2 (pid ")
    named = f"was lost in row 7 (allreduce ring 64M out): {signal.strsignal(number)} (signal"
    assert f"{named} {int(number)})" in run.why
    assert capfd.readouterr().out == f"heard 4 {run.why}\n"


@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        ("os.kill(os.getpid(), 9)", ": Killed (signal 9)"),
        ("os._exit(3)", ": exit status 3"),
        ("os._exit(0)", ""),
    ],
)
def test_how_a_lost_rank_ended_is_in_the_reason(
    monkeypatch: pytest.MonkeyPatch, ends: str, cause: str
) -> None:
    """Rule: the signal or the exit status of a lost rank is in the reason.

    This launcher waits for rank 0 first, so the kernel still has the status of rank 1.
    """
    monkeypatch.setattr(starter, "_CLEANS_S", 1.0)
    _, run = _run("", [STAYS, ROWS + ends])
    assert run.why.startswith("rank 1 (pid ") and run.why.endswith(f"was lost in row 1{cause}")


def test_the_cause_of_a_process_that_goes_on_or_is_gone_is_unknown() -> None:
    """Rule: nothing is said of how a process ended that runs, or that was waited for."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.cause(process.pid) == ""
    process.kill()
    process.communicate()
    assert child.cause(process.pid) == ""


def test_a_launcher_that_is_killed_does_not_leave_its_ranks() -> None:
    """Rule: they are ended, though they are nobody's children any more; the status is 4."""
    status, run = _run("", [STAYS, ROWS + KILLS + "time.sleep(60)"])
    assert status == 4 and run.why == "the launcher ended before its ranks (137)"


def test_a_rank_that_leaves_for_want_of_a_launcher_is_not_to_blame() -> None:
    """Rule: a rank may know before us that nobody takes its rows; its status is not the run's."""
    status, run = _run("", [STAYS, ROWS + KILLS + "line.leave(141)"])
    assert status == 4 and run.why == "the launcher ended before its ranks (137)"


class _Stopped(selectors.DefaultSelector):
    """Waits as one does whose process is stopped from the first row until all is over."""

    run: RankRun

    def select(self, timeout: float | None = None) -> Any:
        """What has come, or nothing, since the time is over; as the kernel has it."""
        rows = [peer for peer in self.run._peers.all if peer.stage == Phase.ROWS]
        if not timeout or not rows:
            return super().select(timeout)
        for peer in rows:
            peer.request_stop("go on")
        self.run._launcher.wait()
        return []


def test_a_starter_that_was_stopped_looks_before_it_judges() -> None:
    """Rule: a run that has come to its end meanwhile has ended well: its words lie there."""
    run = _made("", [ROWS + "import select; select.select([line], [], []); line.leave(0)"])
    run._selector = _Stopped()
    run._selector.run = run
    assert _ended(run)[0] == 0 and run.why == ""


def test_a_launcher_that_is_stopped_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: it hands nothing on and ends nobody, so the starter ends all."""
    monkeypatch.setattr(child, "STOPPED_S", 0.1)
    status, run = _run("os.kill(os.getpid(), signal.SIGSTOP)", [STAYS, STAYS])
    assert status == 4 and "the launcher (pid " in run.why and "is stopped" in run.why


@pytest.mark.parametrize("name", ["ompi.{pid}", "prterun.host.{pid}.{user}"])
def test_a_killed_launchers_folder_goes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: the session folder of a launcher that was killed is removed, and no other's."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made = f"{tmp_path}/{name.replace('{pid}', '%d').replace('{user}', str(os.geteuid()))}"
    (tmp_path / "ompi.1").mkdir()
    makes = f"os.makedirs({made!r} % os.getpid() + '/0/0'); "
    waits = "[one.wait() for one in started]"
    status, run = _run(makes + waits, [STAYS, ROWS + KILLS + "time.sleep(60)"])
    assert status == 4 and run.why == "the launcher ended before its ranks (137)"
    assert [path.name for path in tmp_path.iterdir()] == ["ompi.1"]


def test_a_rank_that_stays_stopped_ends_the_run_without_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule: all others would wait for it for ever; -T is not needed for that."""
    monkeypatch.setattr(child, "STOPPED_S", 0.1)
    status, run = _run("", [STAYS, ROWS + "os.kill(os.getpid(), signal.SIGSTOP)"])
    assert status == 4 and re.fullmatch(r"rank 1 \(pid \d+\) is stopped", run.why)


@pytest.mark.parametrize("stage", ["starting", "rows", "ending"])
def test_a_rank_that_is_stopped_is_named(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    """Rule: -T holds from the start to the end; who is stopped is to blame, and ended."""

    def come(run: RankRun) -> bool:
        there = _places(run) == {0: (stage, -1), 1: (stage, -1)}
        return there and any(child.stopped(p.pid) for p in run._peers.inside())

    tells = f"line.stage('{stage}'); "
    stops = tells + "os.kill(os.getpid(), signal.SIGSTOP)"
    status, run = _impatient([tells + "time.sleep(60)", stops], come, monkeypatch)
    assert status == 4 and run.why.startswith("rank 1 (pid ")
    assert run.why.endswith(f"is stopped ({stage} for 0 s; -T)")


@pytest.mark.parametrize(
    ("row", "said"),
    [(1, r"rank 0 \(pid \d+\) is behind the others"), (0, "all ranks wait for each other")],
)
def test_who_is_behind_is_named(monkeypatch: pytest.MonkeyPatch, row: int, said: str) -> None:
    """Rule: where nobody is stopped the last one is to blame, else nobody."""

    def come(run: RankRun) -> bool:
        return _places(run) == {0: (Phase.ROWS, 0), 1: (Phase.ROWS, row)}

    later = ROWS + f"line.send(row={row}); time.sleep(60)"
    status, run = _impatient([STAYS, later], come, monkeypatch)
    assert status == 4 and re.search(said, run.why)


def test_a_rank_that_leaves_with_an_error_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a launcher may not mind a rank that never came.

    The others would wait for it for ever.
    """
    monkeypatch.setattr(starter, "_REPORTS_S", 0.5)
    status, run = _run("", [STAYS, "line.leave(130)"])
    assert (status, run.why) == (130, "")


def test_a_signal_to_one_rank_is_a_signal_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: all hear of it, so that rank 0 reports; the status is the signal's."""
    monkeypatch.setattr(starter, "_REPORTS_S", 0.5)
    status, run = _run("", [LISTENS, ROWS + "line.send(signalled=15); time.sleep(60)"])
    assert (status, run.why) == (143, "interrupted by SIGTERM (rank 1)")


# MPICH 4's report on killed ranks.
BANNER = f"""
{"=" * 83}
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 7266 RUNNING AT vm
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
{"=" * 83}
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""


def test_a_signal_before_the_first_row_leaves_no_banner(capfd: pytest.CaptureFixture[str]) -> None:
    """Rule: MPICH's report on ranks that Ctrl-C ended is no news; other lines are passed on.

    So are a program's own empty lines and lines of equals signs.
    """
    rows = "# a row\n\n=====\n= 3\n"
    ends = f"os.write(1, {(BANNER + rows).encode()!r}), os._exit(15)"
    own = (
        f"signal.signal(15, lambda *_: ([one.kill() for one in started], {ends})); "
        "os.kill(os.getppid(), 2); time.sleep(60)"
    )
    status, run = _run(own, ["time.sleep(60)"])
    assert (status, run.why) == (130, "interrupted by SIGINT")
    assert capfd.readouterr().out == rows


def test_output_that_cannot_be_written_ends_the_run(run: Run) -> None:
    """Rule: a launcher says nothing when it cannot hand output on; the starter knows."""
    code = (
        "import sys; from busbar.process import serve; "
        "from tests.bench.launch.test_ranks import _run; "
        "sys.exit(serve('busbar', lambda: _run('', [\"print('x', flush=True); \" + "
        "sys.argv[1]])[0]))"
    )
    for out, status in (("/dev/full", 2), ("/dev/null", 0)):
        words = ("sh", "-c", f'exec "$@" > {out}', "sh", sys.executable, "-c", code, LEAVES % 0)
        done = run(*words)
        assert done.returncode == status, done.stderr
        assert ("standard output cannot be written" in done.stderr) == (status == 2)


def test_nobody_else_is_listened_to(run: Run) -> None:
    """Rule: a rank without a starter tells nobody, and is not held up by that."""
    code = (
        "from bench.launch.control_socket import ControlSocket; line = ControlSocket.open(0); "
        "line.send(row=1); line.leave(); print(line.connected)"
    )
    for variable in ({}, {VARIABLE: "gone"}):
        done = run(sys.executable, "-c", code, env=variable)
        assert (done.stdout, done.stderr) == ("False\n", "")


def test_segments_that_ranks_leave_are_removed(tmp_path: Path) -> None:
    """Rule: those that our ranks had mapped go; those of others, and what is in use, stay."""
    older = tmp_path / "mpich_shm_older"
    older.write_bytes(b"x")
    ours, used, unseen = (tmp_path / f"sm_segment.{n}" for n in range(3))
    other = tmp_path / "nobody.knows"
    segments = Segments(tmp_path)
    for path in (ours, used, unseen, other):
        path.write_bytes(bytes(4096))
    with ours.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 4096)
    segments.look(os.getpid())
    assert segments.remove() == []  # still mapped
    mapped.close()
    with used.open("rb"):
        assert segments.remove(unseen=True) == [ours, unseen]
    assert sorted(tmp_path.iterdir()) == sorted([older, used, other])
    assert Segments(tmp_path).remove(unseen=True) == []  # what was there before is not ours


def test_a_shared_memory_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: MPICH crashes where /dev/shm is read-only; the message names the remedy, status 3."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    room(2, "Open MPI v5.0.11", tmp_path)  # which takes another way
    for asks in (lambda: room(2, "MPICH 5.0.2", tmp_path), lambda: writable("MPICH", tmp_path)):
        with pytest.raises(Unavailable, match=r"cannot be written.*mount it for writing") as found:
            asks()
        assert found.value.exit_status == 3
    writable("MPICH 5.0.2", tmp_path / "none")


def test_ranks_of_a_launcher_look_at_the_shared_memory_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule: under plain mpirun, too, the remedy comes before MPI starts and crashes."""
    monkeypatch.setattr(start, "launched", lambda: SimpleNamespace(rank=0, size=2))
    for name, found in (("load_mpi", None), ("check_library", None), ("library_version", "MPICH")):
        monkeypatch.setattr(start, name, lambda *_, found=found, **__: found)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    options = parse(["--transport", "mpi"], "allreduce")
    with pytest.raises(Unavailable, match="mount it for writing"):
        start.mpi(options, ControlSocket(), lambda opened: 0)


def test_a_full_shared_memory_is_told_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: MPI ends at the first byte that it cannot have; the message names the remedy."""

    def free(nbytes: int) -> None:
        stat = os.statvfs_result((4096, 4096, 0, 0, nbytes // 4096, 0, 0, 0, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda path: stat)

    free(64 << 20)  # a container's, by default
    room(12, "MPICH 5.0.2", tmp_path)
    room(64, "Open MPI v5.0.11", tmp_path)
    with pytest.raises(Unavailable, match=r"67 MB free, and MPI takes about 86 MB .*--shm-size"):
        room(16, "MPICH 5.0.2", tmp_path)
    free(8 << 20)
    with pytest.raises(Unavailable, match="--shm-size"):
        room(2, "Open MPI v5.0.11", tmp_path)


@pytest.mark.parametrize("lacking", ["mpi4py", "mpirun"])
def test_without_an_mpi_ranks_are_threads(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: --ranks without an MPI or its launcher runs on threads, with the reason.

    A transport that was asked for is refused with it.
    """

    def absent() -> None:
        raise Unavailable("no mpi4py")

    if lacking == "mpi4py":
        monkeypatch.setattr(ranks, "load_mpi", absent)
    else:
        monkeypatch.setattr(ranks, "load_mpi", lambda: None)
        monkeypatch.setattr(ranks, "library_version", lambda mpi: "MPICH 5")
        for module in (launchers, ranks):
            monkeypatch.setattr(module, "mpirun_beside", lambda: None)
    row = ("--ranks", "3", "-b", "1K", "-e", "1K", "-n", "1", "-A", "ring")
    status, out, err = in_process("allreduce", *row)
    assert (status, len(table_rows(out))) == (0, 1)
    assert "#  Rank  2" in out
    assert f"ranks are threads of this process: no {lacking}" in err
    status, out, err = in_process("allreduce", *row, "--transport", "mpi")
    assert (status, out) == (3, "") and f"no {lacking}" in err
