// Kernels for x86-64 with AVX-512 (F, BW, DQ, VL).
#include "kernels_common.hpp"
#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prefer-vector-width=512"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prefer-vector-width=512")
#endif

namespace busbar {
namespace {
constexpr std::size_t kVector = 64;
inline void stream_vector(void* to, const void* from) {
    _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_loadu_si512(from));
}
inline void stream_fence() { _mm_sfence(); }
}  // namespace
}  // namespace busbar

#include "kernels_impl.hpp"

namespace busbar {
extern const Kernels kAvx512;
constinit const Kernels kAvx512 = make("avx512");
}  // namespace busbar

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
