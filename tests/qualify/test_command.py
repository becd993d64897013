"""``busbar qualify`` over a launcher that acts as hosts with faults: verdicts, files, ends."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bench.launch.launch import Interrupted
from bench.qualify import launchers, main
from bench.qualify.engine import Engine
from bench.qualify.lines import Identity, Line, Outcome, parse
from bench.qualify.main import QualifyCommand
from bench.qualify.model import Decision, Ending, Launch, Observation, Stage
from bench.qualify.store import FILE, RESULT
from busbar.cli import main as busbar_main
from busbar.errors import BusbarError, ReportError, StoreError, Unavailable, Unsupported
from busbar.files import write
from busbar.status import FOUND, GOOD
from reports.readers.reading import read
from tests.conftest import is_running, wait_until
from tests.qualify.fake_hosts import output

HOSTS = [f"n{number}" for number in range(6)]
FAKE = Path(__file__).parent / "fake_hosts.py"


@pytest.fixture(autouse=True)
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Take the fake hosts' launcher for MPI's, in a folder of the test's own."""
    script = tmp_path / "mpirun"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -S {FAKE} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(launchers, "find_mpirun", lambda: str(script))
    monkeypatch.setattr(launchers, "library_version", lambda mpi: "MPICH 5")
    monkeypatch.setattr(launchers, "load_mpi", lambda: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("FAKE_FAULTS", "{}")
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", *launchers.HOST_FILES):
        monkeypatch.delenv(name, raising=False)
    return script


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Have the fake hosts answer at once, without processes; gives the launches that were run."""
    launches: list[Launch] = []

    async def run(self: Engine, launch: Launch) -> tuple[list[Line], Outcome]:
        launches.append(launch)
        faults = json.loads(os.environ["FAKE_FAULTS"])
        texts, error, status = output(launch.hosts, self.ranks(launch), launch.stage.value, faults)
        return [line for line in map(parse, texts) if line], Outcome(status, error, 1.0)

    monkeypatch.setattr(Engine, "_run", run)
    return launches


def _faults(monkeypatch: pytest.MonkeyPatch, **faults: str) -> None:
    monkeypatch.setenv("FAKE_FAULTS", json.dumps(faults))


def _command(*argv: str, hosts: list[str] = HOSTS) -> QualifyCommand:
    words = [*argv] if "--resume" in argv else ["--hosts", ",".join(hosts), "-o", "run", *argv]
    return QualifyCommand.parse(words, QualifyCommand.make_parser())


def _ended(metrics: list[str]) -> float:
    """The end of a campaign in the lines of its file of metrics, in seconds since the epoch."""
    name = "busbar_qualify_end_timestamp_seconds "
    return next(float(line.removeprefix(name)) for line in metrics if line.startswith(name))


def _verdicts(folder: str = "run") -> dict[str, str]:
    found = json.loads(Path(folder, RESULT).read_text())["verdicts"]
    return {" ".join(one["subject"]): one["state"] for one in found}


@pytest.mark.usefixtures("launched")
def test_healthy_hosts_are_good_and_the_status_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    """No fault, no accusation; the last line of standard output is the answer."""
    assert _command("--good", "good").run() == GOOD
    assert capsys.readouterr().out.splitlines()[-1] == "all 6 hosts are good"
    assert Path("good").read_text().split() == HOSTS


@pytest.mark.usefixtures("launched")
def test_every_fault_is_named_by_its_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slow, refused, crashed, wrong, odd and hanging hosts in one campaign: each by its kind."""
    hosts = [f"n{number}" for number in range(16)]
    faults = {"n1": "slow", "n3": "refuse", "n5": "crash", "n6": "wrong", "n8": "old"}
    _faults(monkeypatch, **faults, n10="hang", n11="silent")
    assert _command(hosts=hosts).run() == FOUND
    assert {host: state for host, state in _verdicts().items() if state != "good"} == {
        "n1": "slow",
        "n3": "unreachable",
        "n5": "crashes",
        "n6": "wrong",
        "n8": "different",
        "n10": "hangs",
        "n11": "unreachable",
    }
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1].startswith("9 of 16 hosts are good; n1 is slow (x0.60), ")
    assert "ValueError: out of order" in re.sub(r"\s+", " ", shown.out)
    assert "Connection refused" in (Path("run") / FILE).read_text()
    assert shown.err.index("stage pairs:") < shown.err.index("pairs of hosts, round 1")
    assert "in 2 of 2 launches alone: ValueError" in re.sub(r"\s+", " ", shown.out)
    assert "busbar: next: --resume run with --drain" in shown.err
    assert all(len(line) <= 80 for line in shown.out.splitlines()[:-1])


