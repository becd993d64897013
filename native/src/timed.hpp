// Base of everything that is run repeatedly and timed: the loop is here, outside the interpreter.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

namespace busbar {

class Timed {
public:
    virtual ~Timed() = default;
    // Runs the operation once.
    virtual void run() = 0;
    // Returns when every rank has called it.
    virtual void barrier() = 0;
    // Runs n iterations; returns when each began and ended, by the clock of `now`. Each begins after a
    // barrier, or with `at` at its own time, at once if that has passed. `loop`: the iterations run back
    // to back and are timed as one. `slower`: makes the timed part longer by this fraction of itself, to
    // check comparisons (`bench.selfcheck`).
    using Spans = std::pair<std::vector<double>, std::vector<double>>;
    Spans spans(
        int n, const std::vector<double>& at = {}, bool loop = false, double slower = 0);
    // Iterations of `spans` that have begun so far, also those that are still in their barrier. Any
    // thread may call it meanwhile.
    std::int64_t begun() const { return begun_.load(std::memory_order_relaxed); }
    // The rank that this rank waits for now, or -1.
    int waiting() const { return waiting_.load(std::memory_order_relaxed); }

protected:
    void waits_for(int rank) { waiting_.store(rank, std::memory_order_relaxed); }
    // Returns at a time of the clock of `now`; throws if the run has to end before that.
    virtual void until(double time) = 0;
    // Called now and then between iterations; throws if the run has to end.
    virtual void look() {}

private:
    // Only the thread that runs the iterations writes the count, so a plain store is enough.
    void count() { begun_.store(begun() + 1, std::memory_order_relaxed); }
    std::atomic<std::int64_t> begun_{0};
    std::atomic<int> waiting_{-1};
};

// Clock rate of this core in Hz, from a chain of additions: each needs the result before it and takes
// one cycle. The best of a few tries of 2.5 us (at 4 GHz). 0 on other processors than x86-64 and arm64.
double core_hz();

}  // namespace busbar
