// A copy by Hopper's copy unit: one thread of a team asks, piece by piece through shared memory, and the
// others need not move anything. Only where kBulk is set and the compute capability is 9.0 or more.
#pragma once

#include "platform.cuh"

#if defined(__CUDACC__)

namespace busbar {

constexpr u32 kPiece = 8192, kPieces = 4;  // bytes of a piece, and pieces under way

BUSBAR_DEVICE u32 shared(const void* at) {
    return static_cast<u32>(__cvta_generic_to_shared(at));
}

// `nbytes`, a multiple of 16, between addresses that are multiples of 16. Complete for the asking
// thread when it returns, and for its team after the team's next barrier.
BUSBAR_DEVICE void bulk_copy(u64 to, u64 from, u64 nbytes, const Team& team) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    __shared__ __align__(128) unsigned char room[kPieces][kPiece];
    __shared__ __align__(8) u64 full[kPieces];
    if (team.member()) return;
    for (u32 d = 0; d < kPieces; ++d)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared(&full[d])) : "memory");
    // The copy unit sees the words above, and what this GPU's threads and peers have written.
    asm volatile("fence.proxy.async;" ::: "memory");
    const u64 pieces = (nbytes + kPiece - 1) / kPiece;
    const auto size = [&](u64 i) -> u32 {
        const u64 left = nbytes - i * kPiece;
        return left < kPiece ? static_cast<u32>(left) : kPiece;
    };
    const auto load = [&](u64 i) {
        const u32 d = i % kPieces, word = shared(&full[d]), bytes = size(i);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(word), "r"(bytes)
                     : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                shared(room[d])),
            "l"(global(from + i * kPiece)), "r"(bytes), "r"(word)
            : "memory");
    };
    for (u64 i = 0; i < kPieces && i < pieces; ++i) load(i);
    for (u64 i = 0; i < pieces; ++i) {
        const u32 d = i % kPieces, parity = (i / kPieces) & 1;
        u32 done = 0;
        while (!done)
            asm volatile(
                "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                : "=r"(done)
                : "r"(shared(&full[d])), "r"(parity)
                : "memory");
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                         global(to + i * kPiece)),
                     "r"(shared(room[d])), "r"(size(i))
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        if (i + kPieces < pieces) {
            // The piece has left shared memory, which the next one may then enter.
            asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
            load(i + kPieces);
        }
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
    for (u32 d = 0; d < kPieces; ++d)
        asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared(&full[d])) : "memory");
#endif
}

}  // namespace busbar

#endif
