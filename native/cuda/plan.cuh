// One rank's plan as the flat 64-bit words that the executor reads; written by
// collectives/execution/ipc/plan.py, which has the same numbers.
//
// A plan is a header, then records. A record has waits, one pass over memory, and signals. Record 0
// only signals that the rank has entered the iteration. The last record only waits until no other rank
// uses this rank's memory any more. The records between are the rank's passes in order.
#pragma once

#include "platform.cuh"

namespace busbar {

enum Header {
    kRecords,      // how many records
    kRanks,        // how many ranks
    kStride,       // by how much one iteration raises the signals of this rank
    kIterations,   // address of a word per team: iterations that the team has completed
    kWords,        // address of [team][rank]: the last signal of each rank to this one
    kGone,         // address of a word per rank: whether it has left (1) or failed (2)
    kClaim,        // address of a word that the first team that gives up sets
    kStatus,       // address of pinned words in the host's memory: see `Status`
    kDeadline,     // longest time of one wait in nanoseconds
    kTell,         // where in the plan the addresses are to report a failure to each rank
    kIndex,        // where in the plan the positions of the records are
    kHeader
};

// Words that the host reads after a plan has failed; with `kStop` it stops a plan that waits.
enum Status { kReason, kPeer, kStop, kStatusWords };
enum Reason { kNone, kDied, kLeft, kLate, kFailed, kStopped };

// A wait is (peer, the peer's stride, the number added to it). A place is (address, 0), or for staging
// memory (address for the first team, bytes from one team's memory to the next team's).
constexpr u64 kWaitWords = 3, kPlaceWords = 2;
enum RecordHeader { kCount, kMark, kWaits, kSignals, kTargets, kSources, kRecordHeader };

// Addresses of a pass's targets or sources, as one team sees them.
struct Places {
    const u64* at;
    u64 n;
    u64 moving;  // bytes from the begin of a place to the team's part
    u64 team;

    BUSBAR_DEVICE u64 operator[](u64 i) const {
        const u64 stride = at[kPlaceWords * i + 1];
        return at[kPlaceWords * i] + (stride ? stride * team : moving);
    }
};

struct Record {
    const u64* at;

    BUSBAR_DEVICE Record(const u64* plan, u64 number) : at(plan + plan[plan[kIndex] + number]) {}
    BUSBAR_DEVICE u64 count() const { return at[kCount]; }
    BUSBAR_DEVICE u64 mark() const { return at[kMark]; }
    BUSBAR_DEVICE u64 nwaits() const { return at[kWaits]; }
    BUSBAR_DEVICE u64 nsignals() const { return at[kSignals]; }
    BUSBAR_DEVICE const u64* waits() const { return at + kRecordHeader; }
    BUSBAR_DEVICE const u64* signals() const { return waits() + kWaitWords * nwaits(); }
    BUSBAR_DEVICE Places targets(u64 moving, u64 team) const {
        return {signals() + nsignals(), at[kTargets], moving, team};
    }
    BUSBAR_DEVICE Places sources(u64 moving, u64 team) const {
        return {signals() + nsignals() + kPlaceWords * at[kTargets], at[kSources], moving, team};
    }
};

}  // namespace busbar
