// Our CUDA kernels compiled for the host: what tests load with ctypes in place of the GPU's. Same
// source, same table, same protocol. Threads stand in for the executor's blocks and their threads;
// those of the other kernels wait for nobody and take turns. Parameters: the numbers of type and
// operation, blocks, threads of each, and then the GPU kernel's own.
#include <memory>
#include <thread>
#include <vector>

#include "between.cuh"
#include "executor.cuh"

using namespace busbar;

namespace {

// Every block of a launch, with so many threads each; returns when all have ended.
template <class Body>
void launch(u32 blocks, u32 threads, Body body) {
    std::vector<std::unique_ptr<Meeting>> meetings;
    // All before the first thread begins: a vector that grows moves what threads look at.
    for (u32 b = 0; b < blocks; ++b) meetings.push_back(std::make_unique<Meeting>(threads));
    std::vector<std::thread> all;
    for (u32 b = 0; b < blocks; ++b)
        for (u32 t = 0; t < threads; ++t)
            if (b || t)
                all.emplace_back([&, b, t] { body(Team(*meetings[b], t, threads, b, blocks)); });
    body(Team(*meetings[0], 0, threads, 0, blocks));
    for (auto& one : all) one.join();
}

// Every thread of a launch, one after the other.
template <class Body>
void in_turn(u32 blocks, u32 threads, Body body) {
    Meeting meeting(threads);
    for (u32 b = 0; b < blocks; ++b)
        for (u32 t = 0; t < threads; ++t) body(Share(Team(meeting, t, threads, b, blocks)));
}

using Program = void (*)(const u64*, u64, const Team&);
using Reduce = void (*)(u64, u64, const u64 (&)[8], u64, u64, u64, bool, const Share&);
using Divide = void (*)(u64, u64, u64, const Share&);
using Differ = void (*)(u64, u64, u64, u64, u64, const Share&);

struct Kernels {
    Program program[5];
    Reduce reduce[4];
    Divide divide;
    Differ differ;
};
template <class F>
constexpr Kernels kernels_of = {
    {program<F, kSum>, program<F, kProd>, program<F, kMin>, program<F, kMax>,
     program<F, kAverage>},
    {reduce<F, kSum>, reduce<F, kProd>, reduce<F, kMin>, reduce<F, kMax>},
    divide<F>,
    differ<F>};
// In the order of ELEMENTS in collectives/execution/gpu/kernels.py.
constexpr Kernels kernels[] = {
    kernels_of<Int8>, kernels_of<Uint8>, kernels_of<Int32>, kernels_of<Uint32>, kernels_of<Int64>,
    kernels_of<Uint64>, kernels_of<Half>, kernels_of<Bfloat16>, kernels_of<Float>,
    kernels_of<Double>, kernels_of<Float8E4M3>, kernels_of<Float8E5M2>};

}  // namespace

extern "C" {

void busbar_program(int type, int op, u32 blocks, u32 threads, const u64* plan, u64 words) {
    launch(blocks, threads, [&](const Team& t) { kernels[type].program[op](plan, words, t); });
}
void reduce(int type, int op, u32 blocks, u32 threads, u64 out, u64 first, u64 a, u64 b, u64 c,
            u64 d, u64 e, u64 f, u64 g, u64 h, u64 sources, u64 n, u64 head, u64 wide) {
    const u64 from[8] = {a, b, c, d, e, f, g, h};
    in_turn(blocks, threads, [&](const Share& share) {
        kernels[type].reduce[op](out, first, from, sources, n, head, wide, share);
    });
}
void divide(int type, int, u32 blocks, u32 threads, u64 out, u64 by, u64 n) {
    in_turn(blocks, threads, [&](const Share& s) { kernels[type].divide(out, by, n, s); });
}
void differ(int type, int, u32 blocks, u32 threads, u64 given, u64 tile, u64 n, u64 period,
            u64 count) {
    in_turn(blocks, threads,
            [&](const Share& s) { kernels[type].differ(given, tile, n, period, count, s); });
}
}  // extern "C"
