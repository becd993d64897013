"""Runs to report on: records with raw times, and the rows that are read from them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from reports.readers import codec
from reports.readers.codec import run_of
from reports.readers.reading import parse
from reports.records.measurement import Measurement, Placements, Record
from reports.records.steps import Step
from reports.records.table import measured
from tests.command import reports_main as main

# What a name in a log, a map or a host's answer may be.
EVIL = "</script><script>window.hit=1</script><img src=x onerror='window.hit=1'>\"'&\u2028"
TOPO = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"
MEASURED = """{"busbar_topology": 1, "sources": ["measured"], "devices": [
 {"id": "HOST", "kind": "host"}, {"id": "RANK0", "kind": "rank", "parent": "HOST"},
 {"id": "RANK1", "kind": "rank", "parent": "HOST"}], "pairs": [
 {"a": "RANK0", "b": "RANK1", "name": "latency", "value": 1.25e-6, "source": "measured"},
 {"a": "RANK1", "b": "RANK0", "name": "latency", "value": 3.5e-6, "source": "measured"}]}"""
ENVIRONMENT = {"busbar": "0.1", "library": "MPICH 5", "hosts": ["n0", "n1"], "cpu": "EPYC",
               "ranks_per_node": [2, 2], "variables": {"UCX_TLS": "sm"}}  # fmt: skip


def timed(times: Sequence[float], **fields: Any) -> Record:
    """A record with these raw times, as a sweep leaves it; ``fields``: more of it."""
    known = {"iterations": len(times), "timing": "each", "across": "max", "wrong": 0, **fields}
    return Record(times_s=tuple(times), **known)


def allreduce(
    algorithm: str,
    ranks: int,
    size: int,
    out: Record | Sequence[float],
    in_place: Record | Sequence[float] | None = None,
    *,
    environment: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Placements:
    """An all-reduce of ``size`` bytes of float, summed; placements may be their times."""
    known = {
        "collective": "allreduce", "algorithm": algorithm, "transport": "mpi", "ranks": ranks,
        "size": size, "count": size // 4, "dtype": "float", "op": "sum", "root": -1,
        "bus_factor": 2 * (ranks - 1) / ranks, **fields,
    }  # fmt: skip
    run = run_of(environment or {}, known["collective"])
    return Placements(
        *(
            None
            if half is None
            else measured(
                replace(
                    half if isinstance(half, Record) else timed(half), **known, placement=placement
                ),
                run,
            )
            for placement, half in (("out", out), ("in", in_place))
        )
    )


def changed(
    row: Placements, environment: Mapping[str, Any] | None = None, **fields: Any
) -> Placements:
    """A row with other raw fields, and the figures that follow from them."""
    return Placements(
        *(
            None
            if one is None
            else measured(
                replace(one, **fields),
                one.run if environment is None else run_of(environment, one.collective),
            )
            for one in row
        )
    )


def of_format_2(
    transport: str, environment: Mapping[str, Any], algorithm: str = "ring", seconds: float = 1e-3
) -> dict[str, Any]:
    """The record of an all-reduce as format 2 had it, which did not know ranks per core."""
    return {
        "format": 2, "collective": "allreduce", "algorithm": algorithm, "transport": transport,
        "ranks": 4, "size": 1024, "count": 256, "dtype": "float", "op": "sum", "root": -1,
        "bus_factor": 1.5, "environment": environment,
        "out": {"times": [seconds] * 8, "iterations": 8, "wrong": 0},
    }  # fmt: skip


def flat(rows: Iterable[Placements | Measurement]) -> list[Measurement]:
    """The measurements of rows, one after the other."""
    return [one for row in rows for one in (row.every if isinstance(row, Placements) else [row])]


def step_of(one: Measurement) -> Step:
    """What a measurement of training steps says of them."""
    assert one.step is not None
    return one.step


def to_jsonl(rows: Iterable[Placements | Measurement]) -> bytes:
    """Rows as JSON lines."""
    return codec.to_jsonl(flat(rows))


def noisy(
    seed: int,
    slow: float = 1.0,
    n: int = 40,
    sizes: Sequence[int] = (1024, 2**20, 2**26),
    **environment: object,
) -> list[Placements]:
    """Two algorithms at three sizes on four ranks, with skewed raw times.

    ``slow`` times the ring's.
    """
    random = np.random.default_rng(seed)
    results = []
    for algorithm in ("ring", "tree"):
        for size in sizes:
            middle = (1e-5 + size / 1e10) * (slow if algorithm == "ring" else 1)
            times = (middle * (1 + 0.02 * random.gamma(2, 1, n))).tolist()
            known = {**ENVIRONMENT, **environment}
            results.append(allreduce(algorithm, 4, size, times, environment=known))
    return results


def records(
    algorithms: Sequence[str] = ("ring", "tree", "halving_doubling", "library"),
    ranks: Sequence[int] = (2, 4),
    sizes: Sequence[int] = (1024, 2**16, 2**20, 2**26),
    **environment: Any,
) -> list[Placements]:
    """Runs with both placements, raw times and limits; the first algorithm is the fastest."""
    random = np.random.default_rng(7)
    found = []
    for p in ranks:
        known = {"busbar": "0.1", "library": "MPICH 5", "hosts": ["n0"], "cpu": "EPYC",
                 "ranks_per_node": [p], **environment}  # fmt: skip
        for place, algorithm in enumerate(algorithms):
            for size in sizes:
                middle = (1e-5 + size / 1e10) * (1 + 0.2 * place) * p / 2
                halves = [_sample(middle, random) for _ in (0, 1)]
                found.append(allreduce(algorithm, p, size, *halves, environment=known))
    return found


def _sample(middle: float, random: np.random.Generator) -> Record:
    times = middle * (1 + 0.02 * random.gamma(2, 1, 30))
    return timed(times.tolist(), limit_s=middle / 2)


class Said(NamedTuple):
    """Standard output and standard error of a command."""

    out: str
    err: str


def cli(*argv: object, status: int = 0) -> Said:
    """What ``reports`` says in this process; it must end with ``status``."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in "12"]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        found = main(list(map(str, argv)))
    for stream in streams:
        stream.seek(0)
    said = Said(*(stream.read() for stream in streams))
    assert found == status, said
    return said


def saved(path: Path, results: Sequence[Placements | Measurement]) -> Path:
    """The file, with these records as JSON lines."""
    path.write_bytes(to_jsonl(results))
    return path


def rows(
    results: Sequence[Placements | Measurement], source: str = "run.jsonl"
) -> list[Measurement]:
    """Records as rows."""
    return list(parse(to_jsonl(results).decode(), source).rows)


def launches(seed: int, n: int = 5, **more: Any) -> list[Measurement]:
    """The rows of several launches of `noisy`."""
    seeds = range(1000 * seed, 1000 * seed + n)
    return [row for one in seeds for row in rows(noisy(one, **more), f"run-{one}.jsonl")]
