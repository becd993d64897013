// The host version of platform.cuh: for tests of the kernels' logic, not for speed.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>

#define BUSBAR_DEVICE inline
#define BUSBAR_UNROLL
#define BUSBAR_ROLLED

namespace busbar {

using u32 = unsigned int;
using u64 = unsigned long long;

struct alignas(16) Pack {
    u32 word[4];
};

template <class To, class From>
To reinterpret(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <class T>
T* pointer(u64 at) {
    return reinterpret_cast<T*>(at);
}
inline Pack load_pack(u64 at) { return *pointer<const Pack>(at); }
inline void store_pack(u64 at, const Pack& p) { *pointer<Pack>(at) = p; }
inline float as_float(u32 u) { return reinterpret<float>(u); }
inline u32 as_bits(float f) { return reinterpret<u32>(f); }
inline double as_double(u64 u) { return reinterpret<double>(u); }
inline u64 as_bits(double d) { return reinterpret<u64>(d); }

inline float half_to_float(u32 h) {
    const u32 magnitude = (h & 0x7fffu) << 13;
    const float scaled = as_float(magnitude) * as_float(0x77800000u);
    const u32 u = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : as_bits(scaled);
    return as_float(u | ((h & 0x8000u) << 16));
}
inline u32 float_to_half(float f) {
    const u32 u = as_bits(f), sign = (u >> 16) & 0x8000u, m = u & 0x7fffffffu;
    if (m > 0x7f800000u) return sign | 0x7e00u | ((m >> 13) & 0x3ffu);
    if (m >= 0x47800000u) return sign | 0x7c00u;
    if (m < 0x38800000u) return sign | (as_bits(as_float(m) + as_float(0x3f000000u)) - 0x3f000000u);
    return sign | ((m + 0xc8000fffu + ((m >> 13) & 1u)) >> 13);
}
inline float e4m3_to_float(u32 e) {  // a half with another bias; all ones is NaN, and there is no infinity
    const float wide = half_to_float((e & 0x80u) << 8 | (e & 0x7fu) << 7) * 256;
    return (e & 0x7fu) == 0x7fu ? as_float(0x7fc00000u) : wide;
}
inline float e5m2_to_float(u32 e) { return half_to_float(e << 8); }  // the upper half of a half
// `lowest`: the exponent of the smallest normal number; `most`: the largest number.
inline u32 float_to_e(float f, int mantissa, int lowest, float most) {
    if (std::isnan(f)) return 0x7fu;
    const float m = std::min(std::fabs(f), most);
    const int exponent = std::max(std::ilogb(m), lowest);
    const auto steps = static_cast<u32>(std::nearbyint(std::ldexp(m, mantissa - exponent)));
    return (as_bits(f) >> 24 & 0x80u) | ((static_cast<u32>(exponent - lowest) << mantissa) + steps);
}
inline u32 float_to_e4m3(float f) { return float_to_e(f, 3, -6, 448); }
inline u32 float_to_e5m2(float f) { return float_to_e(f, 2, -14, 57344); }

inline std::atomic_ref<u64> word(u64 at) { return std::atomic_ref<u64>(*pointer<u64>(at)); }
inline void count_up(u64 at, u64 more) { word(at) += more; }
inline u64 load_acquire(u64 at) { return word(at).load(std::memory_order_acquire); }
inline void store_release(u64 at, u64 v) { word(at).store(v, std::memory_order_release); }
inline bool claim(u64 at) {
    u64 none = 0;
    return word(at).compare_exchange_strong(none, 1);
}
inline u64 nanoseconds() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<u64>(t.tv_sec) * 1'000'000'000u + static_cast<u64>(t.tv_nsec);
}
inline void relax() { sched_yield(); }

struct Meeting {  // shared by the threads of one team
    explicit Meeting(u32 members) : gate(members) {}
    std::barrier<> gate;
    std::atomic<bool> said = false;
};

class Team {
public:
    Team(Meeting& meeting, u32 member, u32 members, u32 number, u32 teams)
        : meeting_(meeting), member_(member), members_(members), number_(number), teams_(teams) {}
    u32 member() const { return member_; }
    u32 members() const { return members_; }
    u32 number() const { return number_; }
    u32 teams() const { return teams_; }
    void together() const { meeting_.gate.arrive_and_wait(); }
    const u64* near(const u64* words, u64) const { return words; }
    bool any(bool mine) const {
        if (mine) meeting_.said = true;
        together();
        const bool found = meeting_.said;
        together();
        if (member_ == 0) meeting_.said = false;
        together();
        return found;
    }

private:
    Meeting& meeting_;
    u32 member_, members_, number_, teams_;
};

}  // namespace busbar
