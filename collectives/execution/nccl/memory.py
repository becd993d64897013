"""An estimate of the GPU memory that NCCL takes for itself.

NCCL allocates it when an algorithm or a pair of ranks is first used, so it must be planned for. The
sizes are the defaults of its public sources (`NCCL_BUFFSIZE`, and what follows from its constants
for LL and LL128); the number of connections is the most that a ring and two trees on every channel
can have.
"""

from __future__ import annotations

from collections.abc import Mapping

_SIMPLE = 4 << 20  # NCCL_BUFFSIZE
_LL = 512 << 10  # 8 lines x 512 threads x 8 steps x 16 bytes
_LL128 = 4_915_200  # 120 elements x 640 threads x 8 steps x 8 bytes
_CHANNELS = 32
_CONNECTIONS = 5  # a ring's one, and of a tree three children and a parent


def buffer_bytes(nranks: int, env: Mapping[str, str]) -> int:
    """Bytes that one rank's communicator may come to take; NCCL_* variables of the user count.

    An estimate from above: a collective that never runs takes nothing.
    """
    if nranks < 2:
        return 0
    simple = _number(env, "NCCL_BUFFSIZE", _SIMPLE)
    channels = _CHANNELS
    for name in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"):
        channels = min(channels, max(1, _number(env, name, channels)))
    collective = _CONNECTIONS * channels * (simple + _LL + _LL128)
    # Pairs of ranks that send to each other share the channels among all pairs.
    pairs = max(nranks - 1, channels) * simple
    return collective + pairs


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    return int(text) if text.isdigit() else default
