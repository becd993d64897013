"""Measured matrices in logs of CUDA's p2pBandwidthLatencyTest and nvbandwidth (text, JSON).

The logs number devices in CUDA's order, by default the fastest first. If a log has bus ids, GPUs
are numbered in the order of these, as by other sources.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from busbar.errors import ProbeError
from topology.model.device import canonical
from topology.model.topology import Kind, Topology
from topology.sources.draft import Draft
from topology.sources.text import bounded, lines, loaded

NAME = "bandwidth"
MAX_GPUS = 1024
_DEVICE = re.compile(
    r"Device:? ([0-9]{1,4})[:,] (?P<name>[^,(]+?)(?:, pciBusID: (?P<bus>[0-9a-f]{1,2}), "
    r"pciDeviceID: "
    r"(?P<dev>[0-9a-f]{1,2}), pciDomainID:\s*(?P<dom>[0-9a-f]{1,8})| "
    r"\((?P<busid>[0-9a-f:.]{7,16})\).*)",
    re.I,
)
# nvbandwidth over MPI numbers its processes, on one host or several.
_PROCESS = re.compile(
    r"Process ([0-9]{1,4}) \((?P<host>[^()]{1,253})\): device [0-9]{1,4}: (?P<name>[^,(]+?) "
    r"\((?P<busid>[0-9a-f:.]{7,16})\).*",
    re.I,
)
_ACCESS = re.compile(r"Device=([0-9]{1,4}) (CAN|CANNOT) Access Peer Device=([0-9]{1,4})")
_P2P = re.compile(
    r"(?P<way>Unidirectional |Bidirectional "
    r"|)P2P=(?P<on>Enabled|Disabled)\s+(?P<what>Bandwidth|Latency).*Matrix \((?P<unit>GB/s|us)\)"
)
_NVB = re.compile(
    r".*?(?P<row>CPU|GPU)\(row\) (?P<arrow><-|->|<->) "
    r"GPU\(column\)(?P<part>.*?)\((?P<unit>GB/s|ns)\)\s*"
)
_UNITS = {"GB/s": 1e9, "us": 1e-6, "ns": 1e-9}
_ROW = re.compile(
    r"\s*(?:[A-Za-z]\S*\s+)?([0-9]{1,4})((?:\s+(?:[0-9]{1,9}(?:\.[0-9]{1,6})?|N/A|nan))+)\s*"
)


@dataclass(frozen=True)
class _Matrix:
    """What the values of a matrix are, by its title: the fact's name, unit, and direction.

    ``host``: between GPUs and the host. ``to_row``: from the column's device to the row's.
    """

    fact: str
    unit: str
    host: bool = False
    to_row: bool = False


def parse(text: str) -> Topology:
    """Parse a log. Raises ProbeError, with the line, for a matrix without title or not square."""
    draft = Draft(NAME)
    start = re.search(r"^\s*\{", bounded(NAME, text), re.M)
    if start and '"nvbandwidth"' in text:
        _json(draft, text[start.start() :], text.count("\n", 0, start.start()))
    else:
        _text(draft, lines(NAME, text))
    if not draft.devices:
        raise ProbeError(NAME, "no bandwidth or latency matrix between GPUs, and no device list")
    _number_by_bus(draft)
    return draft.build()


def _number_by_bus(draft: Draft) -> None:
    """Number the GPUs in the order of their bus ids, if all are known and CUDA's order differs."""
    gpus = [device for device in draft.devices.values() if device.kind is Kind.GPU]
    if len(gpus) < len(draft.devices) or any(gpu.busid is None for gpu in gpus):
        return  # over MPI the numbers are processes
    ordered = sorted(gpus, key=lambda gpu: gpu.busid or "")
    if ordered == sorted(gpus, key=lambda gpu: gpu.index or 0):
        return
    new = {gpu.id: f"GPU{n}" for n, gpu in enumerate(ordered)}
    draft.devices = {
        new[gpu.id]: replace(gpu, id=new[gpu.id], index=n) for n, gpu in enumerate(ordered)
    }
    draft.pairs = [replace(pair, a=new[pair.a], b=new[pair.b]) for pair in draft.pairs]
    renamed = ", ".join(f"{gpu.index} is {new[gpu.id]}" for gpu in gpus)
    draft.gap("GPUs", "numbers", f"by bus id device {renamed}: CUDA has the fastest first")


def _text(draft: Draft, rows: list[str]) -> None:
    at, hosts = 0, dict[str, str]()
    while at < len(rows):
        line = rows[at]
        at += 1
        if process := _PROCESS.fullmatch(line.strip()):
            host = hosts.setdefault(process["host"], f"HOST{len(hosts) or ''}")
            if host not in draft.devices:
                draft.add(host, Kind.HOST, name=process["host"])
            _process(draft, process, host, at)
        elif device := _DEVICE.fullmatch(line.strip()):
            busid = device["busid"] or f"{device['dom']}:{device['bus']}:{device['dev']}"
            _gpu(draft, int(device[1]), device["name"].strip(), canonical(busid), at)
        elif access := _ACCESS.fullmatch(line.strip()):
            a, b = (_gpu(draft, int(access[n])) for n in (1, 3))
            draft.pair(a, b, p2p_access=access[2] == "CAN")
        elif matrix := _title(line):
            at = _table(draft, matrix, rows, at)


