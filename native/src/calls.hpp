// Calls of an MPI library that this process has loaded already, by the addresses of its functions:
// its collectives, or a schedule's messages with what is done between them. Between ranks of one host
// a message may be a word in shared memory that its sender raises, after which the receiver reads the
// sender's buffer.
//
// No header of an MPI is needed, so one build serves every MPI: what differs between them is whether
// handles are int (MPICH and its kin) or pointers (Open MPI, the MPI ABI), and which arguments a call
// has is the standard's (MPI 4.1, chapters 3 and 6).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "timed.hpp"
#include "watch.hpp"

namespace busbar {

// Calls with the same arguments, and work inside a rank.
enum class Shape : int {
    reduction,         // MPI_Allreduce, MPI_Reduce_scatter_block
    rooted_reduction,  // MPI_Reduce
    broadcast,         // MPI_Bcast
    exchange,          // MPI_Allgather, MPI_Alltoall
    rooted_exchange,   // MPI_Gather, MPI_Scatter
    variable,          // MPI_Alltoallv
    sendrecv,          // MPI_Sendrecv
    barrier,           // MPI_Barrier
    start,             // MPI_Startall of `sends` persistent requests from `source` on
    wait,              // MPI_Test of the request at `source`, until it is complete
    one_sided,         // MPI_Put, MPI_Get; `receives`: the displacement, `op`: the window
    flush,             // MPI_Win_flush
    await,             // until the word at `source` shows step `sends` of `receives`; MPI_Iprobe meanwhile
    progress,          // MPI_Iprobe once, so that MPI goes on beside long work
    publish,           // the word at `source` shows step `sends` of `receives`
    copy,
    reduce,  // `sends` elements of `source` and `other`; `type` and `op` are the kernels' own
    shapes,
};

struct MpiCall {
    Shape shape;
    void* function;  // null for work inside a rank or in shared memory
    void *source, *other, *target;
    std::int64_t sends, receives;  // elements; bytes of a copy
    int to, from;                  // the root, or where a message goes to and comes from (MPI_ANY_SOURCE)
    std::uint64_t type, op;        // handles
    // Of `variable`: the ranks' counts and displacements to send, then those to receive.
    std::vector<int> parts;
};

// Thrown when a call gives another code than MPI_SUCCESS. `peer`: whose message failed, or -1.
struct CallFailed {
    int code;
    int peer = -1;
};

class Calls : public Timed {
public:
    // Carries out calls `from` to `to` alone, for a trace; the last one ends the iteration.
    virtual void part(std::size_t from, std::size_t to) = 0;
    // Whether the request of a `wait` is complete; it is then over.
    virtual bool test(std::size_t index) = 0;
};

// `wide`: handles are pointers. `watch`: of the ranks that share memory, null where none do.
// `interrupted` is asked several times a second.
std::unique_ptr<Calls> calls(
    std::vector<MpiCall> list, void* barrier, std::uint64_t comm, bool wide,
    const Watch* watch, std::function<bool()> interrupted);

}  // namespace busbar
