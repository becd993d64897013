"""Read JSON of nccl-tests (``-J``, versions 1 to 4), of Busbar's ``-J`` and of rccl-tests.

The text may be complete, truncated or damaged, or have several documents. rccl-tests' ``-Z json``
writes a list with one object for each row and placement.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Literal, NamedTuple

from busbar.terminal import shorten
from reports.readers import names
from reports.readers.gathered import Gathered, agreed, contradiction, micros
from reports.records.measurement import Measurement, Reading, Run
from reports.records.metrics import CPU

_GAP = re.compile(r"[\s,]*")
_RESULTS = re.compile(r'"results"\s*:\s*\[')
# The beginning of a row of Busbar, of nccl-tests, or of rccl-tests.
_ROW = re.compile(r'\{\s*"(?:format|collective|size|numCycle)"')
# Most characters of an incomplete last token: a literal, a number, an escape.
_LONGEST_REST = 8
_MOST_SAID = 5
#: How the note on truncated JSON begins.
ENDS_EARLY = "the JSON ends early"


class Found(NamedTuple):
    """A document, or its readable part (None: nothing), and notes as (line, text)."""

    value: object
    notes: tuple[tuple[int, str], ...] = ()


def documents(text: str) -> list[Found]:
    """The JSON documents in a text, in order.

    Of a truncated or damaged document the complete rows are kept: elements of a list, or of
    ``results``. It is the last document then, because the start of the next is unknown.
    """
    decoder, values, position = json.JSONDecoder(), list[Found](), 0
    while True:
        gap = _GAP.match(text, position)
        position = gap.end() if gap else position
        if position >= len(text):
            return values
        try:
            value, position = decoder.raw_decode(text, position)
        except RecursionError:
            return [*values, Found(None, ((_line(text, position), "JSON too deep to be read"),))]
        except json.JSONDecodeError as error:
            return [*values, _saved(text, position, error)]
        except ValueError:
            note = "JSON with a number of more digits than can be read"
            return [*values, Found(None, ((_line(text, position), note),))]
        values.append(Found(value))


def _saved(text: str, start: int, error: json.JSONDecodeError) -> Found:
    """The complete rows of a damaged document, with notes."""
    listed = text[start] == "["
    results = None if listed else _RESULTS.search(text, start)
    if not listed and results is None:
        before = ", before any result" if _ended(text, error) else ""
        return Found(None, ((_line(text, error.pos), _what(text, error) + before),))
    rows, notes = _rows(text, start + 1 if results is None else results.end())
    if not notes:  # the rows are complete, so the damage is behind them
        notes = [(_line(text, error.pos), f"{_what(text, error)}, behind the last result")]
    if results is None:
        return Found(rows, tuple(notes))
    head = _head(text[start : results.start()])
    if not head:
        at = (
            _line(text, start),
            "what stands before the results is damaged: program and ranks are lost",
        )
        notes.insert(0, at)
    return Found({**head, "results": rows}, tuple(notes))


def _rows(text: str, position: int) -> tuple[list[object], list[tuple[int, str]]]:
    """The readable elements of the JSON list that goes on at ``position``, and notes on the others.

    A note is the number of a line and a text.
    """
    decoder, rows, notes, more = json.JSONDecoder(), list[object](), list[tuple[int, str]](), 0
    while True:
        gap = _GAP.match(text, position)
        position = gap.end() if gap else position
        if text[position : position + 1] == "]":
            break
        try:
            one, position = decoder.raw_decode(text, position)
            rows.append(one)
        except (ValueError, RecursionError) as error:
            if isinstance(error, json.JSONDecodeError) and len(notes) < _MOST_SAID:
                notes.append(
                    (_line(text, error.pos), f"{_what(text, error)}; this row is left out")
                )
            else:
                more += 1
            following = _ROW.search(text, position + 1)
            if following is None:
                break
            position = following.start()
    if more:
        notes.append((0, f"{more} more places where the JSON is damaged"))
    return rows, notes


def _head(text: str) -> Mapping[str, object]:
    """The fields of an object before its results; empty if they are damaged."""
    try:
        value = json.loads(text.rstrip().rstrip(",") + "}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _ended(text: str, error: json.JSONDecodeError) -> bool:
    """True if the text is truncated, False if it is damaged in the middle."""
    rest = text[error.pos :].rstrip()
    cut = len(rest) <= _LONGEST_REST and not rest.endswith(("}", "]"))
    return cut or error.msg.startswith("Unterminated string")


def _what(text: str, error: json.JSONDecodeError) -> str:
    """The error as text, with its byte offset in the file (as UTF-8)."""
    if _ended(text, error):
        return f"{ENDS_EARLY}, at byte {len(text.encode(errors='replace'))}"
    byte = len(text[: error.pos].encode(errors="replace"))
    return f"the JSON is damaged at byte {byte} ({error.msg})"


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


_MOST = 1 << 63  # bound of a column of whole numbers


def is_nccl(document: object) -> bool:
    """True if a JSON document has a list ``results``, as in nccl-tests' file."""
    return isinstance(document, dict) and isinstance(document.get("results"), list)


