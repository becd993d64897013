"""Small clusters: both MPIs over their hosts, and nothing left of them afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest

from bench.cluster import running
from bench.cluster.commands import raised
from bench.cluster.cpu import SLICE_S
from bench.cluster.network import Network
from bench.cluster.running import Cluster
from bench.cluster.use import COUNTERS, counters
from busbar.errors import Unavailable
from busbar.host import cores
from tests.conftest import REPO, Mpi, Run, environment, interruptible, table_rows, thorough

pytestmark = pytest.mark.usefixtures("namespaces")

CLUSTER = ("-m", "bench.cluster")
_WITHIN_S = 30.0


def _start(mpi: Mpi, *argv: str) -> tuple[str, ...]:
    return (mpi.python, *CLUSTER, *argv)


def test_ranks_are_spread_over_hosts_with_names(mpi: Mpi, run: Run, tmp_path: Path) -> None:
    """2 hosts x 2 ranks, either MPI: the benchmark sees two hosts of two; the links carry it."""
    file = tmp_path / "rows.jsonl"
    done = run(
        *_start(
            mpi, "--hosts", "2", "--ranks-per-host", "2", "--svg", str(tmp_path / "a.svg"), "--"
        ),
        *(mpi.python, "-m", "bench.allreduce", "-A", "ring,hierarchical"),
        *("-b", "64K", "-e", "64K", "-n", "2", "-T", "60", "--out", str(file)),
    )
    assert done.returncode == 0, done.stderr
    assert len(table_rows(done.stdout)) == 2
    record = file.read_text().splitlines()[0]
    assert "host1" in record
    assert '"ranks_per_node":[2,2]' in record.replace(" ", "")
    assert "CPU: a core moves" in done.stderr
    if (own := len(cores())) < 4:  # both hosts' ranks have the same cores
        assert f"# 4 ranks on emulated hosts share {own} core" in done.stdout
    assert "busiest" in done.stderr
    assert "busiest out of host0, 0 %" not in done.stderr
    assert (tmp_path / "a.svg").read_text().startswith("<svg")


def test_steps_know_the_rate_of_their_ports(mpi: Mpi, run: Run, tmp_path: Path) -> None:
    """Rule: steps on emulated hosts are predicted by the law of the ports, with either MPI."""
    file = tmp_path / "rows.jsonl"
    done = run(
        *_start(mpi, "--hosts", "3", "--rate", "200Mbit", "--", mpi.python, "-m", "bench.step"),
        *("--transport", "mpi", "--model", "toy", "--scale", "16", "--compute", "fixed:20"),
        *("--update", "ps,sync", "--fusion", "all", "-n", "6", "-T", "60", "--out", str(file)),
    )
    assert done.returncode == 0, done.stderr
    ps, sync = (json.loads(line) for line in file.read_text().splitlines() if '"step"' in line)
    # Both send N bytes through the port of rank 0 four times: in from two ranks, and out to them.
    law = 4 * ps["size"] / 25e6
    for one, model in ((ps, "port"), (sync, "formula+port")):
        step = one["step"]
        assert step["port_s"] == pytest.approx(law) and step["predicted_by"] == model
        assert step["predicted_s"] == pytest.approx(0.02 + law, rel=0.01)
        assert median(step["exchange_s"]) > 0.7 * law
    assert "# exchange alone / its bytes through the busiest port of 200 Mbit/s: " in done.stdout


@pytest.mark.parametrize("flag", ["--host", "--hostfile"])
def test_ranks_start_on_the_hosts_that_are_named(
    mpi: Mpi, run: Run, tmp_path: Path, flag: str
) -> None:
    """Rule: --host has as many ranks on each of its hosts, of either MPI, and none on others.

    Successive ranks share a host, also with a file of names alone.
    """
    file, hosts = tmp_path / "rows.jsonl", tmp_path / "hosts"
    hosts.write_text("host1\nhost2\n")
    where = "host1,host2" if flag == "--host" else str(hosts)
    done = run(
        *_start(mpi, "--hosts", "3", "--once", "--", mpi.python, "-m", "bench.allreduce"),
        *("--ranks", "4", flag, where, "-A", "ring", "-b", "8", "-e", "8", "-n", "2"),
        *("-T", "60", "--out", str(file)),
    )
    assert done.returncode == 0, done.stderr
    environment_of_run = json.loads(file.read_text().splitlines()[0])["environment"]
    assert environment_of_run["hosts"] == ["host1", "host2"]
    assert environment_of_run["ranks_per_node"] == [2, 2]
    assert environment_of_run["mapping"]["node"] == [0, 0, 1, 1]
    assert "ranks alternate" not in done.stdout


def test_a_launcher_in_the_command_is_not_started_twice(mpi: Mpi, run: Run) -> None:
    """``-- mpirun -n 2 …`` runs two ranks, on the cluster's hosts.

    The ranks use MPI: Open MPI 5.0's daemons sometimes wait for ever for a program that ends at
    once without it (docs/cluster.md).
    """
    flags = ("--map-by", "node") if mpi.name == "openmpi" else ("-ppn", "1")
    program = (mpi.python, "-c", _WHERE)
    done = run(*_start(mpi, "--hosts", "2", "--"), mpi.mpirun, *flags, "-n", "2", *program)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["host0", "host1"]


_BURNS = """
import time
while time.process_time() < 0.3:
    pass
