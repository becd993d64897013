"""Texts of other programs that hold no row: what they are, and which command reads them."""

from __future__ import annotations

import re

from busbar.arguments import program

#: Programs whose output is recognised and not read, by what only they print.
_UNREAD: tuple[tuple[str, str], ...] = (
    (r"^\|\s*Stage\s*\|\s*# iterations|\bucx_perftest\b", "UCX's ucx_perftest"),
    (r"\bucc_perftest\b|^Collective:\s+\w+\s*\n\s*Memory type:", "UCC's ucc_perftest"),
    (r"^\[ *ID\] +Interval +Transfer", "iperf's or iperf3's"),
    (r"^sockperf(?:\[|:)", "sockperf's"),
    (r"^\s*bytes\s+(?:iters\s+)?#sent\s+#ack|^bytes\s+iters\s+total\s", "libfabric's fabtests'"),
    (r"\bTransferBench v\d", "TransferBench's"),
    (r"RocmBandwidthTest Version|\bRocm Bandwidth Test\b", "rocm_bandwidth_test's"),
    (r"^---- Performance of \w+ on ", "DeepSpeed's communication benchmark's"),
    (r"^\s*elements\s+min \(us\)\s+p50 \(us\)", "gloo's benchmark's"),
    (r"^\s*(?:tcp|rc)_(?:bw|lat):\s*$", "qperf's"),
    (r'"n_iterations"\s*:.*\n?.*"(?:BW_average|t_avg|t_typical)"|"BW_average"\s*:',
     "perftest's JSON (--out_json); its text"),
    (r'"traceEvents"\s*:', "a trace's of PyTorch, Chrome or Nsight"),
    (r"\bNCCL INFO .*\bComm/|(?m:^# .*\bMSCCL\+\+)|\bmscclpp", "MSCCL++'s"),
)  # fmt: skip
_READ_INSTEAD = "which is recognised and not read"


def foreign() -> tuple[tuple[str, str], ...]:
    """Other texts: a pattern that only they contain, and who reads them."""
    map_ = f"this is a map of a machine, which {program('topology')} --from reads"
    plan = f"which {program('collectives')} verify and -A read"
    unread = ((rf"(?m){mark}", f"this is {name} output, {_READ_INSTEAD}") for mark, name in _UNREAD)
    return (
        (r"\bGPU ?0[ \t|]+X\b|<(?:system|topology|nvidia_smi_log)[\s>]", map_),
        (r"ROCm System Management Interface|^LINK TYPE TABLE:|between two GPUs =", map_),
        (r"P2P=(?:Enabled|Disabled).*Matrix|\bnvbandwidth Version", map_),
        (r"<algo\s", f"this is an MSCCL schedule, {plan}"),
        (
            r'"threadblocks"\s*:|"remote_buffers"\s*:',
            f"this is an execution plan of MSCCL++, which {program('collectives')} verify reads",
        ),
        *unread,
        (r"\bNCCL INFO ", "NCCL's own lines (NCCL_DEBUG), and no row of a benchmark among them"),
    )


def named(text: str) -> str:
    """What a text without rows is; "" where nobody knows it."""
    return next((name for mark, name in foreign() if re.search(mark, text)), "")
