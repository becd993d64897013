/* MPI_Allreduce of 8 bytes back to back, timed in C: what no binding's overhead is in.
   Prints the microseconds of one, the slowest rank's, the median of 21 loops. The argument is the
   thread level to ask for: single (the default in C) or multiple (mpi4py's default). */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOPS = 21, CALLS = 20000 };

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int provided, rank;
    double times[LOOPS], in = 1, out;
    const int multiple = argc > 1 && !strcmp(argv[1], "multiple");
    const int level = multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, level, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int loop = 0; loop < LOOPS; ++loop) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double start = MPI_Wtime();
        for (int i = 0; i < CALLS; ++i)
            MPI_Allreduce(&in, &out, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        const double mine = (MPI_Wtime() - start) / CALLS;
        MPI_Allreduce(&mine, &times[loop], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    }
    qsort(times, LOOPS, sizeof *times, ascending);
    if (rank == 0) printf("%.4f\n", times[LOOPS / 2] * 1e6);
    MPI_Finalize();
    return 0;
}
