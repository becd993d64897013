// Threads stand in for ranks: the native plans without Python, to be run under AddressSanitizer
// and ThreadSanitizer (`make check-native`). Every iteration has inputs of its own, written as soon
// as the one before returned, and its result is compared at once: a wait that is missing at the
// beginning, between or at the end is a race or a difference, and either ends it.
// `tests.torture.executors` removes the waits one by one and sees whether that holds.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "plans.hpp"

using namespace busbar;

namespace {

std::atomic<int> checks = 0;

void expect(bool holds, const char* what) {
    ++checks;
    if (holds) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::exit(1);
}

using Ints = std::vector<std::int32_t>;

std::byte* bytes(Ints& v, std::size_t from = 0) {
    return reinterpret_cast<std::byte*>(v.data() + from);
}

// What ranks share: their buffers, a life line each, and the lines of one plan.
struct World {
    World(int size, std::size_t count)
        : size(size), in(size), out(size), life(size), lines(plan_lines(size)) {
        // Counts lie in what is padding to a line, which a vector need not clear.
        std::memset(static_cast<void*>(lines.data()), 0, lines.size() * sizeof(Line));
        for (int r = 0; r < size; ++r) {
            for (std::size_t i = 0; i < count; ++i) in[r].push_back(int(i) * 7 + r);
            out[r].assign(count, -1);
        }
    }
    template <class Body>
    void run(bool crowded, Body body) {
        std::vector<std::thread> ranks;
        for (int r = 0; r < size; ++r)
            ranks.emplace_back([&, r] {
                Watch watch(r, life.data(), std::vector<int>(size, 0), crowded, 30, {});
                body(r, watch);
            });
        for (auto& rank : ranks) rank.join();
    }
    int size;
    std::vector<Ints> in, out;
    std::vector<Line> life, lines;
};

// What a rank's elements hold before an iteration: other values in every one.
void refill(Ints& mine, const Ints& first, int iteration) {
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = first[i] + 13 * iteration;
}

// Two-shot: every rank takes the largest of its share of all inputs into all outputs, in one pass.
void two_shot(int size, std::size_t share, bool crowded, bool in_place, bool stream) {
    World world(size, share * size);
    const auto inputs = world.in;
    constexpr int iterations = 20;
    world.run(crowded, [&](int r, Watch& watch) {
        Task task{true, share, {}, {}, {}};
        auto& to = in_place ? world.in : world.out;
        for (int p = 0; p < size; ++p) {
            task.sources.push_back({bytes(world.in[p], r * share), false, false});
            task.targets.push_back({bytes(to[p], r * share), false, stream});
        }
        Direct plan(watch, world.lines.data(), Type::int32, Op::max, {task}, {},
                    std::vector<std::int64_t>(size, 1),
                    {std::int64_t(share), 1, 0, true, true, true});
        const auto right = [&](int it) {
            for (std::size_t i = 0; i < to[r].size(); ++i)
                if (to[r][i] != inputs[size - 1][i] + 13 * it) return false;
            return true;
        };
        for (int it = 0; it < iterations; ++it) {
            std::fill(world.out[r].begin(), world.out[r].end(), -1);
            refill(world.in[r], inputs[r], it);
            plan.run();
            expect(right(it), "two-shot");
        }
        plan.spans(3);
        plan.spans(3, {}, true);
        expect(right(iterations - 1), "two-shot, again");
    });
}

// Sums of all ranks' inputs by parts that whoever has a core takes.
void worksharing(int size, std::size_t share, bool crowded, bool in_place, int iterations) {
    World world(size, share * size);
    const auto inputs = world.in;
    Ints wanted = inputs[0];
    for (int p = 1; p < size; ++p)
        for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += inputs[p][i];
    world.run(crowded, [&](int r, Watch& watch) {
        auto& to = in_place ? world.in : world.out;
        std::vector<Part> parts(size);
        for (int owner = 0; owner < size; ++owner) {
            Task task{true, share, {}, {}, {}};
            for (int p = 0; p < size; ++p) {
                task.sources.push_back({bytes(world.in[p], owner * share), false, false, p});
                task.targets.push_back({bytes(to[p], owner * share), false, false, p});
            }
            parts[owner].push_back(task);
        }
        WorkSharing plan(watch, world.lines.data(), Type::int32, Op::sum, parts);
        for (int i = 0; i < iterations; ++i) {
            // One's own memory may change between iterations: nobody else touches it then.
            refill(world.in[r], inputs[r], i);
            std::fill(world.out[r].begin(), world.out[r].end(), -1);
            plan.run();
            Ints sums(wanted);
            for (auto& value : sums) value += 13 * i * size;
            expect(to[r] == sums, "work sharing");
        }
    });
    // Whoever did a part, it loaded and stored what it did not have itself.
    std::uint64_t counted = 0;
    const auto* traffic = reinterpret_cast<const std::uint64_t*>(world.lines.data() + control_lines(size));
    for (std::size_t i = 0; i < 2 * size * traffic_lines(size) * sizeof(Line) / 8; ++i) counted += traffic[i];
    expect(counted == 2 * std::uint64_t(iterations) * std::uint64_t(size - 1) * share * size * 4, "traffic");
}

// Round a ring, window by window: hop h copies what the left neighbour got at hop h - 1. `staged`:
// hop h of a window is done a round after hop h - 1.
void ring(int size, std::size_t count, std::size_t window, bool crowded, bool staged) {
    World world(size, count * size);
    const auto inputs = world.in;
    world.run(crowded, [&](int r, Watch& watch) {
        const int left = (r + size - 1) % size, right = (r + 1) % size;
        std::vector<Task> tasks{
            {true, count, {{bytes(world.out[r], r * count), false, false}},
             {{bytes(world.in[r], r * count), false, false}}, {}}};
        for (int h = 1; h < size; ++h) {
            const std::size_t c = std::size_t((r + size - h) % size) * count;
            tasks.push_back({true, count, {{bytes(world.out[r], c), false, false}},
                             {{bytes(world.out[left], c), false, false}},
                             {{left, h - 1, staged * (h - 1)}}, staged * h});
        }
        Direct plan(watch, world.lines.data(), Type::int32, Op::sum, tasks,
                    {{right, size - 1, staged * (size - 1)}},
                    std::vector<std::int64_t>(size, size),
                    {std::int64_t(window), std::int64_t((count + window - 1) / window),
                     staged * (size - 1), false, false, false});
        for (int i = 0; i < 20; ++i) {
            std::fill(world.out[r].begin(), world.out[r].end(), -1);
            refill(world.in[r], inputs[r], i);
            plan.run();
            bool right = true;
            for (std::size_t j = 0; j < world.out[r].size(); ++j)
                right = right && world.out[r][j] == int(j) * 7 + int(j / count) + 13 * i;
            expect(right, "ring");
        }
    });
}

// Recursive doubling in place: what arrives is put aside until the partner has read.
void exchange(int size, std::size_t count, bool crowded) {
    World world(size, count);
    const auto inputs = world.in;
    world.run(crowded, [&](int r, Watch& watch) {
        Ints stage(count);
        std::vector<Task> tasks;
        std::int64_t n = 0;
        for (int d = 1; d < size; d *= 2, n += 2) {
            const int peer = r ^ d;
            const Place mine{bytes(world.in[r]), false, false};
            tasks.push_back({true, count, {{bytes(stage), true, false}},
                             {{bytes(world.in[peer]), false, false}}, {{peer, n - 1}}});
            tasks.push_back({true, count, {mine},
                             {mine, {bytes(stage), true, false}}, {{peer, n}}});
        }
        Direct plan(watch, world.lines.data(), Type::int32, Op::sum, tasks, {},
                    std::vector<std::int64_t>(size, n),
                    {std::int64_t(count), 1, 0, false, false, false});
        const int ranks = size * (size - 1) / 2;
        for (int it = 0; it < 20; ++it) {
            refill(world.in[r], inputs[r], it);
            plan.run();
            bool right = true;
            for (std::size_t i = 0; i < count; ++i)
                right = right && world.in[r][i] == (int(i) * 7 + 13 * it) * size + ranks;
            expect(right, "exchange");
        }
    });
}

// Everyone's vector to everyone through mailboxes, many times. Nobody sends to rank 0, so no message
// tells it how far the others are, and it does nothing but send.
void messages(int size, std::size_t count, bool crowded) {
    World world(size, count);
    const auto inputs = world.in;
    const std::size_t half = (sizeof(Word) + count * 4 + 127) / 128 * 128;
    std::vector<Line> mail(half * 2 * std::size_t(size * size) / sizeof(Line));
    const auto box = [&](int from, int to) {
        return reinterpret_cast<std::byte*>(mail.data()) +
               std::size_t(from * size + to) * 2 * half;
    };
    world.run(crowded, [&](int r, Watch& watch) {
        Exchange step;
        step.before.push_back({bytes(world.out[r]), bytes(world.in[r]), count, false});
        for (int p = 0; p < size; ++p) {
            if (p == r) continue;
            if (p != 0) step.sends.push_back({p, box(r, p), half, bytes(world.in[r]), nullptr, count});
            if (r != 0)
                step.receives.push_back(
                    {p, box(p, r), half, bytes(world.out[r]), bytes(world.out[r]), count});
        }
        Eager plan(watch, world.lines.data(), Type::int32, Op::sum, {step});
        const int n = r == 0 ? 1 : size, ranks = r == 0 ? 0 : size * (size - 1) / 2;
        for (int it = 0; it < 300; ++it) {
            refill(world.in[r], inputs[r], it);
            plan.run();
            bool right = true;
            for (std::size_t i = 0; i < count; ++i)
                right = right && world.out[r][i] == (int(i) * 7 + 13 * it) * n + ranks;
            expect(right, "messages");
        }
    });
}

// Behind a barrier what every rank did before is there for all.
void together(int size, bool crowded) {
    World world(size, 64);
    world.run(crowded, [&](int r, Watch& watch) {
        Direct plan(watch, world.lines.data(), Type::int32, Op::sum, {}, {}, {}, {});
        const auto hold = [](const std::vector<Ints>& all, int value) {
            bool right = true;
            for (const Ints& one : all) right = right && one[0] == value && one[63] == value;
            return right;
        };
        for (int it = 0; it < 50; ++it) {
            std::fill(world.in[r].begin(), world.in[r].end(), it);
            plan.barrier();
            expect(hold(world.in, it), "barrier");
            plan.barrier();
        }
    });
}

// A rank that leaves, and one that never comes, end the wait of the others. What the rank wrote before
// it left is there for whoever has seen it leave.
void lost() {
    World world(2, 1);
    world.run(true, [&](int r, Watch& watch) {
        if (r == 1) {
            world.in[1][0] = 99;
            watch.leave();
            return;
        }
        bool ended = false;
        try {
            watch.wait(world.lines[0].word, 1, 1);
        } catch (const Failure& f) {
            ended = f.rank == 1 && f.reason == Reason::left;
        }
        expect(ended && world.in[1][0] == 99, "a rank that left is noticed");
    });
    Watch watch(0, world.life.data(), {0, 0}, false, 0.05, {});
    bool late = false;
    try {
        world.life[1].word.value.store(0);
        watch.wait(world.lines[1].word, 1, 1);
    } catch (const Failure& f) {
        late = f.reason == Reason::late;
    }
    expect(late, "the deadline passes");
}

// Whoever took a rank's tasks and does not finish them is named, not the rank whose they are.
void held() {
    World world(3, 1);
    Watch watch(0, world.life.data(), {0, 0, 0}, true, 0.05, {});
    const Gate gate{world.lines[0].word, world.lines.data() + 1};
    watch.arrive(gate, 0);
    watch.arrive(gate, 1);
    int named = -1;
    try {
        watch.wait_all(gate, 1, [](int) { return 1; });
    } catch (const Failure& f) {
        named = f.reason == Reason::late ? f.rank : -1;
    }
    expect(named == 1, "the holder is named");
}

// Every kernel at every tail: exactly sized heap blocks, so that a step too far is seen.
void tails() {
    for (const char* isa : {"plain", "avx2", "avx512"}) {
        const Kernels* k = kernels(isa);
        if (!k) continue;
        for (int type = 0; type < kTypes; ++type)
            for (int op = 0; op < kOps; ++op)
                for (const std::size_t count : {0, 1, 2, 31, 33, 4097, 8200})
                    for (const int n : {2, 3, 4, 5, 9, 16, 17}) {
                        const std::size_t size = count * size_of(Type(type));
                        std::vector<std::unique_ptr<std::byte[]>> blocks;
                        std::vector<const void*> sources;
                        std::vector<Target> targets;
                        for (int i = 0; i < n; ++i) {
                            blocks.push_back(std::make_unique<std::byte[]>(size));
                            sources.push_back(blocks.back().get());
                        }
                        for (int i = 0; i < 3; ++i) {
                            blocks.push_back(std::make_unique<std::byte[]>(size));
                            std::memset(blocks.back().get(), 0xff, size);
                            targets.push_back({blocks.back().get(), i == 1});
                        }
                        k->carry_out(Type(type), Op(op), {targets.data(), 3, sources.data(), n, count});
                        for (const Target& t : targets)
                            expect(!size || !std::memcmp(t.at, sources[0], size), "zeros stay zero");
                    }
    }
}

}  // namespace

int main() {
    for (const bool crowded : {false, true}) {
        for (const bool in_place : {false, true})
            for (const bool stream : {false, true}) two_shot(4, 3000, crowded, in_place, stream);
        for (const bool staged : {false, true}) {
            ring(3, 1000, 96, crowded, staged);
            ring(4, 64, 64, crowded, staged);
        }
        for (const bool in_place : {false, true}) worksharing(5, 2000, crowded, in_place, 5);
        worksharing(3, 1, crowded, true, 3000);  // so little that ranks often claim at once
        exchange(4, 5000, crowded);
        messages(3, 5, crowded);
        messages(2, 500, crowded);
        together(3, crowded);
    }
    lost();
    held();
    tails();
    std::printf("%d checks hold\n", checks.load());
}
