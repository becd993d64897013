"""Algorithms of Open MPI and NCCL: how to force one, and files by which each takes our choices.

Open MPI: numbers and names are those that ``ompi_info --all`` lists for 5.0; the rules file's
grammar is what its reader takes (ompi/mca/coll/tuned, coll_tuned_dynamic_file.c), classic form.
Sizes in it are bytes of the whole vector, as in our size column (coll_tuned_decision_dynamic.c).
NCCL: the columns are those that its example tuner plug-in reads (plugins/tuner/example in its
sources): collective, least and most bytes, algorithm, protocol, channels, nodes, ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bench.run.tuning_file import Range, Rules, Tunable
from busbar.errors import Unsupported
from collectives.schedule import catalogue
from reports.records.measurement import LIBRARY

PREFIX = f"{LIBRARY}/"
_NAMES = {
    "allgather": "allgather",
    "allreduce": "allreduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "reduce_scatter": "reducescatter",
}
# What NCCL implements of each collective (src/graph/tuning.cc); trees only reduce to all.
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


def force_nccl(collective: str) -> dict[str, dict[str, str]]:
    """For each algorithm/protocol that NCCL has for a collective, the environment that forces it.

    Raises Unsupported for a collective that is none of NCCL's.
    """
    _known(collective)
    pairs = [(a, p) for a in _ALGORITHMS[collective] for p in _PROTOCOLS]
    return {
        f"{a}/{p}": {"NCCL_ALGO": a.upper(), "NCCL_PROTO": p.upper()}
        for a, p in pairs
        if a != "pat" or p == "simple"
    }


def forced_by_nccl(variables: Mapping[str, str]) -> str:
    """``ring/ll`` where a run's environment forced both, else empty."""
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


_ON = "OMPI_MCA_coll_tuned_use_dynamic_rules"

# collective: number in coll.h, name in parameters, algorithms from number 1 on.
_LINES = """
allgather 0 allgather linear bruck recursive_doubling ring neighbor two_proc sparbit
allreduce 2 allreduce basic_linear nonoverlapping recursive_doubling ring segmented_ring\
 rabenseifner
alltoall 3 alltoall linear pairwise modified_bruck linear_sync two_proc
barrier 6 barrier linear double_ring recursive_doubling bruck two_proc tree
broadcast 7 bcast basic_linear chain pipeline split_binary_tree binary_tree binomial knomial\
 scatter_allgather scatter_allgather_ring
gather 9 gather basic_linear binomial linear_sync
reduce 11 reduce linear chain pipeline binary binomial in_order_binary rabenseifner
reduce_scatter 13 reduce_scatter_block basic_linear recursive_doubling recursive_halving butterfly
scatter 15 scatter basic_linear binomial linear_nb
"""
_TABLE: Mapping[str, tuple[int, str, tuple[str, ...]]] = {
    name: (int(number), parameter, tuple(names))
    for name, number, parameter, *names in map(str.split, _LINES.strip().splitlines())
}

ALGORITHMS: Mapping[str, tuple[str, ...]] = {name: row[2] for name, row in _TABLE.items()}
"""Open MPI's names of its algorithms for each of our collectives that its rules can choose for."""

# Where one of our schedules is the algorithm of the same idea in Open MPI.
_SAME = """
allgather ring=ring bruck=bruck doubling=recursive_doubling
allreduce ring=ring recursive_doubling=recursive_doubling halving_doubling=rabenseifner\
 ps=basic_linear
alltoall pairwise=pairwise bruck=modified_bruck direct=linear
broadcast flat=basic_linear chain=chain binomial=binomial\
 scatter_allgather=scatter_allgather_ring
gather flat=basic_linear binomial=binomial
reduce flat=linear chain=chain binomial=binomial
reduce_scatter halving=recursive_halving
scatter flat=basic_linear binomial=binomial
"""
_OURS: Mapping[str, Mapping[str, str]] = {
    name: dict(pair.split("=") for pair in pairs)
    for name, *pairs in map(str.split, _SAME.strip().splitlines())
}


