#include "calls.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "kernels.hpp"
#include "watch.hpp"

namespace busbar {

namespace {

constexpr double kSeconds = 0.1;  // between two calls of `interrupted`, and between two looks at ranks
constexpr int kSuccess = 0;       // MPI_SUCCESS, by the standard
// The most tests of a request before a yield. There is one test after a yield that let another process
// run (it took longer than kSwitch seconds), and twice as many after every vain yield.
constexpr int kSpins = 256;
constexpr double kSwitch = 0.7e-6;
// Seconds that a rank sleeps after a vain yield if there are more ranks than cores: the rank that it
// waits for may be in another scheduling group (ranks of another emulated host), which a yield skips.
// A word in shared memory wakes it; a message of MPI does not.
constexpr double kWordNap = 1e-3, kMessageNap = 1e-4;
// Seconds before a time that is waited for in which `interrupted` is not called: it takes the
// interpreter's lock, which another thread may hold for 5 ms.
constexpr double kQuiet = 0.01;

void nap() {
    const timespec time{0, static_cast<long>(kMessageNap * 1e9)};
    nanosleep(&time, nullptr);
}

// Handle: int or void*, as the library declares its own.
template <class Handle>
class CallList final : public Calls {
public:
    CallList(
        std::vector<MpiCall> list, std::vector<int> parts, void* barrier, std::uint64_t comm,
        const Watch* watch, std::function<bool()> interrupted)
        : list_(prepared(std::move(list))),
          parts_(std::move(parts)),
          barrier_(barrier),
          comm_(handle(comm)),
          watch_(watch),
          interrupted_(std::move(interrupted)) {}

