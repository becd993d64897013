"""MSCCL schedules from files run like our own, over every transport: results are right, bytes as told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import native
from tests.bench.test_gpu import here as gpus
from tests.bench.test_ipc import here as peers
from tests.collectives.test_msccl_proof import EACH_SAMPLE, NEEDS_SAMPLES
from tests.conftest import LIMIT_S, Mpi, Run, in_process, under

__all__ = ["gpus", "peers"]

# There and back again along three ranks, in one chunk: every kind of step that sends.
_STEP = 'srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"'
CHAIN = f"""<algo name="chain" proto="Simple" nchannels="1" nchunksperloop="1" ngpus="3"
  coll="allreduce" inplace="0">
 <gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0">
  <tb id="0" send="1" recv="2" chan="0"><step s="0" type="s" {_STEP}/><step s="1" type="rcs" {_STEP}/></tb>
 </gpu>
 <gpu id="1" i_chunks="1" o_chunks="1" s_chunks="0">
  <tb id="0" send="2" recv="0" chan="0"><step s="0" type="rrs" {_STEP}/><step s="1" type="r" {_STEP}/></tb>
 </gpu>
 <gpu id="2" i_chunks="1" o_chunks="1" s_chunks="0">
  <tb id="0" send="0" recv="1" chan="0"><step s="0" type="rrcs" {_STEP}/></tb>
 </gpu>
</algo>
"""
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


@pytest.fixture(params=["inproc", "mpi", "shm", "nccl", "ipc"])
def ran(
    request: pytest.FixtureRequest, mpich: Mpi, run: Run, tmp_path: Path
) -> Callable[[Path], None]:
    """``ran(file)`` on each transport in turn, GPUs and their peers' memory as stand-ins.

    Holds the results, and the bytes that the transport counted, against the file.
    """
    transport: str = request.param
    if transport == "nccl":
        request.getfixturevalue("gpus")(gpus=8)
    if transport == "ipc":
        if shutil.which("g++") is None:
            pytest.skip("no g++ here")
        request.getfixturevalue("peers")(8)
    if transport == "shm" and native.load() is None:
        pytest.skip(native.why_not())
    out = tmp_path / "run.jsonl"

    def check(file: Path) -> None:
        name, ranks, chunks, sent = _counted(file)
        size = 64 * chunks * (ranks if name != "allreduce" else 1)
        wanted = ["-A", str(file), "--transport", transport, "-n", "1", "--out", str(out)]
        wanted += ["-b", str(size), "-e", str(2 * size), "-f", "2", "-d", "int32,float"]
        if transport in ("mpi", "shm"):
            done = run(*under(mpich, ranks, "-m", f"bench.{name}", *wanted))
            status, told, err = done.returncode, done.stdout, done.stderr
        else:
            status, told, err = in_process(name, *wanted, "--threads", str(ranks))
        assert status == 0, told + err
        rows = [json.loads(line) for line in out.read_text().splitlines()[1:]]
        assert len(rows) == 4
        for row in rows:
            halves: list[dict[str, Any]] = [row[key] for key in ("out", "in") if row.get(key)]
            assert halves and row["transport"] == transport
            for half in halves:
                assert half["wrong"] == 0
                assert half["total"] == sent * row["size"] // chunks

    return check


@pytest.mark.timeout(LIMIT_S + 30)
def test_a_file_of_our_own(ran: Callable[[Path], None], tmp_path: Path) -> None:
    """Rule: every kind of step that sends gives right results and the bytes that the file tells."""
    file = tmp_path / "chain.xml"
    file.write_text(CHAIN)
    ran(file)


@NEEDS_SAMPLES
@EACH_SAMPLE
@pytest.mark.timeout(LIMIT_S + 30)
def test_public_files(
    path: Path, ran: Callable[[Path], None], request: pytest.FixtureRequest
) -> None:
    """Rule: so do schedules that others have published, of four ranks everywhere, of eight on GPUs.

    Eight processes on two cores would take minutes, as large files do on the stand-ins.
    """
    transport = request.node.callspec.params["ran"]
    if transport not in ("nccl", "ipc") and _counted(path)[1] > _MOST_PROCESSES:
        pytest.skip(f"more than {_MOST_PROCESSES} ranks are tried on the stand-ins alone")
    if path.stat().st_size > _MOST_BYTES:
        pytest.skip(
            "large: takes long on a stand-in; its proof and conversion are tested elsewhere"
        )
    ran(path)
