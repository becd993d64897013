"""One rank's gradients in one buffer of the transport, tensors in the order of readiness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bench.steps.fusion import TensorRange
from bench.steps.workloads.workload import Workload
from collectives.execution.transport import Array, Transport
from collectives.schedule.dtypes import dtype

# Where the type changes a tensor begins on a cache line of its own.
_LINE = 64


@dataclass(frozen=True)
class GradientLayout:
    """The byte offset of each tensor: ``starts`` has one more entry, the whole.

    ``kinds``: each tensor's type by nccl-tests' name.
    """

    kinds: tuple[str, ...]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, workload: Workload, kind: str) -> GradientLayout:
        """The layout of a model whose gradients are of a type, or of their own."""
        kinds = tuple(tensor.dtype or kind for tensor in workload.ready)
        starts, at = [0], 0
        for n, tensor in enumerate(workload.ready):
            at += tensor.elements * dtype(kinds[n]).itemsize
            if n + 1 < len(kinds) and kinds[n + 1] != kinds[n]:
                at = -(-at // _LINE) * _LINE
            starts.append(at)
        return cls(kinds, tuple(starts))

    @property
    def nbytes(self) -> int:
        """Bytes of all gradients."""
        return self.starts[-1]

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of each tensor, with what lies behind it."""
        return [b - a for a, b in pairwise(self.starts)]

    def elements(self, span: TensorRange) -> int:
        """Elements of a range of tensors of one type."""
        itemsize = dtype(self.kinds[span[0]]).itemsize
        return (self.starts[span[1]] - self.starts[span[0]]) // itemsize


class Gradients:
    """The memory of a layout on this rank. All ranks make it together."""

    def __init__(self, layout: GradientLayout, transport: Transport) -> None:
        self.layout = layout
        self._memory: NDArray[np.uint8] = transport.allocate(layout.nbytes)[: layout.nbytes]

    def view(self, span: TensorRange) -> Array:
        """The elements of a range of tensors, which are of one type."""
        layout = self.layout
        raw = self._memory[layout.starts[span[0]] : layout.starts[span[1]]]
        return raw.view(dtype(layout.kinds[span[0]]))

    def fill(self, value: float) -> None:
        """Set every element."""
        for n in range(len(self.layout.kinds)):
            self.view((n, n + 1)).fill(value)

    def wrong(self, value: float, nranks: int) -> int:
        """The number of elements that are not ``value``, up to rounding of so many additions."""
        found = 0
        for n, kind in enumerate(self.layout.kinds):
            near = nranks * 2.0 ** -{"half": 10, "bfloat16": 7}.get(kind, 23) * abs(value)
            off = np.abs(self.view((n, n + 1)).astype(np.float64) - value)
            found += int(np.count_nonzero(~(off <= near)))
        return found
