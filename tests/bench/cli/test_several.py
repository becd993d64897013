"""``--ranks 2,4`` and ``--launches``: all rows in one record, a map at the end; shared cores."""

from __future__ import annotations

import os
import re
import signal
import sys
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import pytest

from bench.api import running
from bench.cli import several as several_launches
from bench.cli.main import main
from bench.launch.child import Ended
from bench.options.launching import LaunchTurn, turns
from bench.options.options import parse
from bench.run.environment import load as load_of
from busbar.errors import Unavailable
from collectives.execution.inproc.world import InprocWorld
from collectives.execution.inproc.world import run as on_world
from reports.exports.store import SINKS
from reports.readers.reading import read
from reports.records.cores import Load, busiest
from reports.records.measurement import launch_of
from tests.conftest import LIMIT_S, Mpi, Run, called, good, on_threads, popen, thorough
from tests.reports.runs import allreduce, to_jsonl

BENCH = ("-m", "bench.allreduce", "--transport", "inproc", "--placement", "out")
SMALL = ("-b", "1K", "-e", "2K", "-n", "8")


def _counts(path: Path) -> list[tuple[int | None, int | None]]:
    return [(row.ranks, row.size) for row in read(path).rows]


def test_all_rows_are_in_every_file_and_a_map_ends_it(run: Run, tmp_path: Path) -> None:
    """Rule: whatever the form, a file holds the rows of all launches in order; the map is full."""
    pytest.importorskip("pyarrow")
    names = [f"r{ending}" for ending in SINKS] + ["run/"]
    files = [word for name in names for word in ("--out", f"{tmp_path}/{name}")]
    done = run(sys.executable, *BENCH, *SMALL, "-A", "ring,ps", "--ranks", "3,2", *files)
    assert done.returncode == 0, done.stderr
    expected = [(ranks, size) for ranks in (2, 3) for _ in "ab" for size in (1024, 2048)]
    for name in names:
        kept = _counts(tmp_path / name)  # a folder has a file a launch, in the order of their names
        assert (sorted(kept) == sorted(expected)) if name == "run/" else (kept == expected), name
    assert "2 ranks, rank count 1 of 2" in done.stderr
    assert "3 ranks, rank count 2 of 2" in done.stderr and "not kept" not in done.stderr
    closing = done.stdout[done.stdout.rindex("# the fastest of allreduce") :]
    # On a busy machine further lines say what disturbed the run.
    table = closing.partition("# times may be disturbed")[0].splitlines()
    *lines, last = done.stdout.splitlines()
    assert all(line.startswith("#") for line in lines)
    assert all(len(line) <= 80 for line in lines if not line.startswith("#   busbar "))
    assert done.stdout.startswith("# the fastest of allreduce") and len(table) < 24
    assert re.search(
        r"# [23] ranks: ((ring|ps) (was|may be)|cannot tell whether) ", "\n".join(table)
    )
    assert last == f"# every row: busbar reports show {tmp_path}/r.jsonl"
    cells = [line for line in table if re.match(r"# +[12]K  ~?(ring|ps) .*  ~?(ring|ps) ", line)]
    assert len(cells) == 2, table


