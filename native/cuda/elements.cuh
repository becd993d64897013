// Element types, alone or packed in 16 bytes, and how two elements are reduced; used by all kernels.
//
// Floats of one or two bytes are reduced in float and rounded once, to nearest even; integers wrap
// around as in NumPy; min and max with a NaN give NaN.
#pragma once

#include "platform.cuh"

namespace busbar {

enum Operation { kSum, kProd, kMin, kMax, kAverage };

// An element type: its bits in memory, the wider type for arithmetic, and both conversions.
template <class B, class W>
struct Element {
    using Bits = B;
    using Wide = W;
    static constexpr int size = sizeof(B);
};
template <class T, class B>
struct Integer : Element<B, T> {
    BUSBAR_DEVICE static T widen(B bits) { return static_cast<T>(bits); }
    BUSBAR_DEVICE static B narrow(T v) { return static_cast<B>(v); }
};
using Int8 = Integer<signed char, unsigned char>;
using Uint8 = Integer<unsigned char, unsigned char>;
using Int32 = Integer<int, u32>;
using Uint32 = Integer<u32, u32>;
using Int64 = Integer<long long, u64>;
using Uint64 = Integer<u64, u64>;
struct Half : Element<unsigned short, float> {
    BUSBAR_DEVICE static Wide widen(Bits bits) { return half_to_float(bits); }
    BUSBAR_DEVICE static Bits narrow(Wide v) { return float_to_half(v); }
};
struct Bfloat16 : Element<unsigned short, float> {  // the upper half of a float
    BUSBAR_DEVICE static Wide widen(Bits bits) { return as_float(static_cast<u32>(bits) << 16); }
    BUSBAR_DEVICE static Bits narrow(Wide v) {
        const u32 u = as_bits(v);
        if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<Bits>((u >> 16) | 0x40u);
        return static_cast<Bits>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
};
// The eight-bit floats saturate: a value beyond the largest number becomes the largest number.
struct Float8E4M3 : Element<unsigned char, float> {
    BUSBAR_DEVICE static Wide widen(Bits bits) { return e4m3_to_float(bits); }
    BUSBAR_DEVICE static Bits narrow(Wide v) { return float_to_e4m3(v); }
};
struct Float8E5M2 : Element<unsigned char, float> {
    BUSBAR_DEVICE static Wide widen(Bits bits) { return e5m2_to_float(bits); }
    BUSBAR_DEVICE static Bits narrow(Wide v) { return float_to_e5m2(v); }
};
struct Float : Element<u32, float> {
    BUSBAR_DEVICE static Wide widen(Bits bits) { return as_float(bits); }
    BUSBAR_DEVICE static Bits narrow(Wide v) { return as_bits(v); }
};
struct Double : Element<u64, double> {
    BUSBAR_DEVICE static Wide widen(Bits bits) { return as_double(bits); }
    BUSBAR_DEVICE static Bits narrow(Wide v) { return as_bits(v); }
};

// Sums and products of integers are computed unsigned: there, wrapping is defined.
BUSBAR_DEVICE float wrapping(float v) { return v; }
BUSBAR_DEVICE double wrapping(double v) { return v; }
template <class T>
BUSBAR_DEVICE auto wrapping(T v) {
    if constexpr (sizeof(T) == 8) return static_cast<u64>(v);
    else return static_cast<u32>(v);
}

template <int op, class T>
BUSBAR_DEVICE T join(T a, T b) {
    if constexpr (op == kSum || op == kAverage) return static_cast<T>(wrapping(a) + wrapping(b));
    else if constexpr (op == kProd) return static_cast<T>(wrapping(a) * wrapping(b));
    else if constexpr (op == kMin) return (a < b || a != a) ? a : b;
    else return (a > b || a != a) ? a : b;
}

// Integers are rounded down, also negative ones; the divisor may be too large for one byte.
BUSBAR_DEVICE float quotient(float v, u64 by) { return v / static_cast<float>(by); }
BUSBAR_DEVICE double quotient(double v, u64 by) { return v / static_cast<double>(by); }
template <class T>
BUSBAR_DEVICE T quotient(T v, u64 by) {
    const auto sum = +v, divisor = static_cast<decltype(+v)>(by), found = sum / divisor;
    return static_cast<T>(found * divisor > sum ? found - 1 : found);
}

// The elements of 16 bytes, widened for arithmetic.
template <class F>
struct Lanes {
    static constexpr int count = 16 / F::size;
    typename F::Wide lane[count];

    BUSBAR_DEVICE static Lanes of(const Pack& p) {
        Lanes found;
        BUSBAR_UNROLL
        for (int i = 0; i < count; ++i) {
            if constexpr (F::size == 8) {
                const u64 high = p.word[2 * i + 1];
                found.lane[i] = F::widen(high << 32 | p.word[2 * i]);
            } else {
                constexpr int per = 4 / F::size;
                const u32 bits = p.word[i / per] >> (8 * F::size * (i % per));
                found.lane[i] = F::widen(static_cast<typename F::Bits>(bits));
            }
        }
        return found;
    }
    BUSBAR_DEVICE Pack packed() const {
        Pack p = {{0, 0, 0, 0}};
        BUSBAR_UNROLL
        for (int i = 0; i < count; ++i) {
            if constexpr (F::size == 8) {
                const u64 bits = F::narrow(lane[i]);
                p.word[2 * i] = static_cast<u32>(bits);
                p.word[2 * i + 1] = static_cast<u32>(bits >> 32);
            } else {
                constexpr int per = 4 / F::size;
                const u32 bits = F::narrow(lane[i]);
                p.word[i / per] |= bits << (8 * F::size * (i % per));
            }
        }
        return p;
    }
    template <int op>
    BUSBAR_DEVICE void add(const Lanes& other) {
        BUSBAR_UNROLL
        for (int i = 0; i < count; ++i) lane[i] = join<op>(lane[i], other.lane[i]);
    }
    BUSBAR_DEVICE void divide(u64 by) {
        BUSBAR_UNROLL
        for (int i = 0; i < count; ++i) lane[i] = quotient(lane[i], by);
    }
};

// The bits of one element, for elements outside whole 16 bytes.
template <class F>
BUSBAR_DEVICE typename F::Bits load_one(u64 at) {
    return *pointer<const typename F::Bits>(at);
}
template <class F>
BUSBAR_DEVICE void store_one(u64 at, typename F::Bits bits) {
    *pointer<typename F::Bits>(at) = bits;
}

}  // namespace busbar
