// Passes that keep what they work on in registers; part of kernels_impl.hpp, included once for every
// instruction set.

namespace busbar {
namespace {

// Vectors that a strip takes of every source and gives to every target while they lie in registers.
// 2, 4, 8 and 16 were measured (docs/shared-memory.md): many vectors for few sources, few for many or
// for non-temporal stores.
constexpr std::size_t kStrip = 8, kManyStrip = 2;
constexpr int kFew = 4, kMany = 16;  // the most sources, and the most targets, that there is code for
// The shorter vectors of a CPU that is faster with them: Intel's server CPUs, on data in the second-level
// cache, though 64-byte vectors exist (benchmarks/results/shared-memory.md). Compilers choose the same.
constexpr std::size_t kShort = 32;
constexpr std::make_index_sequence<1> kOne;
constexpr std::make_index_sequence<2> kTwo;

// Strips of two sources and few targets, all kept in cache. Their numbers are known when this is
// compiled, so that their addresses are in registers: best of all while the places stay in the
// second-level cache.
template <class T, Op op, std::size_t vector, std::size_t width, std::size_t... target>
std::size_t two_strips(
    const Pass& p, std::size_t from, std::size_t to, std::index_sequence<target...>) {
    using V = typename Vector<Lane<T, op>, vector>::type;
    constexpr std::size_t size = width * sizeof(V);
    const auto* const a = static_cast<const unsigned char*>(p.sources[0]);
    const auto* const b = static_cast<const unsigned char*>(p.sources[1]);
    unsigned char* const d[] = {static_cast<unsigned char*>(p.targets[target].at)...};
    std::size_t at = from;
    for (; at + size <= to; at += size) {
        V x[width];
        for (std::size_t k = 0; k < width; ++k) x[k] = load<V>(a + at + k * sizeof(V));
        for (std::size_t k = 0; k < width; ++k)
            x[k] = join_vectors<op>(x[k], load<V>(b + at + k * sizeof(V)));
        const auto give = [&](unsigned char* out) {
            for (std::size_t k = 0; k < width; ++k) store(out + at + k * sizeof(V), x[k]);
        };
        (give(d[target]), ...);
    }
    return at;
}

// Strips of up to `most` sources and targets, all kept in cache. Each place is read, or written, by
// instructions of its own: a sixth faster past the second-level cache than in loops over the places.
template <class T, Op op, std::size_t width, int most>
std::size_t many_strips(const Pass& p, std::size_t from, std::size_t to) {
    using V = typename Vector<Lane<T, op>>::type;
    constexpr std::size_t size = width * sizeof(V);
    // Copies, which the compiler knows that no store changes.
    const unsigned char* s[most] = {};
    unsigned char* d[most] = {};
    const int nsources = p.nsources, ntargets = p.ntargets;
    for (int j = 0; j < nsources; ++j) s[j] = static_cast<const unsigned char*>(p.sources[j]);
    for (int t = 0; t < ntargets; ++t) d[t] = static_cast<unsigned char*>(p.targets[t].at);
    std::size_t at = from;
    for (; at + size <= to; at += size) {
        V x[width];
        for (std::size_t k = 0; k < width; ++k) x[k] = load<V>(s[0] + at + k * sizeof(V));
        const auto add = [&](const unsigned char* more) BUSBAR_INLINE {
            for (std::size_t k = 0; k < width; ++k)
                x[k] = join_vectors<op>(x[k], load<V>(more + at + k * sizeof(V)));
            return true;
        };
        const auto give = [&](unsigned char* out) BUSBAR_INLINE {
            for (std::size_t k = 0; k < width; ++k) store(out + at + k * sizeof(V), x[k]);
            return true;
        };
        [&]<std::size_t... i>(std::index_sequence<0, i...>) BUSBAR_INLINE {
            (void)((int(i) < nsources && add(s[i])) && ...);
        }(std::make_index_sequence<most>());
        [&]<std::size_t... i>(std::index_sequence<i...>) BUSBAR_INLINE {
            (void)((int(i) < ntargets && give(d[i])) && ...);
        }(std::make_index_sequence<most>());
    }
    return at;
}

// Strips of any number of sources and targets, which may be stored non-temporally.
template <class T, Op op>
std::size_t strips_of(const Pass& p, std::size_t from, std::size_t to) {
    using V = typename Vector<Lane<T, op>>::type;
    constexpr std::size_t width = kManyStrip, size = width * sizeof(V);
    std::size_t at = from;
    for (; at + size <= to; at += size) {
        V x[width];
        const auto* s = static_cast<const unsigned char*>(p.sources[0]) + at;
        for (std::size_t k = 0; k < width; ++k) x[k] = load<V>(s + k * sizeof(V));
        for (int j = 1; j < p.nsources; ++j) {
            s = static_cast<const unsigned char*>(p.sources[j]) + at;
            for (std::size_t k = 0; k < width; ++k)
                x[k] = join_vectors<op>(x[k], load<V>(s + k * sizeof(V)));
        }
        for (int t = 0; t < p.ntargets; ++t) {
            auto* out = static_cast<unsigned char*>(p.targets[t].at) + at;
            if (p.targets[t].stream)
                for (std::size_t k = 0; k < width; ++k) stream_vector(out + k * sizeof(V), &x[k]);
            else
                for (std::size_t k = 0; k < width; ++k) store(out + k * sizeof(V), x[k]);
        }
    }
    return at;
}

// Whether a target is stored non-temporally.
inline bool streams(const Pass& p) {
    bool stream = false;
    for (int t = 0; t < p.ntargets; ++t) stream |= p.targets[t].stream;
    return stream;
}

// The whole strips of bytes `from` to `to`. Gives where it ended.
template <class T, Op op>
std::size_t strips(const Pass& p, std::size_t from, std::size_t to) {
    const int places = p.nsources < p.ntargets ? p.ntargets : p.nsources;
    if (streams(p) || places > kMany) return strips_of<T, op>(p, from, to);
    if (places > kFew) return many_strips<T, op, kManyStrip, kMany>(p, from, to);
    if (p.nsources == 2 && p.ntargets <= 2) {
        const bool one = p.ntargets == 1;
#if defined(__x86_64__)  // compilers for other CPUs do not know the builtin
        if constexpr (kVector > kShort) {
            if (__builtin_cpu_is("intel"))
                return one ? two_strips<T, op, kShort, 1>(p, from, to, kOne)
                           : two_strips<T, op, kShort, kStrip>(p, from, to, kTwo);
        }
#endif
        return one ? two_strips<T, op, kVector, kStrip>(p, from, to, kOne)
                   : two_strips<T, op, kVector, kStrip>(p, from, to, kTwo);
    }
    return many_strips<T, op, kStrip, kFew>(p, from, to);
}

}  // namespace
}  // namespace busbar
