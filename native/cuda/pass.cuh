// One pass: writes the reduction of all sources to every target and reads each source once. For an
// average the sum is divided by the number of sources; the host ensures that these are all ranks.
#pragma once

#include "elements.cuh"
#include "plan.cuh"

namespace busbar {

// 16-byte accesses in flight per source and thread. Small elements are one register each while
// they are joined, so fewer of their packs fit.
template <class F>
constexpr int kDepth = F::size < 4 ? F::size : 4;
constexpr int kCopyDepth = 4;
// Sources read at once if a thread has one pack of each: loads from peers' memory take long, so several
// are in flight together. More would not fit the registers.
constexpr int kAhead = 4;

// Reduces `depth` packs of all sources, `step` bytes apart, in the order of the sources. All sources
// are read before any target is written.
template <class F, int op, int depth, int ahead>
BUSBAR_DEVICE void reduce_packs(const Places& to, const Places& from, u64 at, u64 step) {
    Lanes<F> sum[depth];
    BUSBAR_UNROLL
    for (int d = 0; d < depth; ++d) sum[d] = Lanes<F>::of(load_pack(from[0] + at + d * step));
    BUSBAR_ROLLED
    for (u64 s = 1; s < from.n; s += ahead) {
        Pack read[ahead][depth];
        BUSBAR_UNROLL
        for (int k = 0; k < ahead; ++k) {
            // After the last source, the last source is read again and not added.
            const u64 source = from[s + k < from.n ? s + k : from.n - 1] + at;
            BUSBAR_UNROLL
            for (int d = 0; d < depth; ++d) read[k][d] = load_pack(source + d * step);
        }
        BUSBAR_UNROLL
        for (int k = 0; k < ahead; ++k) {
            if (s + k >= from.n) break;
            BUSBAR_UNROLL
            for (int d = 0; d < depth; ++d) sum[d].template add<op>(Lanes<F>::of(read[k][d]));
        }
    }
    if constexpr (op == kAverage) {
        BUSBAR_UNROLL
        for (int d = 0; d < depth; ++d) sum[d].divide(from.n);
    }
    Pack result[depth];
    BUSBAR_UNROLL
    for (int d = 0; d < depth; ++d) result[d] = sum[d].packed();
    BUSBAR_ROLLED
    for (u64 t = 0; t < to.n; ++t) {
        const u64 target = to[t] + at;
        BUSBAR_UNROLL
        for (int d = 0; d < depth; ++d) store_pack(target + d * step, result[d]);
    }
}

template <int depth>
BUSBAR_DEVICE void copy_packs(const Places& to, const Places& from, u64 at, u64 step) {
    Pack read[depth];
    BUSBAR_UNROLL
    for (int d = 0; d < depth; ++d) read[d] = load_pack(from[0] + at + d * step);
    BUSBAR_ROLLED
    for (u64 t = 0; t < to.n; ++t) {
        const u64 target = to[t] + at;
        BUSBAR_UNROLL
        for (int d = 0; d < depth; ++d) store_pack(target + d * step, read[d]);
    }
}

template <class F, int op>
BUSBAR_DEVICE void one_element(const Places& to, const Places& from, u64 at) {
    typename F::Bits bits = load_one<F>(from[0] + at);
    if (from.n > 1) {
        typename F::Wide sum = F::widen(bits);
        BUSBAR_ROLLED
        for (u64 s = 1; s < from.n; ++s) sum = join<op>(sum, F::widen(load_one<F>(from[s] + at)));
        if constexpr (op == kAverage) sum = quotient(sum, from.n);
        bits = F::narrow(sum);
    }
    BUSBAR_ROLLED
    for (u64 t = 0; t < to.n; ++t) store_one<F>(to[t] + at, bits);
}

// The offset of all addresses from a multiple of 16 bytes; 16 if the offsets differ.
BUSBAR_DEVICE u64 skew(const Places& to, const Places& from) {
    const u64 first = to[0] & 15;
    for (u64 t = 1; t < to.n; ++t)
        if ((to[t] & 15) != first) return 16;
    for (u64 s = 0; s < from.n; ++s)
        if ((from[s] & 15) != first) return 16;
    return first;
}

template <class F, int op>
BUSBAR_DEVICE void pass(const Places& to, const Places& from, u64 count, const Team& team) {
    const u64 size = F::size, me = team.member(), n = team.members();
    const u64 off = skew(to, from);
    // Single elements up to a multiple of 16 bytes, packs, and single elements again.
    u64 head = off == 16 ? count : (16 - off) % 16 / size;
    if (head > count) head = count;
    const u64 packs = (count - head) * size / 16;
    for (u64 i = me; i < head; i += n) one_element<F, op>(to, from, i * size);
    const u64 begin = head * size, step = n * 16;
    u64 i = me;
    if (from.n > 1) {
        constexpr int depth = kDepth<F>;
        for (; i + (depth - 1) * n < packs; i += depth * n)
            reduce_packs<F, op, depth, 1>(to, from, begin + i * 16, step);
        for (; i < packs; i += n)
            reduce_packs<F, op, 1, kAhead>(to, from, begin + i * 16, step);
    } else {
        for (; i + (kCopyDepth - 1) * n < packs; i += kCopyDepth * n)
            copy_packs<kCopyDepth>(to, from, begin + i * 16, step);
        for (; i < packs; i += n) copy_packs<1>(to, from, begin + i * 16, step);
    }
    for (u64 j = head + packs * 16 / size + me; j < count; j += n)
        one_element<F, op>(to, from, j * size);
}

// The team's part of a record's pass. Parts are whole packs, counted from the begin of the pass, so
// that a team has the same elements in every pass of that size.
template <class F, int op>
BUSBAR_DEVICE void pass_part(const Record& record, const Team& team) {
    const u64 count = record.count(), teams = team.teams();
    constexpr u64 per = 16 / F::size;
    const u64 part = ((count + teams - 1) / teams + per - 1) / per * per;
    const u64 from = part * team.number();
    if (from >= count) return;
    const u64 left = count - from;
    const Places to = record.targets(from * F::size, team.number());
    const Places sources = record.sources(from * F::size, team.number());
    pass<F, op>(to, sources, left < part ? left : part, team);
}

}  // namespace busbar
