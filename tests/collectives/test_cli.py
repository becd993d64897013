"""``python -m collectives``: what it shows, and how it says no."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.schedule.catalogue import algorithms, collectives
from tests.conftest import collectives_cli


def test_list_names_everything() -> None:
    """Every collective and every algorithm is listed."""
    status, out, _ = collectives_cli("list")
    assert status == 0
    for name in collectives():
        assert name in out
        assert all(algorithm in out for algorithm in algorithms(name))
    assert "Raises" not in out, "an error is no cost"


def test_show_is_the_schedule() -> None:
    """A row a step; what rank 0 sends first in a ring of 4 is chunk 3, to be added by rank 1."""
    status, out, _ = collectives_cli("show ring --collective allreduce -n 4")
    assert status == 0
    rows = [line.split() for line in out.splitlines() if line.split()[:1] == ["0"]]
    assert rows[0][:3] == ["0", "→1", "+3"]
    assert "The second half goes round the other way" in out
    status, out, _ = collectives_cli("show ring -c allgather -n 3 --placed")
    assert status == 0 and "in[0] out[0]" in out
    status, out, _ = collectives_cli("show chain -c broadcast -n 12 --segments 2")
    assert status == 0 and "10→11 0" in out


def test_show_draws(tmp_path: Path) -> None:
    """The drawing is an SVG; an ending that nothing can draw is refused."""
    pytest.importorskip("matplotlib")
    target = tmp_path / "ring.svg"
    command = ("show", "ring", "-c", "allreduce", "-n", "4", "--svg")
    assert collectives_cli(*command, str(target))[0] == 0
    assert "<svg" in target.read_text(encoding="utf-8")
    for bad in (tmp_path / "ring.xyz", tmp_path / "none" / "ring.svg"):
        status, _, err = collectives_cli(*command, str(bad))
        assert status == 2 and err.count("\n") == 1


def test_verify_proves() -> None:
    """The proof says for which rank counts, and names those that an algorithm does not serve."""
    status, out, _ = collectives_cli("verify all -c allgather -n 1-6")
    assert status == 0
    found = {line.split()[1]: line.split()[2:] for line in out.splitlines() if "allgather" in line}
    assert found["ring"] == ["1-6", "-"]
    assert found["doubling"] == ["1-2", "4", "3", "5-6"]


def test_cost_has_bounds_beside() -> None:
    """Costs stand under the lower bounds of their collective."""
    status, out, _ = collectives_cli("cost ring -c allreduce -n 8")
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["lower", "bound", "3", "1.75", "1.75", "0.875"] in lines
    assert ["ring", "14", "14", "14", "1.75", "1.75", "0.875"] in lines


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("paint",),
        ("show", "ring"),
        ("show", "rng", "-c", "allreduce"),
        ("show", "ring", "-c", "allreduc"),
        ("show", "ring", "-c", "allreduce", "-n", "0"),
        ("show", "ring", "-c", "allreduce", "-n", "x"),
        ("show", "ring", "-c", "allreduce", "-n", "2-4"),
        ("show", "flat", "-c", "broadcast", "-n", "4", "-r", "4"),
        ("show", "torus", "-c", "allreduce", "-n", "4", "--grid", "3x3"),
        ("show", "ring", "-c", "allreduce", "--grid", "2x2"),
        ("verify", "halving", "-n", "6"),
        ("verify", "halving+ring"),
        ("show", "ring", "-c", "allreduce", "-n", "2²"),
        ("show", "ring", "-c", "allreduce", "-n", "1" + 5000 * "0"),
        ("verify", "chain:segments=100000000", "-c", "broadcast", "-n", "8"),
        ("verify", "chain:segments=2²", "-c", "broadcast"),
        ("verify", "chain:nbytes=1e308:alpha=1e-308:beta=inf", "-c", "broadcast", "-n", "3"),
        ("verify", "torus", "-c", "allreduce", "-n", "8", "--grid", "1000x1000"),
        ("simulate", "direct", "-c", "alltoall", "--machine", "torus:1000x1000"),
        ("simulate", "ring", "--machine", "torus:1000x1000"),
        ("cost", "nothing"),
        ("cost", "swing", "-c", "allreduce", "-n", "6"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments: tuple[str, ...]) -> None:
    """A mistake never yields a traceback, nor a silent default."""
    status, out, err = collectives_cli(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_values_at_the_ends_of_floats_make_a_chain() -> None:
    """A pipeline's best segments are bounded however odd the costs that they are reckoned from."""
    for beta in ("1e308", "1e-308"):
        name = f"chain:nbytes=1e308:alpha=1e-300:beta={beta}"
        status, out, _ = collectives_cli("verify", name, "-c broadcast -n 3")
        assert status == 0 and "3" in out


@pytest.mark.parametrize(
    ("collective", "name"),
    [
        ("alltoall", "pairwise"),
        pytest.param("allreduce", "halving_doubling", marks=pytest.mark.thorough),
        pytest.param("reduce_scatter", "pat", marks=pytest.mark.thorough),
    ],
)
def test_a_thousand_ranks_are_proven_within_a_gibibyte(collective: str, name: str) -> None:
    """Proofs of 1,024 ranks, in and out of place, stay within an address space of 2 GiB in all."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30));"
        "from collectives.cli import main;"
        f"status = main(['verify', '{name}', '-c', '{collective}', '-n', '1024']);"
        "most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "raise SystemExit(status or most > 1 << 20)"
    )
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "1024" in done.stdout, done.stderr


def test_the_module_runs_and_imports_little() -> None:
    """`python -m collectives` works, and a listing loads no drawing library, MPI or GPU library."""
    code = (
        "import sys; from collectives.cli import main; main(['list']);"
        "print(sorted({'matplotlib', 'mpi4py', 'cupy', 'pandas', 'networkx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    module = [sys.executable, "-m", "collectives", "list"]
    assert "allreduce" in subprocess.run(module, capture_output=True, text=True, check=True).stdout
