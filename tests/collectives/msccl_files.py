"""MSCCL files to test with: our own, and published ones where BUSBAR_SAMPLES names them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from collectives.formats.export import export
from collectives.formats.msccl import Algorithm, Gpu, ThreadBlock, ThreadblockStep, write
from collectives.schedule.catalogue import build, spec
from collectives.schedule.layout import Layout
from tests.once import once

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
#: Several threadblocks, channels and protocols, chunks of several counts, steps of every kind.
_MADE: dict[str, tuple[str, str, int, str, int]] = {
    "ag_bruck_3": ("allgather", "bruck", 3, "LL", 1),
    "ar_hier_4": ("allreduce", "hierarchical", 4, "Simple", 2),
    "ar_ring_4channels": ("allreduce", "ring", 4, "LL", 4),
    "ar_two_trees_4": ("allreduce", "double_tree", 4, "LL128", 1),
    "a2a_bruck_4": ("alltoall", "bruck", 4, "Simple", 1),
    "rs_halving_4": ("reduce_scatter", "halving", 4, "LL", 1),
    "ar_allpairs_8": ("allreduce", "sharded_ps", 8, "LL", 1),
}


def exported(
    collective: str,
    name: str,
    n: int,
    in_place: bool | None = None,
    *,
    proto: str = "Simple",
    channels: int = 1,
) -> Algorithm:
    """One of our own schedules as an MSCCL algorithm."""
    schedule = build(collective, name, n)
    where = Layout.of(schedule, spec(collective))
    return export(schedule, where, in_place=in_place, proto=proto, channels=channels)


def two(
    first: list[ThreadblockStep],
    second: list[ThreadblockStep],
    *,
    chunks: int = 1,
    s_chunks: int = 1,
    coll: str = "allreduce",
    outofplace: bool = True,
) -> Algorithm:
    """Two gpus with a threadblock each that send to each other."""
    gpus = tuple(
        Gpu(
            rank,
            {"i": chunks, "o": chunks, "s": s_chunks},
            (ThreadBlock(0, 1 - rank, 1 - rank, 0, tuple(steps)),),
        )
        for rank, steps in enumerate((first, second))
    )
    return Algorithm("two", "LL", 1, chunks, coll, False, outofplace, gpus)


def _write(folder: Path) -> None:
    for stem, (collective, name, n, proto, channels) in _MADE.items():
        made = exported(collective, name, n, proto=proto, channels=channels)
        (folder / f"{stem}.xml").write_bytes(write(made))
    (folder / "chain_3.xml").write_text(CHAIN)


_FOLDER = once("msccl", _write)
OWN = {stem: _FOLDER / f"{stem}.xml" for stem in (*_MADE, "chain_3")}
_ROOT = os.environ.get("BUSBAR_SAMPLES")
PUBLIC = sorted((Path(_ROOT) / "msccl").glob("*.xml")) if _ROOT else []


def _params(own: list[Path], public: list[Path]) -> list[object]:
    return [*own, *(pytest.param(path, marks=pytest.mark.thorough) for path in public)]


EACH_FILE = pytest.mark.parametrize(
    "path", _params([*OWN.values()], PUBLIC), ids=lambda path: path.stem
)
