"""Signals at the worst moment: to a run's rank, launcher, starter or process group.

``python -m tests.torture.faults --seconds 60 --seed 1 --keep DIR``. A case is a run under
``--ranks``, or of threads. One signal goes to one of its processes while the run starts, in its
rows, or at its end; then the rules of `faults` hold. Root gets a /dev/shm of its own, where every
segment that is left is seen.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.launch.control_socket import patience
from tests.conftest import REPO, environment
from tests.torture.campaign import Failure, pythons, run_campaign

RANKS, TIMEOUT = 3, 4
#: Seconds after its deadline within which a run has ended.
WITHIN = 15.0
MARK = "BUSBAR_TORTURE"
SIGNALS = ("KILL", "SEGV", "TERM", "INT", "HUP", "STOP")
TARGETS = ("rank", "launcher", "parent", "group")
MOMENTS = ("start", "rows", "end")
SEGMENTS = ("mpich_shm_", "sm_segment.", "ucx_shm_posix_")


@dataclass(frozen=True)
class Case:
    """A run and its signal. ``delay``: the share of `Scene.send`'s longest wait at that moment."""

    mpi: str
    transport: str
    target: str
    signal: str
    moment: str
    rank: int
    delay: float

    @property
    def number(self) -> int:
        """The signal's number."""
        return int(getattr(signal, f"SIG{self.signal}"))


def drawn(rng: random.Random) -> Iterator[Case]:
    """Yield cases without end, every combination as likely as any other."""
    mpis = sorted(pythons())
    while True:
        transport = rng.choice(("shm", "mpi", "inproc"))
        targets = ("parent", "group") if transport == "inproc" else TARGETS
        yield Case(
            rng.choice(mpis),
            transport,
            rng.choice(targets),
            rng.choice(SIGNALS),
            rng.choice(MOMENTS),
            rng.randrange(RANKS),
            round(rng.random(), 3),
        )


class Scene:
    """The run of a case: its processes, its output, its files."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.mark = case, f"{os.getpid()}-{random.getrandbits(48):x}"
        self.out, self.rows = folder / "out.txt", folder / "rows.jsonl"
        self.err = folder / "err.txt"
        cycles = "3" if case.moment == "end" else "0"
        argv = ["--ranks", str(RANKS), "--transport", case.transport, "-A", "ring", "-N", cycles]
        argv += ["-b", "1K", "-e", "2K", "-n", "10", "-T", str(TIMEOUT), "--out", str(self.rows)]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [pythons()[case.mpi], "-m", "bench.allreduce", *argv],
                cwd=REPO, env=environment({MARK: self.mark}), stdin=subprocess.DEVNULL,
                stdout=out, stderr=err, start_new_session=True, preexec_fn=_deaf_to_nothing,
            )  # fmt: skip
        self.began = time.monotonic()

    def ours(self) -> list[int]:
        """Return every process of the run that is alive."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                    state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                    found += [int(folder.name)] * (state not in "ZX")
        return found

    def target(self) -> int | None:
        """Return the process to signal; None until it is there."""
        if self.case.target in ("parent", "group"):
            return self.process.pid
        for pid in self.ours():
            with suppress(OSError, IndexError):
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                number = str(self.case.rank).encode()
                names = (b"PMI_RANK=" + number, b"OMPI_COMM_WORLD_RANK=" + number)
                rank = any(name in environ for name in names) and words[1].endswith(b"start.py")
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                if rank if self.case.target == "rank" else parent == self.process.pid:
                    return pid
        return None

    def reached(self) -> bool:
        """Whether the case's moment has come."""
        text = self.out.read_text(errors="replace")
        if self.case.moment == "rows":
            return _printed(text) >= 3
        if self.case.moment == "end":
            return text.count("Collective test concluded") >= 3
        return True

    def send(self) -> bool:
        """Wait for the moment, and send the signal; False where the run was over before."""
        while self.process.poll() is None:
            pid = self.target()
            if pid is not None and self.reached():
                break
            time.sleep(0.02)
        else:
            return False
        scale = {"start": 2.5, "rows": 0.5, "end": 0.2}[self.case.moment]
        time.sleep(self.case.delay * scale)
        if self.process.poll() is not None:
            return False
        with suppress(ProcessLookupError):
            if self.case.target == "group":
                os.killpg(self.process.pid, self.case.number)
            else:
                os.kill(pid, self.case.number)
            return True
        return False

    def clear(self) -> None:
        """Kill the processes that a failed case has left."""
        for pid in self.ours():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _deaf_to_nothing() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _printed(text: str) -> int:
    return len(re.findall(r"^ +\d+ +\d+ +float .*\n", text, re.MULTILINE))


