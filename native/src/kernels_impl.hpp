// The kernels themselves, included once per instruction set, after that set was enabled.
//
// Plain loops that the compiler vectorises. Everything sits in an unnamed namespace, and standard
// headers are included before the instruction set changes, so that no inline function compiled for
// a newer CPU can be picked by the linker for an older one.

#include "kernels_types.hpp"
#include "kernels_vectors.hpp"
#include "kernels_strips.hpp"

namespace busbar {
namespace {

// Bytes of a block, for a pass that needs more than registers: the block stays in the first-level
// cache after the sources are read until the targets are written. One page: prefetchers stop there.
constexpr std::size_t kBlockBytes = 4096;
// The same if strips of one cache line or less would store to many places non-temporally: memory is
// faster with longer runs in one place after another. Strips of two lines (AVX-512) are long enough.
constexpr std::size_t kFarBlockBytes = 16384;
constexpr bool kShortStrips = kManyStrip * kVector <= 64;

// to[i] = the reduction of two to four sources at i; `to` may be one of the sources.
template <class F, Op op, int n>
inline void fuse(typename F::Value* to, const typename F::Value* const* s, std::size_t count) {
    using V = typename F::Value;
    const V *a = s[0], *b = s[1], *c = n > 2 ? s[2] : nullptr, *d = n > 3 ? s[3] : nullptr;
    BUSBAR_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
        auto x = join<op>(F::widen(a[i]), F::widen(b[i]));
        if constexpr (n > 2) x = join<op>(x, F::widen(c[i]));
        if constexpr (n > 3) x = join<op>(x, F::widen(d[i]));
        to[i] = F::narrow(x);
    }
}

template <class F, Op op>
inline void fuse_few(
    typename F::Value* to, const typename F::Value* const* s, int n, std::size_t count) {
    if (n == 2) fuse<F, op, 2>(to, s, count);
    else if (n == 3) fuse<F, op, 3>(to, s, count);
    else fuse<F, op, 4>(to, s, count);
}

// Reduces up to four sources into wide[i]; with `first`, wide[i] is overwritten, not read.
template <class F, Op op>
inline void gather_wide(
    typename F::Wide* wide, const typename F::Value* const* s, int n, std::size_t count,
    bool first) {
    using V = typename F::Value;
    int j = 0;
    if (first) {
        const V* a = s[j++];
        BUSBAR_INDEPENDENT
        for (std::size_t i = 0; i < count; ++i) wide[i] = F::widen(a[i]);
    }
    for (; j + 1 < n; j += 2) {
        const V *a = s[j], *b = s[j + 1];
        BUSBAR_INDEPENDENT
        for (std::size_t i = 0; i < count; ++i)
            wide[i] = join<op>(join<op>(wide[i], F::widen(a[i])), F::widen(b[i]));
    }
    if (j < n) {
        const V* a = s[j];
        BUSBAR_INDEPENDENT
        for (std::size_t i = 0; i < count; ++i) wide[i] = join<op>(wide[i], F::widen(a[i]));
    }
}

inline void cached_copy(void* to, const void* from, std::size_t nbytes) {
    if (to != from) std::memcpy(to, from, nbytes);
}

inline void stream_copy(void* to, const void* from, std::size_t nbytes) {
    auto* t = static_cast<unsigned char*>(to);
    auto* f = static_cast<const unsigned char*>(from);
    const std::size_t skew = -reinterpret_cast<std::uintptr_t>(t) % kVector;
    const std::size_t head = skew < nbytes ? skew : nbytes;
    std::memcpy(t, f, head);
    std::size_t i = head;
    for (; i + kVector <= nbytes; i += kVector) stream_vector(t + i, f + i);
    std::memcpy(t + i, f + i, nbytes - i);
}

inline void spread(const Pass& p, std::size_t at, const void* from, std::size_t nbytes) {
    for (int t = 0; t < p.ntargets; ++t) {
        auto* to = static_cast<unsigned char*>(p.targets[t].at) + at;
        if (p.targets[t].stream) stream_copy(to, from, nbytes);
        else cached_copy(to, from, nbytes);
    }
}

// Two cache lines. Non-temporal strips begin at a multiple of this. Strips of 32-byte vectors that
// began in the middle of a line left two lines half written; with five targets or more they took three
// to five times as long.
constexpr std::size_t kPair = 128;

// Bytes up to the first position where all targets with non-temporal stores are aligned to kPair;
// `nbytes` if they are never aligned together.
inline std::size_t skew(const Pass& p, std::size_t nbytes) {
    std::size_t found = 0;
    bool any = false;
    for (int t = 0; t < p.ntargets; ++t) {
        if (!p.targets[t].stream) continue;
        const std::size_t mine = -reinterpret_cast<std::uintptr_t>(p.targets[t].at) % kPair;
        if (any && mine != found) return nbytes;
        found = mine, any = true;
    }
    return found;
}

// Whether strips are too short for the non-temporal stores of this pass.
inline bool goes_by_blocks(const Pass& p) {
    return kShortStrips && streams(p) && (p.nsources > kFew || p.ntargets > kFew);
}

// A fence waits for all stores of the core, messages' flags among them.
inline void end(const Pass& p) {
    if (streams(p)) stream_fence();
}

// Reduces elements `from` to `to`, block by block.
template <class F, Op op, std::size_t bytes = kBlockBytes>
void blocks(const Pass& p, std::size_t from, std::size_t to) {
    using V = typename F::Value;
    using W = typename F::Wide;
    constexpr std::size_t block = bytes / sizeof(W);
    alignas(64) W wide[block];
    const V* s[4];
    for (std::size_t at = from; at < to; at += block) {
        const std::size_t n = to - at < block ? to - at : block;
        const auto source = [&](int j) { return static_cast<const V*>(p.sources[j]) + at; };
        auto* result = reinterpret_cast<V*>(wide);
        if (p.nsources <= 4) {
            for (int j = 0; j < p.nsources; ++j) s[j] = source(j);
            fuse_few<F, op>(result, s, p.nsources, n);
        } else {
            for (int j = 0; j < p.nsources; j += 4) {
                const int m = p.nsources - j < 4 ? p.nsources - j : 4;
                for (int i = 0; i < m; ++i) s[i] = source(j + i);
                gather_wide<F, op>(wide, s, m, n, j == 0);
            }
            if constexpr (!std::is_same_v<V, W>) {
                alignas(64) V narrow[block];
                BUSBAR_INDEPENDENT
                for (std::size_t i = 0; i < n; ++i) narrow[i] = F::narrow(wide[i]);
                std::memcpy(result, narrow, n * sizeof(V));
            }
        }
        spread(p, at * sizeof(V), result, n * sizeof(V));
    }
}

template <class F, Op op>
void reduce(const Pass& p) {
    using V = typename F::Value;
    // Less than a strip into one place, as a schedule's small messages are added.
    if (p.count * sizeof(V) < kStrip * kVector && p.nsources == 2 && p.ntargets == 1) {
        const V* const s[] = {
            static_cast<const V*>(p.sources[0]), static_cast<const V*>(p.sources[1])};
        return fuse<F, op, 2>(static_cast<V*>(p.targets[0].at), s, p.count);
    }
    std::size_t done = 0;
    if constexpr (std::is_same_v<V, typename F::Wide>) {
        const std::size_t nbytes = p.count * sizeof(V), head = skew(p, nbytes);
        if (head % sizeof(V) == 0 && head < nbytes) {
            blocks<F, op>(p, 0, head / sizeof(V));
            done = head / sizeof(V);
            if (!goes_by_blocks(p)) {
                done = strips<V, op>(p, head, nbytes) / sizeof(V);
            } else {
                blocks<F, op, kFarBlockBytes>(p, done, p.count);
                done = p.count;
            }
        }
    }
    blocks<F, op>(p, done, p.count);
    end(p);
}

void copy(const Pass& p) {
    const auto* from = static_cast<const unsigned char*>(p.sources[0]);
    const std::size_t head = skew(p, p.count);
    if (p.ntargets == 1 || head >= p.count) {
        spread(p, 0, from, p.count);
    } else {
        spread(p, 0, from, head);
        const std::size_t done = strips<std::uint64_t, Op::max>(p, head, p.count);
        spread(p, done, from + done, p.count - done);
    }
    end(p);
}

template <class F>
constexpr void row(void (*(&to)[kOps])(const Pass&)) {
    to[int(Op::sum)] = reduce<F, Op::sum>;
    to[int(Op::prod)] = reduce<F, Op::prod>;
    to[int(Op::min)] = reduce<F, Op::min>;
    to[int(Op::max)] = reduce<F, Op::max>;
}

constexpr Kernels make(const char* name) {
    Kernels k{name, {}, copy};
    row<Plain<std::int8_t>>(k.reduce[int(Type::int8)]);
    row<Plain<std::uint8_t>>(k.reduce[int(Type::uint8)]);
    row<Plain<std::int32_t>>(k.reduce[int(Type::int32)]);
    row<Plain<std::uint32_t>>(k.reduce[int(Type::uint32)]);
    row<Plain<std::int64_t>>(k.reduce[int(Type::int64)]);
    row<Plain<std::uint64_t>>(k.reduce[int(Type::uint64)]);
    row<Half>(k.reduce[int(Type::half)]);
    row<BFloat16>(k.reduce[int(Type::bfloat16)]);
    row<Plain<float>>(k.reduce[int(Type::float32)]);
    row<Plain<double>>(k.reduce[int(Type::float64)]);
    return k;
}

}  // namespace
}  // namespace busbar
