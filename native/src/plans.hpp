// Executes one rank's part of any schedule over memory that all ranks map.
//
// `Direct`: the tasks of a rank read and write the buffers of all ranks in place; Python has worked out
// which task waits for which. `Eager`: small messages go through mailboxes, next to their flag, one
// cache line each way. `WorkSharing`: tasks belong to no rank; any rank that has a core does them. Every
// plan counts the bytes that it loads from other ranks' memory and stores into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.hpp"
#include "timed.hpp"
#include "watch.hpp"

namespace busbar {

struct Place {
    std::byte* at;
    bool fixed;   // staging memory: the same bytes for every window
    bool stream;  // a target with non-temporal stores
    int rank = -1;  // the rank whose memory it is; -1: bytes are not counted
};

struct Wait {
    std::int32_t peer;
    std::int64_t task;  // waits until the peer has done this task; -1: until it has begun
    std::int64_t stage = 0;  // of that task
};

struct Task {
    bool publish;       // whether another rank waits for it
    std::size_t count;  // elements
    std::vector<Place> targets, sources;
    std::vector<Wait> waits;
    // Round w + s does stage s of window w, beside other stages of other windows. So another rank uses
    // the result of a task one round of other work later, and few waits are long.
    std::int64_t stage = 0;
};

constexpr int kGates = 3;
// Lines for the progress of every rank, the gates, and the arrivals at the gates.
constexpr std::size_t control_lines(int size) {
    return static_cast<std::size_t>((1 + kGates) * size + kGates);
}
// Lines for one number per rank; only one rank writes these lines.
constexpr std::size_t traffic_lines(int size) {
    return (static_cast<std::size_t>(size) * sizeof(std::uint64_t) + sizeof(Line) - 1) / sizeof(Line);
}
// Lines that the ranks of a plan share, without mailboxes: the control lines, then for every rank the
// bytes that it has loaded from each rank's memory, then the bytes that it has stored into each.
constexpr std::size_t plan_lines(int size) {
    return control_lines(size) + 2 * static_cast<std::size_t>(size) * traffic_lines(size);
}

// An entry of a trace: this rank's access to another rank's memory, or its message through a mailbox.
// `step`: the number of the pass, or of the step of messages. A load begins when this rank is ready
// for it, which may be before the peer is ready.
struct Access {
    bool load;
    int peer;
    std::uint64_t nbytes;
    std::int64_t step;
    double begin, end;  // by `now`
};

class Plan : public Timed {
public:
    Plan(Watch& watch, Line* lines, Type type, Op op);
    void barrier() override;
    // Runs the operation once and returns every access.
    std::vector<Access> traced();

protected:
    const Watch& watch_;
    Line* lines_;  // `plan_lines` of them
    const Kernels& kernels_;
    Type type_;
    Op op_;
    std::uint64_t done_ = 0;

    Word& progress(int rank) const { return lines_[rank].word; }
    Gate gate(int which) const {
        const int size = watch_.size();
        return {lines_[size + which].word, lines_ + (which + 1) * size + kGates};
    }
    // Accesses are appended here, in the order in which they end; null: not traced.
    std::vector<Access>* trace_ = nullptr;
    // The time if accesses are traced, else 0.
    double seen() const { return trace_ ? now() : 0; }
    // Does `count` elements of a task, starting at `from`.
    void carry_out(const Task& task, std::size_t from, std::size_t count);
    // Writes the reduction of `a` and `b` to `to`.
    void join(std::byte* to, const std::byte* a, const std::byte* b, std::size_t count) const;
    void until(double time) override { watch_.until(time); }
    void look() override { watch_.look(); }
    // Counts bytes that this rank has stored into another rank's memory.
    void stored(int rank, std::size_t nbytes) { stores_[rank] += nbytes; }
    Gate entry_gate() const { return gate(0); }
    Gate exit_gate() const { return gate(1); }
    Gate barrier_gate() const { return gate(2); }

private:
    std::uint64_t barriers_ = 0;
    std::uint64_t *loads_, *stores_;  // by rank
    std::vector<Target> targets_;
    std::vector<const void*> sources_;
};

// How a rank goes through its tasks. `window`: elements of a window; tasks are done window by window, so
// that a task finds the result of the task before it in cache. `depth`: the highest stage of any rank's
// task. `gates`: a rank that waits for all others waits for a count of arrivals, not for each rank.
struct Rounds {
    std::int64_t window, nwindows, depth;
    bool gates, enter_all, exit_all;
};

class Direct : public Plan {
public:
    // `ntasks[r]`: how many tasks rank r has.
    Direct(
        Watch& watch, Line* lines, Type type, Op op, std::vector<Task> tasks,
        std::vector<Wait> exits, std::vector<std::int64_t> ntasks, const Rounds& how)
        : Plan(watch, lines, type, op),
          tasks_(std::move(tasks)),
          exits_(std::move(exits)),
          ntasks_(std::move(ntasks)),
          how_(how) {}
    void run() override;

private:
    std::uint64_t mark(int rank, std::int64_t round, std::int64_t task) const;
    void await(const Wait& wait, std::int64_t window);
    // Adds the accesses of a task to the trace.
    void look_at(const Task& task, std::size_t count, std::int64_t index, double ready);

    std::vector<Task> tasks_;
    std::vector<Wait> exits_;
    std::vector<std::int64_t> ntasks_;
    Rounds how_;
};

using Part = std::vector<Task>;

// Independent parts of the work, each done by any rank that is on a core. For more ranks than cores,
// where ranks yield the cores to each other: each rank then needs a core only once per iteration, to
// leave this one and enter the next.
class WorkSharing : public Plan {
public:
    // `parts`: one per rank.
    WorkSharing(Watch& watch, Line* lines, Type type, Op op, std::vector<Part> parts)
        : Plan(watch, lines, type, op), parts_(std::move(parts)) {}
    void run() override;

private:
    // Claims a part for this rank; false if another rank has it in this iteration. Without `any`, only
    // a part that was last done on this core.
    bool claim(int part, std::uint64_t core, bool any) const;
    // The rank that last claimed a part.
    int holder(int part) const;

    std::vector<Part> parts_;
};

struct Copy {  // inside the rank: `source` is copied to `target`, or reduced into it
    std::byte *target, *source;
    std::size_t count;
    bool reduce;
};

struct EagerMessage {  // a mailbox has two halves, used in turn; a half is a word, then elements
    int peer;
    std::byte* mailbox;
    std::size_t stride;  // bytes of a half
    std::byte* span;     // the send buffer or the receive buffer
    std::byte* other;    // of a receive: the operand to reduce with; null: plain message
    std::size_t count;
};

struct Exchange {
    std::vector<Copy> before;
    std::vector<EagerMessage> sends, receives;
    std::vector<Copy> after;
};

class Eager : public Plan {
public:
    Eager(Watch& watch, Line* lines, Type type, Op op, std::vector<Exchange> steps)
        : Plan(watch, lines, type, op),
          steps_(std::move(steps)),
          known_(static_cast<std::size_t>(watch.size())) {}
    void run() override;

private:
    void local(const Copy& copy);
    void send(const EagerMessage& message);
    void receive(const EagerMessage& message);

    std::vector<Exchange> steps_;
    // Iterations that each peer is known to have completed. A half of a mailbox may be filled again when
    // the peer has taken the message of two iterations ago; a message from the peer proves that, too.
    std::vector<std::uint64_t> known_;
};

}  // namespace busbar
