#include "plans.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace busbar {

Plan::Plan(Watch& watch, Line* lines, Type type, Op op)
    : watch_(watch), lines_(lines), kernels_(kernels()), type_(type), op_(op) {
    const auto size = static_cast<std::size_t>(watch.size()), rank = static_cast<std::size_t>(watch.rank());
    Line* traffic = lines + control_lines(watch.size());
    loads_ = reinterpret_cast<std::uint64_t*>(traffic + rank * traffic_lines(watch.size()));
    stores_ = reinterpret_cast<std::uint64_t*>(traffic + (size + rank) * traffic_lines(watch.size()));
}

void Plan::barrier() {
    watch_.here();
    watch_.arrive(barrier_gate(), watch_.rank());
    watch_.wait_all(barrier_gate(), ++barriers_);
}

void Plan::carry_out(const Task& task, std::size_t from, std::size_t count) {
    const std::size_t size = size_of(type_);
    const auto at = [&](const Place& p) { return p.fixed ? p.at : p.at + from * size; };
    targets_.clear();
    sources_.clear();
    for (const Place& p : task.targets) targets_.push_back({at(p), p.stream});
    for (const Place& p : task.sources) sources_.push_back(at(p));
    const int me = watch_.rank();
    for (const Place& p : task.targets)
        if (p.rank >= 0 && p.rank != me) stores_[p.rank] += count * size;
    for (const Place& p : task.sources)
        if (p.rank >= 0 && p.rank != me) loads_[p.rank] += count * size;
    kernels_.carry_out(
        type_, op_,
        {targets_.data(), static_cast<int>(targets_.size()), sources_.data(),
         static_cast<int>(sources_.size()), count});
}

std::vector<Access> Plan::traced() {
    std::vector<Access> found;
    trace_ = &found;
    try {
        run();
    } catch (...) {
        trace_ = nullptr;
        throw;
    }
    trace_ = nullptr;
    return found;
}

void Plan::join(std::byte* to, const std::byte* a, const std::byte* b, std::size_t count) const {
    const Target target{to, false};
    const void* sources[2] = {a, b};
    kernels_.carry_out(type_, op_, {&target, 1, sources, 2, count});
}

// The value of a rank's progress word when the rank has done a task in a round of this iteration. An
// iteration counts one for its begin and one for every task in every round, even if the task has no
// window in that round.
std::uint64_t Direct::mark(int rank, std::int64_t round, std::int64_t task) const {
    const std::uint64_t tasks = static_cast<std::uint64_t>(ntasks_[static_cast<std::size_t>(rank)]);
    const std::uint64_t marks = 1 + tasks * static_cast<std::uint64_t>(how_.nwindows + how_.depth);
    return done_ * marks + 2 + static_cast<std::uint64_t>(round) * tasks +
           static_cast<std::uint64_t>(task);
}

void Direct::await(const Wait& wait, std::int64_t window) {
    const std::int64_t round = wait.task < 0 ? 0 : window + wait.stage;
    watch_.wait(progress(wait.peer), mark(wait.peer, round, wait.task), wait.peer);
}

void Direct::look_at(const Task& task, std::size_t count, std::int64_t index, double ready) {
    const double end = now();
    const auto add = [&](const Place& p, bool load) {
        if (p.rank >= 0 && p.rank != watch_.rank())
            trace_->push_back({load, p.rank, count * size_of(type_), index, ready, end});
    };
    for (const Place& p : task.sources) add(p, true);
    for (const Place& p : task.targets) add(p, false);
}

void Direct::run() {
    const int me = watch_.rank();
    const auto size = static_cast<std::size_t>(how_.window);
    watch_.publish(progress(me), mark(me, 0, -1));
    if (how_.gates) watch_.arrive(entry_gate(), me);
    if (how_.enter_all) watch_.wait_all(entry_gate(), done_ + 1);
    for (std::int64_t round = 0; round < how_.nwindows + how_.depth; ++round) {
        std::int64_t index = -1;
        for (const Task& task : tasks_) {
            ++index;
            const std::int64_t window = round - task.stage;
            if (window < 0 || window >= how_.nwindows) continue;
            const double ready = seen();
            for (const Wait& wait : task.waits) await(wait, window);
            const std::size_t from = static_cast<std::size_t>(window) * size;
            if (from < task.count) {
                const std::size_t count = std::min(size, task.count - from);
                carry_out(task, from, count);
                if (trace_) look_at(task, count, index, ready);
            }
            if (task.publish) watch_.publish(progress(me), mark(me, round, index));
        }
    }
    if (how_.gates) watch_.arrive(exit_gate(), me);
    if (how_.exit_all) watch_.wait_all(exit_gate(), done_ + 1);
    for (const Wait& wait : exits_) await(wait, how_.nwindows - 1);
    ++done_;
}

