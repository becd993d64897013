"""Device memory that nobody holds any more, kept until it may be freed.

cudaFree waits for the whole device, where a kernel of another rank may wait for a launch of the
very rank that frees; and an object may be let go of at any time and in any thread, behind a closed
gate for instance. So letting go only says what is owed.
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
        """What keeps an allocation, and lets go of it with its own end."""
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
