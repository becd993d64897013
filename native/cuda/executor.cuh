// Executes a rank's plan: waits on words in this GPU's memory that peers write, does passes over the
// memory of all ranks, and writes signals into the peers' memory.
//
// A team (a block) does its part of every pass and waits only for the same team of other ranks. So
// there is no barrier among the blocks of a GPU, but all teams of all ranks must be resident at
// once. Signals are numbers that only grow: an iteration raises them by `stride`, and each team counts
// its iterations in memory, so the same launch may be repeated, also from a captured graph. Signals are
// stores with release, waits are loads with acquire, both at system scope; a barrier of the team
// separates them from its passes.
#pragma once

#include "pass.cuh"

namespace busbar {

constexpr u32 kPolls = 256;  // polls of a word between two checks for failures

// The reason why waiting for a peer is useless; `kNone` if its signal may still come.
BUSBAR_DEVICE u64 vain(const u64* plan, u64 peer, u64& start) {
    if (load_acquire(plan[kClaim])) return kFailed;
    if (load_acquire(plan[kStatus] + 8 * kStop)) return kStopped;
    if (const u64 gone = load_acquire(plan[kGone] + 8 * peer)) return gone == 1 ? kLeft : kFailed;
    const u64 now = nanoseconds();
    if (!start) start = now;
    return now - start > plan[kDeadline] ? kLate : kNone;
}

// The first team that gives up writes the reason for the host, and tells all ranks of this failure.
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
        // The peer may have done its part just before it left.
        if (reason == kNone || load_acquire(at) >= need) continue;
        give_up(plan, reason, peer);
        return false;
    }
    return true;
}

// Waits for all signals that a record needs, and for the whole team; false if one cannot come.
BUSBAR_DEVICE bool wait_all(const u64* plan, const Record& record, u64 done, const Team& team) {
    bool lost = false;
    for (u64 i = team.member(); i < record.nwaits() && !lost; i += team.members())
        lost = !wait_one(plan, record.waits() + kWaitWords * i, done, team.number());
    return !team.any(lost);
}

// Signals the ranks that wait for this record; they then see everything that the team wrote before.
BUSBAR_DEVICE void signal_all(const u64* plan, const Record& record, u64 done, const Team& team) {
    if (!record.nsignals()) return;
    team.together();
    const u64 value = done * plan[kStride] + record.mark();
    for (u64 i = team.member(); i < record.nsignals(); i += team.members())
        store_release(record.signals()[i] + 8 * plan[kRanks] * team.number(), value);
}

// Executes the whole plan; `words`: its length.
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
