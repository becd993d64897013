"""Device memory that is no longer used, kept until it is safe to free it.

cudaFree waits for the whole device. On a shared GPU, a kernel of another rank may be waiting for a
launch by the rank that frees: a deadlock. Python may release an object at any time and in any
thread, for instance behind a closed gate. So a release only queues the memory for freeing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, finalize


class _Held:
    """Stands for an allocation: when nothing refers to it any more, it is let go of."""


class Heap:
    """Addresses on one GPU that are to be freed."""

    def __init__(self) -> None:
        self._gone: list[int] = []

    def hold(self, address: int) -> object:
        """Owns an allocation, and releases it when it is destroyed."""
        held = _Held()
        # Not at exit: the driver takes the memory back, and its runtime may be gone already.
        finalize(held, self._gone.append, address).atexit = False
        return held

    def sweep(self, free: Callable[[int], None]) -> None:
        """Free what was let go of."""
        while self._gone:
            free(self._gone.pop())


@cache
def _heaps() -> WeakKeyDictionary[Any, dict[int, Heap]]:
    return WeakKeyDictionary()


def heap(runtime: Any, gpu: int) -> Heap:
    """A GPU's, which all of a process's ranks share: what one lets go of any of them frees."""
    return _heaps().setdefault(runtime, {}).setdefault(gpu, Heap())