namespace {

// The word of a part has the rank that last claimed it, its core, and the iteration, counted from 1.
constexpr int kRankBits = 12, kCoreBits = 12;
constexpr std::uint64_t kRanks = std::uint64_t{1} << kRankBits, kCores = std::uint64_t{1} << kCoreBits;

std::uint64_t core_of(std::uint64_t word) { return word / kRanks % kCores; }
std::uint64_t iteration_of(std::uint64_t word) { return word / kRanks / kCores; }

}  // namespace

bool WorkSharing::claim(int part, std::uint64_t core, bool any) const {
    std::atomic<std::uint64_t>& word = progress(part).value;
    std::uint64_t seen = word.load(std::memory_order_relaxed);
    if (iteration_of(seen) > done_ || !(any || core_of(seen) == core)) return false;
    const auto rank = static_cast<std::uint64_t>(watch_.rank());
    return word.compare_exchange_strong(seen, ((done_ + 1) * kCores + core) * kRanks + rank);
}

int WorkSharing::holder(int part) const {
    return static_cast<int>(progress(part).value.load() % kRanks);
}

void WorkSharing::run() {
    const int me = watch_.rank(), size = watch_.size();
    watch_.arrive(entry_gate(), me);
    watch_.wait_all(entry_gate(), done_ + 1);
    const auto core = static_cast<std::uint64_t>(sched_getcpu()) % kCores;
    // First the parts that this core did in the iteration before: its caches may still hold their data.
    for (const bool any : {false, true})
        for (int i = 0; i < size; ++i) {
            const int part = (me + i) % size;
            if (!claim(part, core, any)) continue;
            for (const Task& task : parts_[static_cast<std::size_t>(part)]) carry_out(task, 0, task.count);
            watch_.arrive(exit_gate(), part);
        }
    watch_.wait_all(exit_gate(), ++done_, [this](int part) { return holder(part); });
}

void Eager::local(const Copy& c) {
    if (c.reduce) join(c.target, c.target, c.source, c.count);
    else std::memmove(c.target, c.source, c.count * size_of(type_));
}

void Eager::send(const EagerMessage& s) {
    std::uint64_t& known = known_[static_cast<std::size_t>(s.peer)];
    if (known + 1 < done_) {
        watch_.wait(progress(s.peer), done_ - 1, s.peer);
        known = done_ - 1;
    }
    std::byte* half = s.mailbox + (done_ & 1) * s.stride;
    std::memcpy(half + sizeof(Word), s.span, s.count * size_of(type_));
    stored(s.peer, s.count * size_of(type_));
    watch_.publish(*reinterpret_cast<Word*>(half), done_ + 1);
}

void Eager::receive(const EagerMessage& r) {
    std::byte* half = r.mailbox + (done_ & 1) * r.stride;
    watch_.wait(*reinterpret_cast<Word*>(half), done_ + 1, r.peer);
    const std::byte* message = half + sizeof(Word);
    if (r.other) join(r.span, r.other, message, r.count);
    else std::memcpy(r.span, message, r.count * size_of(type_));
    std::uint64_t& known = known_[static_cast<std::size_t>(r.peer)];
    known = std::max(known, done_);
}

void Eager::run() {
    std::int64_t index = 0;
    const auto passed = [&](const EagerMessage& m, bool load, double begin) {
        if (trace_) trace_->push_back({load, m.peer, m.count * size_of(type_), index, begin, now()});
    };
    for (const Exchange& step : steps_) {
        for (const Copy& c : step.before) local(c);
        for (const EagerMessage& s : step.sends) {
            const double begin = seen();
            send(s);
            passed(s, false, begin);
        }
        const double ready = seen();
        for (const EagerMessage& r : step.receives) {
            receive(r);
            passed(r, true, ready);
        }
        for (const Copy& c : step.after) local(c);
        ++index;
    }
    ++done_;
    watch_.publish(progress(watch_.rank()), done_);
}

}  // namespace busbar
