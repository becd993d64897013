// Picks the kernels for this CPU at run time, so that one wheel works on every machine.
#include "kernels.hpp"

#include <cstring>
#include <initializer_list>

namespace busbar {

extern const Kernels kPlain;
#if defined(__x86_64__)
extern const Kernels kAvx2;
extern const Kernels kAvx512;
#endif

const Kernels* kernels(const char* name) {
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && !std::strcmp(name, "avx512")) return &kAvx512;
    if (avx2 && !std::strcmp(name, "avx2")) return &kAvx2;
#endif
    return std::strcmp(name, "plain") ? nullptr : &kPlain;
}

const Kernels& kernels() {
    for (const char* name : {"avx512", "avx2"})
        if (const Kernels* found = kernels(name)) return *found;
    return kPlain;
}

}  // namespace busbar
