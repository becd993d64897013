"""Protocols for the CuPy objects that we use: streams, events, graphs, kernels."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol


class CudaEvent(Protocol):
    """A ``cupy.cuda.Event``."""

    def record(self, stream: Any = None) -> None:
        """Put the event into a stream's queue."""


class Stream(AbstractContextManager[Any], Protocol):
    """A ``cupy.cuda.Stream``; ``with stream:`` makes it the thread's current one.

    Its ``done`` is not used: it takes an error for "not yet" (see `GpuDevice.idle`).
    """

    ptr: int

    def synchronize(self) -> None:
        """Wait for all that was enqueued."""


class CudaGraph(Protocol):
    """A ``cupy.cuda.Graph``: captured work, launched as one."""

    def launch(self, stream: Any = None) -> None:
        """Enqueue all of it."""

    def upload(self, stream: Any = None) -> None:
        """Bring it to the device without running it."""


class Kernel(Protocol):
    """A ``cupy.cuda.Function``; it runs on the thread's current stream."""

    ptr: int

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...]
    ) -> None:
        """Enqueue a launch."""