"""
_LEAVES = f"""
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", {_BURNS!r}]).pid, flush=True)
"""


def test_the_clusters_own_cpu_time_is_known(tmp_path: Path) -> None:
    """Rule: what ran in a cluster is no other program's work, also what lost its parent.

    Open MPI's daemons lose theirs.
    """
    with Cluster(Network(hosts=1, rate=1e7)) as cluster, (tmp_path / "pid").open("w") as out:
        before = cluster.cpu_seconds()
        assert cluster.run([sys.executable, "-c", _BURNS]).status == 0
        between = cluster.cpu_seconds()
        assert between - before >= 0.28  # times are in ticks of 10 ms
        assert cluster.run([sys.executable, "-c", _LEAVES], stdout=out).status == 0
        end = time.monotonic() + _WITHIN_S
        while cluster.cpu_seconds() - between < 0.28 and time.monotonic() < end:
            time.sleep(0.05)
        assert cluster.cpu_seconds() - between >= 0.28


def test_processes_have_short_time_slices(tmp_path: Path) -> None:
    """Processes of the cluster have time slices of 0.1 ms; whoever made it keeps its own."""
    sched = Path("/proc/self/sched")
    before = _slice_ns(sched.read_text()) if sched.exists() else None
    if before is None:
        pytest.skip("this kernel does not tell slices (/proc/self/sched, Linux 6.12)")
    with Cluster(Network(hosts=1, rate=1e7)) as cluster, (tmp_path / "sched").open("w") as out:
        assert cluster.run(["cat", str(sched)], stdout=out).status == 0
    assert _slice_ns((tmp_path / "sched").read_text()) == 1e9 * SLICE_S
    assert _slice_ns(sched.read_text()) == before != 1e9 * SLICE_S


def _slice_ns(sched: str) -> int | None:
    found = re.search(r"^se\.slice\s*:\s*(\d+)$", sched, re.MULTILINE)
    return int(found[1]) if found else None


def test_without_privilege(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user namespace is enough, for root as for anyone."""
    monkeypatch.setattr(running, "privileges", lambda: (True,))
    with Cluster(Network(hosts=2, rate=1e7)) as cluster:
        assert (
            cluster.call(["ip", "netns", "exec", "host1", "tc", "qdisc"]).stdout.count("tbf") == 1
        )


