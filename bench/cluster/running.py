"""A running cluster: built, used, and removed by the kernel.

Everything depends on one process, the first of a PID namespace, which reads a pipe from us. When we
exit or are killed, the pipe closes and that process ends. The kernel then kills all processes in
the cluster and removes its namespaces, links and mounts. Nothing is left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.cluster import cpu
from bench.cluster.commands import Command, inside, making, opening
from bench.cluster.faults import NO_FAULTS, Faults
from bench.cluster.launchers import variables
from bench.cluster.network import Network
from bench.cluster.signals import RankSignals
from bench.launch import child
from busbar.counters import look
from busbar.errors import Unavailable
from busbar.host import cores
from busbar.start import python
from busbar.terminal import print_note

_TOOLS = {
    "iproute2": ("ip", "tc"),
    "util-linux": ("unshare", "nsenter", "mount"),
    "procps": ("sysctl",),
    "hostname": ("hostname",),
    "coreutils": ("cat", "install", "touch", "mkdir", "ln", "env"),
}
_PATIENCE_S = 60.0
# Seconds for a command to end after it was asked to.
_GRACE_S = 15.0


def privileges() -> tuple[bool, ...]:
    """The ways to open namespaces, in the order in which they are tried.

    True: with a user namespace.
    """
    return (False, True) if os.geteuid() == 0 else (True,)


class Cluster:
    """A network that exists while the context is open.

    ``ranks_per_host``: ranks that launchers put on a host. Raises Unavailable, with the reason, if
    namespaces or rate limits cannot be made.
    """

    def __init__(
        self, network: Network, ranks_per_host: int = 1, faults: Faults = NO_FAULTS
    ) -> None:
        self.network, self.ranks_per_host, self.faults = network, ranks_per_host, faults
        self._first: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._user = False
        self._signals: RankSignals | None = None

    def __enter__(self) -> Cluster:
        _tools()
        refused = ""
        for user in privileges():
            refused = self._open(user)
            if not refused:
                break
        else:
            raise Unavailable(
                "hosts are network namespaces, which need root with CAP_SYS_ADMIN or user"
                f" namespaces (unshare -Urnm): {refused}"
            )
        try:
            for command in making(self.network, self.ranks_per_host, self.faults):
                self._make(command)
            if self.faults.signals:
                self._signals = RankSignals(self._pid, list(self.faults.signals))
                self._signals.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, user: bool) -> str:
        """Open the namespaces. Returns the reason if that failed, otherwise an empty text."""
        self._user = user
        self._first = subprocess.Popen(
            opening(user),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._first.stdin is not None and self._first.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._first.stdin.write(b"\n")
            self._first.stdin.flush()
        if self._first.stdout.readline() != b"\n":
            assert self._first.stderr is not None
            text = self._first.stderr.read(1000).decode(errors="replace").strip()
            self.close()
            return text.splitlines()[0] if text else "unshare said nothing"
        self._pid = _child_of(self._first.pid)
        return ""

    def _make(self, command: Command) -> None:
        done = self.call(command.words, text=command.text)
        if done.returncode != 0:
            line = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[0]
            if "netem" in command.words:
                raise Unavailable(
                    "this kernel has no netem (CONFIG_NET_SCH_NETEM), and nothing else delays or"
                    f" loses packets: leave out --latency and --loss ({line})"
                )
            raise Unavailable(f"{' '.join(command.words)}: {line}")

    def call(
        self, words: Iterable[str], *, text: str = "", keep: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a tool in the switches' namespace; captures its output. ``keep``: our environment."""
        tools = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
        return subprocess.run(
            [*inside(self._pid, self._user), *words],
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
            env=dict(os.environ) if keep else tools,
        )

    def run(
        self,
        words: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        grace: float = _GRACE_S,
        **streams: Any,
    ) -> child.Ended:
        """Run a command in the launchers' namespaces, with the files of this host, and wait for it.

        A signal that asks us to end reaches the command; ``grace`` seconds later the cluster is
        killed.
        ``streams`` are arguments of `subprocess.Popen`. Raises Unavailable if the command cannot
        be started.
        """
        here = ["env", f"--chdir={Path.cwd()}"]
        ending, first = threading.Timer(grace, self._kill), iter((True,))
        ending.daemon = True

        def receiver(pid: int) -> int:
            # A second signal may arrive while the first is starting the timer.
            if next(first, False):
                ending.start()
            return _child_of(pid)

        try:
            with cpu.short_slices():
                return child.run(
                    [*inside(self._pid, self._user), *here, *words],
                    variables(os.environ if env is None else env),
                    child.SOFTLY if _softly(words) else None,
                    receiver,
                    **streams,
                )
        finally:
            ending.cancel()

    def cpu_seconds(self) -> float:
        """CPU seconds so far of processes in the cluster, and of our own ended children.

        A process that lost its parent is not reaped by the cluster's first process, so its times
        can still be read.
        """
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        ticks = 0
        for stat in Path(f"/proc/{self._pid}/root/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                # utime, stime, cutime, cstime of proc(5); the name before may contain anything.
                ticks += sum(map(int, stat.read_text().rpartition(")")[2].split()[11:15]))
        return ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")

    def _kill(self) -> None:
        if self._first is not None:
            self._first.kill()

    def close(self) -> None:
        """Remove the cluster, and wait until it is gone."""
        if self._signals is not None:
            self._signals.end()
            self._signals = None
        first, self._first = self._first, None
        if first is None:
            return
        for stream in (first.stdin, first.stdout, first.stderr):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        first.wait()


def checked(cluster: Cluster) -> cpu.CpuCheck:
    """Measure the rate at which a core moves bytes between hosts. Raises Unavailable."""
    network = cluster.network
    words = python(cpu.MODULE, network.control(0), network.name(0))
    done = cluster.call(words, keep=True)
    try:
        moved, taken = json.loads(done.stdout)
        return cpu.CpuCheck(float(moved), len(cores()), cpu.OtherWork(*map(float, taken)))
    except (ValueError, TypeError):
        line = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise Unavailable(f"what a core moves between hosts was not measured: {line}") from None


@contextlib.contextmanager
def watched(cluster: Cluster) -> Iterator[None]:
    """Check the CPU and print the result; at the end print other work during the run, if any.

    Raises Unavailable.
    """
    check = checked(cluster)
    print_note(cpu.judged(cluster.network, check))
    before, mine = look(), cluster.cpu_seconds()
    yield
    taken = cpu.OtherWork.between(before, look(), cluster.cpu_seconds() - mine)
    if note := cpu.looked_back(cluster.network, check, taken):
        print_note(note)


def _softly(words: Sequence[str]) -> bool:
    """True if the launcher is Open MPI's, which must not be interrupted itself."""
    launcher = shutil.which(words[0]) if Path(words[0]).name in ("mpirun", "prterun") else None
    return launcher is not None and (Path(launcher).parent / "prterun").exists()


def _child_of(pid: int) -> int:
    """The child of a process, or the process itself if it has none."""
    return next((one for one, parent in child.parents().items() if parent == pid), pid)


def _tools() -> None:
    """Raise Unavailable if tools that ``busbar cluster`` runs are missing, with their packages."""
    lacking = [
        f"{', '.join(missing)} (package {package})"
        for package, tools in _TOOLS.items()
        if (missing := [tool for tool in tools if shutil.which(tool) is None])
    ]
    if lacking:
        raise Unavailable(f"not found on PATH: {'; '.join(lacking)}")