def number(value: object) -> float | None:
    """A finite number from a JSON number or text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        known = float(value)
    except (ValueError, OverflowError):
        return None
    return known if isfinite(known) else None


def whole(value: object) -> int | None:
    """As `number`, for a whole number of at most 63 bits."""
    known = number(value)
    return int(known) if known is not None and abs(known) < _MOST else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def read_nccl(source: str, document: Mapping[str, Any]) -> Reading:
    """The rows of an nccl-tests document. Notes name results that cannot be read by number."""
    config = _mapping(document.get("config"))
    devices = [_mapping(d) for d in _list(config.get("devices"))]
    arguments = [_text(a) for a in _list(document.get("args"))]
    version = whole(document.get("nccl_version"))
    hosts = tuple(dict.fromkeys(_text(d.get("hostname")) for d in devices))
    # One device is listed per process; a process has threads times GPUs of them.
    share = (whole(config.get("nthreads")) or 1) * (whole(config.get("ngpus")) or 1)
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
    # With groups, a communicator has the ranks of one group.
    groups = Counter(whole(d.get("group")) for d in devices)
    ranks = max(groups.values(), default=0) * share or None
    gathered = Gathered(source)
    results = [_mapping(result) for result in document["results"]]
    ranks, factor, note = agreed(_collective(run, results[:1]), _rates(results), ranks)
    if note:
        gathered.note(0, note)
    for n, result in enumerate(results):
        measured = _result(run, result, ranks, factor, config)
        for row in [measured] if isinstance(measured, str) else measured:
            gathered.take(0, row, f"result {n}")
    values = whole(_mapping(document.get("out_of_bounds")).get("count"))
    if values and not any(row.wrong for row in gathered.rows):
        gathered.note(0, f"the log counts {values} values out of bounds", broken=True)
    differ = whole(_mapping(document.get("bitwise_mismatches")).get("count"))
    if differ:
        gathered.note(0, f"the log says: Bitwise mismatches : {differ}")
    for error in filter(None, map(_text, _list(document.get("errors")))):
        gathered.note(0, f"the log says: error: {shorten(error, 200)}")
    return gathered.close()


def _environment(
    document: Mapping[str, Any], devices: Sequence[Mapping[str, Any]], hosts: Sequence[str]
) -> dict[str, Any]:
    """The environment of a row: start time, place of each rank, and NCCL's variables."""
    facts: dict[str, Any] = {}
    started = _text(document.get("start_time"))
    if started:
        facts["started"] = started.replace(" ", "T")
    if devices:
        nodes = [hosts.index(_text(d.get("hostname"))) for d in devices]
        facts["mapping"] = {"node": nodes, "gpu": [_text(d.get("device_hex")) for d in devices]}
    pairs = (_text(one).partition("=") for one in _list(document.get("env")))
    variables = {name: value for name, _, value in pairs if name.startswith("NCCL_")}
    return {**facts, "variables": variables} if variables else facts


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []


def _collective(run: Run, results: Sequence[Mapping[str, Any]]) -> str:
    """The collective, from the name of the program or of the experiment."""
    named = _text(results[0].get("experiment_name")).split(" ")[0] if results else ""
    return names.collective(run.program or named)


