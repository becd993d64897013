"""Good texts of every format to start fuzzing from: generated, and real (BUSBAR_SAMPLES)."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from bench.run import tuning_file as tuning
from collectives.formats import own
from collectives.formats.msccl import write
from collectives.predict import machine as costs
from collectives.predict.fit import dump_fit
from collectives.schedule.catalogue import build, spec
from reports.exports.formats import CsvLines, nccl_json
from reports.readers.codec import to_json, to_jsonl
from reports.readers.own_exports import to_parquet
from tests.bench.tuning import tunings
from tests.collectives import mscclpp_files
from tests.collectives.msccl_files import exported
from tests.reports import logs, other_logs, runs
from tests.topology import drawn, drawn_hwloc, texts

ROOT = Path(__file__).parents[1]
_LARGEST = 300_000


def topology(name: str, number: int) -> list[bytes]:
    """Texts in a format of maps, or in all (``gather``): small, drawn and real ones."""
    own = [*texts.VALID, *_drawn(number)]
    return [text.encode() for of, text in own if name in (of, "gather")] + [*_real("topology")]


def _drawn(number: int) -> list[tuple[str, str]]:
    """Four machines in every format that draws them, the same for the same number."""
    found: list[tuple[str, str]] = []

    @seed(number)
    @settings(max_examples=4, database=None, deadline=None, phases=(Phase.generate,),
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.data(), drawn.machines())
    def draw(data: st.DataObject, machine: drawn.Machine) -> None:
        for version in (1, 2, 3):
            found.append(("hwloc", drawn_hwloc.hwloc(machine, version, data.draw)))
        found.append(("nccl_xml", drawn.nccl(machine, list(range(100)))))

    draw()
    return found


def records() -> list[bytes]:
    """Our own records in every form, and logs of other programs."""
    made = runs.flat(runs.records(ranks=(2,), sizes=(1024, 2**20)))
    plain = [to_jsonl(made), to_json(made), CsvLines().lines(made), nccl_json(made)]
    golden = [path.read_bytes() for path in sorted((ROOT / "reports/golden").iterdir())]
    written = [
        text.encode()
        for texts in (vars(logs), vars(other_logs))
        for text in texts.values()
        if isinstance(text, str) and "\n" in text
    ]
    document = json.dumps(logs.DOCUMENT).encode()
    return [
        *plain, gzip.compress(plain[0]), parquet(), document, *golden, *written, *_real("logs"),
    ]  # fmt: skip


def parquet() -> bytes:
    """A small export for other tools."""
    return to_parquet(runs.flat(runs.records(ranks=(2,), sizes=(1024,))))


def msccl() -> list[bytes]:
    """Algorithms as MSCCL XML."""
    return [write(exported("allreduce", name, 4)) for name in ("ring", "tree")] + [*_real("msccl")]


def mscclpp() -> list[bytes]:
    """Execution plans of MSCCL++, right ones and one with an operation that is not known."""
    made = [mscclpp_files.dumped(plan(3)) for plan in mscclpp_files.MADE.values()]
    return [*made, made[0].replace(b'"rres"', b'"glres"')]


def schedules() -> list[bytes]:
    """Schedule files of Busbar: with scratch, and with several segments."""
    built = (build("reduce", "binomial", 3), build("broadcast", "chain", 3, segments=2))
    return [
        own.write(one, spec(what)) for one, what in zip(built, ("reduce", "broadcast"), strict=True)
    ]


def fits() -> list[bytes]:
    """A fit of costs."""
    curve = costs.Curve((1e-6, 2e-6), (1e-10, 2e-10), (65536.0,))
    link = costs.LinkCosts(curve, curve, curve, None, "measured", None, None, None)
    one = costs.Costs({"node": link}, 1e-6, 4, True, "mpi", ("a",), (), {"cpu": "x"}, (), ())
    return [dump_fit([one]).encode()]


def tuned() -> list[bytes]:
    """A file of rules for ``-A auto``."""
    candidate = tuning.Tunable("ring", "mpi")
    ranges = (tuning.Range(0, candidate, 1e-5, 2e-5), tuning.Range(65536, candidate, 1e-4, None))
    return [tuning.dump([tunings.rules(ranges)], {"cpu": "x"})]


def expectations() -> list[bytes]:
    """Rules as they are written for --expect."""
    return [
        b"allreduce,>=64M: busbw >= 0.8*limit",
        b"algorithm=ring|tree,1K..64M,in: 10 us <= time < 3 ms",
        b"bcast,4 ranks: cv between 1% and 5%",
        b"size=1M: wrong == 0",
        b"a*: algbw > 20%*limit",
    ]


def expectation_files() -> list[bytes]:
    """The same as YAML."""
    rules = "".join(f"  - '{text.decode()}'\n" for text in expectations())
    return [f"limit: 480GB/s\nexpect:\n{rules}".encode(), b"- 'allreduce: busbw > 1GB/s'\n"]


def words() -> list[bytes]:
    """What options take: sizes, algorithms with parameters, rates, shares."""
    return [
        b"1M", b"64k", b"4096", b"1.5G", b"chain:segments=32", b"torus:grid=4x4", b"halving+ring",
        b"480GB/s", b"5%", b"ring:a=1:b=2.5", b"0-3,8,10-11", b"ffff,0000000f", b"0000:03:00.0",
    ]  # fmt: skip


def nccl_said() -> list[bytes]:
    """What NCCL prints of its choice."""
    return [b"AllReduce: 1048576 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..23}\n"]


def nccl_graphs() -> list[bytes]:
    """What NCCL prints of its rings and trees (NCCL_DEBUG_SUBSYS=GRAPH)."""
    line = (
        "n0:1:2 [0] NCCL INFO Pattern {}, crossNic 0, nChannels 12, bw 20.000000/14.9,"
        " type NVL/PIX, sameChannels 1\n"
    )
    return ["".join(line.format(pattern) for pattern in (4, 1, 3, 5)).encode()]


def counts() -> list[bytes]:
    """Counts matrices of an all-to-all."""
    return [b"1,2,3,4\n" * 4, b"# counts\n5,6,7,8\n\n1,1,1,1\n2,2,2,2\n0,0,0,0\n"]


def _real(folder: str) -> Iterator[bytes]:
    root = os.environ.get("BUSBAR_SAMPLES")
    for path in sorted(Path(root, folder).rglob("*.*")) if root else ():
        if path.is_file() and path.stat().st_size <= _LARGEST:
            yield path.read_bytes()