@pytest.mark.parametrize("how", ["command", "function"])
@pytest.mark.parametrize("hosts", [(), ("--host", "a,b")])
def test_rows_of_other_hosts_come_by_a_folder_that_hosts_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, hosts: tuple[str, ...]
) -> None:
    """Rule: rank 0 on another host has no /tmp of this one, so rows go to the working directory.

    Nothing stays there.
    """
    folders: list[Path] = []

    def launch(module: object, ranks: object, argv: list[str], **more: object) -> Ended:
        words = [word for pair in argv for word in pair.split("=")]
        folders.append(Path(words[words.index("--out") + 1]).parent)
        assert folders[-1].is_dir()
        return Ended(3, "busbar: nothing here", 0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(several_launches, "run_of_its_own", launch)
    monkeypatch.setattr(running, "run_of_its_own", launch)
    if how == "command":
        assert main("allreduce", ["--ranks", "2", "--launches", "2", *hosts]) == 3
    else:
        with pytest.raises(Unavailable, match="nothing here"):
            running.run("allreduce", ranks=2, **({"host": hosts[1]} if hosts else {}))
    assert [folder.parent == tmp_path for folder in folders] == [bool(hosts)]
    assert not list(tmp_path.iterdir())


def test_a_total_is_divided_among_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: --total is the limit of all rank counts and launches together."""
    totals: list[float | None] = []

    def launch(module: object, ranks: object, argv: list[str], **more: object) -> Ended:
        totals.append(parse(argv, "allreduce").total)
        return Ended(0, "", 0)

    monkeypatch.setattr(several_launches, "run_of_its_own", launch)
    assert main("allreduce", ["--ranks", "2,3", "--launches", "2", "--total", "2m"]) == 0
    assert totals == [30.0] * 4


@pytest.mark.parametrize("mpi", ["mpich", *thorough("openmpi")], indirect=True)
def test_with_a_launcher_of_mpi(mpi: Mpi, run: Run, tmp_path: Path) -> None:
    """Rule: each count is a launch of MPI's own launcher, and ranks that share cores are told."""
    out = tmp_path / "r.jsonl"
    cores = len(os.sched_getaffinity(0))
    argv = ("--ranks", f"2,{cores + 1}", "--transport", "mpi", *SMALL, "-A", "ring", "--details")
    text = good(run(mpi.python, "-m", "bench.allreduce", *argv, "--out", str(out)))
    assert text.count(f"#  Rank {cores:>2}") == 1
    rows = read(out).rows
    assert {r.ranks: r.oversubscribed for r in rows} == {2: cores < 2, cores + 1: True}
    assert {r.ranks_per_core for r in rows if r.ranks == cores + 1} == {(cores + 1) / cores}
    said = text.split("\n")
    assert Load(cores + 1, cores).remark(cores + 1) in [line.removeprefix("# ") for line in said]


def test_a_launch_that_fails_does_not_keep_the_others_from_running(
    run: Run, tmp_path: Path
) -> None:
    """Rule: a count that an algorithm cannot serve is said and its status stays; others run."""
    out = tmp_path / "r.jsonl"
    argv = ("-A", "torus", "--grid", "2x2", "--ranks", "3,4", "--out", str(out))
    done = run(sys.executable, *BENCH, *SMALL, *argv)
    assert done.returncode == 2 and "3 ranks" in done.stderr
    assert {ranks for ranks, _ in _counts(out)} == {4}
    assert "the fastest" not in done.stdout  # of a single rank count there is no map


def test_a_signal_ends_all_with_what_there_is(tmp_path: Path) -> None:
    """Rule: a signal ends the launch under way with its report, starts no other, shows the map."""
    out = tmp_path / "r.jsonl"
    argv = (
        "--ranks",
        "2,3,4",
        "-b",
        "1K",
        "-e",
        "1K",
        "-n",
        "8",
        "-N",
        "400",
        "-A",
        "ring",
        "--details",
    )
    process = popen([sys.executable, *BENCH, *argv, "--out", str(out)])
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("#  Rank  2"):  # the second launch's table has begun
                break
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        rest, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.poll() is None and process.kill()
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "ended early: interrupted by SIGTERM" in rest and "launch 3" not in err
    assert {ranks for ranks, _ in _counts(out)} >= {2} and "Traceback" not in err


def test_launches_that_a_signal_ends_say_how_many_there_were(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rule: an answer of fewer launches than asked for says so, also with --quiet.

    It also says whether the launch that was cut has rows in it. Where to see the rows stands on
    standard error, where with --quiet only the time of all launches stands besides.
    """
    kept, numbers = tmp_path / "r.jsonl", iter(range(0))

    def launch(module: object, ranks: int, argv: list[str], stdout: object) -> Ended:
        names = [word for flag, word in pairwise(argv) if flag == "--out"]
        number = next(numbers)
        ring = allreduce("ring", ranks, 1024, [1e-5] * 9, environment={"number": number})
        for name in names if number < 2 or cut_has_rows else ():
            with Path(name).open("ab") as file:
                file.write(to_jsonl([ring]))
        return Ended(0, "", signal.SIGINT if number == 2 else 0)

    monkeypatch.setattr(several_launches, "run_of_its_own", launch)
    for more, cut_has_rows in product(([], ["--quiet"]), (True, False)):
        numbers = iter(range(9))
        words = ["--ranks", "2", "--launches", "5", "--out", str(kept), "--overwrite", *more]
        status, out, err = called(partial(main, "allreduce"), *words)
        assert status == 128 + signal.SIGINT and "launch 4" not in err
        first, second, *_ = out.splitlines()
        assert first == "# ended early: interrupted by SIGINT"
        too = "; the rows that launch 3 had finished count, too" if cut_has_rows else ""
        assert second == f"# launches measured in full: 2 of 5{too}"
        where = f"busbar: for what was measured: busbar reports show {kept}"
        first, *others = err.splitlines()
        assert first.startswith("busbar: 5 launches, ") and others[-1] == where
        assert not more or others == [where]


def test_only_the_first_launch_says_how_long_its_rows_take(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rule: of several launches the first says its time, and with --quiet none does.

    The process that starts them says the time of all.
    """
    monkeypatch.setattr("bench.run.screen.LONG_S", 0.0)
    rows = tmp_path / "rows.jsonl"
    words = "--threads 2 -b 1K -e 1K -A ring --placement out --budget 0.05".split()  # noqa: SIM905
    for more in ([], ["--after", str(rows)], ["-q"]):
        assert "and placements" in on_threads("allreduce", *words, *more)[2], more
    rows.write_bytes(to_jsonl([allreduce("ring", 2, 1024, [1e-5] * 9)]))
    for more in (["--after", str(rows)], ["--after", str(tmp_path / "none.jsonl"), "-q"]):
        assert "placements" not in on_threads("allreduce", *words, *more)[2], more


def test_a_dry_run_of_several_counts_tells_each() -> None:
    """Rule: --dry-run prints what would run on every count, and starts nothing."""
    status, out, _ = on_threads("allreduce", "--ranks 2,4 --dry-run", *SMALL, "-A ring")
    assert status == 0 and "on 2 ranks" in out and "on 4 ranks" in out


def test_the_time_of_a_plan_counts_cycles_patterns_and_launches() -> None:
    """Rule: "at most" is of all cycles, arrival patterns, delays and waits of each launch."""
    most = re.compile(r"; ([0-9hmins ]+) at most in all")

    def planned(*more: str) -> str:
        _, out, err = on_threads("allreduce", "--ranks 2 -b 1K -e 1K -A ring --dry-run", *more)
        match = most.search(out)
        assert match, out + err
        return match[1]

    once = planned()
    assert once == "8 s" and planned("-N 6") == "48 s"
    assert planned("-N 6 --total 20s") == "20 s"
    assert planned("--arrival all") == "40 s" and planned("--inject 0,0.1") == "16 s"
    assert planned("--wait-quiet 1m") == "1 min 08 s"
    assert planned("-N 6 --total 20s --wait-quiet 1m") == "1 min 20 s"
    _, out, _ = on_threads(
        "allreduce", "--ranks 2 -b 1K -e 1K -A ring --dry-run --launches 3 --wait-quiet 1m"
    )
    assert out.startswith("# 3 launches, 3 min 24 s at most in all")
    status, _, err = on_threads("allreduce", "--ranks 4 --split mod:2 --dry-run -A ring")
    assert status == 2 and "--split" in err


def test_threads_are_launched_several_times(run: Run) -> None:
    """Rule: -t and --threads go with --launches, also with a root for each rank."""
    argv = ("-t", "2", "--launches", "2", "--limit", "none", "--budget", "0.01")
    row = ("-b", "64", "-e", "64", "-r", "all", "-A", "flat")
    done = run(sys.executable, "-m", "bench.gather", "--transport", "inproc", *argv, *row)
    assert done.returncode == 0, done.stderr
    assert "2 ranks, launch 2 of 2" in done.stderr
    assert done.stderr.count("raw times are not kept (--out FILE.jsonl keeps them)") == 1


def test_what_all_leaves_out_is_told() -> None:
    """Rule: `all` names each collective that refuses the options, with its reason."""
    status, _, err = called(partial(main, "all"), "--ranks 2 -A ring --dry-run -b 8 -e 8")
    assert status == 0
    assert "barrier is left out: no algorithm 'ring'" in err and "allreduce is left" not in err


# -- who shares cores


@pytest.mark.parametrize(
    ("nodes", "cpus", "expected"),
    [
        ([0] * 4, [{0, 1}] * 4, Load(4, 2)),
        ([0] * 4, [{0}, {0}, {1}, {2, 3, 4}], Load(2, 1)),
        ([0] * 4, [{0, 1}, {0, 1}, {0, 1}, {2, 3}], Load(3, 2)),
        ([0, 1, 1, 1], [{0, 1}] * 4, Load(3, 2)),
        ([0] * 3, [{0}, {1}, {0, 1}], Load(3, 2)),
        ([0, 0], [set(), set()], None),
        ([], [], None),
    ],
)
def test_the_load_is_that_of_the_most_crowded(
    nodes: list[int], cpus: list[set[int]], expected: Load | None
) -> None:
    """Rule: affinity counts: two ranks pinned to one core share it, however many cores are idle."""
    assert busiest(nodes, cpus) == expected


def test_ranks_that_share_cores_are_told_above_the_table(tmp_path: Path) -> None:
    """Rule: one line above the table and a field in the record; none where each rank has a core."""
    cores = len(os.sched_getaffinity(0))
    for ranks in (cores, 2 * cores):
        out = tmp_path / f"{ranks}.jsonl"
        argv = ("--ranks", str(ranks), *SMALL, "-A", "ring,tree", "--out", str(out))
        printed = good(on_threads("allreduce", *argv))
        remark = Load(ranks, cores).remark(ranks)
        above = [line for line in printed.splitlines() if "waiting for a core" in line]
        assert above == ([f"# {remark}"] * 2 if remark else [])  # of each of the two tables
        assert {row.ranks_per_core for row in read(out).rows} == {ranks / cores}
        assert not any(row.worksharing for row in read(out).rows)


def test_hosts_of_one_kernel_share_its_cores() -> None:
    """Rule: ranks of emulated hosts, a node each, are counted together: they have the same cores.

    Host by host it was "4 of 16 ranks share 2 cores" where all 16 did.
    """

    class OnCores:
        on_gpu = False

    def body(world: InprocWorld) -> tuple[Load | None, int]:
        world.nodes = range(world.size)
        return load_of(world, OnCores()), world.size  # type: ignore[arg-type]

    cores = len(os.sched_getaffinity(0))
    assert on_world(4, body, deadline=60) == [(Load(4, cores), 4)] * 4


def test_groups_that_run_at_once_share_the_cores(tmp_path: Path) -> None:
    """Rule: with --split the ranks of all groups are counted, since all of them run."""
    cores = len(os.sched_getaffinity(0))
    out = tmp_path / "r.jsonl"
    argv = ("--ranks", str(2 * cores), "--split", "mod:2", *SMALL, "-A", "ring", "--out", str(out))
    printed = good(on_threads("allreduce", *argv))
    assert f"# {2 * cores} ranks share" in printed
    for group in (0, 1):
        rows = read(tmp_path / f"r.group{group}.jsonl").rows
        assert {(row.ranks, row.ranks_per_core) for row in rows} == {(cores, 2.0)}


def test_ranks_on_gpus_wait_for_no_core() -> None:
    """Rule: a transport of GPUs has no load."""

    class OnGpu:
        on_gpu = True

    assert load_of(None, OnGpu()) is None  # type: ignore[arg-type]


def test_a_remark_names_whom_it_is_about() -> None:
    """Rule: all ranks, or those of the busiest place; one core is one core."""
    assert Load(16, 2).remark(16).startswith("16 ranks share 2 cores: times include")
    assert Load(2, 1).remark(4).startswith("2 of 4 ranks share 1 core:")
    assert Load(2, 2).remark(4) == ""


# -- several launches of one thing


def test_launches_are_shuffled_by_a_recorded_seed_and_shown_together(
    run: Run, tmp_path: Path
) -> None:
    """Rule: every launch measures all rows, in the order that its seed gives again; all are in the
    file, each with its launch; one table has the interval over launches, and compare takes them.
    """  # noqa: D205
    argv = (*BENCH, "--ranks", "2", *SMALL, "-A", "ring,ps", "--launches", "2", "--seed", "7")
    done = run(sys.executable, *argv, "--out", f"{tmp_path}/a.jsonl")
    assert done.returncode == 0, done.stderr
    rows = list(read(tmp_path / "a.jsonl").rows)
    assert {launch_of(r.run) for r in rows} == {(7, 2, 1), (7, 2, 2)} and len(rows) == 8
    plain = [("ring", 1024), ("ring", 2048), ("ps", 1024), ("ps", 2048)]
    for number in (1, 2):
        mine = [(r.algorithm, r.size) for r in rows if launch_of(r.run) == (7, 2, number)]
        sizes = [size for _, size in plain]
        assert mine == [plain[at] for at in LaunchTurn(number, 2, 7).order(sizes)]
    assert "of seed 7" in done.stderr and "2 launches' medians" in done.stdout
    assert all(line.startswith("#") for line in done.stdout.splitlines())
    assert len(re.findall(r"^# +[12]K +ring", done.stdout, re.M)) == 2
    assert re.search(r"^# ((ring|ps) (was|may be)|cannot tell whether) ", done.stdout, re.M)


def test_a_launch_prints_its_tables_in_order(tmp_path: Path) -> None:
    """Rule: rows are on disk as they are measured; the launch's tables are those of any run."""
    argv = ["--ranks", "2", *SMALL, "-A", "ring,ps", "--placement", "out"]
    _, usual, _ = on_threads("allreduce", *argv)
    _, drawn, _ = on_threads("allreduce", *argv, "--launch 1/5:3")
    sizes = [
        [line.split()[0] for line in text.splitlines() if re.match(" +[12][0-9]+ ", line)]
        for text in (usual, drawn)
    ]
    assert sizes[0] == sizes[1] == ["1024", "2048"] * 2


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        ("--launches 2 -t 1", {}, "--ranks N"),
        ("--launches 2", {"PMI_RANK": "0", "PMI_SIZE": "2"}, "without mpirun"),
        ("--ranks 2,4", {"PMI_RANK": "0", "PMI_SIZE": "2"}, "without mpirun"),
    ],
)
def test_launches_start_their_ranks_themselves(
    run: Run, words: str, env: dict[str, str], said: str
) -> None:
    """Rule: without a number of ranks, or under a launcher, one line says so; status 2."""
    done = run(sys.executable, "-m", "bench.allreduce", *words.split(), env=env)
    assert done.returncode == 2 and said in done.stderr and not done.stdout


def test_all_counts_have_their_turn_with_every_launch() -> None:
    """Rule: --ranks 2,4,8 --launches 3 goes round, in an order that the seed gives again."""
    found = turns((2, 4, 8), 3, 1)
    assert found == turns((2, 4, 8), 3, 1)
    for number in (1, 2, 3):
        assert sorted(r for r, t in found if t is not None and t.number == number) == [2, 4, 8]
    assert [t.number for _, t in found if t is not None] == [1] * 3 + [2] * 3 + [3] * 3
    assert turns((2, 4), 1, None) == [(2, None), (4, None)]


def test_all_speaks_of_itself() -> None:
    """Rule: help and errors of `busbar all` name that command, no collective."""
    status, shown, _ = called(partial(main, "all"), "--help")
    assert status == 0
    assert " bench all [options]" in shown and "Measure all collectives" in shown
    assert "allgather" not in shown.partition("options:")[0]
    for wrong in ("-n 0", "--bogus"):
        err = called(partial(main, "all"), wrong)[2]
        assert err.endswith("see python -m bench all --help\n") and err.count("\n") == 1
