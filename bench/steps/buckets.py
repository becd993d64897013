"""Which gradients are exchanged together, and the memory that holds all gradients of a rank.

Tensors are numbered in the order in which a backward pass computes their gradients, the last layer
first. Gradients that are exchanged together are a range of these numbers: a bucket, as PyTorch's
DDP makes them, or what fills Horovod's fusion buffer in one of its cycles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bench.steps.workloads import Workload
from busbar.errors import Unsupported
from busbar.units import format_size_argument, parse_size
from collectives.execution.transport import Array, Transport
from collectives.schedule.dtypes import dtype

TensorRange = tuple[int, int]
"""The number of the first tensor, and the number behind the last one."""

_MIB = 1 << 20
#: torch.nn.parallel.DistributedDataParallel: ``_DEFAULT_FIRST_BUCKET_BYTES``, ``bucket_cap_mb``.
_DDP = (_MIB, 25 * _MIB)
# Sizes that ``--sweep fusion`` tries.
_SWEPT = ("256K", "1M", "4M", "16M", "64M")
# A buffer that is large enough for every model.
_WHOLE = "256G"


@dataclass(frozen=True)
class Fusion:
    """A way to fuse gradients: fixed buckets, or with a ``cycle`` a buffer that is filled anew.

    ``label``: its name in records and tables. ``limits``: the bytes that close the first bucket,
    the second, …; the last limit holds for all further buckets. None: no limit. ``cycle``: seconds
    between two exchanges of the gradients that are ready; ``limits`` is then the buffer's size.
    """

    label: str
    limits: tuple[int | None, ...]
    cycle: float | None = None

    def scaled(self, factor: float) -> Fusion:
        """The same buckets for a model with ``1/factor`` of every tensor."""
        smaller = (limit and max(1, round(limit / factor)) for limit in self.limits)
        return replace(self, limits=tuple(smaller))

    @property
    def buffer(self) -> int:
        """Bytes of the buffer that a cycle fills."""
        assert self.limits[0] is not None, "a buffer has a size"
        return self.limits[0]


def parse_fusion(text: str, cycle: float | None = None) -> Fusion:
    """Parse the options ``--fusion`` and ``--cycle`` (in seconds).

    ``ddp`` or ``ddp:FIRST,REST``: PyTorch's buckets; ``none``: every tensor alone; ``all``: all
    together; SIZE: buckets of so many bytes, or with a cycle a buffer of that size, filled every
    ``cycle`` seconds as Horovod does. Raises Unsupported for any other text.
    """
    head, _, rest = text.partition(":")
    if head == "ddp" and cycle is None:
        sizes = tuple(map(_positive, rest.split(","))) if rest else _DDP
        if len(sizes) != 2:
            raise Unsupported(f"--fusion {text[:40]!r}: write ddp:FIRST,REST, such as ddp:1M,25M")
        return Fusion(text, sizes)
    if text in ("none", "all") and cycle is None:
        return Fusion(text, (0 if text == "none" else None,))
    if text in ("none", "all", "ddp"):
        raise Unsupported(f"--cycle goes with --fusion SIZE, such as 64M, not with {text}")
    size = _positive(text)
    if cycle is None:
        return Fusion(text, (size,))
    return Fusion(f"{format_size_argument(size)}@{cycle * 1e3:g}ms", (size,), cycle)


def candidate_fusions(nbytes: int, cycle: float | None = None) -> list[Fusion]:
    """The fusions that ``--sweep fusion`` tries for ``nbytes`` of gradients.

    Buckets of 256K to 64M if smaller than the gradients, PyTorch's buckets, ``none`` and ``all``.
    With a cycle: buffers of these sizes, and one that is large enough for all gradients.
    """
    sizes = [size for size in _SWEPT if parse_size(size) < nbytes]
    if cycle is not None:
        return [parse_fusion(size, cycle) for size in (*sizes, _WHOLE)]
    return [parse_fusion(text) for text in ("none", *sizes, "ddp", "all")]


def _positive(text: str) -> int:
    size = parse_size(text)
    if size < 1:
        raise Unsupported(
            f"--fusion {text[:40]!r}: at least 1 byte is needed; none is --fusion none"
        )
    return size


def assign_buckets(
    sizes: Sequence[int], limits: Sequence[int | None], kinds: Sequence[str] = ()
) -> list[TensorRange]:
    """Assign tensors of ``sizes`` bytes to buckets. Returns each bucket's range of tensors.

    A tensor is added first; then its bucket is closed if its limit is reached. PyTorch's
    ``compute_bucket_assignment_by_size`` does the same: a bucket has at least one tensor, and may
    exceed its limit by all but one byte of its last tensor. ``kinds``: the tensors' types, if they
    differ. DDP keeps a bucket open for each type; here a tensor of another type closes the bucket,
    because a range is one piece of memory.
    """
    ranges: list[TensorRange] = []
    first, nbytes = 0, 0
    for tensor, size in enumerate(sizes):
        if tensor > first and kinds and kinds[tensor] != kinds[tensor - 1]:
            ranges.append((first, tensor))
            first, nbytes = tensor, 0
        nbytes += size
        limit = limits[min(len(ranges), len(limits) - 1)]
        if limit is not None and nbytes >= limit:
            ranges.append((first, tensor + 1))
            first, nbytes = tensor + 1, 0
    if first < len(sizes):
        ranges.append((first, len(sizes)))
    return ranges


def fill_buffers(
    sizes: Sequence[int], start: int, stop: int, buffer: int, kinds: Sequence[str] = ()
) -> Iterator[TensorRange]:
    """Fill Horovod's fusion buffer with tensors ``start`` to ``stop``, as often as needed.

    A tensor that is larger than the buffer is exchanged alone. A tensor of another type waits for
    the next buffer.
    """
    first, nbytes = start, 0
    for tensor in range(start, stop):
        other = bool(kinds) and kinds[tensor] != kinds[tensor - 1]
        if tensor > first and (nbytes + sizes[tensor] > buffer or other):
            yield first, tensor
            first, nbytes = tensor, 0
        nbytes += sizes[tensor]
    if first < stop:
        yield first, stop


# A tensor whose type differs from the one before it begins on a new cache line.
_LINE = 64


@dataclass(frozen=True)
class GradientLayout:
    """Where the gradient of each tensor is in a rank's memory.

    ``kinds``: each tensor's type by its name in nccl-tests. ``starts``: each tensor's byte offset,
    and at the end the number of all bytes.
    """

    kinds: tuple[str, ...]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, workload: Workload, kind: str) -> GradientLayout:
        """The layout of a model. ``kind``: the type of tensors for which the model names none."""
        kinds = tuple(tensor.dtype or kind for tensor in workload.ready)
        starts = [0]
        for n, tensor in enumerate(workload.ready):
            end = starts[-1] + tensor.elements * dtype(kinds[n]).itemsize
            if n + 1 < len(kinds) and kinds[n + 1] != kinds[n]:
                end = -(-end // _LINE) * _LINE
            starts.append(end)
        return cls(kinds, tuple(starts))

    @property
    def nbytes(self) -> int:
        """Bytes of all gradients."""
        return self.starts[-1]

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of each tensor, with the unused bytes after it."""
        return [end - start for start, end in pairwise(self.starts)]

    def nbytes_of(self, span: TensorRange) -> int:
        """Bytes of all tensors of a range."""
        return self.starts[span[1]] - self.starts[span[0]]

    def elements(self, span: TensorRange) -> int:
        """The number of elements of a range whose tensors have one type."""
        return self.nbytes_of(span) // self.itemsize(span)

    def itemsize(self, span: TensorRange) -> int:
        """Bytes of one element of a range whose tensors have one type."""
        return dtype(self.kinds[span[0]]).itemsize


class Gradients:
    """A rank's memory for its gradients. All ranks allocate theirs together."""

    def __init__(self, layout: GradientLayout, transport: Transport) -> None:
        self.layout = layout
        self._memory: NDArray[np.uint8] = transport.allocate(layout.nbytes)[: layout.nbytes]

    def view(self, span: TensorRange) -> Array:
        """The memory of a range whose tensors have one type, as an array of that type."""
        layout = self.layout
        raw = self._memory[layout.starts[span[0]] : layout.starts[span[1]]]
        return raw.view(dtype(layout.kinds[span[0]]))

    def fill(self, value: float) -> None:
        """Set every element to ``value``."""
        for n in range(len(self.layout.kinds)):
            self.view((n, n + 1)).fill(value)

    def wrong(self, value: float, nranks: int) -> int:
        """Count elements that differ from ``value`` by more than rounding ``nranks`` additions."""
        count = 0
        for n, kind in enumerate(self.layout.kinds):
            rounding = nranks * 2.0 ** -{"half": 10, "bfloat16": 7}.get(kind, 23) * abs(value)
            error = np.abs(self.view((n, n + 1)).astype(np.float64) - value)
            count += int(np.count_nonzero(~(error <= rounding)))
        return count
