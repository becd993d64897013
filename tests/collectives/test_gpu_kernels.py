"""The CUDA source of the kernels itself, compiled for the host and run there, block by block.

What PTX does (16-bit and 8-bit floats but bfloat16, the gate) is left to real hardware.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.execution.gpu.device import GpuDevice
from collectives.execution.gpu.kernels import SOURCES, options, source
from collectives.execution.gpu.lane import Lane
from collectives.execution.inproc.world import InprocWorld, run
from collectives.schedule.dtypes import dtype
from collectives.schedule.ops import Op, op, scale
from tests.gpu_standin import Cupy, Machine, Module, Work
from tests.once import once

COMPILER = shutil.which("g++") or shutil.which("clang++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
# Each type and each operation; every pair is compiled by tests/test_cupy_names.py.
PAIRS = (
    *(("int8", "sum"), ("uint8", "max"), ("int32", "prod"), ("uint64", "min"), ("int64", "avg")),
    *(("float", "sum"), ("double", "min"), ("bfloat16", "avg")),
)
# Enough of CUDA for what comes before the gate.
SHIM = r"""
#include <cstring>
#define __device__ static
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(n)
#define __align__(n) alignas(n)
struct Dim { unsigned x; };
static Dim gridDim, blockDim, blockIdx, threadIdx;
static float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
static void atomicAdd(unsigned long long *to, unsigned long long more) { *to += more; }
"""
EACH = r"""
#define EVERY(call) \
    gridDim.x = grid; blockDim.x = block; \
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) \
        for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) call
extern "C" void each_reduce(unsigned grid, unsigned block, S *out, const S *first, const S *a,
    const S *b, const S *c, const S *d, const S *e, const S *f, const S *g, const S *h,
    Size sources, Size n, Size head, Size wide)
{
    EVERY(reduce(out, first, a, b, c, d, e, f, g, h, sources, n, head, wide));
}
extern "C" void each_divide(unsigned grid, unsigned block, S *out, Size by, Size n)
{
    EVERY(divide(out, by, n));
}
extern "C" void each_differ(unsigned grid, unsigned block, const Bits<sizeof(S)>::Of *given,
    const Bits<sizeof(S)>::Of *tile, Size n, Size period, Size *count)
{
    EVERY(differ(given, tile, n, period, count));
}
"""


@cache
def _library(given: tuple[str, ...]) -> ctypes.CDLL:
    """The kernels with these options, for the host."""
    flags = tuple(flag for flag in given if flag.startswith("-D"))
    name = f"kernels-{zlib.crc32(' '.join(flags).encode())}"
    return ctypes.CDLL(str(once(name, lambda folder: _build(flags, folder)) / "kernels.so"))


def _build(flags: tuple[str, ...], folder: Path) -> None:
    file = folder / "kernels.cpp"
    file.write_text(SHIM + source().split("/* Hold the stream back")[0] + EACH)
    assert COMPILER is not None
    command = [COMPILER, "-std=c++17", "-O0", "-w", "-fsanitize=undefined", "-shared", "-fPIC"]
    command += ["-fno-sanitize-recover=all", *flags, str(file), "-o", str(folder / "kernels.so")]
    subprocess.run(command, check=True, timeout=60)


class Compiled(Module):
    """The stand-in's module, but carried out by our own source."""

    def loaded(self, code: str, options: tuple[str, ...]) -> None:
        """See `Module.loaded`."""
        super().loaded(code, options)
        self._given = options

    def launcher(self, name: str) -> Callable[..., None]:
        """The kernel of that name."""
        if name == "gate":
            return super().launcher(name)

        def launch(grid: Sequence[int], block: Sequence[int], args: Sequence[Any]) -> None:
            wide = [ctypes.c_uint64(int(arg)) for arg in args]
            # Fewer threads than on a GPU, so that each has several turns.
            call = getattr(_library(self._given), f"each_{name}")
            few = ctypes.c_uint(min(grid[0], 2)), ctypes.c_uint(3)
            self._enqueue(name, lambda: Work(lambda: call(*few, *wide)))

        return launch


