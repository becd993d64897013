/* A collective of MPI back to back, timed in C: what no binding's overhead is in.

   mpirun -n 2 ./collective_loop allreduce|broadcast|allgather LEVEL SECONDS BYTES...

   LEVEL: single, funneled, serialized or multiple; init: MPI_Init, as C programs have it. SECONDS
   that a loop should take. BYTES as nccl-tests counts them: of all-gather all ranks' together.
   Prints a line a size: bytes, the microseconds of one call (the slowest rank's, the median of 21
   loops), and the thread level that MPI provides.

   mpicc -shared -fPIC: the self-check calls time_calls and time_schedule in the processes of its
   ranks, in turns with Busbar's own loops. */
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
