// The machine-dependent part of our kernels: a team of threads, 16-byte accesses, conversions of small
// floats, words with system-wide order, a clock.
//
// There are two machines: a GPU, where a team is a block, and the host, where a team is some threads,
// so that the same source can be tested without a GPU. The code for GPUs includes no header, because
// the run-time compiler has none.
#pragma once

#if defined(__CUDACC__)

#define BUSBAR_DEVICE __device__ __forceinline__
#define BUSBAR_UNROLL _Pragma("unroll")
#define BUSBAR_ROLLED _Pragma("unroll 1")

namespace busbar {

using u32 = unsigned int;
using u64 = unsigned long long;

struct alignas(16) Pack {  // 16 bytes, the size of one access
    u32 word[4];
};

// All addresses of a plan are global memory: this GPU's, a peer's, or pinned memory of the host.
BUSBAR_DEVICE u64 global(u64 at) {
    u64 found;
    asm("cvta.to.global.u64 %0, %1;" : "=l"(found) : "l"(at));
    return found;
}
template <class T>
BUSBAR_DEVICE T* pointer(u64 at) {
    return static_cast<T*>(__cvta_global_to_generic(global(at)));
}
BUSBAR_DEVICE Pack load_pack(u64 at) {
    // Never through the read-only cache: other GPUs write these bytes while this kernel runs.
    Pack p;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(p.word[0]), "=r"(p.word[1]), "=r"(p.word[2]), "=r"(p.word[3])
                 : "l"(global(at))
                 : "memory");
    return p;
}
BUSBAR_DEVICE void store_pack(u64 at, const Pack& p) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global(at)), "r"(p.word[0]),
                 "r"(p.word[1]), "r"(p.word[2]), "r"(p.word[3])
                 : "memory");
}
BUSBAR_DEVICE float as_float(u32 u) { return __uint_as_float(u); }
BUSBAR_DEVICE u32 as_bits(float f) { return __float_as_uint(f); }
BUSBAR_DEVICE double as_double(u64 u) { return __longlong_as_double(static_cast<long long>(u)); }
BUSBAR_DEVICE u64 as_bits(double d) { return static_cast<u64>(__double_as_longlong(d)); }
BUSBAR_DEVICE float half_to_float(u32 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(static_cast<unsigned short>(h)));
    return f;
}
BUSBAR_DEVICE u32 float_to_half(float f) {
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
// Eight-bit floats, from compute capability 8.9 on. PTX converts two at once; the second one is 0.
BUSBAR_DEVICE float e4m3_to_float(u32 e) {
    u32 pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<unsigned short>(e)));
    return half_to_float(pair);
}
BUSBAR_DEVICE float e5m2_to_float(u32 e) {
    u32 pair;
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(pair) : "h"(static_cast<unsigned short>(e)));
    return half_to_float(pair);
}
BUSBAR_DEVICE u32 float_to_e4m3(float f) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(f));
    return pair;
}
BUSBAR_DEVICE u32 float_to_e5m2(float f) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(f));
    return pair;
}
BUSBAR_DEVICE void count_up(u64 at, u64 more) { atomicAdd(reinterpret_cast<u64*>(at), more); }

// Words that ranks wait on.
BUSBAR_DEVICE u64 load_acquire(u64 at) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(global(at)) : "memory");
    return v;
}
BUSBAR_DEVICE void store_release(u64 at, u64 v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(global(at)), "l"(v) : "memory");
}
// Sets a word of this GPU's memory; true for the first caller only.
BUSBAR_DEVICE bool claim(u64 at) { return atomicCAS(reinterpret_cast<u64*>(at), 0ull, 1ull) == 0; }
BUSBAR_DEVICE u64 nanoseconds() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
BUSBAR_DEVICE void relax() {}

struct Team {  // a block
    BUSBAR_DEVICE u32 member() const { return threadIdx.x; }
    BUSBAR_DEVICE u32 members() const { return blockDim.x; }
    BUSBAR_DEVICE u32 number() const { return blockIdx.x; }
    BUSBAR_DEVICE u32 teams() const { return gridDim.x; }
    // A barrier of the team, after which each thread sees the others' writes; true if any `mine` is.
    BUSBAR_DEVICE bool any(bool mine) const { return __syncthreads_or(mine) != 0; }
    BUSBAR_DEVICE void together() const { __syncthreads(); }
    // A copy in shared memory of words that all threads read often; the words themselves if too many.
    BUSBAR_DEVICE const u64* near(const u64* words, u64 count) const {
        constexpr u64 room = 1024;
        __shared__ u64 copy[room];
        if (count > room) return words;
        for (u64 i = member(); i < count; i += members()) copy[i] = words[i];
        __syncthreads();
        return copy;
    }
};

}  // namespace busbar

#else
#include "platform_host.hpp"
#endif
