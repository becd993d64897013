"""The rows of a sweep for one collective: sizes, counts, types, operations, roots."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.options.options import Options, RunOptions
from busbar.errors import Unsupported
from busbar.files import read_text
from collectives.schedule.counts import busiest, matrix, spread
from collectives.schedule.dtypes import dtype
from collectives.schedule.layout import Elements
from collectives.schedule.spec import ALIGN_BYTES, Collective, Unit

# A matrix of four thousand ranks.
_MOST_BYTES = 1 << 26


class SizeRow(NamedTuple):
    """One row: ``elements`` of each part, and what the size and count columns show.

    ``op`` is "none" and ``shown_root`` -1 where the collective has none, as nccl-tests prints.
    """

    dtype: str
    op: str
    root: int
    shown_root: int
    elements: Elements
    size: int
    count: int  # type: ignore[assignment]


def read_counts(path: Path, nranks: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """A counts matrix (elements) from a CSV file. Raises Unsupported with file and line."""
    table: list[list[int]] = []
    text = read_text(path, _MOST_BYTES)
    try:
        for number, line in enumerate(csv.reader(text.splitlines()), 1):
            if not line or line[0].lstrip().startswith("#"):
                continue
            if len(table) >= 65536:
                raise Unsupported(f"{path}: more than 65536 lines")
            try:
                table.append([int(cell) for cell in line if cell.strip()])
            except ValueError:
                raise Unsupported(
                    f"{path}, line {number}: {','.join(line)[:60]!r} is not whole numbers"
                ) from None
    except csv.Error as error:
        raise Unsupported(f"{path}: cannot be read: {error}") from None
    if len({len(line) for line in table}) > 1 or not table:
        raise Unsupported(f"{path}: the lines must have one number a rank each")
    return matrix(table, nranks)


def roots(spec: Collective, options: RunOptions, nranks: int) -> range:
    """The roots to sweep: all for ``-r all``, else the one that was given.

    Raises Unsupported for a root that is no rank. Where a collective has no root the one given
    still reaches the algorithms that have one.
    """
    if options.root is None:
        return range(nranks) if spec.rooted else range(1)
    if options.root >= nranks:
        raise Unsupported(f"-r {options.root}: there are only ranks 0 to {nranks - 1}")
    return range(options.root, options.root + 1)


def rows(spec: Collective, options: Options, nranks: int) -> Iterator[SizeRow]:
    """All rows of a sweep, in nccl-tests' order; sizes that are too small to share have none."""
    ops = options.ops if spec.reduces else ("none",)
    if spec.unit is Unit.NOTHING:
        yield SizeRow("uint8", "none", 0, -1, 1, 0, 0)
        return
    for kind in options.dtypes:
        for op in ops:
            for root in roots(spec, options, nranks):
                shown = root if spec.rooted else -1
                for size in _sizes(spec, options, nranks, dtype(kind).itemsize):
                    yield SizeRow(kind, op, root, shown, *size)


def _sizes(
    spec: Collective, options: Options, nranks: int, itemsize: int
) -> Iterator[tuple[Elements, int, int]]:
    if spec.name == "alltoallv":
        yield from _uneven(options, nranks, itemsize)
        return
    for wanted in options.sizes:
        size = spec.size(nranks, wanted, itemsize)
        if size.shown_count > 0:
            yield size.elements, size.shown_bytes, size.shown_count


def _uneven(options: Options, nranks: int, itemsize: int) -> Iterator[tuple[Elements, int, int]]:
    """All-to-all-v: the counts of a file, or nccl-tests' spread of every size."""
    if options.counts is not None:
        counts = read_counts(options.counts, nranks)
        most = busiest(counts)
        yield counts.ravel(), most * itemsize, most
        return
    for wanted in options.sizes:
        counts = spread(nranks, wanted, itemsize, options.spread)
        most = busiest(counts)
        if most > 0:
            yield counts.ravel(), most * itemsize, most


def check(spec: Collective, options: Options, nranks: int) -> list[str]:
    """Go through all rows without running one; gives notes on sizes that have none.

    Raises Unsupported for what cannot be a row, and where no row is left.
    """
    roots(spec, options, nranks)
    if spec.unit is Unit.NOTHING or options.counts is not None:
        deque(rows(spec, options, nranks), maxlen=0)
        return []
    notes: list[str] = []
    for kind in options.dtypes:
        itemsize = dtype(kind).itemsize
        few = len(options.sizes) - sum(1 for _ in _sizes(spec, options, nranks, itemsize))
        if few:
            # Those that are too small come first; what fits one fits all above it.
            below = options.sizes[few - 1]
            note = (
                f"{below} bytes are less than one element of {itemsize} bytes"
                if spec.unit is Unit.PART
                else f"{below} bytes leave each of {nranks} ranks less than the {ALIGN_BYTES} that"
                " nccl-tests rounds to"
            )
            if few == len(options.sizes):
                raise Unsupported(f"{note}; use a larger -e")
            notes.append(f"left out: sizes up to {below} B: {note}")
    return notes
