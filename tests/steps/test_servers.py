"""``bench.step`` with parameter servers: its rows and records, over every way of messages."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

from bench.launch.control_socket import step
from bench.run.watchdog import Watchdog
from bench.steps.server.loops import ServerLog, ServerLoop
from bench.steps.server.run import _ServerRun
from bench.steps.server.trainer_hooks import GradientFunction, OnesTrainer, Vector
from busbar.counters import Look
from collectives.execution.world import World
from reports.readers.codec import measurements
from reports.records.measurement import Noise
from tests.command import reports_main
from tests.conftest import LIMIT_S, Mpi, Run, called, environment, thorough
from tests.reports.runs import step_of
from tests.together import together

UPDATES = ("sync", "k-sync:2", "k-batch-sync:3", "async", "k-async:2", "k-batch-async:2")
STEP = ("--model", "toy", "--scale", "64", "--compute", "exp:1", "-n", "20", "--json")


def _right(text: str, updates: Sequence[str], ranks: int, servers: int, transport: str) -> None:
    """Check that every update has a complete record, and that no learner was lost."""
    records: list[dict[str, Any]] = [
        json.loads(line) for line in text.splitlines() if '"step"' in line
    ]
    assert [one["algorithm"] for one in records] == list(updates)
    for one in records:
        step = one["step"]
        assert (one["transport"], one["ranks"]) == (transport, ranks)
        assert (step["servers"], step["learners"]) == (servers, ranks - servers)
        assert not step.get("lost")
        # 20 updates are too few for blocks: their mean is one loop's. n counts updates everywhere.
        assert one["iterations"] == len(step["update_s"]) == 20
        assert one["times_s"] == pytest.approx([fmean(step["update_s"])])
        # Every server has made as many updates of as many gradients; warm-ups are not counted.
        assert sum(step["staleness"].values()) == servers * step["needed"] * 20
        assert "sync" not in one["algorithm"].split(":")[0].split("-") or set(
            step["staleness"]
        ) == {"0"}
        # A record leaves it out where other work made the server so slow that learners outrun it.
        assert step.get("with_server_s", 1) > 0 and step["queue_wait_s"]["p95"] >= 0
        assert one["total_bytes"] > 0
        # What learners wait for messages is a part of the time; the exchange was also run alone.
        assert 0 <= step["exposed_s"] <= one["times_s"][0] and step["one_rank_s"] > 0
        assert (transport == "sockets") == ("exchange_s" not in step)


@pytest.mark.parametrize("servers", [1, 2])
def test_ranks_as_threads(servers: int) -> None:
    """Rule: over threads every protocol has its record, with one server and with several."""
    words = ("--threads", "5", "--servers", str(servers), "--update", ",".join(UPDATES))
    status, out, _ = called(step, *STEP, *words)
    assert status == 0
    _right(out, UPDATES, 5, servers, "inproc")


@pytest.mark.parametrize("law", ["fixed:1", "exp:1"])
def test_a_mean_beside_a_median_is_said(law: str) -> None:
    """Rule: a table with all-reduces and servers says that one has medians and the other means."""
    words = ("--threads", "3", "--model", "toy", "--scale", "64", "-n", "2", "--compute", law)
    status, out, _ = called(step, *words, "--update", "ring,sync")
    assert status == 0 and ("with a server the mean, else the median" in out) == (law == "exp:1")


def test_a_server_s_column_is_in_no_formula(tmp_path: Path) -> None:
    """Rule: with recorded times a formula uses only the columns of learners."""
    times = tmp_path / "times.csv"
    times.write_text("500,1,1\n500,1,1\n")
    words = ("--threads", "3", "--model", "toy", "--scale", "64", "-n", "6", "--json")
    status, out, _ = called(step, *words, "--compute", str(times), "--update", "sync")
    assert status == 0
    assert json.loads(out.splitlines()[-1])["step"]["formula_s"] == pytest.approx(0.001)


def test_first_weights_are_no_update_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: bytes and messages of a record are those of one update, also in the shortest run.

    The exchange alone, after the row, is progress as the row is, so -T does not end it.
    """
    rows: list[list[int]] = []
    arrived = Watchdog.arrived

    def note(self: Watchdog, iteration: int) -> None:
        if not rows or iteration < rows[-1][-1]:
            rows.append([])
        rows[-1].append(iteration)
        arrived(self, iteration)

    monkeypatch.setattr(Watchdog, "arrived", note)
    words = ("--threads", "4", "--model", "toy", "--scale", "64", "--compute", "fixed:1", "--json")
    status, out, err = called(step, *words, "--update", "sync", "-n", "6")
    assert status == 0, err
    one = json.loads(out.splitlines()[-1])
    assert one["sent_bytes"] == one["received_bytes"] == 3 * one["size"]
    assert one["step"]["messages"] == 6
    assert [max(row) for row in rows] == [7, 20]


