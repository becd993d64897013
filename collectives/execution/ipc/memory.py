"""GPU memory that all ranks of a node use: own allocations, and peers' mapped by CUDA IPC.

Threads of one process use each other's addresses directly, because a process cannot open its own
handles. This module does not depend on schedules.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary, finalize

from busbar.errors import Unavailable, Unsupported
from collectives.execution.gpu.device import DeviceArray, GpuDevice

# An IPC handle stands for a whole allocation. The driver puts smaller allocations into one page of
# this size, so opening the handle of one would map its neighbours too.
PAGE = 2 << 20
_INSTEAD = "use --transport nccl"


class _Token:
    """Owner of memory. Every view of an array refers to it and so keeps the memory alive."""


class PeerMemory:
    """One rank's allocations on its GPU, and the other ranks' that it has opened."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._own: dict[int, tuple[int, int]] = {}
        self._tokens: WeakValueDictionary[int, _Token] = WeakValueDictionary()
        self._attached: WeakValueDictionary[tuple[int, int], _Token] = WeakValueDictionary()
        self._at: dict[tuple[int, int], int] = {}
        self._shown: set[int] = set()
        self._retired: list[object] = []
        self._unmapped: list[int] = []
        self._count = 0

    def allocate(self, nbytes: int) -> DeviceArray:
        """Allocate GPU memory. Raises Unavailable if the device has too little left.

        Once it was described to another process, only `forget` frees it, since others may still
        map it.
        """
        room = -(-max(nbytes, 1) // PAGE) * PAGE
        array = self._device.allocate(room)
        key, self._count = self._count, self._count + 1
        token = self._tokens[key] = _Token()
        self._own[key] = (array.address, room)
        finalize(token, self._release, key, array).atexit = False
        return self._device.wrap(array.address, nbytes, token)

    def _release(self, key: int, array: DeviceArray) -> None:
        # Called in the thread that drops the last reference, which may be another rank's thread.
        del self._own[key]
        if key in self._shown:
            self._retired.append(array)

    def unmap(self) -> None:
        """Close unused mappings of other ranks' memory; the owners call `forget` afterwards."""
        while self._unmapped:
            self._device.ipc_close(self._unmapped.pop())

    def forget(self) -> None:
        """Free allocations that other ranks had mapped; all of them must have called `unmap`."""
        self._retired.clear()

    def locate(self, array: DeviceArray) -> tuple[int, int]:
        """The key of the allocation that contains an array, and the array's offset in bytes.

        Raises Unavailable if the array is not in memory of this transport.
        """
        at = getattr(array, "address", None)
        # Iterate over a copy: other threads may release allocations of this rank meanwhile.
        for key, (start, size) in self._own.copy().items():
            if at is not None and start <= at and at + array.nbytes <= start + size:
                return key, at - start
        raise Unavailable(
            "a buffer does not lie in memory that the ipc transport allocated;"
            " take it from the transport's allocate()"
        )

    def own(self, key: int) -> int:
        """The address of an allocation of this rank."""
        return self._own[key][0]

    def keeper(self, key: int) -> object:
        """An object that keeps an allocation of this rank alive, for threads of the process."""
        return self._tokens[key]

    def describe(self, key: int, shared: bool) -> dict[str, Any]:
        """How another rank opens an allocation, as JSON; ``shared``: also from another process."""
        address, size = self._own[key]
        description = {"pid": os.getpid(), "gpu": self._device.index, "at": address, "nbytes": size}
        if not shared:
            return description
        self._shown.add(key)
        return {**description, "handle": self._device.ipc_handle(address).hex()}

    def attach(self, rank: int, key: int, where: Mapping[str, Any]) -> tuple[int, object]:
        """Map another rank's allocation; gives its address here, and what keeps it mapped.

        The object is None for ranks that are threads (see `keeper`). Raises Unavailable, with the
        remedy, if the memory cannot be mapped.
        """
        if int(where["pid"]) == os.getpid():
            self._reach(rank, int(where["gpu"]))
            return int(where["at"]), None
        token = self._attached.get((rank, key))
        if token is None:
            address = self._open(rank, bytes.fromhex(str(where["handle"])))
            token = _Token()
            self._attached[rank, key], self._at[rank, key] = token, address
            # Unmapping may wait for the device, as freeing does, so it is put off to `unmap`.
            finalize(token, self._unmapped.append, address).atexit = False
        return self._at[rank, key], token

    def _reach(self, rank: int, gpu: int) -> None:
        try:
            self._device.reach(gpu)
        except Unsupported as error:
            raise Unavailable(f"rank {rank}'s memory: {error}; {_INSTEAD}") from None

    def _open(self, rank: int, handle: bytes) -> int:
        try:
            return self._device.ipc_open(handle)
        except Exception as error:
            if type(error).__name__ != "CUDARuntimeError":
                raise
            raise Unavailable(
                f"cannot map the GPU memory of rank {rank} ({error}); every rank must see all GPUs"
                f" (CUDA_VISIBLE_DEVICES) in one IPC namespace, with peer access; {_INSTEAD}"
            ) from None
