"""Translate names and conventions of other benchmarks to Busbar's.

Sizes: nccl-tests counts the bytes of the collective as a whole. OSU and IMB count one rank's
message, which is 1/P of it for gather-like and all-to-all collectives.
"""

from __future__ import annotations

import re
from math import ceil

_SYNONYMS = {
    "bcast": "broadcast",
    "reducescatter": "reduce_scatter",
    "reducescatterblock": "reduce_scatter",
    "alltoallpersonalizedexchange": "alltoall",
    "alltoallvpersonalizedexchange": "alltoallv",
    "alltoallwpersonalizedexchange": "alltoallw",
    "alltoallpersonalized": "alltoall",
    "bidirectionalbandwidth": "bidirectional_bandwidth",
    "multiplebandwidthmessagerate": "mbw_mr",
}
# Prefixes of collectives in OSU's titles, and Busbar's prefixes.
_KINDS = {"non-blocking": "i", "persistent": "persistent_", "neighborhood": "neighbor_"}
# Per rank, nccl-tests' factor (doc/PERFORMANCE.md): busbw = algbw x factor.
_SHARED = {"allgather", "reduce_scatter", "alltoall", "alltoallv", "gather", "scatter"}
_PLAIN = {"broadcast", "reduce", "sendrecv", "hypercube"}
#: The known collectives.
KNOWN = _SHARED | _PLAIN | {"allreduce", "barrier"}
# Collectives for which OSU's and IMB's sizes are one rank's part.
_PER_RANK = {"allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw"}
_PER_RANK |= {"gather", "gatherv", "scatter", "scatterv"}
_DTYPES = {
    "mpi_char": "int8",
    "mpi_signed_char": "int8",
    "mpi_byte": "uint8",
    "mpi_unsigned_char": "uint8",
    "mpi_int": "int32",
    "mpi_unsigned": "uint32",
    "mpi_long": "int64",
    "mpi_long_long": "int64",
    "mpi_float": "float",
    "mpi_double": "double",
    "char": "int8",
    "int": "int32",
    "float16": "half",
    "float32": "float",
    "float64": "double",
}
_NAMED = re.compile(
    r"(?<![a-z])(?:all[-_]?(?:reduce|gather|to[-_]?all)|reduce[-_]?scatter|broadcast|bcast|send[-_]?recv"
    r"|reduce|gather|scatter|hypercube)(?![a-z])"
)
_BYTES = {"int8": 1, "uint8": 1, "half": 2, "bfloat16": 2, "int32": 4, "uint32": 4, "float": 4}
_BYTES |= {"int64": 8, "uint64": 8, "double": 8}


def collective(text: str) -> str:
    """Busbar's name of a collective such as ``all_reduce_perf``, ``AllReduce``, ``Iallreduce``.

    Non-blocking ones have the prefix ``i``, persistent ones ``persistent_``, neighbourhood
    collectives ``neighbor_``. Unknown names are only changed to lower case letters and digits.
    """
    name = text.strip().lower()
    name = name if " " in name else name.rsplit("/", 1)[-1]
    name = re.sub(r"_perf(_mpi)?$", "", name)
    name = re.sub(r"^(osu|imb)_", "", name)
    name, persistent = re.subn(r"_persistent$", "", name)
    prefix = "persistent_" * persistent
    while (word := name.partition(" "))[0] in _KINDS and word[2]:
        prefix, name = prefix + _KINDS[word[0]], word[2]
    if name.startswith(("neighbor_", "ineighbor_")):
        before, _, name = name.partition("neighbor_")
        prefix += f"{before}neighbor_"
    bare = re.sub(r"[^a-z0-9]", "", name)
    return prefix + _SYNONYMS.get(bare, bare)


def blocking(name: str) -> str:
    """The name of the blocking collective for a non-blocking or persistent one."""
    bare = name.removeprefix("persistent_")
    return bare[1:] if bare[:1] == "i" and bare[1:] in KNOWN | _PER_RANK else bare


def is_collective(name: str) -> bool:
    """True for the names that `collective` gives known collectives, and for kinds of these."""
    before, neighbor, bare = name.rpartition("neighbor_")
    if neighbor:
        return before in ("", "i", "persistent_") and bare in KNOWN | _PER_RANK
    return blocking(name) in KNOWN | _PER_RANK


def in_file_name(path: str) -> str:
    """The collective in a file's name; "" if there is none or more than one."""
    return in_words(path.replace("\\", "/").rsplit("/", 1)[-1])


def in_words(text: str) -> str:
    """The collective that a text names; "" if it names none or more than one."""
    names = {collective(m) for m in _NAMED.findall(text.lower())}
    return names.pop() if len(names) == 1 else ""


def nccl_version(code: int) -> str:
    """NCCL's version as text, ``2.28.9``, from its number 22809.

    Up to version 2.8, numbers had four digits (nccl.h).
    """
    major, rest = divmod(code, 10000 if code >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def dtype(text: str) -> str:
    """Busbar's name of an element type: ``MPI_FLOAT.``, ``ncclFloat`` become ``float``."""
    name = text.strip().rstrip(".").lower()
    name = re.sub(r"^[nr]ccl(?=[a-z])", "", name)
    return _DTYPES.get(name, name)


def element_size(name: str) -> int | None:
    """Bytes of one element; None for an unknown type."""
    return 1 if name.startswith(("fp8", "f8")) else _BYTES.get(name)


def bus_factor(name: str, ranks: int | None) -> float | None:
    """The factor from algbw to busbw; None if it is undefined or the ranks are unknown."""
    name = blocking(name)
    if name in _PLAIN:
        return 1.0
    if not ranks or name not in _SHARED | {"allreduce"}:
        return None
    return (2.0 if name == "allreduce" else 1.0) * (ranks - 1) / ranks


def whole(name: str, message: int, ranks: int | None) -> int | None:
    """The bytes of a collective, as nccl-tests counts them, from one rank's message.

    None if this needs the number of ranks, and it is not known.
    """
    if blocking(name) not in _PER_RANK:
        return message
    return None if ranks is None else message * ranks


def rates(
    name: str,
    ranks: int | None,
    size: int | None,
    seconds: float | None,
    algbw: float | None = None,
    busbw: float | None = None,
) -> tuple[float | None, float | None]:
    """(algbw, busbw) in bytes per second: as given by the log, otherwise computed."""
    if algbw is None and size is not None and seconds:
        algbw = size / seconds
    factor = bus_factor(name, ranks)
    if busbw is None and algbw is not None and factor is not None:
        busbw = algbw * factor
    return algbw, busbw


def scaled(value: float | None, factor: float) -> float | None:
    """A figure times a factor; None for None."""
    return None if value is None else value * factor


def ranks_from_rates(name: str, algbw: float, busbw: float) -> int | None:
    """The rank count, if a pair of rates with two decimals allows exactly one; else None."""
    double = {"allreduce": 2.0}.get(name, 1.0)
    if name not in _SHARED | {"allreduce"} or algbw < 1 or busbw <= 0:
        return None
    share = busbw / algbw / double
    slack = share * (0.005 / algbw + 0.005 / busbw)
    if share + slack >= 1:
        return None
    low, high = 1 / (1 - (share - slack)), 1 / (1 - (share + slack))
    first = max(2, ceil(low))
    return first if first <= high < first + 1 else None
