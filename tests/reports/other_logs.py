"""Logs of perftest, all_reduce_bench, oneCCL, HCCL, PARAM and shortened tables, of our own."""

from __future__ import annotations

WRITE_BW = """\
host-a:~$ ib_write_bw -d mlx5_3 -a --report_gbits host-b
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : mlx5_3
 Number of qps   : 1            Transport type : IB
 Connection type : RC           Using SRQ      : OFF
 Mtu             : 4096[B]
 Link type       : IB
 Max inline data : 0[B]
---------------------------------------------------------------------------------------
 local address: LID 0x11 QPN 0x0127 PSN 0xa1b2c3 RKey 0x1fff VAddr 0x007f0000000000
 remote address: LID 0x12 QPN 0x0128 PSN 0xb1b2c3 RKey 0x2fff VAddr 0x007f1000000000
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 2          5000           0.064370            0.063210            3.950625
 4096       5000             121.07             120.42             3.674927
 1048576    5000             395.11             394.87             0.047072
---------------------------------------------------------------------------------------
"""
SEND_BIDIRECTIONAL = """\
---------------------------------------------------------------------------------------
                    Send Bidirectional BW Test
 Dual-port       : OFF          Device         : bnxt_re0
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      1000             23012.50            22890.12             0.366242
---------------------------------------------------------------------------------------
"""
READ_LAT = """\
---------------------------------------------------------------------------------------
                    RDMA_Read Latency Test
 Dual-port       : OFF          Device         : mlx5_0
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       1000          1.71           6.24         1.78              1.80             0.09            2.05                    6.24
 8192    1000          3.31           9.02         3.40              3.43             0.11            3.88                    9.02
---------------------------------------------------------------------------------------
"""
READ_LAT_DURATION = """\
                    RDMA_Read Latency Test
 #bytes        #iterations       t_avg[usec]    tps average
 64            812345            2.31          432900.43
---------------------------------------------------------------------------------------
"""
ALL_REDUCE_BENCH = """\
Environment:
- software: torch=2.8.0+cu128, cuda=12.8, nccl=(2, 27, 3)
- hardware: 16x Some GPU

The average bandwidth of all_reduce over 16 ranks (5 warmups / 20 trials):

| payload |    busbw   |    algbw   |
| ------: | ---------: | ---------: |
|   32KiB |   0.60GBps |   0.32GBps |
|    4MiB |  75.00GBps |  40.00GBps |
|    1GiB | 375.00GBps | 200.00GBps |

Legend: 1KiB = 2**10 Bytes, 1MiB = 2**20 Bytes, 1GiB = 2**30 Bytes
"""
ALL_REDUCE_BENCH_OLD = """\
The average bandwidth of all_reduce with a 4.0GB payload (5 trials, 8 ranks):
 algbw: 200.000 GBps (1600.0 Gbps)
 busbw: 350.000 GBps (2800.0 Gbps)
"""
ONECCL = """\
options:
  processes:      4
  collectives:    allreduce allgatherv

datatype: float32
reduction: sum

#------------------------------------------------------------
# Benchmarking: allreduce
# #processes: 4
#------------------------------------------------------------

        #bytes   #elem_count  #repetitions   t_min[usec]   t_max[usec]   t_avg[usec]  stddev[%]
            64            16            16         21.50         22.75         22.10       1.30
       1048576        262144            16        310.00        330.50        320.25       2.11

#------------------------------------------------------------
# Benchmarking: allgatherv
# #processes: 4
#------------------------------------------------------------

        #bytes  #repetitions   t_min[usec]   t_max[usec]   t_avg[usec]  stddev[%]
            64            16         31.50         32.75         32.10       1.30

# All done
"""
HCCL = """\
$ mpirun -n 8 ./bin/all_reduce_test -b 8K -e 64M -f 2 -d fp32 -o sum -p 8
the minbytes is 8192, maxbytes is 67108864, iters is 20, warmup_iters is 5
data_size(Bytes): |   aveg_time(us): | alg_bandwidth(GB/s): | check_result:
8192              |     50.00      |       0.16384        | success
67108864          |     1000.00    |       67.10886       | success
"""
HCCL_GATHER = """\
$ mpirun -n 8 ./bin/all_gather_test -b 64M -e 64M -d fp16 -p 8
data_size(Bytes): |   avg_time(us): | alg_bandwidth(GB/s): | check_result:
67108864          |     2000.00    |       268.43546       | failed
"""
PARAM = """\
[Rank   0] host node1 global_rank: 0, local_rank: 0, world_size: 16, master_ip: 10.0.0.1

\tCOMMS-RES                         total-size (B)  nElementsPerRank      Time(us):p50         p75         p95         Min         Max    AlgBW(GB/s) BusBW(GB/s)  TotalTime(us):p50
\tCOMMS-RES-all_reduce-float32           1048576            262144              52.4        53.0        55.9        51.8        56.1         20.011      37.520                 0.0
\tCOMMS-RES-all_reduce-float32        1073741824         268435456            5368.7      5400.1      5500.0      5300.2      5510.9        200.001     375.002                 0.0
"""
PARAM_PAIR = """\
\tCOMMS-RES                                size (B)pingLatency(us):p50       p75       p95  pingPongLatency(us):p50       p75       p95 avgUniBW(GB/s) avgBiBW(GB/s)totalUniBW(GB/s) totalBiBW(GB/s)
\tCOMMS-RES-pt2pt-float32        1048576                60.5      61.0      62.0                    110.5     111.0     112.0         21.500         40.250            21.500            40.250
"""
SHORT = """\
# all_reduce_perf, 8 GPUs, cut to what matters
    size      time    busbw
     (B)      (us)   (GB/s)
 1048576     52.40    35.02
 8388608    129.10   113.71
 1073741824 5012.3   374.88
"""
SHORT_MARKDOWN = """\
### All reduce, NCCL 2.27

| Size | Time (ms) | algbw (GB/s) | busbw (GB/s) |
|-----:|----------:|-------------:|-------------:|
| 1 GiB | 5.37 | 199.95 | 374.91 |
| 8G | 42.95 | 200.00 | 375.00 |
"""
