// Executes one rank's part of any schedule over memory that all ranks map.
//
// `Direct`: a rank's own tasks read and write the ranks' buffers where they lie; which task waits for
// which was worked out beforehand. `Eager`: small messages go through mailboxes beside their flag, one
// cache line each way. `WorkSharing`: tasks that belong to no rank, done by whoever has a core. Every
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
    bool fixed;   // staging: the same bytes in every window
    bool stream;  // a target to be stored non-temporally
    int rank = -1;  // whose memory it is; -1: not counted
};

struct Wait {
    std::int32_t peer;
    std::int64_t task;  // done when the peer has done this task; -1: when it has begun
    std::int64_t stage = 0;  // of that task
};

struct Task {
    bool publish;       // whether anyone waits for it
    std::size_t count;  // elements
    std::vector<Place> targets, sources;
    std::vector<Wait> waits;
    // Stage s of window w is done in round w + s, with all others of that round: between a task and
    // what another rank does with its result lies a round of other work, so few waits are long.
    std::int64_t stage = 0;
};

constexpr int kGates = 3;
// Progress of every rank, the gates, their arrivals.
constexpr std::size_t control_lines(int size) {
    return static_cast<std::size_t>((1 + kGates) * size + kGates);
}
// A number for every rank, on lines that one rank alone writes.
constexpr std::size_t traffic_lines(int size) {
    return (static_cast<std::size_t>(size) * sizeof(std::uint64_t) + sizeof(Line) - 1) / sizeof(Line);
}
// Lines that a plan shares, beside mailboxes: control, then for every rank the bytes that it has loaded
// from each rank's memory, then for every rank those that it has stored into each rank's.
constexpr std::size_t plan_lines(int size) {
    return control_lines(size) + 2 * static_cast<std::size_t>(size) * traffic_lines(size);
}

// A rank's own access to another rank's memory, or its message through a mailbox: what a trace shows.
// `step`: the number of the pass, or of the step of mailboxes. A load begins when the rank is ready
// for it, which may be before the peer is.
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
    // Carries the operation out once, and tells of every access.
    std::vector<Access> traced();

protected:
    const Watch& watch_;
    Line* lines_;  // as `plan_lines` says
    const Kernels& kernels_;
    Type type_;
    Op op_;
    std::uint64_t done_ = 0;

    Word& progress(int rank) const { return lines_[rank].word; }
    Gate gate(int which) const {
        const int size = watch_.size();
        return {lines_[size + which].word, lines_ + (which + 1) * size + kGates};
    }
    // Where accesses are kept, in the order in which they end; null: they are not looked at.
    std::vector<Access>* trace_ = nullptr;
    // The time where a trace wants it, else 0.
    double seen() const { return trace_ ? now() : 0; }
    // One task, or elements `from` on of it.
    void carry_out(const Task& task, std::size_t from, std::size_t count);
    // `to` becomes what two operands give.
    void join(std::byte* to, const std::byte* a, const std::byte* b, std::size_t count) const;
    void until(double time) const override { watch_.until(time); }
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

// How a rank goes through its tasks. `window`: elements of a window; window by window, so that a task
// finds in cache what the one before it left. `depth`: the highest stage of any rank's task. `gates`:
// ranks that wait for all others wait for a count of arrivals instead.
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
    // Keeps what a task has just accessed.
    void look_at(const Task& task, std::size_t count, std::int64_t index, double ready);

    std::vector<Task> tasks_;
    std::vector<Wait> exits_;
    std::vector<std::int64_t> ntasks_;
    Rounds how_;
};

using Part = std::vector<Task>;

// Independent parts of the work, each done by any rank that holds a core. For ranks that outnumber
// the cores and pass them on by yielding: a rank then needs a core once in an iteration, to leave
// this one and enter the next.
class WorkSharing : public Plan {
public:
    // `parts`: as many as ranks.
    WorkSharing(Watch& watch, Line* lines, Type type, Op op, std::vector<Part> parts)
        : Plan(watch, lines, type, op), parts_(std::move(parts)) {}
    void run() override;

private:
    // Whether this rank, and nobody else, is to do a part in this iteration. `any`: also when it was
    // done on another core last.
    bool claim(int part, std::uint64_t core, bool any) const;
    // Who does or did a part last.
    int holder(int part) const;

    std::vector<Part> parts_;
};

struct Copy {  // inside the rank: target becomes source, or gains it
    std::byte *target, *source;
    std::size_t count;
    bool reduce;
};

struct EagerMessage {  // a mailbox of two halves, used in turn; a half is a word and then the elements
    int peer;
    std::byte* mailbox;
    std::size_t stride;  // bytes of a half
    std::byte* span;     // what is sent, or what receives
    std::byte* other;    // when received: what it is joined with, null for a plain message
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
    // Iterations that each peer is known to have completed: a mailbox may be filled again when what
    // it held two iterations ago was taken. A peer's message says so for free.
    std::vector<std::uint64_t> known_;
};

}  // namespace busbar
