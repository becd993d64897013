"""Measuring over a provider's transport: found by name, moves what it says, fails in one line."""

from __future__ import annotations

import re
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.links.exchange import GROUP, find
from bench.links.transports import exchange
from busbar.errors import ProbeError
from collectives.schedule.verify import verify
from topology.measured.matrix import QUANTITIES, matrix, rounds
from topology.sources import own_json

from .test_measure import ROOT, launch

pytestmark = pytest.mark.timeout(120)


def installed(folder: Path, registered: str) -> Path:
    """A folder that, on the path, looks as if a package had registered these providers."""
    about = folder / "provider-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: provider\nVersion: 0\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\n{registered}\n")
    return folder


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pyproject.toml registers, as metadata that the ranks of `launch` find."""
    project = (ROOT / "pyproject.toml").read_text()
    section = re.search(
        rf'\[project\.entry-points\."{re.escape(GROUP)}"\]\n(.*?)\n\n', project, re.S
    )
    assert section
    folder = installed(tmp_path, section[1].replace('"', ""))
    monkeypatch.syspath_prepend(str(folder))


@given(st.integers(2, 7), st.sampled_from(sorted(QUANTITIES)), st.data())
def test_a_round_moves_what_it_claims(nranks: int, quantity: str, data: st.DataObject) -> None:
    """Rule: in every round and either direction, each rank ends with the vector it is to get."""
    pairs = data.draw(st.sampled_from(rounds(nranks)))
    turned = [pair[::-1] if data.draw(st.booleans()) else pair for pair in pairs]
    schedule, spec = exchange(quantity, turned, nranks)
    verify(schedule, spec)


@pytest.mark.usefixtures("ours")
def test_what_is_registered_is_found() -> None:
    """Rule: the names in pyproject.toml lead to something that can be called."""
    assert callable(find("shm"))


def test_absent_and_broken_providers_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: an unknown name lists what there is, and either way the remedy is pip install."""
    monkeypatch.syspath_prepend(
        str(installed(tmp_path, "gone = no_such_module:open\nless = json:gone"))
    )
    for name, said in (("warp", "there are: mpi, "), ("gone", "no_such_module"), ("less", "gone")):
        with pytest.raises(ProbeError, match=said) as caught:
            find(name)
        assert "pip install" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.xdist_group("launcher")
@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("options", [(), ("--isolated",)])
def test_mpirun_fills_the_matrix_over_shm(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: over a provided transport all directed cells of each quantity are filled as well."""
    saved = tmp_path / "measured.json"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = ("--bytes", "64K", "--repetitions", "5", "--transport", "shm", "-o", str(saved))
    done = launch(3, *settings, *options)
    assert done.returncode == 0, done.stderr
    assert "transport: shm" in done.stdout
    topology = own_json.parse(saved.read_text())
    assert topology.get("transport") == "shm"
    for name in QUANTITIES:
        cells = matrix(topology, name)
        assert set(cells) == set(permutations((f"RANK{r}" for r in range(3)), 2))
        assert all(0 < cell.low <= cell.value <= cell.high for cell in cells.values())


@pytest.mark.xdist_group("launcher")
def test_unknown_transport_under_mpirun_is_one_line() -> None:
    """Rule: all ranks end with status 2, and only one of them says why."""
    done = launch(2, "--transport", "warp")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.count("--transport warp: no installed package provides it") == 1


@pytest.mark.xdist_group("launcher")
def test_a_rank_that_fails_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: when a transport fails on one rank half way, it is said and nobody waits for ever."""
    (tmp_path / "half_way.py").write_text(
        "from mpi4py import MPI\n"
        "from busbar.errors import ProbeError\n"
        "from bench.links.mpi_exchange import MpiExchange\n"
        "class Fails(MpiExchange):\n"
        "    def times(self, *what):\n"
        "        if what[0] == 'bandwidth' and MPI.COMM_WORLD.rank == 1:\n"
        "            raise ProbeError('measure', 'the cable was cut')\n"
        "        return super().times(*what)\n"
        "def open_it():\n"
        "    return Fails(MPI.COMM_WORLD, 1 << 20)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(installed(tmp_path, "fails = half_way:open_it")))
    done = launch(2, "--transport", "fails")
    assert done.returncode == 2
    assert "rank 1: measure: the cable was cut" in done.stderr
    assert "Traceback" not in done.stderr
