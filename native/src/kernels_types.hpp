// Element types and how two elements are reduced; part of kernels_impl.hpp, included once for every
// instruction set.

namespace busbar {
namespace {

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
        // Multiplication scales the exponent, right for subnormals, too; exponent 31 must become 255.
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
    if constexpr (op == Op::min) return (a < b || a != a) ? a : b;  // NaN stays NaN
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

}  // namespace
}  // namespace busbar