    void run() override {
        for (MpiCall* c = list_.data();; ++c) {
            // Without the switch: a put takes as little as 12 ns.
            for (; c->shape == Shape::reach; c += 2) {
                const int codes[] = {put(*c), flush(c[1])};
                if (codes[0] | codes[1]) kept(codes[0] ? codes[0] : codes[1], c->to);
            }
            while (c->shape == Shape::one_sided) {
                kept(put(*c), c->to);
                ++c;
            }
            if (c->shape == Shape::wait) {
                if (!complete(*c)) wait_for(*c);
                continue;
            }
            if (c->shape == Shape::shapes) break;
            carry_out(*c);
        }
        end();
    }
    void part(std::size_t from, std::size_t to) override {
        for (std::size_t i = from; i < to; ++i) carry_out(at(i));
    }
    void end() override { ++done_; }
    bool test(std::size_t index) override { return complete(at(index)); }
    void barrier() override { kept(as<int(Handle)>(barrier_)(comm_)); }

protected:
    // Other ranks may use the core meanwhile.
    void until(double time) override {
        for (double left = time - now(); left > 0; left = time - now()) {
            if (left > kQuiet) look();
            sched_yield();
        }
    }
    void look() override {
        const double time = now();
        if (time - looked_ < kSeconds) return;
        looked_ = time;
        if (interrupted_()) throw Failure{-1, Reason::interrupted};
    }

private:
    // The list as `run` needs it. Behind its last call is one of no shape, at which the loop stops. A
    // put or get that a flush follows has a shape of its own.
    static std::vector<MpiCall> prepared(std::vector<MpiCall> list) {
        list.emplace_back().shape = Shape::shapes;
        for (std::size_t i = 0; i + 1 < list.size(); ++i)
            if (list[i].shape == Shape::one_sided && list[i + 1].shape == Shape::flush)
                list[i].shape = Shape::reach;
        return list;
    }
    MpiCall& at(std::size_t index) {
        if (index + 1 >= list_.size()) throw std::out_of_range("no such call");
        return list_[index];
    }
    static Handle handle(std::uint64_t value) {
        if constexpr (std::is_pointer_v<Handle>) return reinterpret_cast<Handle>(value);
        else return static_cast<Handle>(static_cast<std::uint32_t>(value));
    }
    template <class Function>
    static Function* as(void* address) {
        return reinterpret_cast<Function*>(address);
    }
    static void kept(int code, int peer = -1) {
        if (code != kSuccess) throw CallFailed{code, peer};
    }
    bool complete(MpiCall& c) {
        int flag = 0;
        kept(
            as<int(Handle*, int*, void*)>(c.function)(static_cast<Handle*>(c.source), &flag, status_),
            c.to);
        return flag;
    }
    void progress(const MpiCall& c) {
        int flag = 0;
        kept(as<int(int, int, Handle, int*, void*)>(c.function)(c.from, 0, comm_, &flag, status_), c.to);
    }
    // The value of a word at a step of this iteration.
    std::uint64_t mark(const MpiCall& c) const {
        return done_ * static_cast<std::uint64_t>(c.receives) + static_cast<std::uint64_t>(c.sends);
    }
    static Word& word(const MpiCall& c) { return *static_cast<Word*>(c.source); }
    // While it exists, the rank waits for a peer; also a wait that throws ends.
    struct Waiting {
        Waiting(CallList& list, int peer) : list_(list) { list_.waits_for(peer); }
        ~Waiting() { list_.waits_for(-1); }
        CallList& list_;
    };
    // MPI's blocking wait would not react to signals and would keep the core. `rest` is called after a
    // vain yield.
    template <class Done, class Rest>
    void wait(int peer, Done done, Rest rest) {
        if (done()) return;
        const Waiting waiting(*this, peer);
        for (int left = spins_;; --left) {
            if (left <= 0) {
                const double before = now();
                sched_yield();
                const bool vain = now() - before <= kSwitch;
                spins_ = vain && !crowded() ? std::min(kSpins, 2 * spins_) : 1;
                if (vain && crowded()) rest();
                left = spins_;
                look();
            }
            if (done()) return;
        }
    }
    bool crowded() const { return watch_ && watch_->crowded(); }
    [[gnu::noinline]] void await(const MpiCall& c) {
        const std::uint64_t value = mark(c);
        const auto reached = [&] { return word(c).value.load(std::memory_order_acquire) >= value; };
        if (reached()) return;
        const int neighbour = static_cast<int>(c.type);
        const double begun = now();
        double looked = begun;
        unsigned polls = 0;
        const auto done = [&] {
            progress(c);
            if (reached()) return true;
            if (++polls % kSpins == 0 || crowded()) {
                const double time = now();
                if (time - looked > kSeconds) {
                    looked = time;
                    watch_->check(
                        word(c), value, [&](int rank) { return rank == neighbour; }, time - begun);
                }
            }
            return reached();
        };
        wait(c.to, done, [&] { watch_->sleep(word(c), value, kWordNap); });
    }
    [[gnu::noinline]] void wait_for(MpiCall& c) {
        wait(c.to, [&] { return complete(c); }, [] { nap(); });
    }
    [[gnu::noinline]] void reduce(const MpiCall& c) {
        const Target target{c.target, false};
        const void* sources[] = {c.source, c.other};
        kernels_.carry_out(
            Type(c.type), Op(c.op), {&target, 1, sources, 2, static_cast<std::size_t>(c.sends)});
    }
    // MPI_Put and MPI_Get.
    [[gnu::always_inline]] int put(const MpiCall& c) {
        const Handle type = handle(c.type);
        const int n = static_cast<int>(c.sends);
        return as<int(void*, int, Handle, int, std::intptr_t, int, Handle, Handle)>(c.function)(
            c.source, n, type, c.to, static_cast<std::intptr_t>(c.receives), n, type, handle(c.op));
    }
    [[gnu::always_inline]] int flush(const MpiCall& c) {
        return as<int(int, Handle)>(c.function)(c.to, handle(c.op));
    }
    // Inlined, and what needs registers or a stack of its own is not.
    [[gnu::always_inline]] void carry_out(MpiCall& c) {
        const Handle type = handle(c.type), op = handle(c.op);
        const int n = static_cast<int>(c.sends), m = static_cast<int>(c.receives);
        using Void = const void*;
        switch (c.shape) {
            case Shape::reduction:
                return kept(as<int(Void, void*, int, Handle, Handle, Handle)>(c.function)(
                    c.source, c.target, m, type, op, comm_));
            case Shape::rooted_reduction:
                return kept(as<int(Void, void*, int, Handle, Handle, int, Handle)>(c.function)(
                    c.source, c.target, n, type, op, c.to, comm_));
            case Shape::broadcast:
                return kept(as<int(void*, int, Handle, int, Handle)>(c.function)(
                    c.target, m, type, c.to, comm_));
            case Shape::exchange:
                return kept(as<int(Void, int, Handle, void*, int, Handle, Handle)>(c.function)(
                    c.source, n, type, c.target, m, type, comm_));
            case Shape::rooted_exchange:
                return kept(as<int(Void, int, Handle, void*, int, Handle, int, Handle)>(c.function)(
                    c.source, n, type, c.target, m, type, c.to, comm_));
            case Shape::variable: {
                const int *p = parts_.data(), size = static_cast<int>(parts_.size() / 4);
                return kept(as<int(Void, const int*, const int*, Handle, void*, const int*,
                                   const int*, Handle, Handle)>(c.function)(
                    c.source, p, p + size, type, c.target, p + 2 * size, p + 3 * size, type, comm_));
            }
            case Shape::sendrecv:
                return kept(as<int(Void, int, Handle, int, int, void*, int, Handle, int, int, Handle,
                                   void*)>(c.function)(
                    c.source, n, type, c.to, 0, c.target, m, type, c.from, 0, comm_, status_));
            case Shape::barrier:
                return kept(as<int(Handle)>(c.function)(comm_));
            case Shape::start:
                return kept(as<int(int, Handle*)>(c.function)(n, static_cast<Handle*>(c.source)));
            case Shape::wait:
                if (!complete(c)) wait_for(c);
                return;
            case Shape::one_sided:
            case Shape::reach:
                return kept(put(c), c.to);
            case Shape::flush:
                return kept(flush(c), c.to);
            case Shape::await:
                return await(c);
            case Shape::progress:
                return progress(c);
            case Shape::publish:
                return watch_->publish(word(c), mark(c));
            case Shape::reduce:
                return reduce(c);
            default:
                std::memcpy(c.target, c.source, static_cast<std::size_t>(c.sends));
        }
    }

