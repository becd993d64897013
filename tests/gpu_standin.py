# ruff: noqa: D102, N802 -- the names are CuPy's
"""GPUs that are not there: a module with CuPy's names and signatures over `tests.gpu_machine`.

Kernels are our own, built for the host (``tests/native/cuda_host.cpp``), but for the gate. NCCL
between these GPUs is in `tests.nccl_standin`.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from functools import cache
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
from numpy.typing import NDArray

from collectives.execution.gpu import kernels
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.gpu.lane import Lane
from collectives.execution.inproc.world import run
from collectives.schedule.dtypes import DTYPES, FLOAT8, dtype
from tests.gpu_machine import (
    POISON,
    CUDARuntimeError,
    Factory,
    Gate,
    Item,
    Machine,
    Work,
    raw_bytes,
    whole,
)
from tests.gpu_runtime import Driver, Nvrtc, Runtime
from tests.once import once

__all__ = ["POISON", "CUDARuntimeError", "Cupy", "Item", "Machine", "Runtime", "Work", "whole"]

HOME = Path(__file__).resolve().parents[1]
AROUND = 4  # entries of a queue that a graph of a library's calls takes beside its nodes
ELEMENTS, OPERATIONS = [*kernels.ELEMENTS.values()], [*kernels.OPERATIONS.values(), kernels.AVERAGE]
SIZES = [dtype(kind).itemsize for kind in (*DTYPES, *FLOAT8)]


@cache
def library() -> ctypes.CDLL:
    """Our kernels as the host's compiler builds them, once a test run, for all its processes."""
    if shutil.which("g++") is None:
        raise SkipTest("no g++ to build the kernels for the host with")
    return ctypes.CDLL(str(once("cuda_host", _build) / "cuda_host.so"))


def _build(folder: Path) -> None:
    built, text = str(folder / "cuda_host.so"), str(HOME / "tests" / "native" / "cuda_host.cpp")
    command = ["g++", "-std=c++20", "-Og", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    # What a GPU would fault on, and what its compiler may take for impossible.
    command += ["-fsanitize=alignment,signed-integer-overflow,shift", "-fno-sanitize-recover=all"]
    where = [f"-I{HOME / 'native' / 'cuda'}", text, "-o", built, "-pthread"]
    subprocess.run([*command, *where], check=True)


class Stream:
    """``cupy.cuda.Stream``."""

    def __init__(self, machine: Machine, non_blocking: bool = False) -> None:
        assert non_blocking, "a stream that waits for the default one"
        self._m, self.device = machine, machine.device
        self.items: deque[Item] = deque()
        self.users: set[object] = set()
        self.capturing: list[Factory] | None = None
        with machine.lock:
            self.ptr = 0x5000 + 16 * len(machine.streams)
            machine.streams[self.ptr] = self

    def __enter__(self) -> Stream:
        self._stack().append(self)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._stack().pop() is self

    def _stack(self) -> list[Stream]:
        if not hasattr(self._m.here, "stack"):
            self._m.here.stack = []
        stack: list[Stream] = self._m.here.stack
        return stack

    def _no_capture(self) -> None:
        if self.capturing is not None:
            raise CUDARuntimeError(900, "operation not permitted when stream is capturing")

    @property
    def done(self) -> bool:
        # An error is not told from "not yet".
        return self._m.query(self.ptr) == 0

    def synchronize(self) -> None:
        self._no_capture()
        while (status := self._m.query(self.ptr)) == 600:
            pass
        if status:
            raise CUDARuntimeError(status)

    def begin_capture(self, mode: int | None = None) -> None:
        self._no_capture()
        if not self._m.captures:
            raise CUDARuntimeError(801, "operation not supported")
        self.capturing = []

    def end_capture(self) -> Graph:
        assert self.capturing is not None
        captured, self.capturing = self.capturing, None
        self._m.settle("cudaGraphInstantiate")
        users, self.users = self.users, set()
        return Graph(self._m, captured, users)


class Graph:
    """``cupy.cuda.Graph``."""

    def __init__(
        self, machine: Machine, captured: list[Factory], users: Set[object] = frozenset()
    ) -> None:
        self._m, self._captured, self.users = machine, captured, users
        machine.graphs.add(self)

    def upload(self, stream: Stream | None = None) -> None:
        assert stream is not None

    def launch(self, stream: Stream | None = None) -> None:
        assert stream is not None
        with self._m.turns[stream.device], self._m.lock:
            self._m.launched.append("graph")
            for i, factory in enumerate(self._captured):
                around = AROUND if self.users - {None} and not i else 0
                self._m.push(stream.ptr, factory, entries=1 + around)


class Event:
    """``cupy.cuda.Event``."""

    def __init__(self, machine: Machine, block: bool = False, disable_timing: bool = False) -> None:
        self._m, self.timed = machine, not disable_timing
        self.when: int | None = None

    def record(self, stream: Stream | None = None) -> None:
        assert stream is not None, "an event on the default stream"
        stream._no_capture()
        self.when = None

        def work() -> None:
            self.when = self._m.now

        self._m.push(stream.ptr, lambda: Work(work))


def get_elapsed_time(start: Event, end: Event) -> float:
    """Milliseconds, at a microsecond for each thing that any stream does."""
    assert start.timed and end.timed
    if start.when is None or end.when is None:
        raise CUDARuntimeError(600, "not ready")
    return (end.when - start.when) / 1e3


class Function:
    """``cupy.cuda.Function``: enqueues on the thread's current stream."""

    def __init__(self, machine: Machine, launch: Callable[..., None]) -> None:
        self._launch = launch
        with machine.lock:
            machine.functions += 1
            self.ptr = 0x9000 + machine.functions

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...]
    ) -> None:
        self._launch(grid, block, args)


