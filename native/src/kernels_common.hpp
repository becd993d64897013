// Every kernels_*.cpp includes this file before it enables an instruction set.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels.hpp"

// Tells the compiler that the iterations of a loop are independent even if pointers may be equal.
#if defined(__clang__)
#define BUSBAR_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define BUSBAR_INDEPENDENT _Pragma("GCC ivdep")
#endif
// For lambdas that must be inlined at every call.
#define BUSBAR_INLINE __attribute__((always_inline))
