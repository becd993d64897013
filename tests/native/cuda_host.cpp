// The CUDA executor compiled for the host, threads standing in for blocks and their threads: what
// tests load with ctypes in place of the GPU's kernels. Same source, same table, same protocol.
#include <memory>
#include <thread>
#include <vector>

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
            if (b || t) all.emplace_back([&, b, t] { body(Team(*meetings[b], t, threads, b, blocks)); });
    body(Team(*meetings[0], 0, threads, 0, blocks));
    for (auto& one : all) one.join();
}

using Program = void (*)(const u64*, u64, const Team&);
#define ROW(F) {program<F, kSum>, program<F, kProd>, program<F, kMin>, program<F, kMax>}
constexpr Program kernels[10][4] = {ROW(Int8),  ROW(Uint8),  ROW(Int32), ROW(Uint32), ROW(Int64),
                                 ROW(Uint64), ROW(Half), ROW(Bfloat16), ROW(Float), ROW(Double)};

}  // namespace

extern "C" {

void busbar_program(int type, int op, u32 blocks, u32 threads, const u64* plan, u64 words) {
    launch(blocks, threads, [&](const Team& t) { kernels[type][op](plan, words, t); });
}
}  // extern "C"