def test_a_host_that_hangs_costs_only_its_own_launch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Real processes, of which the hanging one is ended at its deadline; none stays."""
    _faults(monkeypatch, b="silent", c="refuse")
    command = _command("--deadline", "4", "--launcher", "ssh", "--ssh", str(tmp_path / "mpirun"))
    engine = command._engine(command._new(), launchers.choose(None, (), "", {}))
    launches = [Launch(n, 0, Stage.ALONE, (host,)) for n, host in enumerate("abc")]
    watcher = _Batches()
    engine.campaign(lambda known: Decision((() if known else tuple(launches)), ()), [], watcher, "")
    endings = {one.launch.hosts[0]: one.reports[0] for one in watcher.seen}
    assert endings["a"].ending is Ending.FINISHED
    assert endings["a"].facts == {"kernel": "6"}
    assert endings["b"].ending is Ending.UNREACHABLE
    assert endings["b"].detail.startswith("nothing came from it in 4")
    assert endings["c"].ending is Ending.UNREACHABLE
    assert endings["c"].detail.endswith("Connection refused")
    assert not _alive(tmp_path / "log")


class _Batches:
    """Keeps observations in memory; see `bench.qualify.engine.Watcher`."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def decided(self, decision: Decision) -> None:
        """Nothing to do."""

    def observed(self, observation: Observation) -> None:
        """Keep it."""
        self.seen.append(observation)


