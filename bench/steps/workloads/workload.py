"""The content of a training step's exchange: a model's tensors and their shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Tensor:
    """A parameter of a model, and its gradient.

    ``work``: its part of a backward pass, in any unit that is the same for all tensors of a model
    (multiplications, seconds). ``dtype``: the gradient's type where it has one of its own.
    """

    name: str
    shape: tuple[int, ...]
    work: float = 1.0
    dtype: str = ""

    @property
    def elements(self) -> int:
        """The number of its elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Workload:
    """A model: its tensors in the order of its forward pass.

    ``backward_s``: seconds of a backward pass, where a file says so.
    """

    name: str
    tensors: tuple[Tensor, ...]
    backward_s: float | None = None

    @property
    def elements(self) -> int:
        """All its parameters."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def ready(self) -> Sequence[Tensor]:
        """The tensors in the order in which a backward pass has their gradients: the last first."""
        return self.tensors[::-1]

    def shares(self) -> NDArray[np.float64]:
        """Each tensor's share of a backward pass, in the order of ``ready``; they sum to 1."""
        work = np.array([tensor.work for tensor in self.ready], float)
        return work / work.sum() if work.sum() > 0 else np.full(len(work), 1 / len(work))

    def scaled(self, factor: float) -> Workload:
        """The model with ``1/factor`` of each tensor's elements, at least one; flat shapes then.

        A link of ``1/factor`` of a rate takes as long for it as the whole link for the whole model.
        """
        if factor == 1:
            return self
        flat = tuple(replace(t, shape=(max(1, round(t.elements / factor)),)) for t in self.tensors)
        return replace(self, name=f"{self.name}/{factor:g}", tensors=flat)