def _process(draft: Draft, process: re.Match[str], host: str, line: int) -> None:
    id, busid = f"GPU{process[1]}", canonical(process["busid"])
    known = draft.devices.get(id)
    if known is None:
        name = process["name"].strip()
        draft.add(id, Kind.GPU, int(process[1]), name=name, busid=busid, parent=host, model=name)
    elif (known.parent, known.busid) != (host, busid):
        raise ProbeError(NAME, f"process {process[1]} is named a second time, differently", line)


def _title(line: str) -> _Matrix | None:
    if p2p := _P2P.search(line):
        kind = "latency" if p2p["what"] == "Latency" else "bandwidth"
        both = "_both" if p2p["way"] == "Bidirectional " else ""
        return _Matrix(f"{kind}{both}{'' if p2p['on'] == 'Enabled' else '_no_p2p'}", p2p["unit"])
    nvb = _NVB.fullmatch(line)
    if nvb is None or re.search(r"Read[12]|Write[12]|latency", nvb["part"], re.I):
        return None
    if nvb["unit"] == "ns":
        return _Matrix("latency", "ns") if nvb["row"] == "GPU" else None
    if nvb["row"] == "CPU":
        facts = {"->": "host_to_device", "<-": "device_to_host", "<->": "host_both"}
        return _Matrix(facts[nvb["arrow"]], "GB/s", host=True)
    if nvb["arrow"] == "<->":
        return _Matrix("bandwidth_both", "GB/s")
    return _Matrix("bandwidth", "GB/s", to_row=nvb["arrow"] == "<-")


def _table(draft: Draft, matrix: _Matrix, rows: list[str], at: int) -> int:
    """Read a header of column numbers and the rows below it; returns the line after the table."""
    words = rows[at].split() if at < len(rows) else []
    numbers = words if not words or words[0].isdecimal() else words[1:]
    if not numbers or not all(re.fullmatch("[0-9]{1,4}", word) for word in numbers):
        raise ProbeError(
            NAME, f"no column numbers below the title of {matrix.fact}", min(at + 1, len(rows))
        )
    columns = [int(word) for word in numbers]
    if len(columns) > MAX_GPUS:
        raise ProbeError(NAME, f"{len(columns)} columns; at most {MAX_GPUS} are read", at + 1)
    at += 1
    # The second of CUDA's two latency tables measures the CPU's side; the first is the GPUs'.
    cells: dict[int, list[str]] = {}
    while at < len(rows) and (row := _ROW.fullmatch(rows[at])):
        words = row[2].split()
        if len(words) != len(columns):
            reason = f"row {row[1]} has {len(words)} of {len(columns)} values"
            raise ProbeError(NAME, reason, at + 1)
        cells[int(row[1])] = words
        at += 1
    if not matrix.host and sorted(cells) != sorted(columns):
        raise ProbeError(
            NAME, f"rows {sorted(cells)} for columns {columns}", min(at + 1, len(rows))
        )
    _state(draft, matrix, columns, cells)
    return at


def _json(draft: Draft, text: str, skipped: int) -> None:
    document = loaded(NAME, text, skipped)
    try:
        cases = document["nvbandwidth"]["testcases"]
        tables = [
            (matrix, case["bandwidth_matrix"])
            for case in cases
            if "bandwidth_matrix" in case
            and (matrix := _title(str(case.get("bandwidth_description"))))
        ]
        for matrix, rows in tables:
            cells = {n: [str(value) for value in row] for n, row in enumerate(rows)}
            columns = list(range(max(map(len, cells.values()), default=0)))
            uneven = any(len(row) != len(columns) for row in cells.values())
            if (
                uneven
                or (not matrix.host and len(cells) != len(columns))
                or len(columns) > MAX_GPUS
            ):
                raise ProbeError(NAME, f"the matrix of {matrix.fact} is not square")
            _state(draft, matrix, columns, cells)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProbeError(NAME, f"not nvbandwidth's JSON: {type(error).__name__} {error}") from None


def _gpu(
    draft: Draft, index: int, name: str = "", busid: str | None = None, line: int | None = None
) -> str:
    id = draft.gpu(index, name, busid=busid)
    if name and draft.devices[id].busid != busid:
        raise ProbeError(NAME, f"device {index} is named a second time, differently", line)
    return id


def _state(draft: Draft, matrix: _Matrix, columns: list[int], cells: dict[int, list[str]]) -> None:
    listed = {id for id, device in draft.devices.items() if device.name}
    strange = [n for n in columns if listed and f"GPU{n}" not in listed]
    if strange:
        draft.gap("machine", matrix.fact, f"columns {strange} are no devices of the list")
        columns = [n for n in columns if n not in strange]
        cells = {n: words[: len(columns)] for n, words in cells.items() if n not in strange}
    stated = {(pair.a, pair.b) for pair in draft.pairs if pair.fact.name == matrix.fact}
    for row, words in cells.items():
        for column, word in zip(columns, words, strict=True):
            value = _number(word)
            if value is None or (matrix.host and (len(cells) > 1 or row)):
                continue
            value *= _UNITS[matrix.unit]
            gpu = _gpu(draft, column)
            if matrix.host:
                if draft.devices[gpu].get(matrix.fact) is None:
                    draft.state(gpu, **{matrix.fact: value})
            elif row == column:
                if matrix.fact == "bandwidth" and value > 0:
                    draft.state(gpu, copy_rate=value)
            else:
                a, b = (column, row) if matrix.to_row else (row, column)
                ends = (_gpu(draft, a), _gpu(draft, b))
                if ends not in stated:
                    draft.pair(ends[0], ends[1], **{matrix.fact: value})


def _number(word: str) -> float | None:
    try:
        value = float(word[:32])
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