def test_a_campaign_that_is_interrupted_at_any_moment_resumes_to_the_same_verdicts(
    launched: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> None:
    """A signal during any launch, and a last line that is cut off: the rest is run, no more."""
    _faults(monkeypatch, n1="slow", n4="crash")
    _command().run()
    verdicts, total, run = _verdicts(), len(launched), Engine._run
    # Under nohup, or in the background of a shell, the tests inherit that signals are ignored.
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        earlier = signal.signal(number, signal.SIG_DFL)
        request.addfinalizer(partial(signal.signal, number, earlier))

    @settings(deadline=None, max_examples=8)
    @given(
        share=st.floats(0, 1, exclude_max=True),
        number=st.sampled_from(numbers),
        torn=st.integers(0, 300),
    )
    def interrupted(share: float, number: signal.Signals, torn: int) -> None:
        monkeypatch.chdir(tmp_path_factory.mktemp("campaign"))
        launched.clear()

        monkeypatch.setattr(Engine, "_run", _cut_at(run, int(share * total), launched, number))
        with pytest.raises(Interrupted) as caught:
            _command().run()
        assert caught.value.exit_status == 128 + number
        monkeypatch.setattr(Engine, "_run", run)
        path = Path("run", FILE)
        whole = path.read_bytes()
        last = whole.rfind(b"\n", 0, -1) + 1
        if torn < len(whole) - last and last:  # as a machine that fails while it writes
            path.write_bytes(whole[: last + torn])
        begun, kept = {*launched}, path.read_bytes().count(b"\n") - 1
        launched.clear()
        assert _command("--resume", "run").run() == FOUND
        assert _verdicts() == verdicts
        rest = [one for one in launched if one.batch >= 0]  # the others check the launcher
        assert len(launched) - len(rest) <= 3
        assert len(rest) == total - kept
        # What is run again belongs to the batch in which the signal came.
        again = begun & {*rest}
        assert len({one.batch for one in again}) <= 1

    interrupted()


@pytest.mark.parametrize(("count", "before"), [(20, r"\(which worked before\) "), (0, "")])
def test_a_campaign_resumed_where_no_launch_works_stays_as_it_was(
    count: int, before: str, launched: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside the cluster every launch fails: one line, no verdict, and no launch is kept.

    One host that worked and now fails does not stop the campaign, since it may be broken.
    """
    run = Engine._run
    monkeypatch.setattr(Engine, "_run", _cut_at(run, count, launched))
    with pytest.raises(Interrupted):
        _command().run()
    monkeypatch.setattr(Engine, "_run", run)
    kept = Path("run", FILE).read_bytes()
    _faults(monkeypatch, **dict.fromkeys(HOSTS, "refuse"))
    launched.clear()
    with pytest.raises(Unavailable, match=f"unchanged: n0, n3, n5 {before}do not work from here"):
        _command("--resume", "run").run()
    assert len(launched) == 3
    assert Path("run", FILE).read_bytes() == kept
    assert not Path("run", RESULT).exists()
    _faults(monkeypatch, n0="refuse")
    assert _command("--resume", "run").run() == FOUND
    assert {host for host, state in _verdicts().items() if state == "good"} == {*HOSTS} - {"n0"}


def _cut_at(
    run: Any, count: int, launched: list[Launch], number: signal.Signals = signal.SIGTERM
) -> Any:
    """A stand-in for ``Engine._run``: a signal for this process after ``count`` launches."""

    async def cut(self: Engine, launch: Launch) -> tuple[list[Line], Outcome]:
        if len(launched) == count:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        result: tuple[list[Line], Outcome] = await run(self, launch)
        return result

    return cut


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_campaign_that_is_ended(tmp_path: Path, number: int) -> None:
    """Whatever ends the command, its launches end within seconds, and it says how to go on.

    On emulated hosts this is in the same cluster, for nowhere else there are such hosts.
    """
    emulated = {"PRTE_MCA_plm_ssh_agent": "/run/enter"} if number == signal.SIGINT else {}
    log = tmp_path / "log"
    start = (
        "from bench.qualify import launchers as l, main;"
        f"l.find_mpirun = lambda: {str(tmp_path / 'mpirun')!r};"
        "l.library_version = lambda mpi: 'MPICH 5';"
        "from busbar.process import serve; import sys;"
        "sys.exit(serve('busbar', lambda: main.QualifyCommand.start('q', sys.argv[1:])))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", start, "--hosts", "a,b", "-o", "run"],
        env={**os.environ, **emulated, "FAKE_FAULTS": '{"a": "hang", "b": "hang"}'},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) == 2)
    process.send_signal(number)
    said = process.communicate(timeout=30)[1]
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert said.splitlines()[-1].startswith("busbar: interrupted; ")
        assert "--resume run goes on" in said
        assert said.endswith("in the same busbar cluster\n") == bool(emulated)
    wait_until(lambda: not _alive(log))


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("measure", ["allreduce", "forward", "both"])
def test_thresholds_are_for_hosts_that_are_all_alike(
    measure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hosts as fast as one another are slow below --minimum, alone or in pairs, and good above.

    A minimum of both directions is that of their sum, as ``reports show`` prints it. The sentence
    and the reason for a scheduler have the share of the minimum.
    """
    ways = 2 if measure == "both" else 1
    assert _command("--minimum", f"{measure}={0.9 * ways}GB/s").run() == GOOD
    words = ["--hosts", ",".join(HOSTS), "-o", "slow", "--minimum", f"{measure}={1.1 * ways}GB/s"]
    words += ["--drain", "drain.sh"]
    assert QualifyCommand.parse(words, QualifyCommand.make_parser()).run() == FOUND
    assert set(_verdicts("slow").values()) == {"slow"}
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert f"below {1.1 * ways:.2f} GB/s" in shown
    assert "n0 is slow (x0.9" in shown and "of the minimum), n1 is slow" in shown
    assert Path("drain.sh").read_text().count("busbar: slow (x0.9") == len(HOSTS)
    assert "x1.0" not in shown
    rows = [row for row in read(Path("run")).rows if row.algorithm == measure]
    assert measure == "allreduce" or {row.alg_factor for row in rows} == {ways}
    with pytest.raises(BusbarError, match="write MEASURE=RATE, of memory, allreduce, forward"):
        _command("--minimum", "disk=1GB/s")


@pytest.mark.usefixtures("launched")
def test_files_for_schedulers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file has what its reader takes; scripts have a command a bad host, and run nothing."""
    _faults(monkeypatch, n1="slow", n4="crash")
    names = ("good", "exclude", "drain", "cordon", "metrics", "page")
    Path("racks").write_text("".join(f"{host} r{1 - n % 2}\n" for n, host in enumerate(HOSTS)))
    words = [word for name in names for word in (f"--{name}", name)]
    _command("--racks", "racks", *words).run()
    assert Path("good").read_text() == "n3\nn5\nn0\nn2\n"  # rack r0, then r1
    assert Path("exclude").read_text() == "n1\nn4\n"
    drains = [shlex.split(line) for line in Path("drain").read_text().splitlines()[2:]]
    assert [words[:4] for words in drains] == [
        ["scontrol", "update", f"NodeName={host}", "State=DRAIN"] for host in ("n1", "n4")
    ]
    assert drains[0][4].startswith("Reason=busbar: slow (x0.6")
    assert "kubectl cordon n1\nkubectl cordon n4\n" in Path("cordon").read_text()
    metrics = Path("metrics").read_text()
    assert 'busbar_qualify_host_good{host="n1"} 0\n' in metrics
    assert 'busbar_qualify_host_state{host="n1",state="slow"} 1\n' in metrics
    assert 'busbar_qualify_subjects{kind="host",state="good"} 4\n' in metrics
    assert "n1" in Path("page").read_text()


def test_a_campaign_that_is_over_is_shown_without_launches(launched: list[Launch]) -> None:
    """--resume of a finished campaign starts nothing; answer and time are the first's."""
    _command("--metrics", "first").run()
    launched.clear()
    assert _command("--resume", "run", "--metrics", "again").run() == GOOD
    assert not launched
    os.utime(Path("run", FILE), (2e9, 2e9))
    assert _command("--resume", "run", "--metrics", "later").run() == GOOD
    first, again, later = (
        Path(name).read_text().splitlines() for name in ("first", "again", "later")
    )
    assert [one for one in first if "_seconds " not in one] == [
        one for one in again if "_seconds " not in one
    ]
    assert "busbar_qualify_end_timestamp_seconds 2000000000" in later
    assert abs(_ended(first) - _ended(again)) < 60


@pytest.mark.usefixtures("launched")
def test_bytes_that_are_no_text_are_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: --resume and `reports history` name a file in which bytes were damaged."""
    _command().run()
    capsys.readouterr()
    for name, words in ((FILE, ["qualify", "--resume"]), (RESULT, ["reports", "history"])):
        path = Path("run", name)
        path.write_bytes(path.read_bytes().replace(b"busbar", b"busb\x9br", 1))
        assert busbar_main([*words, "run"]) != GOOD
        assert re.fullmatch(rf"\w+: run/{name}.*: .*utf-8.*\n", capsys.readouterr().err)


def test_a_dry_run_starts_nothing(
    launched: list[Launch], capsys: pytest.CaptureFixture[str]
) -> None:
    """--dry-run prints launches with their hosts and a bound of the time, and leaves no file."""
    assert _command("--dry-run").run() == GOOD
    lines = capsys.readouterr().out.splitlines()
    assert not launched
    assert not Path("run").exists()
    assert sum(line.split()[1:] == HOSTS for line in lines) == 1
    assert re.fullmatch(r"# \d+ launches, at most .*", lines[-1])


def test_a_dry_run_has_no_suspects_whatever_the_minimum(capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: the plan is that of hosts without a fault, which are above any --minimum."""
    assert _command("--dry-run", "--minimum", "both=2000GB/s", hosts=["a", "b"]).run() == GOOD
    assert capsys.readouterr().out.splitlines()[-1].startswith("# 3 launches, at most")


def test_words_without_an_option_are_answered_with_the_option(launcher: Path) -> None:
    """Rule: hosts, a host file and a run directory without their option name the option.

    A folder that is no run's, or a file, is refused by --resume in one line.
    """
    Path("folder").mkdir()
    for words, option in (
        (["n1", "n2", "--dry-run"], "--hosts n1,n2?"),
        ([str(launcher)], f"--hostfile {launcher}?"),
        (["folder"], "--resume folder?"),
    ):
        with pytest.raises(Unsupported, match=f"no option; is it .* {re.escape(option)}"):
            QualifyCommand.parse(words, QualifyCommand.make_parser())
    for name in ("folder", str(launcher), "nothing"):
        with pytest.raises(Unsupported, match=f"{name}: no folder of a run of busbar qualify"):
            _command("--resume", name).run()


def test_a_dry_run_of_many_hosts_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: of more than 32 hosts --dry-run prints batches and the total, not each launch."""
    assert _command("--dry-run", hosts=[f"n{number}" for number in range(33)]).run() == GOOD
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("# ") for line in lines)
    assert "launches, at most" in lines[-1]


@pytest.mark.parametrize(
    ("nhosts", "argv", "expected"), [(9, (), 100_000), (65_536, (), 32 * 65_536), (9, ("7",), 7)]
)
def test_the_limit_of_launches_grows_with_the_hosts(
    nhosts: int, argv: tuple[str, ...], expected: int
) -> None:
    """Rule: no cluster is too large for the default of --launches: 32 a host, 100,000 at least."""
    words = [word for number in argv for word in ("--launches", number)]
    command = _command(*words, hosts=[f"n[1-{nhosts}]"])
    assert command._new().header.limits.launches == expected


@pytest.mark.usefixtures("launched")
def test_a_campaign_that_its_limit_ends_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: if --launches is used up, hosts without a verdict are printed with that reason."""
    assert _command("--launches", "7").run() == FOUND
    assert "busbar: ended by the limit of 7 launches (--launches)\n" in capsys.readouterr().err


@pytest.mark.usefixtures("launched")
def test_several_processes_do_not_qualify(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a launcher with several ranks is refused; one process of a launcher is not."""
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "6")
    with pytest.raises(Unsupported, match=r"MPICH \(Hydra\) started 6 processes.*start it once"):
        _command().run()
    monkeypatch.setenv("PMI_SIZE", "1")
    assert _command("--dry-run").run() == GOOD


_KNOWN = r"reachable, results right, allreduce (1\.\d*|0\.99\d*) GB/s"


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(
    ("argv", "state", "answer", "reason"),
    [
        ((), "cannot tell", "a cannot be judged", f"{_KNOWN}; .* only other hosts or --minimum .*"),
        (("allreduce=0.5GB/s",), "good", "a is good", _KNOWN),
        (
            ("allreduce=2GB/s",),
            "slow",
            "a is slow (x0.50 of the minimum)",
            "allreduce alone, in 2 launches, .* below 2.*",
        ),
        (("both=2GB/s",), "cannot tell", "a cannot be judged", f"{_KNOWN}; both needs a second.*"),
    ],
)
def test_a_single_host_is_judged_by_minimum_rates_alone(
    argv: tuple[str, ...],
    state: str,
    answer: str,
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rule: one host is good or slow by --minimum; without, its figures are printed, and status 1.

    It is never compared with itself.
    """
    words = [word for minimum in argv for word in ("--minimum", minimum)]
    assert _command(*words, hosts=["a"]).run() == (GOOD if state == "good" else FOUND)
    (verdict,) = json.loads(Path("run", RESULT).read_text())["verdicts"]
    assert verdict["state"] == state
    assert (verdict.get("ratio") is None) == (state != "slow")
    assert re.fullmatch(reason, verdict["reason"])
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1] == answer
    assert verdict["reason"].partition(",")[0] in re.sub(r"\s+", " ", shown)


@pytest.mark.usefixtures("launched")
def test_a_launcher_that_starts_nothing_accuses_no_host(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], launcher: Path
) -> None:
    """Rule: where no launch works on any host, nothing says that hosts are bad.

    Such as with a wrong option of srun, or without Busbar on the hosts: a script that drains all
    hosts would be the worst answer.
    """
    _faults(monkeypatch, **dict.fromkeys(HOSTS, "refuse"))
    files = ("--exclude", "exclude", "--drain", "drain", "--good", "good", "--metrics", "metrics")
    assert _command(*files).run() == FOUND
    assert {*_verdicts().values()} == {"cannot tell"}
    count = 'busbar_qualify_subjects{kind="host",state="cannot tell"} 6\n'  # raises an alert
    assert count in Path("metrics").read_text()
    assert Path("exclude").read_text() == Path("good").read_text() == ""
    assert "scontrol" not in Path("drain").read_text()
    out, err = capsys.readouterr()
    assert "Connection refused; no launch on any host worked" in re.sub(r"\s+", " ", out)
    assert out.splitlines()[-1] == "none of 6 hosts can be judged"
    assert "suspects once more (n0, n1, n2 and 3" in err
    command = f"{launcher} -hosts n0 -ppn 2 -n 2 .* bench.qualify.worker .*"
    again = re.escape("; once it works, qualify into a new folder (-o)")
    assert re.search(f"^busbar: next: look at the launcher: {command}{again}$", err, re.MULTILINE)
    with pytest.raises(ReportError, match=r"run: no launch measured a rate; verdicts\.json has"):
        read(Path("run"))
    _faults(monkeypatch, **dict.fromkeys(HOSTS, "hang"))
    assert _command("-o", "hung").run() == FOUND
    out, err = capsys.readouterr()
    assert "cannot tell" in out and "hangs in stage alone, in 2 of" in re.sub(r"\s+", " ", out)
    assert "next: no host finished in 30 s: raise --deadline, or look at the launcher: " in err
    _faults(monkeypatch, **dict.fromkeys(HOSTS[1:], "refuse"))
    assert _command("-o", "other").run() == FOUND
    expected = dict.fromkeys(HOSTS[1:], "unreachable")
    assert {k: v for k, v in _verdicts("other").items() if k in expected} == expected


@pytest.mark.usefixtures("launched")
def test_a_file_that_cannot_be_written_hides_no_verdict_and_no_other_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: a full disk costs a file, not the answer, nor the other files; the status is 1."""

    def full(path: Path, data: bytes) -> None:
        if path.name in ("records.jsonl", "good"):
            raise StoreError(f"{path}: cannot be written: No space left on device")
        write(path, data)

    monkeypatch.setattr(main, "write", full)
    files = ("--good", "good", "--drain", "drain.sh", "--metrics", "m.prom", "--page", "p.html")
    assert _command(*files).run() == FOUND
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "all 6 hosts are good"
    assert re.findall(r"(\S+): cannot be written", err) == ["run/records.jsonl", "good"]
    assert "--resume run with these options writes them again" in err
    assert [Path(name).exists() for name in files[1::2]] == [False, True, True, True]
    monkeypatch.setattr(main, "write", write)
    resumed = ["--resume", "run", *files]
    assert QualifyCommand.parse(resumed, QualifyCommand.make_parser()).run() == GOOD
    assert Path("good").exists() and Path("run/records.jsonl").exists()


def test_a_campaign_is_not_started_in_a_slurm_job_without_its_hosts(
    launched: list[Launch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: hosts that the job lacks end the command before a launch; one that has ended is shown.

    srun would refuse each launch on them, and they would be called unreachable.
    """
    for name in ("srun", "scontrol"):
        (tmp_path / name).write_text("#!/bin/sh\nprintf '%s\\n' n0 n1 n2 n3 n4 n5\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[0-5]")
    with pytest.raises(Unsupported, match="n9 is not in this Slurm job"):
        _command(hosts=["n0", "n9"]).run()
    with pytest.raises(Unsupported, match="n9 is not in this Slurm job"):
        _command("--dry-run", hosts=["n0", "n9"]).run()
    assert not launched and not Path("run").exists()
    assert _command().run() == GOOD
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho other\n")
    assert _command("--resume", "run").run() == GOOD


@pytest.mark.parametrize(
    ("ncores", "files", "argv", "expected"),
    [
        (2, 10**6, (), 8),
        (0.1, 10**6, (), 1),
        (128, 10**6, (), 256),
        (128, 1024, (), 160),
        (2, 10**6, ("--at-once", "5000"), 1000),
        (2, 16, ("--at-once", "5000"), 1),
    ],
)
def test_launches_at_once_fit_the_open_files(
    monkeypatch: pytest.MonkeyPatch,
    ncores: float,
    files: int,
    argv: tuple[str, ...],
    expected: int,
) -> None:
    """Rule: no more launches at once than this process may have pipes; by default 256 at most.

    At the limit a launch cannot be started, which ends the campaign.
    """
    monkeypatch.setattr(main, "core_share", lambda: ncores)
    monkeypatch.setattr(main, "raise_file_limit", lambda need: min(need, files))
    command = _command(*argv, hosts=[f"n{number}" for number in range(1000)])
    launcher = launchers.choose(None, (), "ssh", {})
    assert command._engine(command._new(), launcher).at_once == expected


@pytest.mark.parametrize("here", ["n2", "n2.domain", "elsewhere"])
def test_the_host_that_launches_is_measured_while_nothing_else_starts(
    launched: list[Launch], monkeypatch: pytest.MonkeyPatch, here: str
) -> None:
    """Rule: starting other launches takes this host's cores, so its own run after them."""
    monkeypatch.setattr(main, "hostname", lambda: here.partition(".")[0])
    hosts = [here if host == "n2" and here != "elsewhere" else host for host in HOSTS]
    run, running = Engine._run, list[Launch]()
    beside = dict[Launch, list[Launch]]()

    async def watched(self: Engine, launch: Launch) -> tuple[list[Line], Outcome]:
        running.append(launch)
        for _ in range(5):  # all that may run now begins
            await asyncio.sleep(0)
        beside[launch] = [one for one in running if one is not launch]
        done = await run(self, launch)
        running.remove(launch)
        return done

    monkeypatch.setattr(Engine, "_run", watched)
    assert _command(hosts=hosts).run() == GOOD
    others = [beside[one] for one in launched if here in one.hosts and len(one.hosts) == 2]
    assert len(others) == (0 if here == "elsewhere" else 5) and not any(others)
    assert any(beside.values())


def test_names_of_hosts_are_looked_up_once_a_batch(launched: list[Launch]) -> None:
    """Rule: the work of this process for a launch does not grow with the number of hosts."""
    looks: list[int] = []

    class Known(dict[str, Identity]):
        def items(self) -> Any:
            looks.append(len(self))
            return super().items()

    command = _command()
    campaign = command._new()
    engine = command._engine(campaign, launchers.choose(None, (), "ssh", {}))
    known = Known({host: Identity(host, host) for host in HOSTS})
    engine = dataclasses.replace(engine, identities=known)
    pairs = [Launch(n, 1, Stage.PAIRS, (HOSTS[0], HOSTS[1])) for n in range(20)]

    async def observed() -> list[Observation]:
        room = asyncio.Semaphore(4)
        return [await engine._one(launch, room) for launch in pairs]

    assert len(asyncio.run(observed())) == len(launched) == 20
    assert len(looks) == 1


@pytest.mark.usefixtures("launched")
def test_machines_that_call_themselves_the_same_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clones of one image report one name: their ranks' numbers say which host a line is of."""
    _faults(monkeypatch, n1="slow", n3="crash", n4="wrong")
    run = Engine._run

    async def clones(self: Engine, launch: Launch) -> tuple[list[Line], Outcome]:
        lines, outcome = await run(self, launch)
        return [replace(one, host="localhost") for one in lines], outcome

    monkeypatch.setattr(Engine, "_run", clones)
    assert _command().run() == FOUND
    bad = {host: state for host, state in _verdicts().items() if state != "good"}
    assert bad == {"n1": "slow", "n3": "crashes", "n4": "wrong"}


def test_two_names_of_one_machine_are_refused(
    launched: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that resolves to another would be measured against itself."""
    run = Engine._run

    async def same(self: Engine, launch: Launch) -> tuple[list[Line], Outcome]:
        lines, outcome = await run(self, launch)
        return [replace(one, host="x", boot="x") for one in lines], outcome

    monkeypatch.setattr(Engine, "_run", same)
    with pytest.raises(Unsupported, match="are one machine, which calls itself x; leave one"):
        _command().run()
    assert len(launched) <= len(HOSTS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("".join(f"n{number}\n" for number in range(100_000)), "100,000 hosts; a run has at"),
        ("a\nb;rm-rf\n", "line 2: 'b;rm-rf' is no host name"),
        ("a\nb c\n", "hosts, line 2: 'c' is no option such as slots=2; write a host a line, or"),
        ("a\n-oProxyCommand=x\n", "line 2: '-oProxyCommand=x' is no host name"),
        ("\x00\x01\n", "is no host name"),
        ("# none\n", "hosts: no hosts in this file"),
    ],
)
def test_a_bad_host_file_is_one_clear_line(text: str, message: str) -> None:
    """Rule: nonsense, options and far too many lines are refused before anything runs."""
    Path("hosts").write_text(text)
    command = QualifyCommand.parse(["--hostfile", "hosts"], QualifyCommand.make_parser())
    with pytest.raises(BusbarError, match=message) as caught:
        command.run()
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("launched")
def test_a_run_directory_that_cannot_be_written_is_one_clear_line() -> None:
    """A file in its place, a file system without room for it, and a disk that is full later on."""
    Path("run").write_text("")
    with pytest.raises(StoreError, match="run: cannot be made"):
        _command().run()
    Path("run").unlink()
    if Path("/sys/kernel").is_dir():  # read-only for root as well
        words = ["--hosts", ",".join(HOSTS), "-o", "/sys/kernel/run"]
        with pytest.raises(StoreError, match="/sys/kernel/run: cannot be made"):
            QualifyCommand.parse(words, QualifyCommand.make_parser()).run()
    with pytest.raises(StoreError, match="no folder"):
        _command("--good", "nowhere/good").run()
    if Path("/dev/full").exists():
        Path("run").mkdir()
        Path("run", FILE).symlink_to("/dev/full")
        with pytest.raises(StoreError, match=r"campaign\.ndjson: cannot be written: No space"):
            _command().run()


@pytest.mark.usefixtures("launched")
def test_a_run_directory_of_another_campaign_is_not_overwritten() -> None:
    """A new campaign does not take the folder of one that is there; --resume goes on with it."""
    _command().run()
    with pytest.raises(StoreError, match="--resume"):
        _command().run()
    with pytest.raises(Unsupported, match="--seed: the run in run has it already"):
        _command("--resume", "run", "--seed", "3")


@pytest.mark.usefixtures("launched")
def test_reports_read_the_launches_and_say_what_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: `reports show` has a row a launch and direction, with its hosts, in a few tables.

    `reports history` names verdicts that are not as before.
    """
    _command().run()
    _faults(monkeypatch, n1="slow")
    words = ["--hosts", ",".join(HOSTS), "-o", "later"]
    QualifyCommand.parse(words, QualifyCommand.make_parser()).run()
    rows = read(Path("later")).rows
    slow = [row for row in rows if "n1" in row.run.hosts and row.collective == "bandwidth"]
    assert len(slow) == 2 * (len(HOSTS) - 1)
    assert all(row.time_s == pytest.approx(2**20 / 6e8, rel=0.02) for row in slow)
    capsys.readouterr()
    for words in ([], ["--format", "md"]):
        assert busbar_main(["reports", "show", "later", *words]) == GOOD
        shown = capsys.readouterr().out
        # Three tables: a way at a time, both ways, and all hosts together.
        assert len(re.findall(r"^\W*launch\W+hosts\W+size", shown, re.MULTILINE)) == 3
        assert len(re.findall(r"^\W*6\W+n\d n\d\W+1M\W+forward", shown, re.MULTILINE)) == 1
        assert "fastest" not in shown, "directions of a pair are no competing algorithms"
        assert re.search(r"n\d and 4 more\W+1M\W+ring", shown)
    assert busbar_main(["reports", "history", "run", "later"]) == FOUND
    shown = capsys.readouterr().out
    assert re.search(r"n1 +good +slow \(x0\.60\)", shown)
    assert "n2" not in shown
    assert shown.splitlines()[-1] == "5 of 6 hosts are good; n1 is slow (x0.60)"
    cut = Path("cut")
    cut.mkdir()
    (cut / FILE).write_bytes(Path("run", FILE).read_bytes())
    assert busbar_main(["reports", "history", "run", "cut", "later"]) == FOUND
    said = capsys.readouterr()
    assert said.out == shown and "cut: left out" in said.err and "--resume cut goes on" in said.err
    assert busbar_main(["reports", "show", "cut"]) == 2
    assert "cut: a run of busbar qualify that did not end" in capsys.readouterr().err
    for words in (["history", "run", "x.log"], ["compare", "run", "x.log"]):
        assert busbar_main(["reports", *words]) == 2
        assert "run: launches of busbar qualify" in capsys.readouterr().err


def _alive(log: Path) -> list[int]:
    """The launches in the log whose process still runs."""
    pids = [int(line.split()[0]) for line in log.read_text().splitlines()]
    return list(filter(is_running, pids))
