#include "watch.hpp"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <bit>
#include <climits>

namespace busbar {

namespace {

constexpr double kPatience = 0.02;  // seconds between checks that the other ranks live
constexpr double kLooks = 0.1;      // seconds between two looks at signals while no wait is long
constexpr int kSpins = 4000;        // polls before giving the core away
// Polls between checks whether a missing rank was last on this core, and so cannot run.
constexpr int kLook = 64;
// Yields before sleeping, for ranks that share a core: a yield costs less than to sleep and be woken
// (docs/shared-memory.md).
constexpr int kYields = 64;
// Vain yields (no other process ran) before sleeping: the others are on cores of their own, asleep, or
// in another scheduling group, which a yield skips (some launchers start each rank in its own session).
constexpr int kVain = 16;
constexpr double kSwitch = 0.7e-6;  // seconds; a yield that took less was vain

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

std::uint32_t* futex_of(Word& word) {
    auto* half = reinterpret_cast<std::uint32_t*>(&word.value);
    return std::endian::native == std::endian::little ? half : half + 1;
}

}  // namespace

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

Watch::Watch(
    int rank, Line* life, const std::vector<int>& pids, bool crowded, double deadline,
    std::function<bool()> interrupted)
    : rank_(rank),
      life_(life),
      crowded_(crowded),
      deadline_(deadline),
      interrupted_(std::move(interrupted)) {
    for (const int pid : pids) {
        // A pidfd becomes readable when the process ends, even while nobody has reaped it.
        const bool watched = pid > 0 && pid != getpid();
        pidfds_.push_back(watched ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : -1);
    }
}

Watch::~Watch() {
    for (const int fd : pidfds_)
        if (fd >= 0) close(fd);
}

void Watch::wait_long(Word& word, std::uint64_t value, const Missing& missing) const {
    const auto reached = [&] { return word.value.load(std::memory_order_acquire) >= value; };
    for (int i = 0; i < (crowded_ ? 0 : kSpins); ++i) {
        if (reached()) return;
        if (i > kLook) relax();
        if (i % kLook != kLook - 1) continue;
        here();
        if (share_core(missing)) sched_yield();  // sleeping instead took milliseconds beside a busy loop
    }
    const double start = now();
    double looked = start, t = start;
    for (int yields = 0, vain = 0; !reached(); ++yields) {
        const double before = t;
        const bool asleep = crowded_ && (yields >= kYields || vain >= kVain);
        if (asleep) sleep(word, value, kPatience);
        else sched_yield();
        t = now();
        vain += !asleep && t - before < kSwitch;
        if (t - looked > kPatience) {
            check(word, value, missing, t - start);
            looked = t;
        }
    }
}

void Watch::here() const {
    const auto core = static_cast<std::uint32_t>(sched_getcpu()) + 1;
    if (core == core_) return;
    core_ = core;
    life_[rank_].core.store(core, std::memory_order_relaxed);
}

void Watch::until(double time) const {
    here();
    double looked = now();
    for (double t = looked; t < time; t = now()) {
        if (crowded_) sched_yield();
        else relax();
        if (t - looked < kPatience) continue;
        if (interrupted_ && interrupted_()) throw Failure{rank_, Reason::interrupted};
        looked = t;
    }
}

void Watch::look() const {
    const double time = now();
    if (time - looked_ < kLooks) return;
    looked_ = time;
    if (interrupted_ && interrupted_()) throw Failure{rank_, Reason::interrupted};
}

bool Watch::share_core(const Missing& missing) const {
    for (int r = 0; r < size(); ++r)
        if (r != rank_ && life_[r].core.load(std::memory_order_relaxed) == core_ && missing(r))
            return true;
    return false;
}

void Watch::sleep(Word& word, std::uint64_t value, double seconds) const {
    const timespec timeout{0, static_cast<long>(seconds * 1e9)};
    word.sleepers.fetch_add(1);
    const std::uint64_t seen = word.value.load();
    if (seen < value) {
        // Returns at once if the word has changed since `seen`, so no wake-up is lost.
        syscall(SYS_futex, futex_of(word), FUTEX_WAIT, static_cast<std::uint32_t>(seen), &timeout,
                nullptr, 0);
    }
    word.sleepers.fetch_sub(1);
}

void Watch::wake(Word& word) const {
    if (word.sleepers.load())
        syscall(SYS_futex, futex_of(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Watch::check(
    Word& word, std::uint64_t value, const Missing& missing, double waited) const {
    if (interrupted_ && interrupted_()) throw Failure{rank_, Reason::interrupted};
    // A rank whose process ended without leaving is the cause, even if another rank is missing.
    for (int r = 0; r < size(); ++r) {
        pollfd p{pidfds_[r], POLLIN, 0};
        if (p.fd >= 0 && poll(&p, 1, 0) > 0 && !life_[r].word.value.load())
            throw Failure{r, Reason::died};
    }
    for (int r = 0; r < size(); ++r) {
        if (r == rank_ || !missing(r)) continue;
        const bool left = life_[r].word.value.load();
        if (!left && waited <= deadline_) continue;
        // The rank may have done its part just before it left.
        if (word.value.load() >= value) return;
        throw Failure{r, left ? Reason::left : Reason::late};
    }
}

}  // namespace busbar
