"""The interface of training: how a learner computes a gradient and what a server does with it.

A gradient is a vector as long as the weights. Each server (shard) has a contiguous part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from busbar.errors import RankFailure

Vector = NDArray[Any]


class Learner(Protocol):
    """Computes gradients, on one rank."""

    def gradient(self, weights: Vector, version: int) -> Vector:
        """The gradient of these weights. It may be overwritten by the next call."""
        ...


class Server(Protocol):
    """Has a part of the weights, on one rank."""

    @property
    def weights(self) -> Vector:
        """As they are now; the same array for as long as there is the server."""
        ...

    def apply(self, gradient: Vector, learner: int, staleness: int) -> None:
        """Take a learner's gradient in, of weights so many updates older. It is not kept."""
        ...

    def update(self, count: int) -> None:
        """Make the next version of the weights of the ``count`` gradients since the last."""
        ...

    def kept(self) -> Any:
        """This server's part for `Training.told`, as a JSON value."""
        ...


class Coding(Protocol):
    """Gradients on the wire. Every rank has its own, which may remember (error feedback)."""

    def encode(self, gradient: Vector, server: int) -> Vector:
        """The code of a server's part of a gradient; the next call overwrites it."""
        ...

    def decode(self, data: NDArray[np.uint8], server: int) -> Vector:
        """The part of the gradient whose encoding's bytes have come; not kept by anyone."""
        ...


class Training(Protocol):
    """A training: makes every rank's hooks, the same on every rank from the same options."""

    @property
    def elements(self) -> int:
        """The number of weights."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The weights' type."""
        ...

    def learner(self, number: int) -> Learner:
        """The hooks of a learner, counted from 0; a learner that joins late has a new number."""
        ...

    def server(self, part: slice) -> Server:
        """The hooks of a part of the weights."""
        ...

    def coding(self, places: Sequence[slice]) -> Coding:
        """A rank's own. ``places``: the servers' parts."""
        ...

    def told(
        self, kept: Sequence[Any], moments: Sequence[float], alike: bool
    ) -> tuple[dict[str, Any], list[str]]:
        """The training's entry in the record and its printed lines, on rank 0.

        ``kept``: by every server. ``moments``: of the updates, from the first weights on.
        ``alike``: all learners' gradients went into every update, as in one process.
        """
        ...


def parts(elements: int, servers: int) -> list[slice]:
    """The contiguous parts of so many servers, as equal as can be."""
    edges = [elements * n // servers for n in range(servers + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


class PlainTraining:
    """Arrays of a model's size: every gradient is ones, and an update subtracts their mean.

    So weights are what their version says, and every learner looks whether they are.
    """

    def __init__(self, elements: int, dtype: np.dtype[Any]) -> None:
        self.elements, self.dtype = elements, dtype

    def learner(self, number: int) -> Learner:
        """See `Training`."""
        return _PlainLearner(np.ones(self.elements, self.dtype), number)

    def server(self, part: slice) -> Server:
        """See `Training`."""
        return _PlainServer(np.zeros(part.stop - part.start, self.dtype))

    def coding(self, places: Sequence[slice]) -> Coding:
        """See `Training`."""
        return _PlainCoding(self.dtype)

    def told(
        self, kept: Sequence[Any], moments: Sequence[float], alike: bool
    ) -> tuple[dict[str, Any], list[str]]:
        """See `Training`: nothing."""
        return {}, []


class _PlainLearner:
    def __init__(self, ones: Vector, number: int) -> None:
        import ml_dtypes

        self._ones, self._number = ones, number
        # Whole numbers up to here are exact.
        finfo: Any = ml_dtypes.finfo
        self._most = 2 ** (finfo(ones.dtype).nmant + 1)

    def gradient(self, weights: Vector, version: int) -> Vector:
        """See `Learner`. Raises RankFailure for weights that are older than the version says."""
        oldest = -max(float(weights[0]), float(weights[-1]))
        if version <= self._most and oldest < version:
            raise RankFailure(
                f"learner {self._number} was sent weights of version {oldest:g} as {version}"
            )
        return self._ones


class _PlainServer:
    def __init__(self, weights: Vector) -> None:
        self.weights, self._sum = weights, np.empty_like(weights)
        self._first = True

    def apply(self, gradient: Vector, learner: int, staleness: int) -> None:
        """See `Server`."""
        if self._first:
            np.copyto(self._sum, gradient)
        else:
            np.add(self._sum, gradient, out=self._sum)
        self._first = False

    def update(self, count: int) -> None:
        """See `Server`."""
        if count > 1:
            np.divide(self._sum, self._sum.dtype.type(count), out=self._sum)
        np.subtract(self.weights, self._sum, out=self.weights)
        self._first = True

    def kept(self) -> Any:
        """See `Server`: nothing."""
        return None


class _PlainCoding:
    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype

    def encode(self, gradient: Vector, server: int) -> Vector:
        """See `Coding`."""
        return gradient

    def decode(self, data: NDArray[np.uint8], server: int) -> Vector:
        """See `Coding`."""
        return data.view(self._dtype)