def _rates(results: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Algbw and busbw of all results and placements, as texts."""
    halves = [_mapping(one.get(key)) for one in results for key in ("out_of_place", "in_place")]
    return [(str(half.get("alg_bw")), str(half.get("bus_bw"))) for half in halves]


def _result(
    run: Run,
    result: Mapping[str, Any],
    ranks: int | None,
    factor: float | None,
    config: Mapping[str, Any],
) -> list[Measurement] | str:
    size, count = whole(result.get("size")), whole(result.get("count"))
    if size is None or size < 0:
        return "it has no size"
    collective = _collective(run, [result])
    tuning = _mapping(result.get("tuning"))
    words = [_text(tuning.get(k)) for k in ("algo", "proto")]
    algorithm = _text(result.get("algorithm")) or " ".join(w.lower() for w in words if w)
    rows = []
    keys: dict[str, Literal["out", "in"]] = {"out_of_place": "out", "in_place": "in"}
    for key, placement in keys.items():
        half, each = _mapping(result.get(key)), _mapping(result.get(f"{key}_per_iter"))
        on_cpu = "time" not in half
        microseconds = number(half.get("cpu_time" if on_cpu else "time"))
        if microseconds is None or microseconds < 0:
            continue
        algbw, busbw = number(half.get("alg_bw")), number(half.get("bus_bw"))
        time = None if on_cpu or collective == "hypercube" else micros(half.get("time"))
        rates = (str(half.get("alg_bw")), str(half.get("bus_bw")))
        if wrong := contradiction(size, time, *rates, factor):
            return f"{placement}: {wrong}: a figure was changed"
        rows.append(
            Measurement(
                run=run,
                line=0,
                collective=collective,
                size=size,
                message=size,
                placement=placement,
                algorithm=algorithm,
                transport=_text(result.get("transport"))
                or ("" if _text(result.get("algorithm")) else "nccl"),
                ranks=ranks,
                count=count,
                dtype=names.dtype(_text(result.get("type"))),
                op=_text(result.get("redop")).replace("none", ""),
                root=whole(result.get("root")),
                statistic=_statistic(run, config),
                time_s=microseconds * 1e-6,
                time_of=CPU if on_cpu else "",
                algbw_bytes_per_s=names.scaled(algbw, 1e9),
                busbw_bytes_per_s=names.scaled(busbw, 1e9),
                wrong=whole(half.get("nwrong")),
                iterations=whole(result.get("actual_iterations"))
                or whole(config.get("iterations")),
                **_spread(each, ranks),
            )
        )
    return rows or "neither placement has a time"


def _statistic(run: Run, config: Mapping[str, Any]) -> str:
    """``mean`` or ``median``: nccl-tests' times are means; Busbar's document says which."""
    ours = run.format == "busbar-nccl-json"
    return "median" if ours and config.get("statistic") != "mean" else "mean"


def _spread(each: Mapping[str, Any], ranks: int | None) -> dict[str, Any]:
    """The fields from ``-I``: raw times, extremes, and ranks' own times if each is a process.

    Iterations that ``-K`` leaves out of the extremes are left out of the times too.
    """
    skipped = whole(each.get("skipped_iterations")) or 0
    own = [_seconds(one, skipped) for one in _list(each.get("per_process_max_times_us"))]
    each_rank = len(own) == ranks and len(set(map(len, own))) == 1 and own[0]
    figures: dict[str, Any] = {
        "times_s": _seconds(each.get("times_us"), skipped),
        "per_rank_s": tuple(own) if each_rank else (),
    }
    for key, column, factor in (
        ("min_us", "min_s", 1e-6),
        ("max_us", "max_s", 1e-6),
        ("p99_us", "p99_s", 1e-6),
        ("cv_pct", "cv", 1e-2),
    ):
        figures[column] = names.scaled(number(each.get(key)), factor)
    return figures


def _seconds(value: object, skipped: int) -> tuple[float, ...]:
    """Convert a list of microseconds without the ``skipped`` first; empty if one is no number."""
    times = [number(one) for one in _list(value)[max(0, skipped) :]]
    known = tuple(one * 1e-6 for one in times if one is not None)
    return known if len(known) == len(times) else ()


_KEYS = {"size", "inPlace", "time", "algBw", "busBw"}


def is_rccl(document: object) -> bool:
    """True if a JSON document is a list of objects with the keys of rccl-tests."""
    first = document[0] if isinstance(document, list) and document else None
    return isinstance(first, dict) and first.keys() >= _KEYS


def read_rccl(source: str, documents: Sequence[object]) -> Reading:
    """The rows of an rccl-tests document. Notes name objects that cannot be read by number.

    Every cycle of ``-N`` becomes a separate run. ``wrong`` is None if it was not counted.
    """
    gathered = Gathered(source)
    runs: dict[object, Run] = {}
    for n, each in enumerate(documents):
        document = each if isinstance(each, dict) else {}
        run = runs.setdefault(
            document.get("numCycle"), Run(source, len(runs), "rccl-tests-json", library="RCCL")
        )
        gathered.take(0, _rccl_row(run, document), f"object {n}")
    return gathered.close()


def _rccl_row(run: Run, document: Mapping[str, Any]) -> Measurement | str:
    size, time = whole(document.get("size")), number(document.get("time"))
    if size is None or size < 0 or time is None or time < 0:
        return "its size or its time is no number"
    algbw, busbw = number(document.get("algBw")), number(document.get("busBw"))
    wrong, ranks = whole(document.get("wrong")), whole(document.get("ranks"))
    collective = names.collective(str(document.get("name", "")))
    op = str(document.get("redop", ""))
    ranks = ranks or names.ranks_from_rates(collective, algbw or 0.0, busbw or 0.0)
    timed = micros(document.get("time")) if collective != "hypercube" else None
    rates = (str(document.get("algBw")), str(document.get("busBw")))
    if odd := contradiction(size, timed, *rates, names.bus_factor(collective, ranks)):
        return f"{odd}: a figure was changed"
    return Measurement(
        run=run,
        line=0,
        collective=collective,
        size=size,
        message=size,
        placement="in" if document.get("inPlace") in (1, "1", True) else "out",
        transport="nccl",
        ranks=ranks,
        dtype=names.dtype(str(document.get("type", ""))),
        op="" if op == "none" else op,
        time_s=time * 1e-6,
        algbw_bytes_per_s=names.scaled(algbw, 1e9),
        busbw_bytes_per_s=names.scaled(busbw, 1e9),
        wrong=None if wrong is None or wrong < 0 else wrong,
    )
