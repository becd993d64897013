"""Logs of every tool, and results to write one's own: what several tests of readers use."""

from __future__ import annotations

from hypothesis import strategies as st

from reports.records.measurement import Placements
from tests.reports.runs import allreduce

TIMES = st.lists(st.floats(1e-6, 9e-2), min_size=6, max_size=12).map(tuple)


def result(
    size: int, out: tuple[float, ...], in_place: tuple[float, ...] | None = None
) -> Placements:
    """A run of four ranks with these raw times, of the vector and in place."""
    known = {"busbar": "0.1", "library": "MPICH 5", "hosts": ["a", "b"], "cpu": "X"}
    return allreduce("ring", 4, size, out, in_place, environment=known)


RESULTS = st.lists(
    st.builds(result, st.integers(1, 2**24).map(lambda n: 4 * n), TIMES, TIMES),
    min_size=1,
    max_size=5,
)

INFO = "node001:4242:4250 [3] NCCL INFO Channel 00/08 : 0[0] -> 1[1] via P2P/IPC 64 1024 float sum"

OLD = """\
#                                                       out-of-place                       in-place
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum    12.50    0.08    0.16  2e-07    13.50    0.08    0.15    N/A
"""

BITWISE = """\
# Collective test starting: broadcast_perf
#  size  count  type  redop  root  time  algbw  busbw  #wrong  #bitdiff  time  algbw  busbw  #wrong  #bitdiff  timestamp
   1024    256  float  none     2  12.50   0.08   0.08      3        17  13.50   0.08   0.08       0         0  2026-11-21 03:20:54
"""

DOCUMENT = {
    "version": 4, "args": ["./build/all_reduce_perf", "-b", "8"], "env": ["SECRET=1"],
    "nccl_version": 23007,
    "config": {"nthreads": 1, "ngpus": 2, "iterations": 20, "devices": [
        {"rank": 0, "hostname": "n0", "device_info": "NVIDIA H100"},
        {"rank": 2, "hostname": "n1", "device_info": "NVIDIA H100"}]},
    "results": [{
        "size": 1024, "count": 256, "type": "float", "redop": "sum", "root": "    -1",
        "out_of_place": {"time": 20.0, "alg_bw": 0.05, "bus_bw": 0.0768, "nwrong": 0.0},
        "out_of_place_per_iter": {"min_us": 18.0, "max_us": 30.0, "p99_us": 29.0, "cv_pct": 5.0,
                                  "times_us": [18.0, 20.0, 30.0]},
        "in_place": {"time": 21.0, "alg_bw": 0.05, "bus_bw": "nan", "nwrong": None},
        "actual_iterations": 25, "experiment_name": "AllReduce",
        "tuning": {"implementation": "Coll", "algo": "RING", "proto": "LL", "#channels": 2}}],
}  # fmt: skip

OSU = """\
$ mpirun -np 8 ./osu_allgather -f -T mpi_float,mpi_int
# OSU MPI{model} Allgather Latency Test v7.5
# Datatype: MPI_FLOAT.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations   P99 Tail Lat(us)
4                      10.05              9.00             11.00        1000              12.00
broker.info[0]: something
8                      10.84              9.50             11.50        1000              13.00

# OSU MPI{model} Allgather Latency Test v7.5
# Datatype: MPI_INT.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations   P99 Tail Lat(us)
4                      11.05             10.00             12.00        1000              14.00
8                        bad             10.00             12.00        1000              14.00
"""

IMB = """\
#----------------------------------------------------------------
#    Intel(R) MPI Benchmarks 2021.3, MPI-1 part
#----------------------------------------------------------------
# MPI_Datatype                   :   MPI_BYTE
# MPI_Datatype for reductions    :   MPI_FLOAT
# MPI_Op                         :   MPI_SUM
#----------------------------------------------------------------
# Benchmarking Allreduce
# #processes = 4
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            0         1000         0.04         0.05         0.04
         1024         1000         4.00         6.00         5.00
         2048    time-out
#---------------------------------------------------
# Benchmarking PingPong
# #processes = 2
# ( 2 additional processes waiting in MPI_Barrier)
#---------------------------------------------------
       #bytes #repetitions      t[usec]   Mbytes/sec
         1024         1000         2.00       512.00
# Benchmarking Barrier
# #processes = 4
 #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
         1000         1.00         3.00         2.00
# Benchmarking Alltoall
# #processes = 4
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]      defects
          256         1000         4.00         6.00         5.00         2.00
"""
