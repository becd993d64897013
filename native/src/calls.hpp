// Calls functions of an MPI library that this process has already loaded, by their addresses: a
// collective of the library, or the messages of a schedule and the copies and reductions between them.
// Between ranks of one host a message may be a word in shared memory: the sender raises the word, then
// the receiver reads the sender's buffer.
//
// No MPI header is needed, so one build works with every MPI. The libraries differ in their handles:
// int (MPICH and its derivatives) or pointers (Open MPI, the MPI ABI). The arguments of each call are
// those of the standard (MPI 4.1, chapters 3 and 6).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "timed.hpp"
#include "watch.hpp"

namespace busbar {

// MPI functions that have the same arguments share a shape; the other shapes are work inside a rank.
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
    await,             // waits until the word at `source` has step `sends` of `receives`; calls MPI_Iprobe
    progress,          // MPI_Iprobe once, so that MPI makes progress during long work
    publish,           // sets the word at `source` to step `sends` of `receives`
    copy,
    reduce,  // `sends` elements of `source` and `other`; `type` and `op`: numbers of kernels.hpp
    shapes,
    reach,  // within `run`: a `one_sided` that a `flush` follows
};

// What messages and one-sided calls need comes first, in 64 bytes.
struct MpiCall {
    Shape shape;
    int to;          // the root, or the destination of a message
    void* function;  // null for work inside a rank or in shared memory
    void *source, *target;
    std::int64_t sends, receives;  // elements; bytes of a copy
    std::uint64_t type, op;        // handles
    void* other;
    int from;  // the source of a message
};

// Thrown when a call does not return MPI_SUCCESS. `peer`: the other rank of the message, or -1.
struct CallFailed {
    int code;
    int peer = -1;
};

class Calls : public Timed {
public:
    // For a trace: makes only the calls `from` to `to`.
    virtual void part(std::size_t from, std::size_t to) = 0;
    // Whether the request of a `wait` is complete; if so, the wait is done, too.
    virtual bool test(std::size_t index) = 0;
    // Ends the iteration whose calls were made with `part`.
    virtual void end() = 0;
};

// `parts`: for `variable`, counts and displacements of every rank to send, then those to receive.
// `wide`: handles are pointers. `watch`: for the ranks that share memory; null if there are none.
// `interrupted` is called several times a second.
std::unique_ptr<Calls> calls(
    std::vector<MpiCall> list, std::vector<int> parts, void* barrier, std::uint64_t comm, bool wide,
    const Watch* watch, std::function<bool()> interrupted);

}  // namespace busbar
