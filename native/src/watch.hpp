// How a rank waits for others in shared memory, and when it gives up.
//
// Words only grow. A rank publishes with release and waits with acquire, so everything written before
// a publication is seen after the wait. If there are more ranks than cores, a waiting rank yields, then
// sleeps on a futex; otherwise it spins, and yields while the awaited rank is on the same core.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

namespace busbar {

// A word that ranks wait on.
struct alignas(16) Word {
    std::atomic<std::uint64_t> value;
    std::atomic<std::uint32_t> sleepers;
};
// A word alone on its pair of cache lines (prefetchers fetch pairs).
struct alignas(128) Line {
    Word word;
    std::atomic<std::uint32_t> core;  // in the line `life` of a rank: the core it was last on, plus 1
};
static_assert(sizeof(Word) == 16 && sizeof(Line) == 128);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

enum class Reason : int { died = 1, left = 2, late = 3, interrupted = 4 };

// A word that every rank of a plan raises by one in each iteration. `arrivals[r]`, a line that belongs
// to rank r, counts its arrivals, so that an error can name the ranks that are missing.
struct Gate {
    Word& count;
    Line* arrivals;
};

// Thrown by a wait that can no longer succeed; `rank`: the rank that failed or is missing.
struct Failure {
    int rank;
    Reason reason;
};

class Watch {
public:
    // `life`: one line per rank, 0 until the rank leaves normally. `pids`: the ranks' processes; a rank
    // in this process is not watched. `crowded`: more ranks than cores. `deadline`: seconds.
    // `interrupted` is called now and then during a wait.
    Watch(
        int rank, Line* life, const std::vector<int>& pids, bool crowded, double deadline,
        std::function<bool()> interrupted);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    // Returns when the word has reached a value; `peer`: the rank that will raise it.
    void wait(Word& word, std::uint64_t value, int peer) const {
        if (word.value.load(std::memory_order_acquire) < value)
            wait_long(word, value, [peer](int rank) { return rank == peer; });
    }
    void publish(Word& word, std::uint64_t value) const {
        if (!crowded_) word.value.store(value, std::memory_order_release);
        else word.value.exchange(value), wake(word);
    }
    // Counts the arrival of a rank: this one, or the one whose part it did. The last arrival of a round
    // wakes all waiting ranks.
    void arrive(const Gate& gate, int rank) const {
        Word& word = gate.arrivals[rank].word;
        word.value.store(word.value.load(std::memory_order_relaxed) + 1, std::memory_order_release);
        const std::uint64_t arrived = gate.count.value.fetch_add(1) + 1;
        if (crowded_ && arrived % pidfds_.size() == 0) wake(gate.count);
    }
    // Returns when every rank has arrived so many times. `holder(r)`: the rank that counts r's arrival.
    template <class Holder>
    void wait_all(const Gate& gate, std::uint64_t times, Holder holder) const {
        const std::uint64_t value = times * pidfds_.size();
        if (gate.count.value.load(std::memory_order_acquire) >= value) return;
        wait_long(gate.count, value, [&](int rank) {
            for (int r = 0; r < size(); ++r)
                if (gate.arrivals[r].word.value.load(std::memory_order_acquire) < times &&
                    holder(r) == rank)
                    return true;
            return false;
        });
    }
    void wait_all(const Gate& gate, std::uint64_t times) const {
        wait_all(gate, times, [](int rank) { return rank; });
    }
    // Returns at a time of the clock of `now`; yields meanwhile if there are more ranks than cores.
    void until(double time) const;
    // Records which core this rank is on, for ranks that wait for it.
    void here() const;
    // Throws if `interrupted` says so; asks it ten times a second at most.
    void look() const;
    // This rank leaves normally: it has published everything that others wait for.
    void leave() const { life_[rank_].word.value.store(1, std::memory_order_release); }
    // Throws if a wait for a word can no longer succeed: a rank has died, a missing one has left, or
    // the deadline has passed. `waited`: seconds so far.
    using Missing = std::function<bool(int)>;  // whether the wait still needs a rank
    void check(Word& word, std::uint64_t value, const Missing& missing, double waited) const;
    // Sleeps until a word may have reached a value, `seconds` at most.
    void sleep(Word& word, std::uint64_t value, double seconds) const;
    bool crowded() const { return crowded_; }
    int rank() const { return rank_; }
    int size() const { return static_cast<int>(pidfds_.size()); }

private:
    void wait_long(Word& word, std::uint64_t value, const Missing& missing) const;
    // Whether a missing rank was last on this core.
    bool share_core(const Missing& missing) const;
    void wake(Word& word) const;

    int rank_;
    Line* life_;
    bool crowded_;
    double deadline_;
    std::function<bool()> interrupted_;
    std::vector<int> pidfds_;
    mutable std::uint32_t core_ = 0;  // as last recorded by `here`
    mutable double looked_ = 0;       // when `look` last asked
};

double now();

}  // namespace busbar
