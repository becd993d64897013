"""The interface of training: how a learner computes a gradient and what a server does with it.

A gradient is a vector as long as the weights. Each server (shard) has a contiguous part of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from busbar.errors import RankFailure

Vector = NDArray[Any]
Learner = Callable[[Vector, int], Vector]
"""Gives the gradient of weights of a version. The next call may overwrite it."""


class Server(ABC):
    """A part of the weights, on one rank.

    ``weights``: as they are now; the same array for as long as there is the server.
    """

    def __init__(self, weights: Vector) -> None:
        self.weights = weights

    @abstractmethod
    def apply(self, gradient: Vector, learner: int, staleness: int) -> None:
        """Take a learner's gradient in, of weights so many updates older. It is not kept."""

    @abstractmethod
    def update(self, count: int) -> None:
        """Make the next version of the weights of the ``count`` gradients since the last."""

    def kept(self) -> Any:
        """This server's part for `Training.told`, as a JSON value."""
        return None


class Coding:
    """Gradients on the wire, as they are. Every rank has its own, which may remember."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype

    def encode(self, gradient: Vector, server: int) -> Vector:
        """The code of a server's part of a gradient; the next call overwrites it."""
        return gradient

    def decode(self, data: NDArray[np.uint8], server: int) -> Vector:
        """The part of the gradient whose encoding's bytes have come; not kept by anyone."""
        return data.view(self._dtype)


class Training(ABC):
    """A training: makes every rank's hooks, the same on every rank from the same options.

    ``elements``: the number of weights; ``dtype``: their type.
    """

    def __init__(self, elements: int, dtype: np.dtype[Any]) -> None:
        self.elements, self.dtype = elements, dtype

    @abstractmethod
    def learner(self, number: int) -> Learner:
        """The gradients of a learner, counted from 0; one that joins late has a new number."""

    @abstractmethod
    def server(self, part: slice) -> Server:
        """The hooks of a part of the weights."""

    def coding(self, places: Sequence[slice]) -> Coding:
        """A rank's own. ``places``: the servers' parts."""
        return Coding(self.dtype)

    def told(
        self, kept: Sequence[Any], moments: Sequence[float], alike: bool
    ) -> tuple[dict[str, Any], list[str]]:
        """The training's entry in the record and its printed lines, on rank 0.

        ``kept``: by every server. ``moments``: of the updates, from the first weights on.
        ``alike``: all learners' gradients went into every update, as in one process.
        """
        return {}, []


class PlainTraining(Training):
    """Arrays of a model's size: every gradient is ones, and an update subtracts their mean.

    So weights are what their version says, and every learner looks whether they are.
    """

    def learner(self, number: int) -> Learner:
        """See `Training`. Raises RankFailure for weights that are older than the version says."""
        import ml_dtypes

        finfo: Any = ml_dtypes.finfo
        # Whole numbers up to here are exact.
        most, ones = 2 ** (finfo(self.dtype).nmant + 1), np.ones(self.elements, self.dtype)

        def gradient(weights: Vector, version: int) -> Vector:
            oldest = -max(float(weights[0]), float(weights[-1]))
            if version <= most and oldest < version:
                raise RankFailure(
                    f"learner {number} was sent weights of version {oldest:g} as {version}"
                )
            return ones

        return gradient

    def server(self, part: slice) -> Server:
        """See `Training`."""
        return _PlainServer(np.zeros(part.stop - part.start, self.dtype))


class _PlainServer(Server):
    def __init__(self, weights: Vector) -> None:
        super().__init__(weights)
        self._sum, self._first = np.empty_like(weights), True

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