def allowed(case: Case) -> float:
    """Return the seconds after the signal within which the run must end."""
    starting = patience(TIMEOUT, RANKS)
    assert starting is not None
    stuck = {"start": starting, "rows": float(TIMEOUT), "end": starting}[case.moment]
    return WITHIN + (stuck if case.signal == "STOP" and case.target == "rank" else 0.0)


def statuses(case: Case) -> set[int]:
    """Return the documented exit statuses that a case may end with."""
    told = {128 + case.number}
    over = {0} if case.moment == "end" else set[int]()  # it may have been over before
    if case.target in ("parent", "group"):
        return {-case.number} if case.signal in ("KILL", "SEGV") else told | over | {-case.number}
    if case.signal in ("KILL", "SEGV", "STOP"):
        return {4} | over
    return told | {4} | over


def faults(case: Case, scene: Scene) -> list[str]:
    """Return the rules that the end of a case breaks."""
    sent, found = scene.send(), list[str]()
    start, limit = time.monotonic(), allowed(case)
    if case.signal == "STOP" and case.target in ("parent", "group"):
        # As a job that is suspended: it goes on, and then ends when it is told to.
        time.sleep(1.0)
        with suppress(ProcessLookupError):  # it was over before
            os.killpg(scene.process.pid, signal.SIGCONT)
        scene.process.send_signal(signal.SIGTERM)
    while time.monotonic() < start + limit and (scene.process.poll() is None or scene.ours()):
        time.sleep(0.05)
    status, left = scene.process.poll(), scene.ours()
    took = time.monotonic() - start
    if status is None or left:
        states = [Path(f"/proc/{pid}/stat").read_text()[:60] for pid in left if _is(pid)]
        found.append(f"not over {took:.0f} s later: status {status}, left {states}")
    out, err = (path.read_text(errors="replace") for path in (scene.out, scene.err))
    rows = scene.rows.read_bytes().splitlines() if scene.rows.exists() else []
    kept = sum(b'"collective"' in row for row in rows)
    if _printed(out) > kept:
        found.append(f"{_printed(out)} rows printed, {kept} kept")
    if _printed(out.partition("# ended early")[2]):
        found.append("rows after the closing report")
    if out.count("# ended early") > 1:
        found.append("reported twice")
    if "Traceback" in err:
        found.append("a traceback")
    killed = case.target in ("parent", "group") and case.signal in ("KILL", "SEGV")
    if not sent and status != 0:
        found.append(f"ended by itself with {status}")
    if sent and status is not None:
        expected = statuses(case)
        if case.signal == "STOP" and case.target in ("parent", "group"):
            expected = {0, 143, -15}
        if status not in expected:
            found.append(f"status {status}, expected one of {sorted(expected)}")
        # Who dies after its last word is known to the launcher alone.
        named = f"rank {case.rank}" in err + out or "after its ranks" in err
        if case.target == "rank" and status == 4 and not named:
            found.append(f"rank {case.rank} is not named")
        if case.moment == "rows" and not killed and "# ended early" not in out:
            found.append("no report of what there is")
    if os.environ.get("BUSBAR_OWN_SHM") and not (killed and case.moment != "rows"):
        names = (path.name for path in Path("/dev/shm").iterdir())
        there = [name for name in names if name.startswith(SEGMENTS)]
        if there:
            found.append(f"left in /dev/shm: {there}")
    return found


def _is(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").exists()


def play(case: Case) -> Failure | None:
    """Run a case; return its failure, with the output of the run."""
    for path in Path("/dev/shm").iterdir() if os.environ.get("BUSBAR_OWN_SHM") else ():
        path.unlink()
    with tempfile.TemporaryDirectory(prefix="busbar-torture-") as name:
        scene = Scene(case, Path(name))
        try:
            wrong = faults(case, scene)
            out, err = (path.read_text(errors="replace") for path in (scene.out, scene.err))
            said = f"{out[-1500:]}\n--\n{err[-2500:]}"
        finally:
            scene.clear()
    return Failure("; ".join(wrong), asdict(case), said) if wrong else None


if __name__ == "__main__":
    run_campaign(
        __doc__,
        "faults",
        drawn,
        play,
        Case,
        kind=lambda case: f"{case.target} {case.signal} {case.moment}",
        shm=True,
    )
