// What is run again and again and timed here, so that the interpreter takes no part in what is timed.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

namespace busbar {

class Timed {
public:
    virtual ~Timed() = default;
    // Carries the operation out once.
    virtual void run() = 0;
    // Returns when every rank has come here.
    virtual void barrier() = 0;
    // Runs n iterations; when each began and when it ended, by `now`. Each begins behind a barrier,
    // or with `at` when `now` shows its time, and at once where that has passed. `loop`: the
    // iterations run back to back and are timed as one. `slower`: what is timed is made longer by
    // that share of itself, which checks of comparisons ask for.
    using Spans = std::pair<std::vector<double>, std::vector<double>>;
    Spans spans(
        int n, const std::vector<double>& at = {}, bool loop = false, double slower = 0);
    // Iterations of `spans` that have begun so far, those that wait behind their barrier among them;
    // any thread may ask while they go on.
    std::int64_t begun() const { return begun_.load(std::memory_order_relaxed); }
    // The rank whose message is waited for now, or -1.
    int waiting() const { return waiting_.load(std::memory_order_relaxed); }

protected:
    void waits_for(int rank) { waiting_.store(rank, std::memory_order_relaxed); }
    // Returns when `now` shows a time.
    virtual void until(double time) const = 0;
    // Called now and then between iterations; throws where they are to end.
    virtual void look() {}

private:
    // Only the thread that runs iterations writes, so this costs a plain store.
    void count() { begun_.store(begun() + 1, std::memory_order_relaxed); }
    std::atomic<std::int64_t> begun_{0};
    std::atomic<int> waiting_{-1};
};

// Cycles a second of the core that this runs on: additions that each need the one before take a
// cycle each. The best of a few tries, 2.5 us each at 4 GHz. 0 where the processor is not known.
double core_hz();

}  // namespace busbar
