// The kernels by name, for one element type and operation. Set where this is compiled:
// BUSBAR_ELEMENT (`Float`, …), BUSBAR_OPERATION (`kSum`, …), BUSBAR_THREADS of a block, and
// BUSBAR_BLOCKS that a multiprocessor must hold at once, on which the host sizes its grids.
#include "executor.cuh"

#define BUSBAR_KERNEL extern "C" __global__ void
#define BUSBAR_BOUNDS __launch_bounds__(BUSBAR_THREADS, BUSBAR_BLOCKS)

BUSBAR_KERNEL BUSBAR_BOUNDS busbar_program(const busbar::u64* plan, busbar::u64 words) {
    using namespace busbar;
    program<BUSBAR_ELEMENT, BUSBAR_OPERATION>(plan, words, Team{});
}
