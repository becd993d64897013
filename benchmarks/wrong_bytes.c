/* Wrong bytes on one host: preload this, and what MPI receives has a byte that was not sent.
 *
 *     mpicc -shared -fPIC -O1 -o wrong.so benchmarks/wrong_bytes.c -ldl
 *     busbar cluster --hosts 4 --env 2:LD_PRELOAD=$PWD/wrong.so -- busbar allreduce
 *
 * It takes the place of the calls by which Busbar's ranks receive data: persistent requests, and
 * MPI_Allreduce of any type but MPI_DOUBLE, which Busbar's control messages have. The MPI library is looked for among what the
 * process has loaded, so programs without MPI run as ever.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stddef.h>

#define MOST 4096

static struct {
    MPI_Request request;
    unsigned char *at;
} received[MOST];
static int count;

static void *function(const char *name) {
    static const char *libraries[] = {"libmpi.so.12", "libmpi.so.40", "libmpi_abi.so.0"};
    for (int i = 0; i < 3; i++) {
        void *library = dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD);
        if (library && dlsym(library, name)) return dlsym(library, name);
    }
    return NULL;
}

/* The first byte of a message that has just arrived becomes another one. */
static void spoil(MPI_Request request) {
    for (int i = 0; i < count; i++)
        if (received[i].request == request) *received[i].at ^= 0x41;
}

/* Remember where a request's message arrives, under the same handle as an earlier one or a new one. */
static void remember(MPI_Request request, void *at, MPI_Count n) {
    int slot = 0;
    while (slot < count && received[slot].request != request) slot++;
    if (n <= 0 || slot == MOST) return;
    received[slot].request = request;
    received[slot].at = at;
    if (slot == count) count++;
}

int MPI_Recv_init(void *at, int n, MPI_Datatype type, int source, int tag, MPI_Comm comm,
                  MPI_Request *request) {
    int (*real)(void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
    real = function("PMPI_Recv_init");
    int status = real(at, n, type, source, tag, comm, request);
    remember(*request, at, n);
    return status;
}

int MPI_Recv_init_c(void *at, MPI_Count n, MPI_Datatype type, int source, int tag, MPI_Comm comm,
                    MPI_Request *request) {
    int (*real)(void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
    real = function("PMPI_Recv_init_c");
    /* mpi4py takes the other call where a library lacks this one; it finds this one here. */
    if (!real) return MPI_Recv_init(at, (int)n, type, source, tag, comm, request);
    int status = real(at, n, type, source, tag, comm, request);
    remember(*request, at, n);
    return status;
}

int MPI_Request_free(MPI_Request *request) {
    int (*real)(MPI_Request *) = function("PMPI_Request_free");
    for (int i = 0; i < count; i++)
        if (received[i].request == *request) received[i--] = received[--count];
    return real(request);
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status) {
    static int (*real)(MPI_Request *, int *, MPI_Status *);
    if (!real) real = function("PMPI_Test");
    MPI_Request before = *request;
    int result = real(request, flag, status);
    if (*flag) spoil(before);
    return result;
}

int MPI_Wait(MPI_Request *request, MPI_Status *status) {
    int (*real)(MPI_Request *, MPI_Status *) = function("PMPI_Wait");
    MPI_Request before = *request;
    int result = real(request, status);
    spoil(before);
    return result;
}

int MPI_Allreduce(const void *from, void *to, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    int (*real)(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);
    real = function("PMPI_Allreduce");
    int status = real(from, to, n, type, op, comm);
    if (n > 0 && type != MPI_DOUBLE) *(unsigned char *)to ^= 0x41;
    return status;
}
