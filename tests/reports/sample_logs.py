"""Logs of nccl-tests in the dialects that people publish, with figures of nobody's machine."""

from __future__ import annotations

from pathlib import Path

__all__ = ["EMPTY", "EXPECTED", "KILLED", "OLD", "TODAY", "UNCHECKED", "Figure", "write"]

Figure = tuple[int, str, float, float, float]
TODAY, OLD, UNCHECKED, KILLED = "today.txt", "old.txt", "unchecked.txt", "killed.txt"

_HEAD = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
_DEVICES = "".join(
    f"#  Rank {rank:2} Group  0 Pid {4000 + rank:6} on node-{rank // 8} device {rank % 8:2}"
    f" [0000:{16 + rank % 8:02x}:00] NVIDIA H100\n"
    for rank in range(16)
)
_THREADS = "# nThread 1 nGpus 1 minBytes 64 maxBytes 64 step: 2(factor) warmup iters: 0 iters: 1 validation: 1\n"
_RUN = _THREADS + (
    "#\n# Using devices\n"
    "#   Rank  0 Pid 100 on box device  0 [0x0f] Some GPU\n"
    "#   Rank  1 Pid 101 on box device  1 [0x10] Some GPU\n#\n"
    "#                                                     out-of-place                       in-place\n"
    "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
    "#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
)
_LOGS = {
    TODAY: "# nccl-tests version 2.17.9 nccl-headers=22903 nccl-library=22903\n"
    "# Collective test starting: all_reduce_perf\n"
    "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 1 iters: 100"
    " agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n"
    f"{_DEVICES}NCCL version 2.29.3+cuda13.1\n#\n{_HEAD}"
    "     1048576        262144     float     sum      -1    100.0   10.49   19.66       0    125.0    8.39   15.73       0\n"
    "     2097152        524288     float     sum      -1    160.0   13.11   24.58       0    150.0   13.98   26.21       0\n"
    "     4194304       1048576     float     sum      -1    250.0   16.78   31.46       0    256.0   16.38   30.72       0\n"
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 24.7264\n#\n",
    OLD: "#                                                       out-of-place                       in-place\n"
    "#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
    "#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
    "           8             2     float     sum    38.00    0.00    0.00  2e-07    39.00    0.00    0.00  1e-07\n"
    "  1073741824     268435456     float     sum    10737  100.00  187.50  5e-07    10000  107.37  201.33  5e-07\n",
    UNCHECKED: _HEAD.replace("#wrong", " error")
    + "     8388608       2097152     float     sum      -1   4000.0    2.10    2.10    N/A   5000.0    1.68    1.68    N/A\n"
    "    16777216       4194304     float     sum      -1   8000.0    2.10    2.10    N/A   9000.0    1.86    1.86    N/A\n",
    "launcher.txt": "".join(
        f"[1,0]<stdout>:{line}\n"
        for line in (
            _HEAD
            + "        1024             8     float    none      -1    20.00    0.05    0.05      0    25.00    0.04    0.04      0\n"
            "     1048576         16384     float    none      -1    50.00   20.97   19.66      0    60.00   17.48   16.38      0"
        ).split("\n")
    ),
    KILLED: "".join(
        f"{_RUN}          {size}            {size // 4}   float     sum    {us}    0.00    0.00  2e-07      N/A     N/A     N/A    N/A\n"
        for size, us in ((64, "41.00"), (128, "42.00"))
    )
    + f"{_RUN}        8192          2048   float     sum",
    "placeholders.txt": _HEAD
    + "   268435456       4194304     float    none      -1    XXXXX  XXX.XX  XXX.XX    N/A   XXXXXX  XXX.XX  XXX.XX      0\n",
    "header.txt": f"{_RUN}node-0:77:78 [0] NCCL INFO Launch mode Parallel\n",
}
# file: rows, tables, collective, ranks; then (size, placement, us, algbw, busbw) to be found
EXPECTED: dict[str, tuple[int, int, str, int | None, list[Figure]]] = {
    TODAY: (6, 1, "allreduce", 16, [
        (1048576, "out", 100.0, 10.49, 19.66), (4194304, "in", 256.0, 16.38, 30.72)]),
    OLD: (4, 1, "allreduce", 16, [
        (8, "out", 38.0, 0, 0), (1073741824, "in", 10000, 107.37, 201.33)]),
    UNCHECKED: (4, 1, "allreduce", 2, [(8388608, "in", 5000.0, 1.68, 1.68)]),
    "launcher.txt": (4, 1, "", 16, [(1048576, "out", 50.0, 20.97, 19.66)]),
    KILLED: (2, 2, "allreduce", 2, [(64, "out", 41.0, 0, 0), (128, "out", 42.0, 0, 0)]),
}  # fmt: skip
EMPTY = {"placeholders.txt": "XXXXX", "header.txt": "no row below"}


def write(folder: Path) -> None:
    """Fill a folder with the logs."""
    for name, text in _LOGS.items():
        (folder / name).write_text(text)
