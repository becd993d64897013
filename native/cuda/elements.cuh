// Element types inside 16 bytes, and how two elements are joined.
//
// Two-byte floats are joined in float and rounded once, to nearest even; integers wrap around as
// NumPy's do; NaN goes through min and max.
#pragma once

#include "platform.cuh"

namespace busbar {

// The numbers that collectives/execution/shm/fast.py gives to operations.
enum Operation { kSum, kProd, kMin, kMax };

template <class T, int bytes>
struct Integer {  // one or four bytes, signed or not
    using Wide = T;
    static constexpr int size = bytes;
    BUSBAR_DEVICE static Wide widen(u32 bits) { return static_cast<T>(bits); }
    BUSBAR_DEVICE static u32 narrow(Wide v) { return static_cast<u32>(v); }
};
template <class T>
struct Long {
    using Wide = T;
    static constexpr int size = 8;
    BUSBAR_DEVICE static Wide widen(u64 bits) { return static_cast<T>(bits); }
    BUSBAR_DEVICE static u64 narrow(Wide v) { return static_cast<u64>(v); }
};
struct Half {
    using Wide = float;
    static constexpr int size = 2;
    BUSBAR_DEVICE static Wide widen(u32 bits) { return half_to_float(bits); }
    BUSBAR_DEVICE static u32 narrow(Wide v) { return float_to_half(v); }
};
struct Bfloat16 {  // the upper half of a float
    using Wide = float;
    static constexpr int size = 2;
    BUSBAR_DEVICE static Wide widen(u32 bits) { return as_float(bits << 16); }
    BUSBAR_DEVICE static u32 narrow(Wide v) {
        const u32 u = as_bits(v);
        if ((u & 0x7fffffffu) > 0x7f800000u) return (u >> 16) | 0x40u;
        return (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    }
};
struct Float {
    using Wide = float;
    static constexpr int size = 4;
    BUSBAR_DEVICE static Wide widen(u32 bits) { return as_float(bits); }
    BUSBAR_DEVICE static u32 narrow(Wide v) { return as_bits(v); }
};
struct Double {
    using Wide = double;
    static constexpr int size = 8;
    BUSBAR_DEVICE static Wide widen(u64 bits) { return as_double(bits); }
    BUSBAR_DEVICE static u64 narrow(Wide v) { return as_bits(v); }
};

using Int8 = Integer<signed char, 1>;
using Uint8 = Integer<unsigned char, 1>;
using Int32 = Integer<int, 4>;
using Uint32 = Integer<u32, 4>;
using Int64 = Long<long long>;
using Uint64 = Long<u64>;

// Sums and products of integers are taken without a sign: wrapping is defined there.
BUSBAR_DEVICE float wrapping(float v) { return v; }
BUSBAR_DEVICE double wrapping(double v) { return v; }
BUSBAR_DEVICE u32 wrapping(signed char v) { return static_cast<u32>(v); }
BUSBAR_DEVICE u32 wrapping(unsigned char v) { return v; }
BUSBAR_DEVICE u32 wrapping(int v) { return static_cast<u32>(v); }
BUSBAR_DEVICE u32 wrapping(u32 v) { return v; }
BUSBAR_DEVICE u64 wrapping(long long v) { return static_cast<u64>(v); }
BUSBAR_DEVICE u64 wrapping(u64 v) { return v; }

template <int op, class T>
BUSBAR_DEVICE T join(T a, T b) {
    if constexpr (op == kSum) return static_cast<T>(wrapping(a) + wrapping(b));
    else if constexpr (op == kProd) return static_cast<T>(wrapping(a) * wrapping(b));
    else if constexpr (op == kMin) return (a < b || a != a) ? a : b;
    else return (a > b || a != a) ? a : b;
}

// The elements of 16 bytes, ready to be joined.
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
                found.lane[i] = F::widen(mask(p.word[i / per] >> (8 * F::size * (i % per))));
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
                p.word[i / per] |= mask(F::narrow(lane[i])) << (8 * F::size * (i % per));
            }
        }
        return p;
    }
    template <int op>
    BUSBAR_DEVICE void add(const Lanes& other) {
        BUSBAR_UNROLL
        for (int i = 0; i < count; ++i) lane[i] = join<op>(lane[i], other.lane[i]);
    }

private:
    BUSBAR_DEVICE static u32 mask(u32 bits) {
        return F::size == 4 ? bits : bits & ((1u << (8 * (F::size & 3))) - 1u);
    }
};

// One element alone, for what no whole 16 bytes cover.
template <int size>
BUSBAR_DEVICE u64 load_one(u64 at) {
    if constexpr (size == 1) return *reinterpret_cast<const unsigned char*>(at);
    else if constexpr (size == 2) return *reinterpret_cast<const unsigned short*>(at);
    else if constexpr (size == 4) return *reinterpret_cast<const u32*>(at);
    else return *reinterpret_cast<const u64*>(at);
}
template <int size>
BUSBAR_DEVICE void store_one(u64 at, u64 bits) {
    if constexpr (size == 1) *reinterpret_cast<unsigned char*>(at) = static_cast<unsigned char>(bits);
    else if constexpr (size == 2) *reinterpret_cast<unsigned short*>(at) = static_cast<unsigned short>(bits);
    else if constexpr (size == 4) *reinterpret_cast<u32*>(at) = static_cast<u32>(bits);
    else *reinterpret_cast<u64*>(at) = bits;
}

}  // namespace busbar
