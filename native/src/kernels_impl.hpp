// The kernels themselves, included once per instruction set, after that set was switched on.
//
// Plain loops that the compiler vectorises. Everything sits in an unnamed namespace, and standard
// headers are included before the instruction set changes, so that no inline function compiled for
// a newer CPU can be picked by the linker for an older one.

namespace busbar {
namespace {

// A block: what lies between reading the sources and writing the targets stays in the first-level
// cache. A page, because the hardware's prefetchers stop at its end anyway; 4, 8, 16 and 32 KiB
// were measured (docs/performance.md).
constexpr std::size_t kBlockBytes = 4096;
// Bytes of a source's next block that are asked for early, to set the prefetchers off; asking for
// the whole block was slower than asking for nothing.
constexpr std::size_t kEarlyBytes = 512;

template <class T>
struct Plain {  // computed in its own type; integers wrap around as NumPy's do
    using Value = T;
    using Wide = T;
    static Wide widen(T x) { return x; }
    static T narrow(Wide x) { return x; }
};

inline float bits_to_float(std::uint32_t u) { return std::bit_cast<float>(u); }
inline std::uint32_t float_to_bits(float f) { return std::bit_cast<std::uint32_t>(f); }

struct BFloat16 {  // bfloat16: the upper half of a float; rounded to nearest even
    using Value = std::uint16_t;
    using Wide = float;
    static float widen(std::uint16_t x) { return bits_to_float(std::uint32_t(x) << 16); }
    static std::uint16_t narrow(float x) {
        const std::uint32_t u = float_to_bits(x);
        const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
        const std::uint32_t nan = (u >> 16) | 0x40u;
        return std::uint16_t((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
    }
};

struct Half {  // IEEE binary16, without help from the CPU; subnormals, infinities and NaN included
    using Value = std::uint16_t;
    using Wide = float;
    static float widen(std::uint16_t x) {
        const std::uint32_t magnitude = std::uint32_t(x & 0x7fffu) << 13;
        // Moving the exponent by multiplication makes subnormals right; 31 must become 255.
        const float scaled = bits_to_float(magnitude) * bits_to_float(0x77800000u);
        const std::uint32_t special = magnitude | 0x7f800000u;
        const std::uint32_t u = magnitude >= 0x0f800000u ? special : float_to_bits(scaled);
        return bits_to_float(u | (std::uint32_t(x & 0x8000u) << 16));
    }
    static std::uint16_t narrow(float x) {
        const std::uint32_t u = float_to_bits(x), sign = (u >> 16) & 0x8000u, m = u & 0x7fffffffu;
        // Adding 0.5 lets the float unit round a subnormal half to its last place.
        const std::uint32_t small =
            float_to_bits(bits_to_float(m) + bits_to_float(0x3f000000u)) - 0x3f000000u;
        const std::uint32_t normal = (m + 0xc8000fffu + ((m >> 13) & 1u)) >> 13;
        std::uint32_t h = m < 0x38800000u ? small : normal;
        h = m >= 0x47800000u ? 0x7c00u : h;
        h = m > 0x7f800000u ? (0x7e00u | ((m >> 13) & 0x3ffu)) : h;
        return std::uint16_t(sign | h);
    }
};

template <Op op, class T>
inline T join(T a, T b) {
    if constexpr (op == Op::min) return (a < b || a != a) ? a : b;  // NaN goes through
    if constexpr (op == Op::max) return (a > b || a != a) ? a : b;
    if constexpr (std::is_integral_v<T>) {  // unsigned: wrapping is defined
        using U = std::conditional_t<(sizeof(T) < 4), unsigned, std::make_unsigned_t<T>>;
        if constexpr (op == Op::sum) return T(U(a) + U(b));
        if constexpr (op == Op::prod) return T(U(a) * U(b));
    } else {
        if constexpr (op == Op::sum) return a + b;
        if constexpr (op == Op::prod) return a * b;
    }
}

// to[i] = source 0 [i] joined with up to three more; `to` may be any of them.
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

// wide[i] joined with up to four sources; `first` starts from the first source instead.
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
    const std::size_t skew = (kVector - reinterpret_cast<std::uintptr_t>(t) % kVector) % kVector;
    const std::size_t head = skew < nbytes ? skew : nbytes;
    std::memcpy(t, f, head);
    std::size_t i = head;
    for (; i + kVector <= nbytes; i += kVector) stream_vector(t + i, f + i);
    std::memcpy(t + i, f + i, nbytes - i);
}

inline void spread(const Pass& p, std::size_t at, const void* from, std::size_t nbytes, int first) {
    for (int t = first; t < p.ntargets; ++t) {
        auto* to = static_cast<unsigned char*>(p.targets[t].at) + at;
        if (p.targets[t].stream) stream_copy(to, from, nbytes);
        else cached_copy(to, from, nbytes);
    }
}

inline void ask(const void* from, std::size_t nbytes) {
    const auto* p = static_cast<const char*>(from);
    const std::size_t n = nbytes < kEarlyBytes ? nbytes : kEarlyBytes;
    for (std::size_t i = 0; i < n; i += 64) __builtin_prefetch(p + i, 0, 3);
}

template <class F, Op op>
void reduce(const Pass& p) {
    using V = typename F::Value;
    using W = typename F::Wide;
    constexpr std::size_t block = kBlockBytes / sizeof(W);
    alignas(64) W wide[block];
    const V* s[4];
    const auto source = [&](int j, std::size_t at) {
        return static_cast<const V*>(p.sources[j]) + at;
    };
    for (std::size_t at = 0; at < p.count; at += block) {
        const std::size_t n = p.count - at < block ? p.count - at : block;
        const std::size_t ahead = p.count - at - n < n ? p.count - at - n : n;
        V* result;
        if (p.nsources <= 4) {
            // Straight into the first target when it is kept in cache: the others copy from there.
            for (int j = 0; j < p.nsources; ++j) s[j] = source(j, at);
            const bool direct = !p.targets[0].stream;
            result = direct ? static_cast<V*>(p.targets[0].at) + at : reinterpret_cast<V*>(wide);
            fuse_few<F, op>(result, s, p.nsources, n);
            if (ahead) for (int j = 0; j < p.nsources; ++j) ask(source(j, at + n), ahead * sizeof(V));
            spread(p, at * sizeof(V), result, n * sizeof(V), direct ? 1 : 0);
            continue;
        }
        for (int j = 0; j < p.nsources; j += 4) {
            const int m = p.nsources - j < 4 ? p.nsources - j : 4;
            for (int i = 0; i < m; ++i) s[i] = source(j + i, at);
            gather_wide<F, op>(wide, s, m, n, j == 0);
            if (ahead) for (int i = 0; i < m; ++i) ask(s[i] + n, ahead * sizeof(V));
        }
        result = reinterpret_cast<V*>(wide);
        // Forwards within one buffer: a narrow element never overtakes a wide one not yet read.
        if constexpr (!std::is_same_v<V, W>) {
            alignas(64) V narrow[block];
            BUSBAR_INDEPENDENT
            for (std::size_t i = 0; i < n; ++i) narrow[i] = F::narrow(wide[i]);
            std::memcpy(result, narrow, n * sizeof(V));
        }
        spread(p, at * sizeof(V), result, n * sizeof(V), 0);
    }
    if constexpr (kVector > 1) stream_fence();
}

void copy(const Pass& p) {
    const auto* from = static_cast<const unsigned char*>(p.sources[0]);
    if (p.ntargets == 1) {
        spread(p, 0, from, p.count, 0);
    } else {
        for (std::size_t at = 0; at < p.count; at += kBlockBytes)
            spread(p, at, from + at, p.count - at < kBlockBytes ? p.count - at : kBlockBytes, 0);
    }
    stream_fence();
}

unsigned long long read(const void* at, std::size_t nbytes) {
    const auto* p = static_cast<const unsigned long long*>(at);
    unsigned long long sum = 0;
    for (std::size_t i = 0; i < nbytes / sizeof(*p); ++i) sum += p[i];
    return sum;
}

void fill(void* at, std::size_t nbytes, bool stream) {
    alignas(64) static constexpr unsigned char zeros[kBlockBytes] = {};
    auto* p = static_cast<unsigned char*>(at);
    for (std::size_t i = 0; i < nbytes; i += kBlockBytes) {
        const std::size_t n = nbytes - i < kBlockBytes ? nbytes - i : kBlockBytes;
        if (stream) stream_copy(p + i, zeros, n);
        else std::memset(p + i, 0, n);
    }
    stream_fence();
}

template <class F>
constexpr void row(void (*(&to)[kOps])(const Pass&)) {
    to[int(Op::sum)] = reduce<F, Op::sum>;
    to[int(Op::prod)] = reduce<F, Op::prod>;
    to[int(Op::min)] = reduce<F, Op::min>;
    to[int(Op::max)] = reduce<F, Op::max>;
}

constexpr Kernels make(const char* name) {
    Kernels k{name, {}, copy, read, fill};
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
