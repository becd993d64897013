"""Pure functions from results to bytes; `reports.exports.store` has them by the file's ending."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from busbar.tables import render_csv
from reports.readers import own
from reports.readers.own_csv import CSV
from reports.records.record import FORMAT, Result
from reports.statistics.quantities import bandwidths, center


class Lines:
    """Records as JSON lines, one after the other; the format that loads for ever.

    An environment stands once, in a line of its own before the first record that has it; a record
    names it by its hash as its ``run``.
    """

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, Any]] = {}

    def line(self, result: Result) -> bytes:
        """The bytes to append for a record: its line, after that of an environment that is new."""
        document = result.as_dict()
        environment = document.pop("environment", None)
        lines = b""
        if environment is not None:
            document["run"], fresh = self._run(environment)
            if fresh:
                run = {"run": document["run"], "format": FORMAT, "environment": environment}
                lines = _line(run)
        return lines + _line(document)

    def _run(self, environment: Mapping[str, Any]) -> tuple[str, bool]:
        for name, known in self._known.items():
            if known is environment:
                return name, False
        text = json.dumps(environment, sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:12]
        fresh = name not in self._known
        self._known[name] = environment
        return name, fresh


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def to_jsonl(results: Sequence[Result]) -> bytes:
    """One record a line, see `Lines`."""
    lines = Lines()
    return b"".join(map(lines.line, results))


def to_json(results: Sequence[Result]) -> bytes:
    """The records as one JSON list."""
    return json.dumps([r.as_dict() for r in results], indent=1).encode() + b"\n"


def to_object(value: Mapping[str, Any]) -> bytes:
    """One JSON object, for people to read."""
    return json.dumps(value, indent=1).encode() + b"\n"


class CsvLines:
    """One line a placement with derived figures; raw times are left to the other forms."""

    def __init__(self) -> None:
        self._started = False

    def line(self, result: Result) -> bytes:
        """The bytes to append for a record; the names of the columns come with the first."""
        lines: list[list[Any]] = []
        if not self._started:
            self._started = True
            lines.append(list(CSV))
        for row in own.rows([result]):
            mean = fmean(row.times_s) if row.times_s else None
            told = {"median_s": row.time_s, "mean_s": mean, "worksharing": int(row.worksharing)}
            lines.append([told[name] if name in told else getattr(row, name) for name in CSV])
        return render_csv(lines, "\r\n").encode()


def to_csv(results: Sequence[Result]) -> bytes:
    """The records as CSV, see `CsvLines`."""
    lines = CsvLines()
    return b"".join(map(lines.line, results))


def nccl_json(results: Sequence[Result], statistic: str = "median") -> bytes:
    """The document of ``-J``: the shape of nccl-tests' JSON (version 4), no environment.

    ``statistic``: what its times are of the iterations, as in the printed rows.
    """
    wrong = sum(s.wrong or 0 for r in results for s in (r.out, r.in_place) if s is not None)
    environment = results[0].environment if results else {}
    devices = _devices(results[0]) if results else []
    document = {
        "version": 4,
        "generator": "busbar",
        "start_time": environment.get("started"),
        "library": environment.get("library"),
        "config": {"nthreads": 1, "ngpus": 1, "statistic": statistic, "devices": devices},
        "results": [_nccl_result(r, statistic) for r in results],
        "out_of_bounds": {"count": wrong, "okay": str(wrong == 0).lower()},
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def _devices(r: Result) -> list[dict[str, object]]:
    """A device a rank, as nccl-tests list them: from them a reader has the number of ranks."""
    environment = r.environment
    hosts, mapping = environment.get("hosts") or [""], environment.get("mapping") or {}
    nodes, gpus = mapping.get("node") or [0] * r.ranks, mapping.get("gpu") or [""] * r.ranks
    kind = ", ".join(environment.get("devices") or [environment.get("cpu", "")])
    return [
        {"rank": rank, "group": 0, "hostname": hosts[node], "device_hex": gpu, "device_info": kind}
        for rank, (node, gpu) in enumerate(zip(nodes, gpus, strict=True))
    ]


def _nccl_result(r: Result, statistic: str) -> dict[str, object]:
    line: dict[str, object] = {
        "size": r.size,
        "count": r.count,
        "type": r.dtype,
        "redop": r.op,
        "root": str(r.root),
    }
    for key, s in (("out_of_place", r.out), ("in_place", r.in_place)):
        seconds = None if s is None else center(s, statistic)
        line[key] = None
        if s is not None and seconds is not None:
            algbw, busbw = bandwidths(r, seconds)
            line[key] = {
                "time": seconds * 1e6,
                "alg_bw": algbw / 1e9,
                "bus_bw": busbw / 1e9,
                "nwrong": s.wrong,
            }
            line["actual_iterations"] = s.iterations
            each: dict[str, object] = {"times_us": [t * 1e6 for t in s.times]}
            if s.per_rank:
                own = [[t * 1e6 for t in times] for times in s.per_rank]
                each["per_process_max_times_us"] = own
            line[f"{key}_per_iter"] = each
    line["experiment_name"] = f"{r.collective} {r.algorithm}"
    line["algorithm"], line["transport"] = r.algorithm, r.transport
    return line
