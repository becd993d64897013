// Element-wise passes over memory: one pass reads every source and writes every target.
//
// There are no ranks, flags or schedules here. The same source is compiled for several instruction
// sets (kernels_*.cpp); `kernels()` picks the best one that this CPU supports, once.
#pragma once

#include <cstddef>

namespace busbar {

enum class Type : int { int8, uint8, int32, uint32, int64, uint64, half, bfloat16, float32, float64 };
enum class Op : int { sum, prod, min, max };
inline constexpr int kTypes = 10;
inline constexpr int kOps = 4;

// A target, and whether its stores are non-temporal (faster where nobody reads the data soon).
struct Target {
    void* at;
    bool stream;
};

// Writes the reduction of the sources, element by element, to every target. A target may be the same
// memory as a source; no other overlap is allowed. With one source this is a copy.
struct Pass {
    const Target* targets;
    int ntargets;
    const void* const* sources;
    int nsources;
    std::size_t count;  // elements
};

// Element size in bytes.
constexpr std::size_t size_of(Type type) {
    constexpr std::size_t sizes[kTypes] = {1, 1, 4, 4, 8, 8, 2, 2, 4, 8};
    return sizes[static_cast<int>(type)];
}

struct Kernels {
    const char* name;  // the instruction set
    void (*reduce[kTypes][kOps])(const Pass&);
    void (*copy)(const Pass&);  // one source; count is in bytes
    // A pass over elements of a type.
    void carry_out(Type type, Op op, const Pass& p) const {
        if (p.nsources == 1) copy({p.targets, p.ntargets, p.sources, 1, p.count * size_of(type)});
        else reduce[static_cast<int>(type)][static_cast<int>(op)](p);
    }
};

// The best kernels for this CPU.
const Kernels& kernels();
// The kernels of that name ("avx512", "avx2", "plain"); null if this build or this CPU lacks them.
const Kernels* kernels(const char* name);

}  // namespace busbar
