"""``python -m collectives``: what it shows, and how it says no."""

from __future__ import annotations

import json
import os
import re
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
        assert algorithms(name) and all(algorithm in out for algorithm in algorithms(name))
    assert "Raises" not in out, "an error is no cost"
    assert "⌈lg P⌉ steps" in out and "lg n" not in out and "P: ranks" in out, "P is ranks, N bytes"
    assert "`" not in out and "as in the" not in out and "In lg" not in out, "nothing of the code"


def test_show_is_the_schedule() -> None:
    """A row a step; what rank 0 sends first in a ring of 4 is chunk 3, to be added by rank 1."""
    status, out, _ = collectives_cli("show ring --collective allreduce -n 4")
    assert status == 0
    rows = [line.split() for line in out.splitlines() if line.split()[:1] == ["0"]]
    assert rows[0][:3] == ["0", "→1", "+3"]
    assert "The second half goes round the other way" in out
    assert "→3: the rank of this column sends to rank 3" in out, "the legend's rank exists"
    assert max(map(len, out.splitlines())) <= 80
    status, out, _ = collectives_cli("show ring -c allgather -n 3 --placed")
    assert status == 0 and "in[0] out[0]" in out
    status, out, _ = collectives_cli("show chain -c broadcast -n 12 --segments 2")
    assert status == 0 and "10→11 0" in out


@pytest.mark.parametrize(
    ("name", "collective"),
    [("ps", "allreduce"), ("halving+ring", "allreduce"), ("chain", "broadcast")],
)
def test_a_schedule_has_the_collective_that_is_simulated(name: str, collective: str) -> None:
    """Rule: without -c, show and export take the collective that simulate takes: all-reduce, or
    the first that has the algorithm.
    """  # noqa: D205
    shown = collectives_cli(f"show {name} -n 4")[1]
    assert shown.lstrip().startswith(f"{collective} {name} on 4 ranks"), shown
    assert shown == collectives_cli(f"show {name} -n 4 -c {collective}")[1]
    exported = collectives_cli(f"export {name} -n 4")
    assert exported == collectives_cli(f"export {name} -n 4 -c {collective}") and exported[0] == 0
    assert collective in collectives_cli(f"simulate {name} --machine ring:4")[1]


