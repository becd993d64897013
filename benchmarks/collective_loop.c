/* A collective of MPI back to back, timed in C: what no binding's overhead is in.

   mpirun -n 2 ./collective_loop allreduce|broadcast|allgather LEVEL SECONDS BYTES...

   LEVEL: single, funneled, serialized or multiple; init: MPI_Init, as C programs have it. SECONDS
   that a loop should take. BYTES as nccl-tests counts them: of all-gather all ranks' together.
   Prints a line a size: bytes, the microseconds of one call (the slowest rank's, the median of 21
   loops), and the thread level that MPI provides.

   mpicc -shared -fPIC: the self-check calls time_calls, time_schedule, time_messages and
   time_reach in the processes of its ranks, in turns with Busbar's own loops. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOPS = 21, LEVELS = 4 };

static const char *const names[LEVELS] = {"single", "funneled", "serialized", "multiple"};
static const int levels[LEVELS] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED,
                                   MPI_THREAD_MULTIPLE};

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static const char *name_of(int level) {
    for (int i = 0; i < LEVELS; ++i)
        if (levels[i] == level) return names[i];
    return "unknown";
}

static int start(int *argc, char ***argv) {
    int provided;
    for (int i = 0; i < LEVELS; ++i)
        if (!strcmp((*argv)[2], names[i])) return MPI_Init_thread(argc, argv, levels[i], &provided);
    return MPI_Init(argc, argv);
}

/* Persistent requests of a schedule on two ranks: an exchange a step, receive before send. */
static void prepare(char kind, MPI_Request *requests, float *in, float *out, float *staging, int count) {
    int rank, half = count / 2;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const int other = 1 - rank, own = rank * half, its = other * half;
    if (kind == 'd') { /* recursive doubling: all of it */
        MPI_Recv_init(staging, count, MPI_FLOAT, other, 1, MPI_COMM_WORLD, requests);
        MPI_Send_init(in, count, MPI_FLOAT, other, 1, MPI_COMM_WORLD, requests + 1);
    } else { /* ring: reduce-scatter, then all-gather */
        MPI_Recv_init(staging, half, MPI_FLOAT, other, 1, MPI_COMM_WORLD, requests);
        MPI_Send_init(in + its, half, MPI_FLOAT, other, 1, MPI_COMM_WORLD, requests + 1);
        MPI_Recv_init(out + its, half, MPI_FLOAT, other, 2, MPI_COMM_WORLD, requests + 2);
        MPI_Send_init(out + own, half, MPI_FLOAT, other, 2, MPI_COMM_WORLD, requests + 3);
    }
}

/* By MPI_Test, as Busbar waits; -DWAITALL: by MPI_Waitall. */
static void exchange(MPI_Request *requests) {
    MPI_Startall(2, requests);
#ifdef WAITALL
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
#else
    for (int done, i = 0; i < 2; ++i)
        do MPI_Test(requests + i, &done, MPI_STATUS_IGNORE);
        while (!done);
#endif
}

static void add(float *restrict out, const float *in, const float *staging, int count) {
    for (int i = 0; i < count; ++i) out[i] = in[i] + staging[i];
}

/* Seconds of one of so many all-reduces by a schedule on two ranks, on this rank. kind: d (recursive
   doubling) or c (ring); count: even. */
double time_schedule(char kind, int calls, float *in, float *out, int count) {
    MPI_Request requests[4];
    float *staging = malloc(count * sizeof *staging);
    int rank, half = count / 2;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    memset(staging, 0, count * sizeof *staging);
    prepare(kind, requests, in, out, staging, count);
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (int i = 0; i < calls; ++i) {
        exchange(requests);
        if (kind == 'd') add(out, in, staging, count);
        else {
            add(out + rank * half, in + rank * half, staging, half);
            exchange(requests + 2);
        }
    }
    const double seconds = (MPI_Wtime() - begin) / calls;
    for (int i = 0; i < (kind == 'd' ? 2 : 4); ++i) MPI_Request_free(requests + i);
    free(staging);
    return seconds;
}

static void start_and_wait(MPI_Request *requests, int count) {
    MPI_Startall(count, requests);
    for (int done, i = 0; i < count; ++i)
        do MPI_Test(requests + i, &done, MPI_STATUS_IGNORE);
        while (!done);
}

/* Seconds of one of so many exchanges of persistent requests, on this rank of two. kind: s (a window
   of messages from rank 0, which rank 1 answers with 4 bytes) or l (so many messages there and back,
   each sending on what has just arrived). out: room for a window, or for one message. */
