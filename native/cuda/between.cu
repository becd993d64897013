// The kernels that plans enqueue between messages, for one element type and operation. Set where this
// is compiled: STORED, the type in memory; WORKED, the one that is calculated in; FORMAT and SIGNED, how
// they are converted; OPERATION. See collectives/execution/gpu/kernels.py.
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

/* How many elements differ, bit by bit, from a tile that repeats: added to `count`. */
template <int BYTES> struct Bits;
template <> struct Bits<1> { typedef unsigned char Of; };
template <> struct Bits<2> { typedef unsigned short Of; };
template <> struct Bits<4> { typedef unsigned Of; };
template <> struct Bits<8> { typedef Size Of; };
extern "C" __global__ void __launch_bounds__(512) differ(
    const Bits<sizeof(S)>::Of *given, const Bits<sizeof(S)>::Of *tile, Size n, Size period, Size *count)
{
    Size step = (Size)gridDim.x * blockDim.x, me = (Size)blockIdx.x * blockDim.x + threadIdx.x;
    Size at = me % period, on = step % period, wrong = 0;
    for (Size i = me; i < n; i += step) {
        wrong += given[i] != tile[at];
        at += on;
        if (at >= period) at -= period;
    }
    if (wrong) atomicAdd(count, wrong);
}

/* Hold the stream back until the host opens: until the word has reached the number, or for so
   many nanoseconds at most, so that no failure of the host leaves the GPU spinning; it is said
   in `late` then. */
extern "C" __global__ void gate(
    const volatile unsigned *word, unsigned number, Size limit, volatile unsigned *late)
{
    Size start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    while ((int)(*word - number) < 0) {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (now - start >= limit) {
            *late = 1;
            break;
        }
    }
    __threadfence_system();
}
