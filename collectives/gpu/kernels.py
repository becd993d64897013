"""The kernels that plans enqueue between messages: add what arrived, divide, hold a stream back.

CUDA C++ without any header, so that NVRTC needs no toolkit beside it; 16-bit and 8-bit floats are
converted by PTX instructions or by their bits. Sums of several sources are carried in the wider
type and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collectives.errors import Unsupported
from collectives.gpu.array import DeviceArray
from collectives.gpu.device import Device, Kernel
from collectives.ops import Op

__all__ = ["FEWEST_FLOAT8", "SOURCES", "TYPES", "Kernels", "options", "source"]

Call = Callable[[], Any]
SOURCES = 8  # what one pass adds at most
FEWEST_FLOAT8 = (8, 9)  # the first compute capability that converts 8-bit floats
_THREADS = 512
_BLOCKS_PER_SM = 4
# NumPy's name: storage type, type that is calculated in, and the number of the conversion below.
TYPES = {
    "int8": ("signed char", "int", 0),
    "uint8": ("unsigned char", "unsigned", 0),
    "int32": ("int", "int", 0),
    "uint32": ("unsigned", "unsigned", 0),
    "int64": ("long long", "long long", 0),
    "uint64": ("unsigned long long", "unsigned long long", 0),
    "float32": ("float", "float", 0),
    "float64": ("double", "double", 0),
    "float16": ("unsigned short", "float", 1),
    "bfloat16": ("unsigned short", "float", 2),
    "float8_e4m3fn": ("unsigned char", "float", 3),
    "float8_e5m2": ("unsigned char", "float", 4),
}
_OPS = {"sum": 0, "prod": 1, "min": 2, "max": 3, "avg": 0}
_SOURCE = r"""
typedef STORED S;
typedef WORKED W;
struct __align__(16) Pack { S at[16 / sizeof(S)]; };
enum { LANES = 16 / sizeof(S) };

__device__ __forceinline__ W load(S x) {
#if FORMAT == 0
    return (W)x;
#elif FORMAT == 1
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
    return wide;
#elif FORMAT == 2
    return __uint_as_float((unsigned)x << 16);
#else
    unsigned pair, low = x;
    float wide;
#if FORMAT == 3
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)low));
#else
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)low));
#endif
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"((unsigned short)pair));
    return wide;
#endif
}

__device__ __forceinline__ S store(W x) {
#if FORMAT == 0
    return (S)x;
#elif FORMAT == 1
    unsigned short narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow) : "f"(x));
    return narrow;
#elif FORMAT == 2
    unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (S)(bits >> 16 | 0x40);
    return (S)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#else
    unsigned short pair;
#if FORMAT == 3
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
#else
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
#endif
    return (S)pair;
#endif
}

/* Signed integers wrap as NumPy's do, which unsigned arithmetic gives. */
#if SIGNED == 1
typedef unsigned U;
#elif SIGNED == 2
typedef unsigned long long U;
#else
typedef W U;
#endif

__device__ __forceinline__ W join(W a, W b) {
#if OPERATION == 0
    return (W)((U)a + (U)b);
#elif OPERATION == 1
    return (W)((U)a * (U)b);
#elif OPERATION == 2
    return b < a ? b : a;
#else
    return a < b ? b : a;
#endif
}

typedef unsigned long long Size;

template <int K> __device__ __forceinline__ void reduce_k(
    S *out, const S *first, const S *const *from, Size n, Size head, int wide)
{
    Size step = (Size)gridDim.x * blockDim.x, me = (Size)blockIdx.x * blockDim.x + threadIdx.x;
    Size packs = wide ? (n - head) / LANES : 0, done = wide ? head + packs * LANES : 0;
    for (Size i = me; i < packs; i += step) {
        Size at = head + i * LANES;
        Pack sum = *(const Pack *)(first + at), other[K];
#pragma unroll
        for (int k = 0; k < K; ++k) other[k] = *(const Pack *)(from[k] + at);
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            W value = load(sum.at[lane]);
#pragma unroll
            for (int k = 0; k < K; ++k) value = join(value, load(other[k].at[lane]));
            sum.at[lane] = store(value);
        }
        *(Pack *)(out + at) = sum;
    }
    /* What lies before the first and after the last 16 bytes; all of it where nothing is aligned. */
    Size before = wide ? head : 0;
    for (Size i = me; i < before + (n - done); i += step) {
        Size at = i < before ? i : done + (i - before);
        W value = load(first[at]);
#pragma unroll
        for (int k = 0; k < K; ++k) value = join(value, load(from[k][at]));
        out[at] = store(value);
    }
}

/* out = first joined with the first `sources` of a to h. `wide`: all begin alike within 16 bytes,
   and `head` elements lie before the first whole 16. out may be first or any source. */
