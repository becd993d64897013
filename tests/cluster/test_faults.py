"""Hosts with faults: their remote shells, what these start, and ranks that get signals."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cluster.commands import ENTER
from bench.cluster.faults import REFUSE, Faults, OtherFile, RankSignal, Shell, Variable
from bench.cluster.network import Network
from bench.cluster.running import Cluster
from tests.conftest import REPO, Mpi, Run

pytestmark = pytest.mark.usefixtures("namespaces")


@pytest.fixture(scope="module")
def shells() -> Iterator[Cluster]:
    """Hosts whose remote shells do what they should, wait, refuse, hang, and have other things."""
    faults = Faults(
        (
            *(Shell(1, 0.3), Shell(2, REFUSE), Shell(3, float("inf"))),
            *(Variable(4, "PLAIN", "1"), Variable(4, "QUOTED", "a 'b' \"$c\"; exit 7\n")),
            *(OtherFile(4, Path("/etc/passwd"), Path(__file__)), Shell(4, 0.0)),
        ),
        (RankSignal(4, 0.0, signal.SIGSEGV), RankSignal(0, 0.1, signal.SIGSTOP)),
    )
    with Cluster(Network(5, 1e7), faults=faults) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("host", "status", "out", "err"),
    [
        ("host0", 0, "host0\n", ""),
        ("root@host1", 0, "host1\n", ""),
        ("host2", 255, "", "ssh: connect to host host2 port 22: Connection refused\n"),
        ("host9", 255, "", "ssh: Could not resolve hostname host9: Name or service not known\n"),
    ],
)
def test_a_remote_shell_answers_or_refuses(
    shells: Cluster, host: str, status: int, out: str, err: str
) -> None:
    """Rule: options of ssh are taken, and a refusal has ssh's status and words."""
    done = shells.call([ENTER, "-n", "-o", "BatchMode=yes", host, "hostname"])
    assert (done.returncode, done.stdout, done.stderr) == (status, out, err)


def test_a_shell_that_hangs_leaves_nothing_when_it_is_ended(shells: Cluster) -> None:
    """Rule: ending the shell of a host that hangs ends all of it."""
    wait = f"timeout --foreground 0.3 {ENTER} host3 hostname; echo $?; pgrep -c -x sleep"
    done = shells.call(["sh", "-c", wait])
    assert done.stdout.split() == ["124", "0"]


def test_a_host_has_variables_and_files_of_its_own(shells: Cluster) -> None:
    """Rule: what one host's shell is told of, others do not see, whatever characters it has."""
    show = 'cat /etc/passwd; echo "$PLAIN"; printf %s "$QUOTED"'
    done = shells.call([ENTER, "host4", show])
    assert done.stdout == f"{Path(__file__).read_text()}1\na 'b' \"$c\"; exit 7\n"
    assert shells.call([ENTER, "host0", show]).stdout == f"{Path('/etc/passwd').read_text()}\n"


_RANK = "PMI_RANK=0 PMI_SIZE=1"
_STOPPED = f"""
sleep 60 & other=$!
{_RANK} sleep 60 & rank=$!
until grep -q 'State:.T' /proc/$rank/status; do sleep 0.02; done
grep -c 'State:.T' /proc/$other/status
kill -9 $rank $other
"""


def test_ranks_of_a_host_crash_or_stop(shells: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: a host's ranks get their signal; other processes, and other hosts' ranks, do not."""
    crashed = shells.call([ENTER, "host4", f"{_RANK} exec sleep 60"])
    assert crashed.returncode in (-signal.SIGSEGV, 128 + signal.SIGSEGV)
    assert shells.call([ENTER, "host0", _STOPPED]).stdout == "0\n"
    assert shells.call([ENTER, "host1", f"{_RANK} sleep 0.3"]).returncode == 0
    said = capsys.readouterr().err
    assert "host4: a rank was sent SIGSEGV" in said and "host0: a rank was sent SIGSTOP" in said


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_values_are_quoted(value: str) -> None:
    """Rule: a variable's line of sh gives it exactly its value."""
    script = f'{Variable(0, "A", value).script}\nprintf %s "$A"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=True)
    assert done.stdout == value.encode()


def test_launchers_use_the_hosts_shells(run: Run, mpich: Mpi) -> None:
    """Rule: under `mpirun` a rank has its host's variables, and a refusal ends the launch."""
    # In one piece: the ranks' output meets in one pipe.
    text = "f'{os.uname().nodename} {os.environ.get(\"FAULT\")}\\n'"
    show = f"import os; os.write(1, {text}.encode())"
    cluster = (mpich.python, "-m", "bench.cluster", "--hosts", "2")
    done = run(*cluster, "--env", "1:FAULT=yes", "--", mpich.python, "-c", show)
    assert sorted(done.stdout.splitlines()) == ["host0 None", "host1 yes"], done.stderr
    # MPICH's launcher may end before it has forwarded what the shell printed.
    for _ in range(3):
        done = run(*cluster, "--shell", "1:refuse", "--", mpich.python, "-c", show)
        assert done.returncode != 0
        if "Connection refused" in done.stderr:
            break
    assert "Connection refused" in done.stderr


def test_wrong_bytes_on_one_host_are_seen(mpi: Mpi, run: Run, tmp_path: Path) -> None:
    """Rule: with `benchmarks/wrong_bytes.c` preloaded on one host its rank has wrong results."""
    compiler, library = Path(mpi.python).parent / "mpicc", tmp_path / "wrong.so"
    if not compiler.exists() or shutil.which("cc") is None:
        pytest.skip("no mpicc of this MPI, or no C compiler")
    build = [str(compiler), "-Wall", "-Werror", "-shared", "-fPIC", "-O1", "-o", str(library)]
    subprocess.run([*build, str(REPO / "benchmarks" / "wrong_bytes.c"), "-ldl"], check=True)
    measure = (mpi.python, "-m", "bench.allreduce", "-A", "tree,library", "-b", "4K", "-e", "4K")
    done = run(
        *(mpi.python, "-m", "bench.cluster", "--hosts", "2"),
        *("--env", f"1:LD_PRELOAD={library}", "--", *measure, "-n", "2", "-T", "60"),
    )
    assert done.returncode == 1, done.stderr
    for name in ("tree", "library"):
        assert f"{name}: wrong result: rank 1" in done.stderr
