// What every kernels_*.cpp includes before it switches an instruction set on.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels.hpp"

// The iterations of a loop do not depend on each other even where pointers may be equal.
#if defined(__clang__)
#define BUSBAR_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define BUSBAR_INDEPENDENT _Pragma("GCC ivdep")
#endif
// For lambdas whose every call is to be instructions of its own.
#define BUSBAR_INLINE __attribute__((always_inline))
