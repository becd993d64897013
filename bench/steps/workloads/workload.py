"""A model as a list of tensors: what a training step computes and exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Tensor:
    """A parameter of a model, and its gradient.

    ``work``: its part of a backward pass, in a unit that is the same for all tensors of the model
    (multiplications, seconds). ``dtype``: the gradient's type, if it differs from the others'.
    """

    name: str
    shape: tuple[int, ...]
    work: float = 1.0
    dtype: str = ""

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Workload:
    """A model: its tensors in the order of its forward pass.

    ``backward_s``: seconds of a backward pass, if its file states them.
    """

    name: str
    tensors: tuple[Tensor, ...]
    backward_s: float | None = None

    @property
    def elements(self) -> int:
        """The number of parameters."""
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
        """The model with ``1/factor`` of the elements of each tensor, at least one.

        A link with ``1/factor`` of a rate exchanges it in the time of the whole model over the
        whole link. The tensors are vectors.
        """
        if factor == 1:
            return self
        flat = tuple(replace(t, shape=(max(1, round(t.elements / factor)),)) for t in self.tensors)
        return replace(self, name=f"{self.name}/{factor:g}", tensors=flat)
