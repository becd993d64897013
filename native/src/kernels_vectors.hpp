// Loads, reduces and stores as many elements as one register holds; part of kernels_impl.hpp, included
// once for every instruction set.

namespace busbar {
namespace {

template <class T, std::size_t bytes = kVector>
struct Vector {  // as many elements as one register holds
    typedef T type __attribute__((vector_size(bytes)));
};

template <class V>
inline V load(const void* from) {
    V x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

template <class V>
inline void store(void* to, V x) {
    std::memcpy(to, &x, sizeof x);
}

template <Op op, class V>
inline V join_vectors(V a, V b) {
    if constexpr (op == Op::sum) return a + b;
    if constexpr (op == Op::prod) return a * b;
    if constexpr (op == Op::min) return ((a < b) | (a != a)) ? a : b;  // NaN stays NaN
    if constexpr (op == Op::max) return ((a > b) | (a != a)) ? a : b;
}

// The type that registers compute in: sums and products of integers wrap around.
template <class T, Op op>
using Lane = typename std::conditional_t<
    std::is_integral_v<T> && (op == Op::sum || op == Op::prod), std::make_unsigned<T>,
    std::type_identity<T>>::type;

}  // namespace
}  // namespace busbar