class HostCupy(Cupy):
    """The stand-in, with kernels that are ours."""

    def Module(self) -> Module:  # noqa: N802
        """See `Compiled`."""
        return Compiled(self._m)


@pytest.fixture(scope="module")
def lane() -> Iterator[Lane]:
    """A rank's stream, alone."""
    found: list[Lane] = []

    def body(world: InprocWorld) -> None:
        found.append(Lane(GpuDevice(HostCupy(Machine(1)), 0), world))

    run(1, body)
    yield found[0]


@settings(deadline=None, max_examples=150)
@given(
    pair=st.sampled_from(PAIRS),
    n=st.integers(1, 200),
    sources=st.integers(1, SOURCES + 2),
    shifts=st.tuples(st.integers(0, 16), st.integers(0, 16), st.booleans()),
    seed=st.integers(0, 1000),
)
def test_any_sources_any_alignment(
    lane: Lane,
    pair: tuple[str, str],
    n: int,
    sources: int,
    shifts: tuple[int, int, bool],
    seed: int,
) -> None:
    """Rule: every element is joined once, wherever vectors begin; nothing beside them changes."""
    (kind, name), random = pair, np.random.default_rng(seed)
    joined, of = op(name), dtype(kind)
    first, other, alike = shifts
    low, high = (1, 3) if name == "prod" else (0, 9)
    host = [random.integers(low, high, n).astype(of) for _ in range(sources + 1)]
    memory = [lane.device.allocate((n + 40) * of.itemsize).view(of) for _ in host]
    for array in memory:
        array.view(np.uint8)[:] = 0xEE
    starts = [first if alike or i % 2 else other for i in range(sources + 1)]
    views = [a[at : at + n] for a, at in zip(memory, starts, strict=True)]
    for view, values in zip(views, host, strict=True):
        view[:] = values
    wanted = _joined(joined, host)
    lane.enqueue(lane.kernels.reduce(views[0], views[0], views[1:], joined))
    if joined.mean:
        lane.enqueue([lane.kernels.divide(views[0], 3)])
        scale(wanted, 3)
    lane.wait()
    assert np.array_equal(views[0].host(), wanted)
    poison = memory[0].host().view(np.uint8)
    inside = slice(starts[0] * of.itemsize, (starts[0] + n) * of.itemsize)
    assert (np.delete(poison, np.r_[inside]) == 0xEE).all()


def _joined(joined: Op, host: list[Any]) -> Any:
    """What NumPy gives; bfloat16 is carried wide and rounded once, like ours."""
    narrow = host[0].dtype
    wide = [x.astype(np.float32) for x in host] if narrow == ml_dtypes.bfloat16 else host
    total = wide[0]
    for i in range(1, len(wide)):
        total = joined.ufunc(total, wide[i])
        if (i % SOURCES == 0 or i == len(wide) - 1) and narrow == ml_dtypes.bfloat16:
            total = total.astype(narrow).astype(np.float32)
    return total.astype(narrow)


@pytest.mark.parametrize("name", ["int8", "int32", "int64"])
def test_negative_averages_round_down_and_sums_wrap(lane: Lane, name: str) -> None:
    """Rule: integers behave as NumPy's: division rounds down, sums wrap round."""
    of = dtype(name)
    values = np.array([-7, -6, -1, 0, 1, 7, np.iinfo(of).max], of)
    array = lane.device.allocate(values.nbytes).view(of)
    array[:] = values
    lane.enqueue([*lane.kernels.reduce(array, array, [array], op("sum"))])
    lane.enqueue([lane.kernels.divide(array, 3)])
    lane.wait()
    with np.errstate(over="ignore"):
        wanted = values + values
    scale(wanted, 3)
    assert np.array_equal(array.host(), wanted)


def test_the_options_name_the_type() -> None:
    """Rule: a type without kernels is refused, with the list of those that have them."""
    from busbar.errors import Unsupported

    assert "-DFORMAT=2" in options(dtype("bfloat16"), None)
    with pytest.raises(Unsupported, match="no kernels for complex64; there are: int8"):
        options(np.dtype(np.complex64), None)
