"""MSCCL schedules from files run like our own, over every transport: right results, right bytes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest

import native
from tests.bench.cli.test_gpu import here as gpus
from tests.bench.cli.test_ipc import here as peers
from tests.collectives.msccl_files import OWN, PUBLIC
from tests.conftest import in_process
from tests.together import Ended, together

__all__ = ["gpus", "peers"]

_MOST_PROCESSES, _MOST_BYTES = 4, 80 << 10
SENDING = ("s", "rcs", "rrs", "rrcs")


def _counted(file: Path) -> tuple[str, int, int, int]:
    """The collective of a file, its ranks, chunks of a vector, and chunks that its steps send."""
    root = ElementTree.parse(file).getroot()
    chunks = max(
        int(gpu.get(key, 0)) for gpu in root.iter("gpu") for key in ("i_chunks", "o_chunks")
    )
    sent = sum(int(s.get("cnt", 0)) for s in root.iter("step") if s.get("type") in SENDING)
    return str(root.get("coll")), int(root.get("ngpus", 0)), chunks, sent


Check = Callable[[Sequence[Path]], None]


_STARTED = pytest.mark.xdist_group("launcher")


@pytest.fixture(
    params=[
        *("inproc", "nccl", "ipc"),
        pytest.param("mpi,shm" if native.load() else "mpi", marks=_STARTED),
    ]
)
def ran(request: pytest.FixtureRequest, tmp_path: Path) -> Check:
    """``ran(files)`` on each transport in turn, GPUs and their peers' memory as stand-ins.

    Holds the results, and the bytes that the transport counted, against the files. Processes are
    started once a rank count, for all transports among them.
    """
    transport: str = request.param
    names = transport.split(",")
    if transport == "nccl":
        request.getfixturevalue("gpus")(gpus=8)
    if transport == "ipc":
        if shutil.which("g++") is None:
            pytest.skip("no g++ here")
        request.getfixturevalue("peers")(8)

    def wanted(file: Path, transport: str) -> list[str]:
        name, ranks, chunks, _ = _counted(file)
        size = 64 * chunks * (ranks if name != "allreduce" else 1)
        out = str(tmp_path / f"{file.stem}.{transport}.jsonl")
        words = [name, "-A", str(file), "--transport", transport, "--out", out, "-d", "int32"]
        return [*words, "-n", "1", "-w", "0", "-b", str(size), "-e", str(2 * size), "-f", "2"]

    def judge(file: Path, transport: str) -> None:
        *_, chunks, sent = _counted(file)
        lines = (tmp_path / f"{file.stem}.{transport}.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines[1:-1]]
        assert {row["size"] for row in rows} == {rows[0]["size"], 2 * rows[0]["size"]}
        for row in rows:
            assert row["transport"] == transport
            if "skipped" not in row:
                assert (row["wrong"], row["total_bytes"]) == (0, sent * row["size"] // chunks)

    def check(files: Sequence[Path]) -> None:
        for ranks in {_counted(file)[1] for file in files}:
            these = [file for file in files if _counted(file)[1] == ranks]
            cases = [wanted(*case) for case in product(these, names)]
            if "mpi" in names:
                run, mpich = map(request.getfixturevalue, ("run", "mpich"))
                ended = together(run, mpich, ranks, *(("-m", "bench", *case) for case in cases))
            else:
                threads = ("--threads", str(ranks))
                ended = [Ended(*in_process(*case, *threads)) for case in cases]
            assert not any(done.returncode for done in ended), ended
        for case in product(files, names):
            judge(*case)

    return check


def _fits(file: Path, transport: str) -> bool:
    """Eight processes on two cores would take minutes, as large files do on the stand-ins."""
    most = 8 if transport in ("nccl", "ipc") else _MOST_PROCESSES
    return _counted(file)[1] <= most and file.stat().st_size <= _MOST_BYTES


@pytest.mark.parametrize(
    "public", [False, *([pytest.param(True, marks=pytest.mark.thorough)] if PUBLIC else [])]
)
def test_files(ran: Check, request: pytest.FixtureRequest, public: bool) -> None:
    """Rule: every kind of step that sends gives right results and the bytes that the file tells.

    In files of our own and in those that others have published, as far as they are small.
    """
    transport = request.node.callspec.params["ran"]
    ran([file for file in (PUBLIC if public else OWN.values()) if _fits(file, transport)])
