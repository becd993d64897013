"""Reads what nccl-tests' ``-J`` writes (versions 1 to 4), and Busbar's ``-J`` with it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from reports.readers import names
from reports.records.rows import Note, Reading, Row, Run


def recognises(document: object) -> bool:
    """Whether a JSON document has the shape of that file."""
    return isinstance(document, dict) and isinstance(document.get("results"), list)


def _number(value: object) -> float | None:
    """A finite number; None for anything else, ``"nan"`` in quotes among it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:
        return None


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def read(source: str, document: Mapping[str, Any]) -> Reading:
    """The rows of one document; a result that lacks what a row needs is said by its number."""
    config = _mapping(document.get("config"))
    devices = [_mapping(d) for d in _list(config.get("devices"))]
    arguments = [_text(a) for a in _list(document.get("args"))]
    version = _whole(document.get("nccl_version"))
    hosts = tuple(dict.fromkeys(_text(d.get("hostname")) for d in devices))
    # One device is listed per process; a process has threads times GPUs of them.
    share = (_whole(config.get("nthreads")) or 1) * (_whole(config.get("ngpus")) or 1)
    run = Run(
        source,
        0,
        "busbar-nccl-json" if document.get("generator") == "busbar" else "nccl-tests-json",
        arguments[0].rsplit("/", 1)[-1] if arguments else "",
        f"JSON version {document.get('version')}",
        f"NCCL {names.nccl_version(version)}" if version else _text(document.get("library")),
        hosts,
        tuple(dict.fromkeys(_text(d.get("device_info")) for d in devices)),
        _environment(document, devices if share == 1 else [], hosts),
    )
    # Split into groups, a communicator has the ranks of one.
    groups = Counter(_whole(d.get("group")) for d in devices)
    ranks = max(groups.values(), default=0) * share or None
    rows: list[Row] = []
    notes: list[Note] = []
    for n, result in enumerate(document["results"]):
        made = _result(run, n, _mapping(result), ranks, config)
        if isinstance(made, str):
            notes.append(Note(source, 0, f"result {n} not read: {made}"))
        else:
            rows += made
    return Reading(rows, notes)


def _environment(
    document: Mapping[str, Any], devices: Sequence[Mapping[str, Any]], hosts: Sequence[str]
) -> dict[str, Any]:
    """When it began, where each rank ran, and NCCL's variables; nothing else of its environment."""
    found: dict[str, Any] = {}
    started = _text(document.get("start_time"))
    if started:
        found["started"] = started.replace(" ", "T")
    if devices:
        nodes = [hosts.index(_text(d.get("hostname"))) for d in devices]
        found["mapping"] = {"node": nodes, "gpu": [_text(d.get("device_hex")) for d in devices]}
    pairs = (_text(one).partition("=") for one in _list(document.get("env")))
    variables = {name: value for name, _, value in pairs if name.startswith("NCCL_")}
    return {**found, "variables": variables} if variables else found


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []


def _result(
    run: Run, n: int, result: Mapping[str, Any], ranks: int | None, config: Mapping[str, Any]
) -> list[Row] | str:
    size, count = _whole(result.get("size")), _whole(result.get("count"))
    if size is None or size < 0:
        return "it has no size"
    collective = names.collective(run.program or _text(result.get("experiment_name")).split(" ")[0])
    tuning = _mapping(result.get("tuning"))
    words = [_text(tuning.get(k)) for k in ("algo", "proto")]
    algorithm = _text(result.get("algorithm")) or " ".join(w.lower() for w in words if w)
    rows = []
    for key, placement in (("out_of_place", "out"), ("in_place", "in")):
        half, each = _mapping(result.get(key)), _mapping(result.get(f"{key}_per_iter"))
        microseconds = _number(half.get("time", half.get("cpu_time")))
        if microseconds is None or microseconds < 0:
            continue
        algbw, busbw = _number(half.get("alg_bw")), _number(half.get("bus_bw"))
        known = ranks or names.ranks_from_rates(collective, algbw or 0.0, busbw or 0.0)
        rows.append(
            Row(
                run=run,
                line=0,
                collective=collective,
                size=size,
                message=size,
                placement=placement,
                algorithm=algorithm,
                transport=_text(result.get("transport"))
                or ("" if _text(result.get("algorithm")) else "nccl"),
                ranks=known,
                count=count,
                dtype=names.dtype(_text(result.get("type"))),
                op=_text(result.get("redop")).replace("none", ""),
                root=_root(result.get("root")),
                statistic="median" if run.format == "busbar-nccl-json" else "mean",
                time_s=microseconds * 1e-6,
                algbw_bytes_per_s=names.scaled(algbw, 1e9),
                busbw_bytes_per_s=names.scaled(busbw, 1e9),
                wrong=_whole(half.get("nwrong")),
                iterations=_whole(result.get("actual_iterations"))
                or _whole(config.get("iterations")),
                **_spread(each, known),
            )
        )
    return rows or "neither placement has a time"


def _root(value: object) -> int | None:
    if isinstance(value, str):
        text = value.strip()
        return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else None
    return _whole(value)


def _spread(each: Mapping[str, Any], ranks: int | None) -> dict[str, Any]:
    """What ``-I`` adds: raw times, their extremes, and where a rank is a process each rank's own.

    Those that ``-K`` leaves out of the extremes are left out of all.
    """
    skipped = _whole(each.get("skipped_iterations")) or 0
    own = [_seconds(one, skipped) for one in _list(each.get("per_process_max_times_us"))]
    whole = len(own) == ranks and len(set(map(len, own))) == 1 and own[0]
    found: dict[str, Any] = {
        "times_s": _seconds(each.get("times_us"), skipped),
        "per_rank_s": tuple(own) if whole else (),
    }
    for key, column, factor in (
        ("min_us", "min_s", 1e-6),
        ("max_us", "max_s", 1e-6),
        ("p99_us", "p99_s", 1e-6),
        ("cv_pct", "cv", 1e-2),
    ):
        found[column] = names.scaled(_number(each.get(key)), factor)
    return found


def _seconds(value: object, skipped: int) -> tuple[float, ...]:
    """A list of microseconds without the first ones; empty where one is no number."""
    times = [_number(one) for one in _list(value)[max(0, skipped) :]]
    known = tuple(one * 1e-6 for one in times if one is not None)
    return known if len(known) == len(times) else ()
