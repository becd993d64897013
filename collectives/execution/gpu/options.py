"""The options that all transports of GPU memory have; loaded before any of them is."""

from __future__ import annotations

from collectives.execution.registry import Option

GRAPH = Option(
    "--graph",
    ("on", "off", "compare"),
    "on",
    "launch plans on GPUs as CUDA graphs (default on, where capture works); compare measures both"
    " ways",
)
CACHE = Option(
    "--cache",
    ("cold", "warm"),
    "cold",
    "cold (default): rotate buffers on GPUs, so that none is in the L2 cache; warm: one set of"
    " buffers",
)
