// The kernels that plans enqueue between messages, for one element type and operation. The compiler is
// called with BUSBAR_ELEMENT (`Float`, …) and BUSBAR_OPERATION (`kSum`, …).
#include "between.cuh"

#define BUSBAR_KERNEL extern "C" __global__ void __launch_bounds__(512)

using busbar::Share;
using busbar::Team;
using busbar::u64;
using Element = busbar::BUSBAR_ELEMENT;

BUSBAR_KERNEL reduce(u64 out, u64 first, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, u64 g, u64 h,
                     u64 sources, u64 n, u64 head, u64 wide) {
    const u64 from[8] = {a, b, c, d, e, f, g, h};
    constexpr int op = busbar::BUSBAR_OPERATION;
    busbar::reduce<Element, op>(out, first, from, sources, n, head, wide, Share(Team{}));
}

BUSBAR_KERNEL divide(u64 out, u64 by, u64 n) {
    busbar::divide<Element>(out, by, n, Share(Team{}));
}

BUSBAR_KERNEL differ(u64 given, u64 tile, u64 n, u64 period, u64 count) {
    busbar::differ<Element>(given, tile, n, period, count, Share(Team{}));
}

// Holds the stream until the host has raised the word to the number. After `limit` nanoseconds it gives
// up and sets `late`, so that the GPU does not spin for ever if the host fails.
BUSBAR_KERNEL gate(const volatile unsigned* word, unsigned number, u64 limit,
                   volatile unsigned* late) {
    const u64 start = busbar::nanoseconds();
    while (static_cast<int>(*word - number) < 0) {
        if (busbar::nanoseconds() - start < limit) continue;
        *late = 1;
        break;
    }
    __threadfence_system();
}
