// Calls of an MPI library that this process has loaded already, by the addresses of its functions.
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

namespace busbar {

// Calls with the same arguments, and copies inside a rank.
enum class Shape : int {
    reduction,         // MPI_Allreduce, MPI_Reduce_scatter_block
    rooted_reduction,  // MPI_Reduce
    broadcast,         // MPI_Bcast
    exchange,          // MPI_Allgather, MPI_Alltoall
    rooted_exchange,   // MPI_Gather, MPI_Scatter
    variable,          // MPI_Alltoallv
    sendrecv,          // MPI_Sendrecv
    barrier,           // MPI_Barrier
    copy,
    shapes,
};

struct MpiCall {
    Shape shape;
    void* function;  // null for a copy
    void *source, *target;
    std::int64_t sends, receives;  // elements; bytes of a copy
    int to, from;                  // the root, or where a message goes to and comes from
    std::uint64_t type, op;        // handles
    // Of `variable`: the ranks' counts and displacements to send, then those to receive.
    std::vector<int> parts;
};

// Thrown when a call gives another code than MPI_SUCCESS.
struct CallFailed {
    int code;
};

// `wide`: handles are pointers. `interrupted` is asked several times a second.
std::unique_ptr<Timed> calls(
    std::vector<MpiCall> list, void* barrier, std::uint64_t comm, bool wide,
    std::function<bool()> interrupted);

}  // namespace busbar