def test_a_kernel_without_netem_is_said_and_no_delay_is_pretended() -> None:
    """--latency is the kernel's netem below the shaper, or a sentence that says there is none."""
    try:
        with Cluster(Network(hosts=1, rate=1e7, latency=1e-3)) as cluster:
            shown = cluster.call(["ip", "netns", "exec", "host0", "tc", "qdisc"]).stdout
            assert "netem" in shown and "delay 1ms" in shown
    except Unavailable as error:
        assert "this kernel has no netem" in str(error)


def test_two_clusters_do_not_meet() -> None:
    """Same names, same addresses, and what happens in one does not reach the other."""
    send = (sys.executable, "-c", _SEND)
    with Cluster(Network(2, 1e7)) as one, Cluster(Network(2, 1e7)) as other:
        one.call(raised(one.network, 1, False).words)
        before = counters(one.call(COUNTERS).stdout)["host1"]
        done = other.call(["ip", "netns", "exec", "host0", *send, other.network.address(1)])
        assert done.returncode == 0, done.stderr
        assert counters(one.call(COUNTERS).stdout)["host1"] == before
        assert counters(other.call(COUNTERS).stdout)["host1"][1] > 0


# Sends so many bytes from host to host, pair after pair, and prints the rates in bytes/s.
_FLOW = """
import ctypes, os, socket, sys, threading, time
def enter(host):
    file = os.open(f"/run/netns/host{host}", os.O_RDONLY)
    assert ctypes.CDLL(None).setns(file, 0) == 0
    os.close(file)
size = int(sys.argv[1])
for pair in sys.argv[2:]:
    a, b = map(int, pair.split("-"))
    enter(b)
    listener = socket.create_server((f"10.1.0.{b + 1}", 0))
    enter(a)
    sender = socket.create_connection(listener.getsockname())
    receiver, _ = listener.accept()
    start, left = time.perf_counter(), size
    threading.Thread(target=sender.sendall, args=(bytes(size),)).start()
    while left:
        left -= len(receiver.recv(1 << 16))
    print(size / (time.perf_counter() - start))
"""


def test_directions_pairs_and_uplinks_have_rates_of_their_own() -> None:
    """Rule: a limit holds for its direction, its pair or its rack alone.

    Nothing is faster than its limit, and what it does not limit is twice as fast at least.
    """
    slow, fast, size = 2.5e5, 1.25e8, 100_000
    network = Network(
        4, fast, per_rack=2, pairs={(0, 1): slow}, slow_in={2: slow}, uplinks={1: slow}
    )
    limited, free = ["0-1", "1-0", "3-2", "3-0", "0-3"], ["2-3"]
    with Cluster(network) as cluster:
        flow = (sys.executable, "-c", _FLOW, str(size), *limited, *free)
        done = cluster.call(flow)
    assert done.returncode == 0, done.stderr
    *under, over = map(float, done.stdout.split())
    bucket = 2 * 9000 * 3  # two frames pass at once, in up to three ports
    assert max(under) < slow / (1 - bucket / size) < over / 2


# The host of a rank that starts and ends MPI.
_WHERE = (
    "import os, socket; from mpi4py import MPI; os.write(1, socket.gethostname().encode() + b'\\n')"
)
# A datagram to a host; its arrival is told by the counters.
_SEND = "import socket, sys; socket.socket(2, 2).sendto(b'x', (sys.argv[1], 9))"
# Says that it is there and where, and waits for ever, as does a remote shell that hangs.
_STAY = (
    "import os, signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "subprocess.Popen(['ssh', 'host1', 'true']);"
    "print(os.readlink('/proc/self/ns/net'), flush=True); signal.pause()"
)


