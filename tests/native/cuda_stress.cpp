// The CUDA executor on the host, threads standing in for ranks, blocks and their threads: to be run
// under ThreadSanitizer and AddressSanitizer (`make check-native`). Every result is compared.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "executor.cuh"

using namespace busbar;

namespace {

void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::exit(1);
}

using Ints = std::vector<int>;
using Words = std::vector<u64>;

template <class T>
u64 at(const std::vector<T>& v, std::size_t from = 0) {
    return reinterpret_cast<u64>(v.data() + from);
}

struct Wait {
    u64 peer, task;
};

struct Task {  // waits for others' tasks (1 is having entered), then one pass
    std::vector<Wait> waits;
    std::vector<u64> targets, sources;
    u64 count;
};

// One plan on so many ranks, each with so many blocks of so many threads.
class World {
public:
    World(u64 ranks, u32 blocks, u32 threads, std::vector<std::vector<Task>> tasks,
          std::vector<std::vector<Wait>> exits)
        : ranks_(ranks), blocks_(blocks), threads_(threads), tasks_(std::move(tasks)),
          exits_(std::move(exits)), words_(ranks, Words(ranks * blocks)),
          iterations_(ranks, Words(blocks)), life_(ranks, Words(ranks + 1)),
          status_(ranks, Words(kStatusWords)), plans_(ranks) {
        for (u64 r = 0; r < ranks; ++r) lay_out(r);
    }
    // All ranks launch n times, those left out not at all.
    void launch(int n, u64 without = ~0ull) {
        std::vector<std::thread> all;
        std::vector<std::unique_ptr<Meeting>> meetings;
        for (u64 r = 0; r < ranks_; ++r) {
            if (r == without) continue;
            for (u32 b = 0; b < blocks_; ++b) {
                Meeting& meeting = *meetings.emplace_back(std::make_unique<Meeting>(threads_));
                for (u32 t = 0; t < threads_; ++t)
                    all.emplace_back([this, n, r, b, t, &meeting] {
                        const Team team(meeting, t, threads_, b, blocks_);
                        for (int i = 0; i < n; ++i) {
                            program<Int32, kSum>(plans_[r].data(), plans_[r].size(), team);
                            team.together();  // where a launch would end
                        }
                    });
            }
        }
        for (auto& one : all) one.join();
    }
    u64 status(u64 rank, Status which) const { return status_[rank][which]; }
    void gone(u64 rank) {
        for (auto& life : life_) life[rank] = 1;
    }

private:
    u64 stride(u64 r) const { return 2 + tasks_[r].size(); }
    void wait(Words& to, const std::vector<Wait>& waits) const {
        for (const Wait& w : waits) to.insert(to.end(), {w.peer, stride(w.peer), w.task});
    }
    Words signals(u64 rank, u64 mark) const {
        Words found;
        for (u64 other = 0; other < ranks_; ++other) {
            bool listens = false;
            const auto look = [&](const std::vector<Wait>& waits) {
                for (const Wait& w : waits) listens |= w.peer == rank && w.task == mark;
            };
            for (const Task& t : tasks_[other]) look(t.waits);
            look(exits_[other]);
            if (listens) found.push_back(at(words_[other]) + 8 * rank);
        }
        return found;
    }
    void lay_out(u64 r) {
        std::vector<Words> records;
        const auto add = [&](u64 mark, const std::vector<Wait>& waits, const Task* task) {
            const Words tell = signals(r, mark);
            Words record{task ? task->count : 0, mark, waits.size(), tell.size(),
                         task ? task->targets.size() : 0, task ? task->sources.size() : 0};
            wait(record, waits);
            record.insert(record.end(), tell.begin(), tell.end());
            if (task)
                for (const auto* places : {&task->targets, &task->sources})
                    for (const u64 place : *places) record.insert(record.end(), {place, 0});
            records.push_back(record);
        };
        add(1, {}, nullptr);
        for (u64 i = 0; i < tasks_[r].size(); ++i) add(2 + i, tasks_[r][i].waits, &tasks_[r][i]);
        add(2 + tasks_[r].size(), exits_[r], nullptr);
        Words& plan = plans_[r];
        plan = {records.size(), ranks_, stride(r), at(iterations_[r]), at(words_[r]), at(life_[r]),
                at(life_[r], ranks_), at(status_[r]), 20'000'000'000ull, kHeader, kHeader + ranks_};
        for (u64 other = 0; other < ranks_; ++other)
            plan.push_back(other == r ? 0 : at(life_[other], r));
        u64 begin = plan.size() + records.size();
        for (const Words& record : records) plan.push_back(begin), begin += record.size();
        for (const Words& record : records) plan.insert(plan.end(), record.begin(), record.end());
    }

    u64 ranks_;
    u32 blocks_, threads_;
    std::vector<std::vector<Task>> tasks_;
    std::vector<std::vector<Wait>> exits_;
    std::vector<Words> words_, iterations_, life_, status_;
    std::vector<Words> plans_;
};

std::vector<Wait> others(u64 ranks, u64 me, u64 task) {
    std::vector<Wait> found;
    for (u64 r = 0; r < ranks; ++r)
        if (r != me) found.push_back({r, task});
    return found;
}

// Two-shot: every rank sums its share of all inputs into all outputs, in one pass.
void two_shot(u64 n, u64 share, u32 blocks, u32 threads) {
    std::vector<Ints> in(n, Ints(share * n)), out = in;
    for (u64 r = 0; r < n; ++r)
        for (u64 i = 0; i < share * n; ++i) in[r][i] = int(i * 7 + r);
    std::vector<std::vector<Task>> tasks(n);
    std::vector<std::vector<Wait>> exits;
    for (u64 r = 0; r < n; ++r) {
        Task task{others(n, r, 1), {}, {}, share};
        for (u64 p = 0; p < n; ++p) {
            task.sources.push_back(at(in[p], r * share));
            task.targets.push_back(at(out[p], r * share));
        }
        tasks[r] = {task};
        exits.push_back(others(n, r, 2));
    }
    World world(n, blocks, threads, tasks, exits);
    for (int round = 0; round < 3; ++round) {
        for (Ints& o : out) o.assign(share * n, -1);
        world.launch(4);
        for (const Ints& o : out)
            for (u64 i = 0; i < share * n; ++i)
                expect(o[i] == int(i * 7 * n + n * (n - 1) / 2), "two-shot");
    }
}

// Round a ring: hop h copies what the left neighbour got at hop h - 1.
void ring(u64 n, u64 count, u32 blocks, u32 threads) {
    std::vector<Ints> in(n, Ints(count)), out(n, Ints(count * n));
    for (u64 r = 0; r < n; ++r)
        for (u64 i = 0; i < count; ++i) in[r][i] = int(r * 1000 + i);
    std::vector<std::vector<Task>> tasks(n);
    std::vector<std::vector<Wait>> exits;
    for (u64 r = 0; r < n; ++r) {
        const u64 left = (r + n - 1) % n, right = (r + 1) % n;
        tasks[r].push_back({{}, {at(out[r], r * count)}, {at(in[r])}, count});
        for (u64 h = 1; h < n; ++h) {
            const u64 chunk = (r + n - h) % n * count;
            tasks[r].push_back({{{left, 1 + h}}, {at(out[r], chunk)}, {at(out[left], chunk)}, count});
        }
        exits.push_back({{right, 1 + n}});
    }
    World world(n, blocks, threads, tasks, exits);
    world.launch(5);
    for (const Ints& o : out)
        for (u64 i = 0; i < count * n; ++i) expect(o[i] == int(i / count * 1000 + i % count), "ring");
}

// A rank that has left is named by those who wait for it, whatever block they are.
void left() {
    Ints a(100), b(100);
    World world(2, 3, 2, {{Task{{{1, 1}}, {at(a)}, {at(b)}, 100}}, {}}, {{}, {}});
    world.gone(1);
    world.launch(1, 1);
    expect(world.status(0, kReason) == kLeft && world.status(0, kPeer) == 1, "who left is named");
}

}  // namespace

int main() {
    for (const u32 threads : {1u, 2u}) {
        two_shot(2, 501, 1, threads);
        two_shot(3, 1000, 2, threads);
        ring(3, 1001, 2, threads);
        ring(4, 64, 1, threads);
    }
    left();
    std::printf("the CUDA executor's checks hold\n");
}