def force_openmpi(collective: str, ranks: int) -> dict[str, dict[str, str]]:
    """For each algorithm of Open MPI that takes so many ranks, the environment that forces it.

    Raises Unsupported for a collective that Open MPI's rules do not know.
    """
    _, parameter, names = _entry(collective)
    return {
        name: {_ON: "true", f"OMPI_MCA_coll_tuned_{parameter}_algorithm": str(number)}
        for number, name in enumerate(names, 1)
        if name != "two_proc" or ranks == 2
    }


def forced_by_openmpi(collective: str, variables: Mapping[str, str]) -> str:
    """The name of the algorithm that a run's environment forced; empty where it forced none."""
    if collective not in _TABLE or variables.get(_ON, "").lower() not in ("1", "true", "yes"):
        return ""
    _, parameter, names = _TABLE[collective]
    number = variables.get(f"OMPI_MCA_coll_tuned_{parameter}_algorithm", "0")
    return names[int(number) - 1] if number.isdigit() and 0 < int(number) <= len(names) else ""


def _entry(collective: str) -> tuple[int, str, tuple[str, ...]]:
    if collective not in _TABLE:
        raise Unsupported(
            f"Open MPI's rules do not choose for {collective}; they do for {', '.join(_TABLE)}"
        )
    return _TABLE[collective]


def number(collective: str, choice: Tunable) -> int | None:
    """The algorithm number of a choice in a rule.

    0 if Open MPI itself decides, None for an algorithm that Open MPI does not have.
    """
    if choice.algorithm == LIBRARY:
        return 0
    names = _entry(collective)[2]
    name = choice.algorithm.removeprefix(PREFIX)
    if name == choice.algorithm:
        name = _OURS.get(collective, {}).get(catalogue.parse(choice.algorithm)[0], "")
    return names.index(name) + 1 if name in names else None


def rules_file(rules: Sequence[Rules]) -> bytes:
    """The file for ``coll_tuned_dynamic_rules_filename``.

    Open MPI applies a rule to all communicators from its size up to the next rule's, and to all
    messages from its size on. Smaller sizes and other rank counts than the measured ones are left
    to Open MPI. Raises Unsupported if Open MPI does not have a chosen algorithm.
    """
    by_collective: dict[str, list[Rules]] = {}
    for one in sorted(rules, key=lambda r: (r.collective, r.ranks)):
        by_collective.setdefault(one.collective, []).append(one)
    lines = [f"{len(by_collective)} # collectives"]
    for collective, rules_of in by_collective.items():
        sizes = dict(_communicators(collective, rules_of))
        lines.append(f"{_entry(collective)[0]} # {collective}")
        lines.append(f"{len(sizes)} # communicator sizes")
        for ranks, messages in sizes.items():
            lines += [f"{ranks} # ranks", f"{len(messages)} # message sizes"]
            lines += [f"{low} {chosen} 0 0 # {name}" for low, chosen, name in messages]
    return ("\n".join(lines) + "\n").encode()


_Message = tuple[int, int, str]
_FREE: _Message = (0, 0, "Open MPI decides")


def _communicators(collective: str, rules: Sequence[Rules]) -> Iterator[tuple[int, list[_Message]]]:
    """(ranks, rules) in rising order; between measured rank counts Open MPI decides."""
    covered = 0
    for one in rules:
        if one.ranks > covered:
            yield covered, [_FREE]
        yield one.ranks, _messages(collective, one)
        covered = one.ranks + 1
    yield covered, [_FREE]


def _messages(collective: str, rules: Rules) -> list[_Message]:
    messages = [_FREE]
    for one in rules.ranges:
        message = _message(collective, one)
        if message[0] == 0:
            messages = [message]
        elif message[1] != messages[-1][1]:
            messages.append(message)
    return messages


def _message(collective: str, one: Range) -> _Message:
    chosen = number(collective, one.choice)
    if chosen is None:
        ours = ",".join(_OURS.get(collective, {}))
        raise Unsupported(
            f"{one.choice.algorithm} is no algorithm of Open MPI for {collective}; tune with"
            f" --open-mpi to choose among its own, or with -A {ours}, which it has too"
        )
    return one.low, chosen, str(one.choice.algorithm) if chosen else _FREE[2]