def _alive(namespace: str) -> list[str]:
    """Processes in a network namespace."""
    found = []
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            if os.readlink(link) == namespace:  # noqa: PTH115
                found.append(link.parts[2])
        except OSError:
            continue
    return found


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left(
    how: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However its process ends, the cluster's processes end, and its namespaces with them.

    The command ignores what it is told, so that it is the cluster that ends it.
    """
    links = {path.name for path in Path("/sys/class/net").iterdir()}
    names = set(Path("/run/netns").iterdir()) if Path("/run/netns").exists() else set()
    code = (
        "import sys, bench.cluster.running as r; r._GRACE_S = 0.5;"
        " from tests.command import command;"
    )
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", f"{code} sys.exit(command('cluster')(sys.argv[1:]))"),
            *("--hosts", "2", "--shell", "1:hang", "--stop", "0@1s", "--pair", "0-1:1Mbit"),
            *("--once", "--", sys.executable, "-c", _STAY),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
        cwd=REPO,
        preexec_fn=interruptible,
    )
    assert process.stdout is not None
    namespace = process.stdout.readline().strip()
    assert namespace.startswith("net:")
    assert namespace != os.readlink("/proc/self/ns/net")  # noqa: PTH115
    assert _alive(namespace)
    process.send_signal(how)
    process.wait(_WITHIN_S)
    process.stdout.close()
    end = time.monotonic() + _WITHIN_S
    while _alive(namespace) and time.monotonic() < end:
        time.sleep(0.02)
    assert not _alive(namespace)
    assert {path.name for path in Path("/sys/class/net").iterdir()} == links
    assert (set(Path("/run/netns").iterdir()) if Path("/run/netns").exists() else set()) == names


# A cluster whose links go away behind the first row of a file, whenever that is on this machine.
_BEHIND_A_ROW = """
import sys, threading
from pathlib import Path
from bench.cluster import main as cluster
from tests.command import command

class Behind(threading.Thread):
    def __init__(self, after, act):
        super().__init__()
        self.act, self.over = act, threading.Event()
    def run(self):
        while not self.over.wait(0.05):
            if rows.exists() and b'"collective"' in rows.read_bytes():
                return self.act()
    def cancel(self):
        self.over.set()

rows, cluster.threading.Timer = Path(sys.argv[1]), Behind
sys.exit(command("cluster")(sys.argv[2:]))
"""


def test_a_rank_that_lost_its_link_is_named_and_rows_are_kept(
    mpich: Mpi, run: Run, tmp_path: Path
) -> None:
    """Within the deadline of a row rank 0 says whose link is gone, and prints what it has.

    The command's exit status is the cluster's.
    """
    file = str(tmp_path / "rows.jsonl")
    done = run(
        *(mpich.python, "-c", _BEHIND_A_ROW, file, "--hosts", "3", "--down", "2@1s", "--"),
        *(mpich.python, "-m", "bench.allreduce", "-A", "ring", "--placement", "out", "-T", "3"),
        *("-b", "4K", "-e", "1G", "-f", "16", "-n", "5", "--out", file),
    )
    assert done.returncode == 4, done.stderr
    assert "host2: its link went away" in done.stderr
    # On a starved machine rank 1, too, may be too late to say where it is.
    assert re.search(r"ranks? (1, )?2 had not arrived", done.stderr), done.stderr
    assert table_rows(done.stdout)


@pytest.mark.parametrize("mpi", ["mpich", *thorough("openmpi")], indirect=True)
def test_a_command_that_starts_its_own_ranks_has_the_hosts(mpi: Mpi, run: Run) -> None:
    """``--ranks`` within a cluster takes its hosts, as many ranks on each as were asked for.

    ``--split`` makes groups of them; one whose ranks share a host has the memory of that host.
    """
    done = run(
        *_start(mpi, "--hosts", "2", "--ranks-per-host", "2", "--once", "--"),
        *(mpi.python, "-m", "bench.allreduce", "--ranks", "4", "-A", "ring", "--split", "div:2"),
        *("-b", "4K", "-e", "4K", "-n", "2", "-T", "60"),
    )
    assert done.returncode == 0, done.stderr
    hosts = [line.split()[8] for line in done.stdout.splitlines() if line.startswith("#  Rank")]
    assert hosts == ["host0", "host0", "host1", "host1"]
    assert done.stdout.count("Collective test starting: allreduce ring (shm)") == 2
