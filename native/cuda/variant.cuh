// What may be chosen where the executor is compiled, so that one run can compare: see
// collectives/execution/ipc/kernels.py, which sets these. With none of them set nothing is special.
#pragma once

#ifndef BUSBAR_CHUNK
#define BUSBAR_CHUNK 0
#endif
#ifndef BUSBAR_NO_ALLOCATE
#define BUSBAR_NO_ALLOCATE 0
#endif
#ifndef BUSBAR_STREAMING
#define BUSBAR_STREAMING 0
#endif
#ifndef BUSBAR_RELAXED
#define BUSBAR_RELAXED 0
#endif
#ifndef BUSBAR_BULK
#define BUSBAR_BULK 0
#endif

namespace busbar {

// Bytes that are dealt out to the teams in turns, a multiple of 16; 0: each has one contiguous part.
constexpr unsigned long long kChunk = BUSBAR_CHUNK;
constexpr bool kNoAllocate = BUSBAR_NO_ALLOCATE;  // what is read is not kept in L1
constexpr bool kStreaming = BUSBAR_STREAMING;     // what is written is the first to leave L2
constexpr bool kRelaxed = BUSBAR_RELAXED;         // words are polled without order, then read once with it
constexpr bool kBulk = BUSBAR_BULK;               // one source to one target goes by Hopper's copy unit

}  // namespace busbar
