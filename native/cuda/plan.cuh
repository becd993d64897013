// One rank's plan as the flat 64-bit words that the executor reads; written by
// collectives/execution/ipc/plan.py, which has the same numbers.
//
// A plan is a header and then records. A record is waits, one pass over memory, and signals:
// record 0 only says that the rank has entered the iteration, the last one only waits until nobody
// touches the rank's memory any more, those between are the rank's passes in their order.
#pragma once

#include "platform.cuh"

namespace busbar {

enum Header {
    kRecords,      // how many records
    kRanks,        // how many ranks
    kStride,       // by how much one iteration raises what this rank signals
    kIterations,   // address of a word per team: iterations that it has completed
    kWords,        // address of [team][rank]: what each rank has signalled to this one
    kGone,         // address of a word per rank: whether it has left (1) or failed (2)
    kClaim,        // address of a word: set by the first team that gives up
    kStatus,       // address of pinned words of the host: see `Status`
    kDeadline,     // nanoseconds that one wait may take
    kTell,         // where in the plan the ranks' addresses are to which a failure is reported
    kIndex,        // where in the plan the records' positions are listed
    kHeader
};

// What the host reads when a plan has failed, and how it stops one that waits.
enum Status { kReason, kPeer, kStop, kStatusWords };
enum Reason { kNone, kDied, kLeft, kLate, kFailed, kStopped };

// A wait is (peer, its stride, what it adds). A place is (address, 0), or for staging (address of
// the first team's, bytes from one team's to the next's).
constexpr u64 kWaitWords = 3, kPlaceWords = 2;
enum RecordHeader { kCount, kMark, kWaits, kSignals, kTargets, kSources, kRecordHeader };

// Addresses of a pass's targets or sources, as one team sees them.
struct Places {
    const u64* at;
    u64 n;
    u64 moving;  // bytes from a place's begin to the team's part of it
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