extern "C" __global__ void __launch_bounds__(512) reduce(
    S *out, const S *first, const S *a, const S *b, const S *c, const S *d, const S *e, const S *f,
    const S *g, const S *h, Size sources, Size n, Size head, Size wide)
{
    const S *from[8] = {a, b, c, d, e, f, g, h};
    switch (sources) {
    case 1: reduce_k<1>(out, first, from, n, head, wide); break;
    case 2: reduce_k<2>(out, first, from, n, head, wide); break;
    case 3: reduce_k<3>(out, first, from, n, head, wide); break;
    case 4: reduce_k<4>(out, first, from, n, head, wide); break;
    case 5: reduce_k<5>(out, first, from, n, head, wide); break;
    case 6: reduce_k<6>(out, first, from, n, head, wide); break;
    case 7: reduce_k<7>(out, first, from, n, head, wide); break;
    default: reduce_k<8>(out, first, from, n, head, wide);
    }
}

/* Sums become averages; integers are rounded down, also below zero. */
extern "C" __global__ void __launch_bounds__(512) divide(S *out, Size by, Size n)
{
    Size step = (Size)gridDim.x * blockDim.x, me = (Size)blockIdx.x * blockDim.x + threadIdx.x;
    for (Size i = me; i < n; i += step) {
        W value = load(out[i]), divisor = (W)by;
#if SIGNED
        W quotient = value / divisor;
        out[i] = store(quotient - (value % divisor < 0));
#else
        out[i] = store(value / divisor);
#endif
    }
}

/* Hold the stream back until the host opens: until the word has reached the number, or for so
   many nanoseconds at most, so that no failure of the host leaves the GPU spinning. */
extern "C" __global__ void gate(const volatile unsigned *word, unsigned number, Size limit)
{
    Size start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while ((int)(*word - number) < 0 && now - start < limit);
    __threadfence_system();
}
"""


def source() -> str:
    """The CUDA C++ of all kernels; `options` fix the type and the operation."""
    return _SOURCE


def options(dtype: np.dtype[Any], op: Op | None) -> tuple[str, ...]:
    """The compiler's options for a type (by NumPy's name) and an operation.

    Raises Unsupported for a type that there are no kernels for.
    """
    if dtype.name not in TYPES:
        raise Unsupported(f"no kernels for {dtype.name}; there are: {', '.join(TYPES)}")
    stored, worked, form = TYPES[dtype.name]
    signed = 0 if dtype.kind != "i" else 2 if dtype.itemsize == 8 else 1
    operation = 0 if op is None else _OPS[op.name]
    return (
        "-std=c++14",
        f"-DSTORED={stored}",
        f"-DWORKED={worked}",
        f"-DFORMAT={form}",
        f"-DSIGNED={signed}",
        f"-DOPERATION={operation}",
    )


class Kernels:
    """The compiled kernels of one device, each compiled when first asked for."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._blocks = _BLOCKS_PER_SM * device.multiprocessors
        self._found: dict[tuple[str, ...], dict[str, Kernel]] = {}

    def _of(self, dtype: np.dtype[Any], op: Op | None) -> dict[str, Kernel]:
        key = options(dtype, op)
        if dtype.name.startswith("float8") and self._device.capability < FEWEST_FLOAT8:
            raise Unsupported(
                f"{self._device.name} (compute capability {_dotted(self._device.capability)}) cannot"
                f" add {dtype.name}; {_dotted(FEWEST_FLOAT8)} and later can"
            )
        if key not in self._found:
            names = ("reduce", "divide", "gate")
            self._found[key] = self._device.compile(source(), names, key)
        return self._found[key]

    def _grid(self, elements: int) -> tuple[int]:
        return (max(1, min(self._blocks, -(-elements // _THREADS))),)

    def reduce(
        self, out: DeviceArray, first: DeviceArray, sources: list[DeviceArray], op: Op | None
    ) -> list[Call]:
        """Calls that make ``out`` the join of ``first`` and all sources, 8 of them in one pass."""
        kernel = self._of(out.dtype, op)["reduce"]
        calls: list[Call] = []
        for i in range(0, len(sources), SOURCES):
            some = [array.address for array in sources[i : i + SOURCES]]
            operand = first if i == 0 else out
            head = _head([out.address, operand.address, *some], out.itemsize)
            wide = head is not None and out.size > head
            args = (
                out.address,
                operand.address,
                *some,
                *[0] * (SOURCES - len(some)),
                len(some),
                out.size,
                head or 0,
                int(wide),
            )
            packs = out.size * out.itemsize // 16 if wide else out.size
            calls.append(_launch(kernel, self._grid(packs), args))
        return calls

    def divide(self, out: DeviceArray, by: int) -> Call:
        """A call that divides every element."""
        kernel = self._of(out.dtype, None)["divide"]
        return _launch(kernel, self._grid(out.size), (out.address, by, out.size))

    def gate(self, word: int, number: int, limit: float) -> None:
        """Enqueue a gate on the current stream; ``limit``: seconds that it holds at most."""
        kernel = self._of(np.dtype(np.uint8), None)["gate"]
        kernel((1,), (1,), (word, np.uint32(number), int(limit * 1e9)))


def _launch(kernel: Kernel, grid: tuple[int], args: tuple[Any, ...]) -> Call:
    return lambda: kernel(grid, (_THREADS,), args)


def _head(addresses: list[int], itemsize: int) -> int | None:
    """Elements before the first 16-byte border where all addresses have theirs alike, else None."""
    offsets = {address % 16 for address in addresses}
    if len(offsets) > 1:
        return None
    bytes_before = -offsets.pop() % 16
    return bytes_before // itemsize if bytes_before % itemsize == 0 else None


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
