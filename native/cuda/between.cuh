// Work that plans enqueue between messages: reductions of received data, averages, and counts of wrong
// elements for checks. All threads of a launch share the work.
#pragma once

#include "elements.cuh"

namespace busbar {

struct Share {  // the number of this thread among all blocks' threads, and how many there are
    u64 me, all;

    BUSBAR_DEVICE explicit Share(const Team& team)
        : me(u64(team.number()) * team.members() + team.member()),
          all(u64(team.teams()) * team.members()) {}
};

// out = the reduction of `first` and K sources; `out` may be one of them, because all are read before
// it is written. `wide`: all addresses have the same offset in 16 bytes, `head` elements before its end.
template <class F, int op, int K>
BUSBAR_DEVICE void reduce(u64 out, u64 first, const u64 (&from)[8], u64 n, u64 head, bool wide,
                          const Share& share) {
    const u64 packs = wide ? (n - head) / Lanes<F>::count : 0;
    for (u64 i = share.me; i < packs; i += share.all) {
        const u64 at = head * F::size + i * 16;
        const Pack begin = load_pack(first + at);
        Pack read[K];
        BUSBAR_UNROLL
        for (int k = 0; k < K; ++k) read[k] = load_pack(from[k] + at);
        Lanes<F> sum = Lanes<F>::of(begin);
        BUSBAR_UNROLL
        for (int k = 0; k < K; ++k) sum.template add<op>(Lanes<F>::of(read[k]));
        store_pack(out + at, sum.packed());
    }
    // The elements before the first and after the last whole 16 bytes; all elements without `wide`.
    const u64 before = wide ? head : 0, inside = packs * Lanes<F>::count;
    for (u64 i = share.me; i < n - inside; i += share.all) {
        const u64 at = (i < before ? i : inside + i) * F::size;
        typename F::Wide sum = F::widen(load_one<F>(first + at));
        BUSBAR_UNROLL
        for (int k = 0; k < K; ++k) sum = join<op>(sum, F::widen(load_one<F>(from[k] + at)));
        store_one<F>(out + at, F::narrow(sum));
    }
}

template <class F, int op>
BUSBAR_DEVICE void reduce(u64 out, u64 first, const u64 (&from)[8], u64 sources, u64 n, u64 head,
                          bool wide, const Share& share) {
    switch (sources) {
    case 1: return reduce<F, op, 1>(out, first, from, n, head, wide, share);
    case 2: return reduce<F, op, 2>(out, first, from, n, head, wide, share);
    case 3: return reduce<F, op, 3>(out, first, from, n, head, wide, share);
    case 4: return reduce<F, op, 4>(out, first, from, n, head, wide, share);
    case 5: return reduce<F, op, 5>(out, first, from, n, head, wide, share);
    case 6: return reduce<F, op, 6>(out, first, from, n, head, wide, share);
    case 7: return reduce<F, op, 7>(out, first, from, n, head, wide, share);
    default: return reduce<F, op, 8>(out, first, from, n, head, wide, share);
    }
}

// Turns sums into averages: single elements up to a multiple of 16 bytes, packs, single elements.
template <class F>
BUSBAR_DEVICE void divide(u64 out, u64 by, u64 n, const Share& share) {
    const u64 before = (16 - out % 16) % 16 / F::size, head = before < n ? before : n;
    const u64 packs = (n - head) / Lanes<F>::count, inside = packs * Lanes<F>::count;
    for (u64 i = share.me; i < packs; i += share.all) {
        const u64 at = out + head * F::size + i * 16;
        Lanes<F> lanes = Lanes<F>::of(load_pack(at));
        lanes.divide(by);
        store_pack(at, lanes.packed());
    }
    for (u64 i = share.me; i < n - inside; i += share.all) {
        const u64 at = out + (i < head ? i : inside + i) * F::size;
        store_one<F>(at, F::narrow(quotient(F::widen(load_one<F>(at)), by)));
    }
}

// Adds to the word at `count` how many elements differ in any bit from a repeated tile.
template <class F>
BUSBAR_DEVICE void differ(u64 given, u64 tile, u64 n, u64 period, u64 count, const Share& share) {
    u64 at = share.me % period, wrong = 0;
    const u64 on = share.all % period;
    for (u64 i = share.me; i < n; i += share.all) {
        wrong += load_one<F>(given + i * F::size) != load_one<F>(tile + at * F::size);
        at += on;
        if (at >= period) at -= period;
    }
    if (wrong) count_up(count, wrong);
}

}  // namespace busbar