    std::vector<MpiCall> list_;
    std::vector<int> parts_;
    void* barrier_;
    Handle comm_;
    const Watch* watch_;  // for the ranks that share memory; null: there are none
    std::function<bool()> interrupted_;
    const Kernels& kernels_ = kernels();
    std::uint64_t done_ = 0;  // iterations
    double looked_ = now();
    int spins_ = kSpins;
    // An MPI_Status is 20 bytes in MPICH, 24 in Open MPI, 32 in the MPI ABI.
    alignas(16) std::byte status_[128];
};

}  // namespace

std::unique_ptr<Calls> calls(
    std::vector<MpiCall> list, std::vector<int> parts, void* barrier, std::uint64_t comm, bool wide,
    const Watch* watch, std::function<bool()> interrupted) {
    for (const MpiCall& c : list)
        if (c.shape < Shape::reduction || c.shape >= Shape::shapes ||
            (!c.function && c.shape < Shape::publish) ||
            (!watch && (c.shape == Shape::await || c.shape == Shape::publish)))
            throw std::invalid_argument("a call of no known shape, or of no function");
    if (wide)
        return std::make_unique<CallList<void*>>(
            std::move(list), std::move(parts), barrier, comm, watch, std::move(interrupted));
    return std::make_unique<CallList<int>>(
        std::move(list), std::move(parts), barrier, comm, watch, std::move(interrupted));
}

}  // namespace busbar
