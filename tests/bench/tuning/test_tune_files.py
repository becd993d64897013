"""What tuning writes for others, read as they read it, and that a real Open MPI takes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.run.tuning_file import Range, Tunable, dump, load, parse
from bench.tuning.libraries import (
    ALGORITHMS,
    force_nccl,
    force_openmpi,
    forced_by_nccl,
    forced_by_openmpi,
    number,
    rules_file,
    tuner_file,
)
from busbar.errors import Unsupported
from tests.bench.tuning.tunings import A, as_open_mpi, choice, rules
from tests.conftest import Mpi, Run, examples, good, under

_ranges = st.lists(
    st.tuples(
        st.integers(0, 1 << 30),
        st.sampled_from(["library", *(f"library/{n}" for n in ALGORITHMS["allreduce"])]),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda pair: pair[0],
).map(lambda pairs: tuple(Range(n, Tunable(a, "mpi"), 1e-6, 2e-6) for n, a in sorted(pairs)))


class TestFiles:
    """What is written for others, read back as they read it."""

    @given(_ranges)
    def test_our_file_reads_back(self, ranges: tuple[Range, ...]) -> None:
        """`parse` gives what `dump` was given."""
        assert parse(dump([rules(ranges)], {}), Path("x.json")) == [rules(ranges)]

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            ("", "no JSON"),
            ("[1]", "not a tuning file"),
            ('{"format": "busbar-tuning 2"}', "Expected `array`, got `null`"),
            (
                '{"format": "busbar-tuning 2", "rules": [3]}',
                "Expected `object`, got `int` - at `rules[0]`",
            ),
            (
                '{"format": "busbar-tuning 2", "rules": [{}]}',
                "missing required field `collective` - at `rules[0]`",
            ),
        ],
    )
    def test_a_file_that_is_none_is_named(self, tmp_path: Path, text: str, what: str) -> None:
        """A broken tuning file ends in one line with the file and the place."""
        path = tmp_path / "x.json"
        path.write_text(text)
        with pytest.raises(Unsupported) as error:
            load(path)
        assert what in str(error.value)
        assert str(path) in str(error.value)

    @given(
        st.dictionaries(st.integers(2, 64), _ranges, min_size=1, max_size=4),
        st.integers(0, 130),
        st.integers(0, 1 << 31),
    )
    @examples(200)
    def test_open_mpi_reads_our_rules(
        self, by_ranks: dict[int, tuple[Range, ...]], ranks: int, nbytes: int
    ) -> None:
        """Read as Open MPI reads it, the file gives each measured rank count its own choice.

        Other rank counts, and sizes below the smallest, are left to Open MPI (0).
        """
        made = [rules(ranges, n) for n, ranges in by_ranks.items()]
        number = as_open_mpi(rules_file(made).decode(), 2, ranks, nbytes)
        if ranks not in by_ranks or nbytes < by_ranks[ranks][0].low:
            assert number == 0
        else:
            wanted = choice(rules(by_ranks[ranks]), nbytes).algorithm
            names = ("library", *(f"library/{n}" for n in ALGORITHMS["allreduce"]))
            assert names[number] == wanted

    def test_what_open_mpi_does_not_have_is_refused(self) -> None:
        """A choice without a counterpart in Open MPI is said, not written as another."""
        with pytest.raises(Unsupported, match="double_tree is no algorithm of Open MPI"):
            rules_file([rules((Range(0, Tunable("double_tree", "mpi"), 1e-6),))])

    def test_ours_is_written_as_the_same_algorithm(self) -> None:
        """Open MPI's linear all-reduce is a reduce to rank 0 and a broadcast, as a server is."""
        server, shot = Tunable("ps", "mpi"), Tunable("one_shot", "mpi")
        assert number("allreduce", server) == 1 + ALGORITHMS["allreduce"].index("basic_linear")
        assert number("allreduce", shot) is None

    def test_nccl_tuner_lines(self) -> None:
        """A line a range in the example plug-in's columns; what NCCL decides itself is left out."""
        made = rules(
            (
                Range(0, Tunable("library/tree/ll", "nccl"), 1e-6),
                Range(4096, Tunable("library", "nccl"), 1e-6),
                Range(65536, Tunable("library/ring/simple", "nccl"), 1e-6),
            ),
            8,
        )
        lines = tuner_file([made]).decode().splitlines()
        assert lines[1:] == [
            "allreduce,0,4095,tree,ll,-1,1,8",
            f"allreduce,65536,{2**64 - 1},ring,simple,-1,1,8",
        ]

    def test_nccl_refuses_what_is_not_its_own(self) -> None:
        """Our ring is not NCCL's ring with some protocol: nothing is guessed."""
        with pytest.raises(Unsupported, match="tune with --nccl"):
            tuner_file([rules((Range(0, A, 1e-6),))])

    def test_forcing_is_recognised_again(self) -> None:
        """What was forced for a run is read back from that run's record."""
        for collective, names in ALGORITHMS.items():
            made = force_openmpi(collective, 2)
            assert set(made) == set(names)
            assert all(forced_by_openmpi(collective, v) == name for name, v in made.items())
            assert all(forced_by_openmpi("alltoallv", v) == "" for v in made.values())
        assert all(forced_by_nccl(v) == name for name, v in force_nccl("allreduce").items())


_SUMS = """
import sys, zlib
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
random = np.random.default_rng(world.rank)
for n in (256, 65536):
    mine = (random.standard_normal(n) * 10.0 ** random.integers(-6, 6, n)).astype(np.float32)
    total = np.empty_like(mine)
    world.Allreduce(mine, total)
    if world.rank == 0:
        print(zlib.crc32(total.tobytes()))
"""


def test_open_mpi_accepts_the_rules(mpi: Mpi, run: Run, tmp_path: Path) -> None:
    """A real Open MPI computes by the algorithm that our file names.

    Each algorithm adds in an order of its own, so the bits of a float sum say which one ran. A
    file that Open MPI refused would leave its own choice standing at both sizes.
    """
    if mpi.name != "openmpi":
        pytest.skip("the file is Open MPI's")
    script = tmp_path / "sums.py"
    script.write_text(_SUMS)
    force = force_openmpi("allreduce", 4)

    def sums(env: dict[str, str]) -> list[str]:
        out = good(run(*under(mpi, 4, str(script)), env=env))
        return out.split()

    linear, ring = sums(force["basic_linear"]), sums(force["ring"])
    free = sums({})
    assert len({linear[0], ring[0], free[0]}) == 3, "these must differ for the test to say anything"
    assert linear[1] != ring[1]
    path = tmp_path / "rules.conf"
    ranges = (
        Range(1024, Tunable("library/basic_linear", "mpi"), 1e-6),
        Range(100_000, Tunable("library/ring", "mpi"), 1e-6),
    )
    path.write_bytes(rules_file([rules(ranges)]))
    ruled = sums(
        {
            "OMPI_MCA_coll_tuned_use_dynamic_rules": "true",
            "OMPI_MCA_coll_tuned_dynamic_rules_filename": str(path),
        }
    )
    assert ruled == [linear[0], ring[1]]