@pytest.mark.parametrize("update", ["sync", "async"])
def test_an_error_of_a_learner_ends_the_run(update: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: an error in a learner's thread is raised, and servers do not wait for the learner.

    The other learner begins when the server knows: alone it could end an asynchronous run before.
    """
    make = OnesTrainer.gradient_function
    dropped = threading.Event()

    def fail(self: OnesTrainer, learner: int) -> GradientFunction:
        healthy = make(self, learner)

        def gradient(weights: Vector, version: int) -> Vector:
            if learner == 1:
                raise MemoryError("no memory")
            assert dropped.wait(60)
            return healthy(weights, version)

        return gradient

    lost: list[tuple[int, str]] = []
    drop = ServerLoop._drop

    def note(self: ServerLoop, learner: int, reason: str) -> None:
        lost.append((learner, reason))
        try:
            drop(self, learner, reason)
        finally:
            dropped.set()

    monkeypatch.setattr(OnesTrainer, "gradient_function", fail)
    monkeypatch.setattr(ServerLoop, "_drop", note)
    words = ("--threads", "3", "--model", "toy", "--scale", "64", "-n", "6", "--update", update)
    with pytest.raises(MemoryError):
        called(step, *words)
    assert lost == [(1, "ended with MemoryError")]


def test_a_learner_that_ends_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a server does not wait for a learner whose thread ended before its first message."""
    cores, drop = _ServerRun._cores, ServerLoop._drop
    connected = threading.Barrier(3)
    lost: list[tuple[int, str]] = []

    def fail(self: _ServerRun) -> AbstractContextManager[None]:
        connected.wait(60)
        if self.world.rank == 2:
            raise MemoryError("no memory")
        return cores(self)

    def note(self: ServerLoop, learner: int, reason: str) -> None:
        lost.append((learner, reason))
        drop(self, learner, reason)

    monkeypatch.setattr(_ServerRun, "_cores", fail)
    monkeypatch.setattr(ServerLoop, "_drop", note)
    words = ("--threads", "3", "--model", "toy", "--scale", "64", "-n", "6", "--update", "sync")
    with pytest.raises(MemoryError):
        called(step, *words)
    assert lost == [(1, "ended with an error")]


@pytest.mark.parametrize("mpi", ["openmpi", *thorough("mpich")], indirect=True)
def test_ranks_of_mpi(run: Run, mpi: Mpi) -> None:
    """Rule: over MPI every protocol has its record, with one server and with several."""
    step = ("-m", "bench.step", *STEP)
    few = ("sync", "async")
    small = ("--problem", "softmax:samples=256:features=6", "--batch", "4", "-n", "20", "--json")
    trained = ("sync", "async", "ring", "ps", "library")
    one, two, three, four = together(
        run,
        mpi,
        4,
        (*step, "--update", ",".join(UPDATES)),
        (*step, "--servers", "2", "--update", ",".join(few)),
        (*step[:2], *small, "--update", ",".join(trained)),
        (*step[:2], *small, "--update", "async,one_shot", "--compress", "int8"),
    )
    for ended in (three, four):
        assert ended.returncode == 0, ended.stderr
        for line in ended.stdout.splitlines()[1:]:
            found = json.loads(line)["step"]
            assert found["curve"]["loss"][0] > found["curve"]["loss"][-1]
            assert found.get("compress") == (None if ended is three else "int8")
            if found["update"] not in ("async", "one_shot"):
                assert found["apart"]["part"] < 1e-5
    assert one.returncode == 0, one.stderr
    _right(one.stdout, UPDATES, 4, 1, "mpi")
    assert two.returncode == 0, two.stderr
    _right(two.stdout, few, 4, 2, "mpi")


def test_learners_as_processes(tmp_path: Path) -> None:
    """Rule: learners that are processes work like ranks, also with several servers.

    In a trace they have lines as ranks have, on the servers' clock: what a server takes in had been
    pushed before.
    """
    trace = tmp_path / "trace.json"
    for name, *more in (("k-batch-sync:2",), ("k-async:2", "--trace", str(trace))):
        words = ("--learners", "2", "--servers", "2", "--update", name, *more)
        status, out, _ = called(step, *STEP, *words)
        assert status == 0
        _right(out, [name], 4, 2, "sockets")
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    for server in (0, 1):
        taken = [e for e in events if e["pid"] == server and e["name"] == "queue"]
        for learner in (0, 1):
            mine = [e for e in events if e["pid"] == 2 + learner]
            assert {e["cat"] for e in mine} == {"compute", "messages"}
            pushed = sorted(e["ts"] for e in mine if e["name"] == f"gradient to {server}")
            queued = sorted(e["ts"] for e in taken if e["args"]["learner"] == learner)
            assert queued and all(a <= b + 0.01 for a, b in zip(pushed, queued, strict=False))


@pytest.mark.parametrize("update", ["ring", "async"])
def test_steps_beside_other_programs_say_so(update: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: every row has what other programs took, also those of servers, and the answer knows."""
    ticks = itertools.count()

    def three_cores_of_four() -> Look:
        now = float(next(ticks))
        return Look("m", now, 0, 0, None, None, mine=0.0, busy=3 * now, steal=0.0, cpus=4, hz=None)

    monkeypatch.setattr("bench.run.noise.look", three_cores_of_four)
    words = ("--threads", "3", *STEP[:-1], "--update", f"{update},sync")
    status, out, _ = called(step, *words, "--json")
    assert status == 0
    records = [json.loads(line) for line in out.splitlines() if '"step"' in line]
    assert [one["noise"]["others"] for one in records] == [[0.75], [0.75]]
    status, out, _ = called(step, *words)
    assert "# sync: other programs took 75 % of all cores" in out and "# too disturbed to" in out
    assert "cannot tell whether" in " ".join(out.split("\n#  ")), out


def test_steps_wait_until_other_programs_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: --wait-quiet is one wait before the first update, with a line if it was in vain."""
    waits: list[float] = []

    def wait(world: World, seconds: float) -> str:
        waits.append(seconds)
        return "not quiet"

    monkeypatch.setattr("bench.run.session.not_quiet", wait)
    words = ("--threads", "2", *STEP, "--update", "ring,sync", "--wait-quiet", "2m")
    status, _, err = called(step, *words)
    assert status == 0 and waits == [120.0, 120.0], "both ranks wait once"
    assert "busbar: waiting until other programs leave the cores, 2 min" in err
    assert err.index("leave the cores") < err.index("busbar: not quiet")


def test_a_record_has_the_seed_and_the_plot(tmp_path: Path) -> None:
    """Rule: the recorded options repeat the run, in the words of the docs: with its draws and its
    figure.
    """  # noqa: D205
    pytest.importorskip("matplotlib")
    rows = tmp_path / "rows.jsonl"
    words = ("--threads", "2", *STEP[:-1], "--update", "ring", "--seed", "3")
    more = ("--plot", str(tmp_path / "a.png"), "--out", str(rows))
    assert called(step, *words, *more)[0] == 0
    recorded = str(measurements(rows.read_text())[0].run.environment["options"])
    assert recorded == " ".join(words) + " --plot a.png"


@pytest.mark.parametrize("changed", ["lost", "joined"])
def test_a_run_whose_learners_changed_has_no_noise(changed: str) -> None:
    """Rule: CPU time of a lost or joined learner is not known, so nothing is said of others."""
    log = ServerLog()
    getattr(log, changed).append((0.0, 1, "was lost"))
    one: Any = SimpleNamespace(world=SimpleNamespace(gather=lambda value: [value, True]))
    counters: Any = SimpleNamespace(gather=lambda: (Noise(others=(0.5,)), (0.1,)))
    assert _ServerRun._noise(one, counters, log) == (None, ())
    assert _ServerRun._noise(one, counters, None) == counters.gather()


@pytest.mark.parametrize(
    ("update", "received", "sent"),
    [
        ("sync", 3, 3),
        ("k-sync:2", 2, 3),
        ("k-batch-sync:2", 2, 3),
        ("async", 1, 1),
        ("k-async:2", 2, 2),
        ("k-batch-async:2", 2, 2),
    ],
)
def test_bytes_of_an_update_are_the_protocol_s(update: str, received: int, sent: int) -> None:
    """Rule: what is counted is the table of bytes per update of docs/parameter-servers.md.

    Synchronous protocols that take K < L gradients also receive those that come too late.
    """
    words = ("--threads", "4", "--model", "toy", "--scale", "64", "--compute", "exp:1", "--json")
    status, out, err = called(step, *words, "--update", update, "-n", "30")
    assert status == 0, err
    one = json.loads(out.splitlines()[-1])
    assert one["sent_bytes"] == sent * one["size"]
    late = one["step"].get("dropped", 0) if update != "sync" else 0
    assert received <= one["received_bytes"] / one["size"] <= received + late / 30


def test_gradients_of_an_unfinished_update_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a run may end between gradients; those after the last update are no update's bytes."""
    after = itertools.count()

    def enough(self: _ServerRun, updates: int, spent: float) -> bool:
        return updates >= 7 and next(after) == 2

    monkeypatch.setattr(_ServerRun, "_enough", enough)
    words = ("--threads", "4", "--model", "toy", "--scale", "64", "--compute", "fixed:1", "--json")
    status, out, err = called(step, *words, "--update", "sync", "-n", "6")
    assert status == 0, err
    one = json.loads(out.splitlines()[-1])
    assert one["sent_bytes"] == one["received_bytes"] == 3 * one["size"]
    assert one["step"]["messages"] == 6 and next(after) == 3


@pytest.mark.parametrize("update", ["ring", "async"])
def test_steps_that_go_on_are_no_stuck_row(update: str) -> None:
    """Rule: -T counts from the last step, not from the row's beginning."""
    words = ("--threads", "3", "--model", "toy", "--scale", "64", "--compute", "fixed:100")
    code, _, err = called(step, *words, "--update", update, "-n", "50", "-T", "1")
    assert code == 0, err


def test_a_learner_that_is_late_is_named(tmp_path: Path) -> None:
    """Rule: at the time-out the message names the late learner, and all rows are kept."""
    times, rows = tmp_path / "times.csv", tmp_path / "rows.jsonl"
    times.write_text("1,1,1\n1,1,1\n1,1,600000\n1,1,1\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench.step", "--threads", "3", "--model", "toy"),
            *("--scale", "64", "--compute", str(times), "--update", "k-sync:1,sync"),
            *("-n", "6", "-T", "3", "--out", str(rows)),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 4, done
    assert "server 0 has made 2 updates" in done.stderr
    longest = done.stderr.split("; ")[-2]
    assert longest.startswith("rank 2 pushed last ") and "of version 1, rank 1" in longest
    kept, stuck = measurements(rows.read_text())
    assert (kept.algorithm, stuck.algorithm) == ("k-sync:1", "sync")
    # What hung has a record with its state, and `reports show` has its reason.
    assert kept.times_s and not step_of(kept).stuck
    assert stuck.skipped.startswith("the row made no progress for 3 s (-T); server 0")
    state = step_of(stuck).stuck
    assert state["updates"] == 2 and state["last_push"]["2"]["version"] == 1
    _, shown, _ = called(reports_main, "show", str(rows))
    assert "rank 2 pushed last" in " ".join(shown.split()), shown
    assert "k-sync:1" in done.stdout and "# ended early: the row made no progress" in done.stdout
