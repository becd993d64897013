"""Reads a user's model: a table of tensors, as CSV or JSON, in the order of the forward pass.

CSV has a head line: ``name,shape`` and optionally ``dtype`` and ``backward_ms``. JSON is a list of
objects with these keys, or an object with the list as ``tensors`` and optionally a ``name``. A
shape is ``64x3x7x7`` or a list of numbers.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.steps.workloads.workload import Tensor, Workload
from busbar.errors import Unsupported
from busbar.files import read_text
from busbar.terminal import make_printable

#: The types that --precision and a model's file may name, and nccl-tests' names for them.
PRECISIONS: Mapping[str, str] = {"fp32": "float", "fp16": "half", "bf16": "bfloat16"}
_TYPES = {
    **PRECISIONS,
    "float32": "float",
    "float16": "half",
    "bfloat16": "bfloat16",
    "float": "float",
    "half": "half",
}
#: Bytes of a table that a user wrote, at most.
MOST_BYTES = 16 << 20
_MOST_TENSORS = 100_000
_MOST_ELEMENTS = 1 << 44
_MOST_MS = 3.6e6
_SHAPE = re.compile(r"[0-9]{1,13}([x, ]+[0-9]{1,13}){0,15}", re.ASCII)


def read(path: Path) -> Workload:
    """Read the model of a file. Raises Unsupported, naming the file and the tensor."""
    return parse(read_text(path, MOST_BYTES), str(path))


def parse(text: str, name: str) -> Workload:
    """Parse the text of a model's file; the ending of its ``name`` is its format."""
    title = make_printable(Path(name).stem)
    if name.endswith(".json"):
        title, rows = _json(text, name, title)
    else:
        rows = _csv(text, name)
    tensors: list[Tensor] = []
    times: list[float | None] = []
    for where, row in rows:
        tensor, seconds = _tensor(row, where)
        tensors.append(tensor)
        times.append(seconds)
        if len(tensors) > _MOST_TENSORS:
            raise Unsupported(f"{name}: more than {_MOST_TENSORS:,} tensors")
    if not tensors:
        raise Unsupported(f"{name}: no tensors; write name,shape and a line a tensor")
    known = [seconds for seconds in times if seconds is not None]
    if known and len(known) < len(times):
        at = times.index(None)
        raise Unsupported(f"{name}: tensor {tensors[at].name}: no backward_ms, but others have one")
    if sum(tensor.elements for tensor in tensors) > _MOST_ELEMENTS:
        raise Unsupported(f"{name}: more than {_MOST_ELEMENTS:,} parameters")
    return Workload(title, tuple(tensors), sum(known) if known else None)


def _csv(text: str, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    table = csv.DictReader(io.StringIO(text))
    try:
        heads = [head.strip() for head in table.fieldnames or ()]
        if not {"name", "shape"} <= set(heads):
            raise Unsupported(f"{name}: the first line must name the columns name,shape")
        table.fieldnames = heads
        for row in table:
            yield f"{name}:{table.line_num}", row
    except csv.Error as error:
        raise Unsupported(f"{name}:{table.line_num}: {error}") from None


def _json(text: str, name: str, title: str) -> tuple[str, Iterator[tuple[str, Mapping[str, Any]]]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unsupported(f"{name}: no JSON ({str(error)[:60]})") from None
    if isinstance(document, dict):
        title = make_printable(str(document.get("name", title))[:40])
        document = document.get("tensors")
    if not isinstance(document, list):
        raise Unsupported(f"{name}: a list of tensors is needed, or an object with one")
    return title, ((f"{name}: tensor {n}", row) for n, row in enumerate(document))


def _tensor(row: object, where: str) -> tuple[Tensor, float | None]:
    """A row's tensor, and the seconds of its backward pass if the row has them."""
    if not isinstance(row, dict) or not row.get("name") or row.get("shape") in (None, ""):
        raise Unsupported(f"{where}: a name and a shape are needed")
    name = make_printable(str(row["name"])[:200])
    kind = str(row.get("dtype") or "")
    if kind and kind not in _TYPES:
        raise Unsupported(f"{where}: no dtype {kind[:40]!r}; there are: {', '.join(_TYPES)}")
    shape = _shape(row["shape"], where)
    backward_ms = row.get("backward_ms")
    if backward_ms in (None, ""):
        return Tensor(name, shape, float(math.prod(shape)), _TYPES.get(kind, "")), None
    try:
        ms = float(backward_ms)
    except (TypeError, ValueError):
        ms = math.nan
    if not 0 <= ms <= _MOST_MS:
        raise Unsupported(f"{where}: backward_ms {str(backward_ms)[:40]!r}: from 0 to {_MOST_MS:g}")
    return Tensor(name, shape, ms, _TYPES.get(kind, "")), ms / 1e3


def _shape(value: object, where: str) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    if isinstance(value, list) and all(type(size) is int for size in value):
        sizes = value
    elif isinstance(value, str) and _SHAPE.fullmatch(value.strip("()[] ")):
        sizes = [int(size) for size in re.split(r"[x, ]+", value.strip("()[] "))]
    else:
        raise Unsupported(f"{where}: shape {str(value)[:40]!r}: write 64x3x7x7, numbers from 1")
    if not sizes or min(sizes) < 1 or math.prod(sizes) > _MOST_ELEMENTS:
        raise Unsupported(f"{where}: shape {str(value)[:40]!r}: numbers from 1 are needed")
    return tuple(sizes)
