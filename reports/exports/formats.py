"""Convert measurements to bytes, and rows of any log to text. Pure functions.

`reports.exports.store` chooses the format of measurements by the file's ending. Rows of any log
become CSV, JSON or JSON lines with the columns of the DataFrame.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from busbar.tables import render_csv
from reports.readers.own_exports import CSV
from reports.records.measurement import Measurement, Placements, Run, launch_of, placements
from reports.records.table import SERIES, SHOWN, as_mapping, launch_name
from reports.statistics.quantities import bandwidths, center


def to_object(value: Mapping[str, Any]) -> bytes:
    """A mapping as an indented JSON object."""
    return json.dumps(value, indent=1).encode() + b"\n"


class CsvLines:
    """CSV with one line per measurement and derived figures, but without raw times."""

    def __init__(self) -> None:
        self._started = False
        self._launches: dict[str, int] = {}

    def lines(self, measurements: Iterable[Measurement]) -> bytes:
        """The bytes to append; the first call begins with the names of the columns."""
        lines: list[list[Any]] = [] if self._started else [list(CSV)]
        self._started = True
        for row in measurements:
            mean = fmean(row.times_s) if row.times_s else None
            ours = {
                "median_s": row.time_s,
                "mean_s": mean,
                "worksharing": int(row.worksharing),
                "launch": self._launch(row.run),
            }
            lines.append([ours[name] if name in ours else getattr(row, name) for name in CSV])
        return render_csv(lines, "\r\n").encode()

    def _launch(self, run: Run) -> int:
        """The number of a run's launch: its own among several, else in the order of the rows."""
        among = launch_of(run)
        if among is not None:
            return among[-1]
        return self._launches.setdefault(launch_name(run), len(self._launches))

    @staticmethod
    def end(early: str = "") -> bytes:
        """Nothing: a table does not state how its run ended."""
        return b""


def nccl_json(measurements: Sequence[Measurement], statistic: str = "median") -> bytes:
    """The document of ``-J``, in the layout of nccl-tests' JSON (version 4), without environment.

    ``statistic``: whether its times are medians or means of the iterations, as in printed rows.
    """
    wrong = sum(one.wrong or 0 for one in measurements)
    environment = measurements[0].run.environment if measurements else {}
    devices = _devices(measurements[0]) if measurements else []
    document = {
        "version": 4,
        "generator": "busbar",
        "start_time": environment.get("started"),
        "library": environment.get("library"),
        "config": {"nthreads": 1, "ngpus": 1, "statistic": statistic, "devices": devices},
        "results": [_nccl_result(pair, statistic) for pair in placements(measurements)],
        "out_of_bounds": {"count": wrong, "okay": str(wrong == 0).lower()},
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def _devices(one: Measurement) -> list[dict[str, object]]:
    """One device per rank, as in nccl-tests' JSON. Readers count them to get the rank count."""
    environment, ranks = one.run.environment, one.ranks or 0
    hosts, mapping = environment.get("hosts") or [""], environment.get("mapping") or {}
    nodes, gpus = mapping.get("node") or [0] * ranks, mapping.get("gpu") or [""] * ranks
    kind = ", ".join(environment.get("devices") or [environment.get("cpu", "")])
    return [
        {"rank": rank, "group": 0, "hostname": hosts[node], "device_hex": gpu, "device_info": kind}
        for rank, (node, gpu) in enumerate(zip(nodes, gpus, strict=True))
    ]


def _nccl_result(pair: Placements, statistic: str) -> dict[str, object]:
    first = pair.every[0]
    line: dict[str, object] = {
        "size": first.size,
        "count": first.count,
        "type": first.dtype,
        "redop": first.op,
        "root": str(first.root),
    }
    for key, one in (("out_of_place", pair.out), ("in_place", pair.in_place)):
        seconds = None if one is None else center(one, statistic)
        line[key] = None
        if one is not None and seconds is not None:
            algbw, busbw = bandwidths(one, seconds)
            line[key] = {
                "time": seconds * 1e6,
                "alg_bw": algbw / 1e9,
                "bus_bw": busbw / 1e9,
                "nwrong": one.wrong,
            }
            line["actual_iterations"] = one.iterations
            each: dict[str, object] = {"times_us": [t * 1e6 for t in one.times_s]}
            if one.per_rank_s:
                own = [[t * 1e6 for t in times] for times in one.per_rank_s]
                each["per_process_max_times_us"] = own
            line[f"{key}_per_iter"] = each
    line["experiment_name"] = f"{first.collective} {first.algorithm}"
    line["algorithm"], line["transport"] = first.algorithm, first.transport
    return line


def rows_csv(rows: Sequence[Measurement]) -> str:
    """Rows as CSV, one line each, without the times of iterations, which fit no cell of a table.

    Lists are joined with ``;``, missing values are empty.
    """
    shown = [name for name in SHOWN if name not in SERIES]

    def cell(value: Any) -> Any:
        return ";".join(map(str, value)) if isinstance(value, tuple) else value

    lines = map(as_mapping, rows)
    return render_csv([shown, *([cell(line[name]) for name in shown] for line in lines)])


WRITERS: dict[str, Callable[[Sequence[Measurement]], str]] = {
    "csv": rows_csv,
    "json": lambda rows: json.dumps([as_mapping(r) for r in rows], indent=1) + "\n",
    "jsonl": lambda rows: "".join(json.dumps(as_mapping(r)) + "\n" for r in rows),
}
