"""Cores for ranks, and the least that memory must do."""

import os
from collections import Counter
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.run.memory import in_place_starts
from busbar.errors import Unsupported
from busbar.host import numa_nodes
from collectives.execution.inproc.world import run
from collectives.execution.roofline import least, typical
from collectives.execution.shm.affinity import cores_of, place_cores, yield_group
from collectives.execution.shm.worksharing import over_own_memory, shared_out
from collectives.execution.transport import LibraryCall
from collectives.schedule.catalogue import spec
from collectives.schedule.layout import Layout
from collectives.schedule.ops import op

NODES = [[0, 1, 2, 3, 16, 17], [4, 5, 6, 7, 20, 21]]
CORES = sorted(NODES[0] + NODES[1])


@given(st.integers(1, 12), st.sets(st.sampled_from(CORES), min_size=1))
def test_every_rank_has_a_core_of_its_own_while_they_last(nlocal: int, allowed: set[int]) -> None:
    """Rule: ranks share a core, an allowed one, only where they outnumber cores.

    Neighbours do then.
    """
    cores = [place_cores("core", r, nlocal, sorted(allowed), NODES)[0] for r in range(nlocal)]
    assert len(list(groupby(cores))) == len(set(cores))
    assert set(cores) <= allowed
    assert len(set(cores)) == min(nlocal, len(allowed))


@given(st.integers(2, 12))
def test_neighbours_fill_one_node_before_the_next(nlocal: int) -> None:
    """Rule: the node of a rank never lies before that of a lower rank."""
    nodes = [
        next(i for i, n in enumerate(NODES) if place_cores("numa", r, nlocal, CORES, NODES) == n)
        for r in range(nlocal)
    ]
    assert nodes == sorted(nodes) and set(nodes) == {0, 1}


def test_binding_none_changes_nothing_and_others_are_refused() -> None:
    """Rule: an unknown binding is an error with the list."""
    assert place_cores("none", 1, 2, [3, 1], []) == [1, 3]
    with pytest.raises(Unsupported, match="none, core, numa"):
        place_cores("socket", 0, 1, [0], [])


def test_nodes_are_read_from_the_kernel_in_their_order(tmp_path: Path) -> None:
    """Rule: node10 comes after node2, lists with ranges are read, nodes without cores left out."""
    for node, cores in (("node10", "8,10-11\n"), ("node2", "0-2\n"), ("node3", "\n")):
        (tmp_path / node).mkdir()
        (tmp_path / node / "cpulist").write_text(cores)
    assert list(numa_nodes(tmp_path).values()) == [[0, 1, 2], [8, 10, 11]]
    assert numa_nodes(tmp_path / "none") == {}


def test_ranks_of_several_sessions_do_not_pass_a_core_on(tmp_path: Path) -> None:
    """Rule: the session counts where the kernel groups tasks by it, and nothing does elsewhere."""
    said = tmp_path / "sched_autogroup_enabled"
    assert yield_group(said) == 0
    said.write_text("0\n")
    assert yield_group(said) == 0
    said.write_text("1\n")
    assert yield_group(said) == os.getsid(0)


def test_cores_are_counted_once() -> None:
    """Rule: ranks that may use the same cores do not make them more."""
    assert cores_of([[0, 1], [0, 1], [1]]) == 2


@pytest.mark.parametrize(
    ("collective", "in_place", "reads", "writes"),
    [
        ("allreduce", False, 32, 32),
        ("allreduce", True, 32, 32),
        ("broadcast", False, 8, 32),
        ("allgather", False, 32, 128),
        ("allgather", True, 32, 96),
        ("reduce_scatter", False, 128, 32),
        ("alltoall", False, 128, 128),
    ],
)
def test_least_bytes(collective: str, in_place: bool, reads: int, writes: int) -> None:
    """Rule: on 4 ranks and 2 floats a part, every input is read once, every output written once."""
    what = spec(collective)
    found = least(Layout(what, 4, max(1, what.parts(4))), 2, 4, in_place)
    assert (found.reads, found.writes) == (reads, writes)


def test_a_limit_takes_calm_sweeps_of_the_slowest_rank() -> None:
    """Rule: a sweep takes what its slowest rank takes; more than twice the least was disturbed."""
    # The second rank is the slower in the first sweep, and disturbed in the third.
    times = [[1.0, 2.0, 1.0, 2.5], [2.0, 1.0, 5.0, 2.5]]
    every = run(2, lambda world: typical(np.array(times[world.rank]), world), deadline=60)
    assert every == [2.0] * 2
    # Twice the least is calm.
    assert run(1, lambda world: typical(np.array([4.0, 8.0, 8.0, 8.1]), world)) == [8.0]


COLLECTIVES = ["allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "alltoall"]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_limits_sweep_moves_the_least_bytes_over_own_memory(
    collective: str, in_place: bool
) -> None:
    """Rule: all ranks together load and store what must move, each in memory of its own alone."""
    what, nranks, each = spec(collective), 4, 4096
    if in_place and not what.in_place:
        pytest.skip("no in-place form")
    layout = Layout(what, nranks, max(1, what.parts(nranks)))
    call = LibraryCall(what, {}, op("sum") if what.reduces else None, each, in_place=in_place)
    starts = [in_place_starts(layout, r, each) if in_place else (0, 0) for r in range(nranks)]
    everyone = [[(0, ins), (0 if in_place else 1, outs)] for ins, outs in starts]
    graph = over_own_memory(shared_out(call, everyone, 4), 1, in_place)
    needed = least(layout, each, 1, in_place)
    assert sum(w.size * len(w.sources) for w in graph.order) == needed.reads
    assert sum(w.size * len(w.targets) for w in graph.order) == needed.writes
    for rank, works in enumerate(graph.works):
        assert not any(w.waits for w in works)
        touched: Counter[tuple[int, int]] = Counter()
        for w in works:
            for place in {*w.places}:
                assert place.rank == rank
                touched.update({(place.segment, place.start + i): 1 for i in range(w.size)})
        assert set(touched.values()) <= {1}, "no place is touched by two passes"
