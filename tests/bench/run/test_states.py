"""How far ranks are, told over sockets: who is believed, and who answers."""

from __future__ import annotations

import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from bench.run import watchdog
from bench.run.watchdog import RankStates
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.world import State

_LIMIT_S = 20.0


def _heard(end: RankStates, ranks: int) -> dict[int, State]:
    """What rank 0 hears until so many ranks have told."""
    found: dict[int, State] = {}
    until = time.monotonic() + _LIMIT_S
    while len(found) < ranks and time.monotonic() < until:
        found |= end.hear(select.select(end.ends(), [], [], 0.1)[0])
    return found


@pytest.mark.parametrize("nodes", [(0, 0, 0), (0, 0, 1)])
def test_rank_0_knows_how_far_the_others_are(nodes: Sequence[int]) -> None:
    """Rule: on one host and on several each rank's row and iteration arrive, and it is answered.

    The addresses of several hosts are not the loopback's.
    """

    def body(world: InprocWorld) -> object:
        world.nodes = nodes
        end = RankStates(world)
        try:
            if world.rank == 0:
                return _heard(end, 2), end.where
            return end.tell(State(world.rank, 7, 0), _LIMIT_S)
        finally:
            world.barrier()
            end.close()

    first, *others = run(3, body)
    told, where = cast("tuple[dict[int, State], str]", first)
    assert told == {1: State(1, 7, 0), 2: State(2, 7, 0)} and others == [True, True]
    assert where.startswith("127.0.0.1 ") == (max(nodes) == 0)


def test_strangers_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: what has no HMAC under the run's token, or is of no rank of the run, is dropped.

    Silent connections keep no rank out, however many they are.
    """
    monkeypatch.setattr(watchdog, "_MOST_CALLERS", 4)

    def body(world: InprocWorld) -> None:
        end = RankStates(world)
        if world.rank == 0:
            world.barrier()
            assert _heard(end, 1) == {1: State(3, 4)}
            world.barrier()
            end.close()
            return
        port = ("127.0.0.1", end._port)
        strangers = [socket.create_connection(port) for _ in range(12)]
        strangers[0].send(bytes(watchdog._LENGTH))
        numbers = watchdog._MESSAGE.pack(9, 1, 1, -1)
        strangers[1].send(numbers + end._digest(numbers))
        world.barrier()
        assert end.tell(State(3, 4), _LIMIT_S)
        world.barrier()
        for one in strangers:
            one.close()

    run(2, body)


def test_a_rank_0_that_is_gone_gives_no_answer() -> None:
    """Rule: where nobody listens, or nobody answers, a rank knows it."""

    def body(world: InprocWorld) -> None:
        end = RankStates(world)
        if world.rank == 0:
            world.barrier()  # it listens, and does not answer
            end.close()
            world.barrier()
            return
        assert not end.tell(State(1, 1), 0.01)
        world.barrier()
        world.barrier()
        assert not end.tell(State(1, 1), _LIMIT_S)

    run(2, body)


def _dropped() -> int:
    """How many connections this machine has dropped because a listener's queue was full."""
    names, values = (
        line.split()
        for line in Path("/proc/net/netstat").read_text().splitlines()
        if line.startswith("TcpExt:")
    )
    return int(dict(zip(names, values, strict=True))["ListenDrops"])


def test_a_rank_that_finds_the_queue_full_reaches_rank_0() -> None:
    """Rule: of thousands of ranks that connect at once, those that TCP turns away come again.

    A rank that could not connect at the start cannot say later how far it is.
    """
    end = object.__new__(RankStates)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        end._addresses, end._port = ["127.0.0.1"], address[1]
        with socket.create_connection(address), ThreadPoolExecutor(1) as others:
            before, until = _dropped(), time.monotonic() + _LIMIT_S
            reached = others.submit(end._reached)
            while _dropped() == before and time.monotonic() < until:
                pass
            listener.accept()[0].close()
            assert reached.result(_LIMIT_S) == "127.0.0.1"


_MANY = """
import os, resource, signal, time
from bench.launch.control_socket import ControlSocket
from bench.run.watchdog import Watchdog
from tests.bench.run.simulated_world import SimulatedWorld

resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
files = [os.dup(0) for _ in range(1100)]
end = lambda reason, aloud: print(reason, flush=True)
Watchdog(SimulatedWorld(1), None, end, ControlSocket(), lambda: None)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(30)
"""


def test_a_rank_with_many_connections_ends_at_a_signal() -> None:
    """Rule: the watchdog works above file descriptor 1023, where select(2) does not.

    Rank 0 of a large run may have a connection to every other rank.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"at most {hard} files may be open")
    words = [sys.executable, "-c", _MANY]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (143, "interrupted by SIGTERM\n"), done.stderr
