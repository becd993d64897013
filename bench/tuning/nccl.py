"""NCCL's own algorithms: how to force one, and the file of NCCL's example tuner plug-in.

The columns are those that the example reads (plugins/tuner/example in NCCL's sources): collective,
least and most bytes, algorithm, protocol, channels, nodes, ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bench.run.tuning_file import LIBRARY, Rules, Tunable
from busbar.errors import Unsupported

PREFIX = f"{LIBRARY}/"
_NAMES = {
    "allgather": "allgather",
    "allreduce": "allreduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "reduce_scatter": "reducescatter",
}
# NCCL's algorithms for each collective (src/graph/tuning.cc); trees only implement all-reduce.
_ALGORITHMS = {
    "allreduce": ("ring", "tree"),
    "allgather": ("ring", "pat"),
    "reduce_scatter": ("ring", "pat"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
}
_PROTOCOLS = ("ll", "ll128", "simple")
_MOST = 2**64 - 1  # the example compares as size_t; its own files end at 4 GiB


def _known(collective: str) -> None:
    if collective not in _NAMES:
        raise Unsupported(f"NCCL's tuner does not choose for {collective}: {', '.join(_NAMES)}")


def forcing(collective: str) -> dict[str, dict[str, str]]:
    """For each algorithm/protocol that NCCL has for a collective, the environment that forces it.

    Raises Unsupported for a collective that NCCL's tuner does not know.
    """
    _known(collective)
    pairs = [(a, p) for a in _ALGORITHMS[collective] for p in _PROTOCOLS]
    return {
        f"{a}/{p}": {"NCCL_ALGO": a.upper(), "NCCL_PROTO": p.upper()}
        for a, p in pairs
        if a != "pat" or p == "simple"
    }


def forced(variables: Mapping[str, str]) -> str:
    """``ring/ll`` if a run's environment forced both algorithm and protocol, else empty."""
    algorithm, protocol = variables.get("NCCL_ALGO", ""), variables.get("NCCL_PROTO", "")
    both = f"{algorithm}/{protocol}".lower()
    return both if algorithm and protocol in map(str.upper, _PROTOCOLS) else ""


def tuner_file(rules: Sequence[Rules]) -> bytes:
    """The CSV for ``NCCL_TUNER_CONFIG_FILE``, without lines for ranges where NCCL itself decides.

    Raises Unsupported if a choice is not an algorithm and protocol of NCCL.
    """
    lines = ["# collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks"]
    for one in rules:
        _known(one.collective)
        lines += _lines(one)
    return ("\n".join(lines) + "\n").encode()


def _lines(rules: Rules) -> Iterator[str]:
    ends = [r.low - 1 for r in rules.ranges[1:]] + [_MOST]
    for one, last in zip(rules.ranges, ends, strict=True):
        if one.choice.algorithm == LIBRARY:
            continue
        algorithm, protocol = _pair(rules.collective, one.choice)
        place = f"{rules.nodes},{rules.ranks}"
        yield f"{_NAMES[rules.collective]},{one.low},{last},{algorithm},{protocol},-1,{place}"


def _pair(collective: str, choice: Tunable) -> tuple[str, str]:
    name = choice.algorithm.removeprefix(PREFIX)
    algorithm, _, protocol = name.partition("/")
    if name == choice.algorithm or protocol not in _PROTOCOLS:
        raise Unsupported(
            f"{choice} is no algorithm of NCCL for {collective}; tune with --nccl to choose among"
            " its own"
        )
    return algorithm, protocol
