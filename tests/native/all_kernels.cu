// Every element type with every operation in one file, so that a compiler sees all of them at once.
#include "busbar.cu"

namespace busbar {

template <class F, int op>
__global__ void BUSBAR_BOUNDS every_program(const u64* plan, u64 words) {
    program<F, op>(plan, words, Team{});
}

#define OPERATIONS(F)                                            \
    template __global__ void every_program<F, kSum>(const u64*, u64); \
    template __global__ void every_program<F, kProd>(const u64*, u64);\
    template __global__ void every_program<F, kMin>(const u64*, u64); \
    template __global__ void every_program<F, kMax>(const u64*, u64); \
    template __global__ void every_program<F, kAverage>(const u64*, u64);

OPERATIONS(Int8)
OPERATIONS(Uint8)
OPERATIONS(Int32)
OPERATIONS(Uint32)
OPERATIONS(Int64)
OPERATIONS(Uint64)
OPERATIONS(Half)
OPERATIONS(Bfloat16)
OPERATIONS(Float)
OPERATIONS(Double)
#ifdef FLOAT8  // from compute capability 8.9 on
OPERATIONS(Float8E4M3)
OPERATIONS(Float8E5M2)
#endif

}  // namespace busbar