double time_messages(char kind, int calls, char *in, char *out, int bytes, int messages) {
    const int window = kind == 's', count = window ? messages : 1;
    MPI_Request *there = malloc(2 * count * sizeof *there), *back = there + count;
    char token[4] = {0}, *answer = window ? token : out;
    const int answers = window ? (int)sizeof token : bytes;
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 0; i < count; ++i)
        if (rank) MPI_Recv_init(out + (size_t)i * bytes, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, there + i);
        else MPI_Send_init(window ? in : out, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD, there + i);
    if (rank) MPI_Send_init(answer, answers, MPI_BYTE, 0, 2, MPI_COMM_WORLD, back);
    else MPI_Recv_init(answer, answers, MPI_BYTE, 1, 2, MPI_COMM_WORLD, back);
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (int i = 0; i < calls; ++i)
        for (int trip = 0; trip < (window ? 1 : messages); ++trip) {
            start_and_wait(there, count);
            start_and_wait(back, 1);
        }
    const double seconds = (MPI_Wtime() - begin) / calls;
    for (int i = 0; i < count; ++i) MPI_Request_free(there + i);
    MPI_Request_free(back);
    free(there);
    return seconds;
}

/* Seconds of one of so many windows of puts or gets by rank 0, on this rank of two. kind: p or g, with
   a flush after a window of messages, each in memory of its own; P or G, with one after each, all in
   the same memory. mine: rank 0's memory, for a window of them if it gets. */
double time_reach(char kind, int calls, char *mine, int bytes, int messages) {
    const int put = kind == 'p' || kind == 'P', each = kind == 'P' || kind == 'G';
    const int apart = each ? 0 : bytes;
    char *base;
    int rank;
    MPI_Win win;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Win_allocate((MPI_Aint)bytes * messages, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
    memset(base, 1, (size_t)bytes * messages);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, win);
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (int n = 0; n < calls && !rank; ++n) {
        for (int i = 0; i < messages; ++i) {
            const MPI_Aint at = (MPI_Aint)i * apart;
            if (put) MPI_Put(mine, bytes, MPI_BYTE, 1, at, bytes, MPI_BYTE, win);
            else MPI_Get(mine + at, bytes, MPI_BYTE, 1, 0, bytes, MPI_BYTE, win);
            if (each) MPI_Win_flush(1, win);
        }
        if (!each) MPI_Win_flush(1, win);
    }
    const double seconds = (MPI_Wtime() - begin) / calls;
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
    return seconds;
}

/* Seconds of one of so many calls, on this rank. kind: b (broadcast), r (all-reduce) or g
   (all-gather); count: floats of all ranks' parts together. */
double time_calls(char kind, int calls, float *in, float *out, int count, int size) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (int i = 0; i < calls; ++i)
        if (kind == 'b') MPI_Bcast(out, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
        else if (kind == 'g')
            MPI_Allgather(in, count / size, MPI_FLOAT, out, count / size, MPI_FLOAT, MPI_COMM_WORLD);
        else MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return (MPI_Wtime() - begin) / calls;
}

int main(int argc, char **argv) {
    int provided, rank, size;
    if (argc < 5 || start(&argc, &argv) != MPI_SUCCESS) return 2;
    const char kind = argv[1][0] == 'b' ? 'b' : argv[1][3]; /* b, r (allreduce) or g (allgather) */
    const double seconds = atof(argv[3]);
    MPI_Query_thread(&provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int at = 4; at < argc; ++at) {
        const int count = atoi(argv[at]) / (int)sizeof(float);
        float *in = malloc((count + 1) * sizeof *in), *out = malloc((count + 1) * sizeof *out);
        double times[LOOPS];
        if (!in || !out) return 3;
        for (int i = 0; i <= count; ++i) in[i] = (float)(rank + i % 8), out[i] = 0; /* touched */
        time_calls(kind, 3, in, out, count, size);
        int calls = (int)(seconds / time_calls(kind, 20, in, out, count, size));
        calls = calls < 6 ? 6 : calls > 100000 ? 100000 : calls;
        MPI_Bcast(&calls, 1, MPI_INT, 0, MPI_COMM_WORLD);
        for (int n = 0; n < LOOPS; ++n) {
            const double mine = time_calls(kind, calls, in, out, count, size);
            MPI_Allreduce(&mine, &times[n], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        }
        qsort(times, LOOPS, sizeof *times, ascending);
        if (rank == 0) printf("%s %.4f %s\n", argv[at], times[LOOPS / 2] * 1e6, name_of(provided));
        free(in), free(out);
    }
    MPI_Finalize();
    return 0;
}
