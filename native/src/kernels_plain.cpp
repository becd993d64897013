// Kernels for what the compiler targets by default: SSE2 on x86-64, NEON on aarch64.
#include "kernels_common.hpp"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace busbar {
namespace {
#if defined(__SSE2__)
constexpr std::size_t kVector = 16;
inline void stream_vector(void* to, const void* from) {
    _mm_stream_si128(static_cast<__m128i*>(to), _mm_loadu_si128(static_cast<const __m128i*>(from)));
}
inline void stream_fence() { _mm_sfence(); }
#else
constexpr std::size_t kVector = 16;
inline void stream_vector(void* to, const void* from) { std::memcpy(to, from, kVector); }
inline void stream_fence() {}
#endif
}  // namespace
}  // namespace busbar

#include "kernels_impl.hpp"

namespace busbar {
extern const Kernels kPlain;
constinit const Kernels kPlain = make("plain");
}  // namespace busbar
