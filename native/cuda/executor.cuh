// Carries a rank's plan out: waits on words in this GPU's memory that peers write, passes over the
// memory of all, signals into the peers' memory.
//
// A team (a block) does its part of every pass and waits for the same team of other ranks only, so
// there is no barrier among the blocks of a GPU, but all teams of all ranks must be resident at
// once. What is signalled only grows: an iteration raises it by `stride`, and each team counts its own
// iterations in memory, so the same launch may be repeated, from a captured graph too. Signals are
// released and waits acquire at system scope; a team's barrier stands between them and its passes.
#pragma once

#include "pass.cuh"

namespace busbar {

constexpr u32 kPolls = 256;  // polls of a word between two looks at everything else

// Why waiting for a peer is vain, as far as can be seen; `kNone` where it may still come.
BUSBAR_DEVICE u64 vain(const u64* plan, u64 peer, u64& start) {
    if (load_acquire(plan[kClaim])) return kFailed;
    if (load_acquire(plan[kStatus] + 8 * kStop)) return kStopped;
    if (const u64 gone = load_acquire(plan[kGone] + 8 * peer)) return gone == 1 ? kLeft : kFailed;
    const u64 now = nanoseconds();
    if (!start) start = now;
    return now - start > plan[kDeadline] ? kLate : kNone;
}

// The first team to give up says why to the host, and that this rank has failed to all others.
BUSBAR_DEVICE void give_up(const u64* plan, u64 reason, u64 peer) {
    if (!claim(plan[kClaim])) return;
    const u64 status = plan[kStatus];
    store_release(status + 8 * kPeer, peer);
    store_release(status + 8 * kReason, reason);
    for (u64 rank = 0; rank < plan[kRanks]; ++rank)
        if (const u64 tell = plan[plan[kTell] + rank]) store_release(tell, 2);
}

BUSBAR_DEVICE bool wait_one(const u64* plan, const u64* wait, u64 done, u32 team) {
    const u64 peer = wait[0], need = done * wait[1] + wait[2];
    const u64 at = plan[kWords] + 8 * (plan[kRanks] * team + peer);
    u64 start = 0;
    for (u32 polls = 1; load_acquire(at) < need; ++polls) {
        relax();
        if (polls % kPolls) continue;
        const u64 reason = vain(plan, peer, start);
        // It may have done its part just before it left.
        if (reason == kNone || load_acquire(at) >= need) continue;
        give_up(plan, reason, peer);
        return false;
    }
    return true;
}

// Whether all that a record waits for has come; the team's earlier passes are complete then too.
BUSBAR_DEVICE bool wait_all(const u64* plan, const Record& record, u64 done, const Team& team) {
    bool lost = false;
    for (u64 i = team.member(); i < record.nwaits() && !lost; i += team.members())
        lost = !wait_one(plan, record.waits() + kWaitWords * i, done, team.number());
    return !team.any(lost);
}

// Tells those who wait for this record; what the whole team did before is seen by them.
BUSBAR_DEVICE void signal_all(const u64* plan, const Record& record, u64 done, const Team& team) {
    if (!record.nsignals()) return;
    team.together();
    const u64 value = done * plan[kStride] + record.mark();
    for (u64 i = team.member(); i < record.nsignals(); i += team.members())
        store_release(record.signals()[i] + 8 * plan[kRanks] * team.number(), value);
}

// The whole plan, of so many words.
template <class F, int op>
BUSBAR_DEVICE void program(const u64* far, u64 words, const Team& team) {
    const u64* plan = team.near(far, words);
    // Iterations that this team has completed.
    const u64 count = plan[kIterations] + 8ull * team.number();
    const u64 done = load_acquire(count), records = plan[kRecords];
    for (u64 number = 0; number < records; ++number) {
        const Record record(plan, number);
        if (!wait_all(plan, record, done, team)) return;
        if (record.count()) pass_part<F, op>(record, team);
        signal_all(plan, record, done, team);
    }
    if (team.member() == 0) store_release(count, done + 1);
}

}  // namespace busbar
