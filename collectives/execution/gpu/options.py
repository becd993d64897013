"""Options of all transports of GPU memory. They are parsed before a transport is loaded."""

from __future__ import annotations

from collectives.execution.registry import Option

GRAPH = Option(
    "--graph",
    ("on", "off", "compare"),
    "on",
    "launch plans on GPUs as CUDA graphs (default on, where capture works); compare measures both"
    " ways",
    absent="off",
)
CACHE = Option(
    "--cache",
    ("cold", "warm"),
    "cold",
    "cold (default): rotate buffers on GPUs, so that none is in the L2 cache; warm: one set of"
    " buffers",
)