@pytest.mark.parametrize("width", [40, 50, 60, 70, 80, 100])
def test_a_schedule_that_has_no_room_is_listed(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: heads and moves of a schedule are never broken; without room moves are listed."""
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = collectives_cli("show ring -c allreduce -n 8")
    table = re.split(r"\n(0)?→7: ", out)[0]
    steps = table.splitlines()
    assert max(map(len, steps)) <= width
    assert ("rank 7" in table) == (width >= 80) and ("7→0 +6" in out) == (width < 80)


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


def test_a_link_for_each_pair_is_said_to_hide_the_law() -> None:
    """Rule: ``full`` says why ps is as fast as a ring there; each algorithm has its busiest links.

    Other machines do not have the line.
    """
    _, out, _ = collectives_cli("simulate ring,ps --machine full:8:gbs=1 -c allreduce")
    assert "each pair of ranks has a link of its own" in out
    assert "busiest links of ring" in out and "busiest links of ps" in out
    hint = re.search(r"--machine (\S+) -b (\w+)\.", out)
    assert hint is not None
    words = "simulate ring,ps -c allreduce --machine {} -b {}".format(*hint.groups())
    out = " ".join(collectives_cli(words)[1].split())
    found = re.search(r"ps takes (\S+) times as long as ring at .* with one port .* 8 times", out)
    assert found is not None and float(found[1]) == pytest.approx(8, rel=0.05)
    assert "link of its own" not in collectives_cli("simulate ps -c allreduce --machine ring")[1]


def test_sizes_of_ps_and_ring_are_one_sentence() -> None:
    """Rule: the law of bytes is said once for each rank count, with the ratio at every size."""
    words = "simulate ring,ps -c allreduce --machine fattree:4 --sweep b -b 1M -e 16M"
    out = " ".join(collectives_cli(words)[1].split())
    assert out.count("by bytes through the busiest port") == 1
    assert re.search(
        r"times as long as ring at 1 MiB, \S+ at 4 MiB, \S+ at 16 MiB on 4 ranks;", out
    )


def test_a_collective_without_a_named_algorithm_is_named() -> None:
    """Rule: with several algorithms a note names the collectives that lack one of them."""
    _, _, err = collectives_cli("cost ring,bruck -n 4")
    assert "collectives: allreduce: no bruck\n" in err
    assert not collectives_cli("cost ps -n 4")[2]


def test_cost_is_of_the_all_reduce_and_of_several_rank_counts() -> None:
    """Rule: without -c the all-reduce is costed, and a line names the other collectives; a name
    that it lacks is costed in all that have it. -n takes several counts, a table and rows for each.
    """  # noqa: D205
    status, out, err = collectives_cli("cost ring,ps -n 2,4,8")
    assert (status, err) == (0, "")
    heads = [line.rstrip() for line in out.splitlines() if " on " in line and "ranks" in line[-60:]]
    assert [head for head in heads if head.startswith("all")] == [
        f"allreduce on {n} ranks" for n in (2, 4, 8)
    ]
    assert "other collectives: -c NAME (allgather, reduce_scatter)" in out
    ports = {
        (row["ranks"], row["algorithm"]): row["port"]
        for row in json.loads(collectives_cli("cost ring,ps -n 2,4,8 --format json")[1])["rows"]
    }
    assert ports == {(n, "ring"): 2 * (n - 1) / n for n in (2, 4, 8)} | {
        (n, "ps"): 2 * (n - 1) for n in (2, 4, 8)
    }
    _, out, _ = collectives_cli("cost bruck -n 4")
    assert "alltoall on 4 ranks" in out and "other collectives" not in out
    _, out, _ = collectives_cli("cost ring -c allgather -n 4")
    assert "allgather on 4 ranks" in out and "other collectives" not in out
    _, out, _ = collectives_cli("cost ring -n 2,4 -b 1M -e 1M")
    assert out.count("predicted time") == 2 and out.count("no machine given") == 1


def test_cost_has_bounds_beside() -> None:
    """Costs stand under the one-port bounds of their collective."""
    status, out, _ = collectives_cli("cost ring -c allreduce -n 8")
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["one-port", "bound", "3", "1.75", "1.75", "-", "0.875"] in lines
    assert ["ring", "14", "14", "14", "1.75", "1.75", "1.75", "0.875"] in lines


#: Command lines that are refused, and what is said of them; names and values: `test_catalogue`.
REFUSED = (
    ("paint", "paint"),
    ("show ring -c allreduce -n 0", "0"),
    ("show ring -c allreduce -n 2-4", "one rank count"),
    ("show ring -c allreduce -n 2²", "2²"),
    (f"show ring -c allreduce -n 1{5000 * '0'}", "1000"),
    ("verify halving+ring", "a composition needs --collective"),
    ("verify chain:segments=100000000 -c broadcast -n 8", "at most 4096"),
    ("verify chain:nbytes=1e308:alpha=1e-308:beta=inf -c broadcast -n 3", "finite"),
    ("verify torus -c allreduce -n 8 --grid 1000x1000", "1000x1000"),
    ("cost nothing", "no algorithm 'nothing'"),
    ("cost -c allreduce -n 16 -b 2M -e 1M", "2 MiB is above -e 1 MiB"),
    ("cost -c allreduce -n 16 -b 0", "at least 1 byte"),
    ("cost -c allreduce -n 16 -f 1", "1"),
    ("cost -c allreduce -n 16 -f 1.0001", "more than 10000 sizes"),
    ("cost -c allreduce -n 16 --fit gone.json", "gone.json"),
    ("cost -c allreduce -n 16 --topology gone.json", "gone.json"),
    ("cost -c allreduce -n 16 --topology pyproject.toml", "pyproject.toml"),
    ("cost -c allreduce -n 2000000 -b 1M", "2000000"),
    ("fit", "MATRIX.json"),
    ("fit gone.json", "gone.json"),
    ("fit pyproject.toml", "pyproject.toml"),
    ("simulate direct -c alltoall --machine torus:1000x1000", "at most"),
    ("simulate ring --machine ring -b 0", "needs more than 0"),
    ("simulate ring --machine ring -n 2-4", "one rank count is needed without --sweep n"),
    ("simulate ring --machine ring -e 1G", "-e goes with --sweep b"),
    ("simulate ring,ps --machine ring --svg a.svg", "draws the link loads of one algorithm"),
    ("simulate ring --machine ring --svg no/such/a.svg", "there is no folder no/such"),
    ("simulate ring --machine ring --svg a.gif", "it should end in .svg, .png"),
    ("simulate no.xml --machine ring", "no.xml"),
    ("simulate ring --topology a.json", "did you mean --machine FILE?"),
    ("simulate ring --fit a.json", "--machine with the map that was fitted, or busbar collectives"),
    ("cost ring --topology nvswitch:8", "busbar collectives simulate --machine nvswitch:8"),
    ("cost ring --machine ring:8", "--topology FILE or --fit FILE, or busbar collectives simulate"),
    (
        "show ring allreduce",
        "a collective follows -c: python -m collectives show ring -c allreduce",
    ),
    (
        "show ring,ps -c allreduce --svg a.svg",
        "as python -m collectives show ring -c allreduce --svg a-ring.svg",
    ),
    ("show ring,ps --svg a.svg", "as python -m collectives show ring --svg a-ring.svg"),
    ("show all", "show all: give its --collective: allgather, allreduce"),
    ("simulate ring", "simulate needs a machine: --machine nvswitch:8"),
    ("simulate ring -c allreduce --machine fatree:4x4", "did you mean fattree?"),
    ("simulate ring -c allreduce --machine ful:8", "did you mean full?"),
    ("simulate ring --machine ring:8 --sweep x", "invalid choice"),
    ("export rong", "did you mean ring?"),
    ("export dissemination -c barrier", "MSCCL has no collective barrier"),
    ("export direct -c alltoall --placement in", "no in-place form"),
    ("export ring -c allreduce --channels 0", "at least 1"),
    ("export ring -c allreduce -F chakra", "give -o NAME"),
    ("export ring -c allreduce -F goal --bytes 0", "at least 1"),
    (f"export ring -c allreduce -F goal --bytes 1{23 * '0'}", "at most"),
    ("export ring -c allreduce -n 3000 -F chakra", "at most 4.0e+06 are written"),
    ("export ring -c allreduce -n 1000", "at most 5.0e+05 are written as msccl"),
)


@pytest.mark.parametrize(("line", "says"), REFUSED, ids=lambda text: text[:60])
def test_bad_input_is_one_line_and_status_2(line: str, says: str) -> None:
    """A mistake never yields a traceback, nor a silent default: one line says what is wrong."""
    status, out, err = collectives_cli(line)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_verify_and_show_say_what_they_mean() -> None:
    """Rule: verify states what is proven; the marks of show are explained, as they are printed."""
    _, out, _ = collectives_cli("verify ring -c allreduce -n 2-3")
    text = " ".join(out.split())
    assert "holds every contribution that the collective asks for exactly once" in text
    with_none = collectives_cli("verify -c allreduce swing -n 2")[1]
    assert "proven, in and out of place:" in with_none
    columns = " ".join(collectives_cli("show ring -c allreduce -n 4")[1].split())
    assert "→3: the rank of this column sends to rank 3. 0: chunk 0, which replaces" in columns
    assert "+0: chunk 0, which is added to it; 0-3: chunks 0 to 3." in columns
    listed = " ".join(collectives_cli("show tree -c allreduce -n 10")[1].split())
    assert "0→9: rank 0 sends to rank 9." in listed
    placed = " ".join(collectives_cli("show ring -c allreduce -n 2 --placed")[1].split())
    assert "in[0] out[1]: slot 0 of its buffer in, to slot 1" in placed


def test_show_and_simulate_take_several_names_or_all() -> None:
    """Rule: where siblings take names with commas, or all, every command on algorithms does."""
    status, out, _ = collectives_cli("show ring,ps -c allreduce -n 4")
    assert status == 0
    for name in ("ring", "ps"):
        assert collectives_cli(f"show {name} -c allreduce -n 4")[1] in out
    status, out, err = collectives_cli("show all -c allreduce -n 3")
    assert status == 0 and "allreduce tree on 3 ranks" in out
    assert "collectives: left out: recursive_doubling needs a power of two" in err
    status, out, err = collectives_cli("simulate all --machine fattree:6 -b 64K")
    rows = {line.split()[0] for line in out.splitlines() if line.count("%") == 3}
    assert status == 0 and rows | {"recursive_doubling", "swing"} == {*algorithms("allreduce")}
    assert err.count("left out: ") == 2
    for command in ("simulate all --machine fattree:6", "show all -n 6"):
        status, out, err = collectives_cli(f"{command} -c hypercube")
        assert (status, out) == (2, "") and "needs a power of two" in err and err.count("\n") == 1


def test_a_record_is_no_matrix_to_fit(tmp_path: Path) -> None:
    """Rule: the rows of a run are named for what they are, with the command of a matrix."""
    record = tmp_path / "run.jsonl"
    record.write_text('{"format":4,"run":"1","environment":{"a":"' + 20000 * "x" + '"}}\n')
    status, out, err = collectives_cli("fit", str(record))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "rows of a run" in err and "topology measure --sweep" in err


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
        "from tests.command import collectives_main as main;"
        f"status = main(['verify', '{name}', '-c', '{collective}', '-n', '1024']);"
        # Not ru_maxrss, which keeps what the process was before exec.
        "most = int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]);"
        "raise SystemExit(status or most > 1 << 20)"
    )
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "1024" in done.stdout, done.stderr


def test_the_module_runs_and_imports_little() -> None:
    """`python -m collectives` works, and listing and predicting load no large library."""
    cost = "cost -c allreduce -n 16 -b 1M"
    code = (
        "import sys; from tests.command import collectives_main as main; main(['list']);"
        f"main({cost.split()!r});"
        "heavy = {'matplotlib', 'mpi4py', 'cupy', 'pandas', 'networkx', 'scipy'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    module = [sys.executable, "-m", "collectives", "list"]
    assert "allreduce" in subprocess.run(module, capture_output=True, text=True, check=True).stdout
