// Kernels for x86-64 with AVX2, FMA and F16C.
#include "kernels_common.hpp"
#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

namespace busbar {
namespace {
constexpr std::size_t kVector = 32;
inline void stream_vector(void* to, const void* from) {
    _mm256_stream_si256(
        static_cast<__m256i*>(to), _mm256_loadu_si256(static_cast<const __m256i*>(from)));
}
inline void stream_fence() { _mm_sfence(); }
}  // namespace
}  // namespace busbar

#include "kernels_impl.hpp"

namespace busbar {
extern const Kernels kAvx2;
constinit const Kernels kAvx2 = make("avx2");
}  // namespace busbar

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