class Module:
    """``cupy.cuda.Module`` of our kernels."""

    def __init__(self, machine: Machine) -> None:
        self._m = machine

    def load(self, cubin: bytes) -> None:
        """What `tests.gpu_runtime.Nvrtc` has compiled."""
        self._m.settle("loading a module")
        code, options = json.loads(cubin)
        self.loaded(code, dict(one[2:].split("=") for one in options if one.startswith("-D")))

    def loaded(self, code: str, defined: dict[str, str]) -> None:
        """Take a source, and what the compiler's options define."""
        self._which = (
            ELEMENTS.index(defined["BUSBAR_ELEMENT"]),
            OPERATIONS.index(defined["BUSBAR_OPERATION"]),
        )
        self._itemsize = SIZES[self._which[0]]

    def get_function(self, name: str) -> Function:
        return Function(self._m, self.launcher(name))

    def launcher(self, name: str) -> Callable[..., None]:
        """The kernel of that name."""
        if name == "gate":
            return self._gate
        kernel = getattr(library(), name)

        def launch(grid: Sequence[int], block: Sequence[int], args: Sequence[Any]) -> None:
            whole(*grid, *block, *args)
            words = [ctypes.c_uint64(int(arg)) for arg in args]
            # Fewer threads than on a GPU, so that each has several turns.
            few = ctypes.c_uint(min(grid[0], 2)), ctypes.c_uint(3)

            def work() -> None:
                for address, nbytes in self._touched(name, args):
                    self._m.view(address, nbytes)
                kernel(*self._which, *few, *words)

            self._enqueue(name, lambda: Work(work))

        return launch

    def _touched(self, name: str, args: Sequence[Any]) -> Iterator[tuple[int, int]]:
        """Addresses that a launch reads and writes, and how many bytes each."""
        size = self._itemsize
        if name == "reduce":
            out, first, *sources, k, n, _, _ = args
            assert len(sources) == kernels.SOURCES and 1 <= k <= kernels.SOURCES
            yield from ((address, n * size) for address in (out, first, *sources[:k]))
        elif name == "divide":
            out, _, n = args
            yield out, n * size
        else:
            given, tile, n, period, count = args
            yield from ((given, n * size), (tile, period * size), (count, 8))

    def _enqueue(self, name: str, factory: Factory) -> None:
        stack = getattr(self._m.here, "stack", [])
        if not stack:
            raise CUDARuntimeError(400, f"{name} on the default stream")
        self._m.launched.append(name)
        self._m.push(stack[-1].ptr, factory)

    def _gate(self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any]) -> None:
        whole(*grid, *block, *args)
        word, number, limit, late = args
        assert isinstance(number, np.uint32) and limit > 0
        for one in (word, late):
            assert any(at <= one < at + n for at, n in self._m.pinned.items()), "not pinned"
        words = [raw_bytes(at, 4).view(np.uint32) for at in (word, late)]
        self._enqueue("gate", lambda: Gate(self._m, words, int(number), limit))


class Cupy:
    """The module ``cupy``, as far as our device uses it."""

    __version__ = "14.2.0"
    nvrtc = Nvrtc()

    def __init__(self, machine: Machine) -> None:
        library()  # built here, before ranks are threads
        self._m = machine
        self.cuda = self
        self.runtime, self.driver = Runtime(machine), Driver(machine)
        self.get_elapsed_time = get_elapsed_time

    def Stream(self, *, non_blocking: bool = False) -> Stream:
        return Stream(self._m, non_blocking)

    def Event(self, block: bool = False, disable_timing: bool = False) -> Event:
        return Event(self._m, block, disable_timing)

    def Module(self) -> Module:
        return Module(self._m)

    def alloc_pinned_memory(self, size: int) -> NDArray[np.uint8]:
        self._m.settle("cudaHostAlloc")
        memory = np.full(size, POISON, np.uint8)
        self._m.pinned[memory.ctypes.data] = size
        return memory


def alone(body: Callable[[Lane], None], machine: Machine | None = None, **given: Any) -> None:
    """Run a body on the stream of a rank that is alone."""
    device = GpuDevice(Cupy(machine or Machine(1)), 0)
    run(1, lambda world: body(Lane(device, world, **given)))
