"""The law of ports: the textbook's terms from schedules, growth, a sweep's tables and plot."""

from __future__ import annotations

import os
import re
import shlex
import signal
from contextlib import nullcontext
from math import log2
from pathlib import Path
from statistics import median

import pytest

from bench.cluster import law
from bench.cluster.commands import SOCKET
from bench.cluster.law import (
    LawCommand,
    LawPoint,
    Ports,
    Progress,
    chosen,
    compared,
    draw,
    errors,
    fit,
    lines,
    notes,
    saved,
    simulated,
    tables,
    textbook,
    unsteady,
    why_not,
)
from bench.cluster.network import Network
from bench.cluster.running import Cluster
from bench.launch import child
from bench.options.options import parse
from busbar.errors import ReportError, StoreError, Unsupported
from busbar.terminal import open_console
from reports.readers.reading import read
from tests.command import reports_main
from tests.reports.runs import allreduce
from tests.reports.runs import saved as written
from topology.model.topology import Device, Fact, Kind, PairFact, Topology

PORTS = Ports(1.2e7, 1e-5, 18e3)
NAMES = ("ring", "ps", "sharded_ps", "tree", "recursive_doubling", "torus", "hierarchical")


def _law(argv: list[str]) -> int:
    return LawCommand.start("bench.cluster law", argv)


@pytest.mark.parametrize("hosts", [2, 4, 8, 16])
def test_terms_are_the_textbooks(hosts: int) -> None:
    """What is counted from schedules is what Chan, Thakur and the project's first claim say."""
    best = 2 * (hosts - 1) / hosts
    assert textbook("ring", hosts) == pytest.approx(best)
    assert textbook("ps", hosts) == pytest.approx(2 * (hosts - 1))
    assert textbook("sharded_ps", hosts) == pytest.approx(best)
    assert textbook("torus", hosts) == pytest.approx(best)
    assert textbook("hierarchical", hosts) == pytest.approx(best)
    assert textbook("recursive_doubling", hosts) == pytest.approx(log2(hosts))
    assert textbook("tree", hosts) == pytest.approx(2 * log2(hosts))


@pytest.mark.parametrize(
    ("collective", "name", "units"),
    [
        ("scatter", "flat", 5 / 6),
        ("alltoall", "pairwise", 5 / 6),
        ("broadcast", "flat", 5),
        ("reduce_scatter", "ring", 5 / 6),
        ("sendrecv", "direct", 1),
    ],
)
def test_terms_are_of_a_collectives_own_size(collective: str, name: str, units: float) -> None:
    """Rule: on 6 hosts a law is in units of the size that the benchmark's rows are named by."""
    assert textbook(name, 6, collective) == pytest.approx(units)


@pytest.mark.parametrize("hosts", [3, 5, 6, 7, 12])
@pytest.mark.parametrize(
    ("collective", "name"), [("allreduce", "halving_doubling"), ("reduce", "rabenseifner")]
)
def test_a_fold_does_not_hold_up_those_without_one(collective: str, name: str, hosts: int) -> None:
    """Rule: where ranks are folded the simulation is within 10 % of the law.

    Ranks without a fold send early. With the fold in one piece it ended late, and the row took
    1.17 to 1.35 times its law, measured and simulated.
    """
    law = textbook(name, hosts, collective) * 2**20 / 6.25e6
    ports = Ports(6.25e6, 1e-4, 18e3)
    assert simulated(name, hosts, 2**20, ports, collective) == pytest.approx(law, rel=0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("hosts", [3, 5, 6, 7, 8, 12])
def test_every_algorithm_is_simulated_near_its_law(hosts: int) -> None:
    """Rule: on ports of 50 Mbit/s 1 MiB is within 15 % of the law, a binomial scatter aside.

    Down its tree the root's later messages share its port with the first (docs/cluster.md).
    """
    ports = Ports(6.25e6, 1e-4, 18e3)
    for collective, names in chosen("all", None).items():
        for name in names:
            if (collective, name) != ("scatter", "binomial") and not why_not(
                collective, name, hosts
            ):
                law = textbook(name, hosts, collective) * 2**20 / ports.rate
                found = simulated(name, hosts, 2**20, ports, collective)
                assert found == pytest.approx(law, rel=0.15), (collective, name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hosts", [2, 4, 8])
def test_the_simulator_is_never_above_the_law_without_latency(name: str, hosts: int) -> None:
    """Steps may overlap: a simulation takes the law's time at most, the busiest port's at least.

    A rank of a tree sends to its next child beside the one before, as far as sockets hold it.
    """
    law = textbook(name, hosts) * 1e6 / 1e7
    assert 2 * (hosts - 1) / hosts * 1e6 / 1e7 * 0.999 <= law
    beside = log2(hosts) * SOCKET / 1e7 if name == "tree" else 0.0
    assert simulated(name, hosts, 10**6, Ports(1e7, 0.0, 0.0)) <= law * 1.001 + beside


def _map(rates: dict[tuple[int, int], float]) -> Topology:
    facts = [
        PairFact(f"RANK{a}", f"RANK{b}", Fact(name, value, "measured"))
        for (a, b), rate in rates.items()
        for name, value in (("bandwidth", rate), ("latency", 1e-5))
    ]
    ranks = sorted({end for pair in rates for end in pair})
    devices = tuple(Device(f"RANK{rank}", Kind.RANK, rank) for rank in ranks)
    return Topology(devices=devices, pairs=tuple(facts))


def test_ports_are_fitted_by_the_median_pair() -> None:
    """One busy moment of one pair does not change what a port is taken for."""
    pairs = {(a, b): 1.2e7 for a in range(4) for b in range(4) if a != b} | {(0, 1): 1e5}
    assert fit(_map(pairs), 18e3) == PORTS


def _compared() -> list[LawPoint]:
    points = [
        LawPoint(name, hosts, 1 << 20, (0.9 * seconds, seconds, 1.1 * seconds))
        for name in (*NAMES, "library")
        for hosts in (2, 4, 8)
        for seconds in [2.0 * (textbook(name, hosts) if name != "library" else 1.0)]
    ]
    return compared(points, PORTS, 1.25e7)


def test_the_table_says_measured_law_simulated_growth_and_ratio(tmp_path: Path) -> None:
    """Every algorithm has a line with its exponent, and ps over ring stands beside P."""
    text = "\n".join(lines(_compared(), PORTS, 1.25e7))
    assert all(f"| `{name}` |" in text for name in (*NAMES, "library"))
    assert "P^0.45" not in text.partition("`ps`")[2].partition("\n")[0]
    assert "P = 8: 8" in text
    draw(_compared(), 1.25e7, tmp_path / "law.svg")
    assert (tmp_path / "law.svg").read_bytes().startswith(b"<?xml")


def test_a_terminals_table_says_what_its_cells_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: each column has one quantity and its name; a row below its law has the reason."""
    times = tuple(1e-3 * ms for ms in (7.6, 7.5, 7.7, 7.5, 7.7, 7.6))
    fast = compared([LawPoint("ps", 2, 1 << 16, times)], PORTS, 1.25e7)
    shown = [*tables([*_compared(), *fast], 1.25e7, 120)]
    assert [table.heading.partition(",")[0] for table in shown] == [
        "allreduce of 64K",
        "allreduce of 1M",
    ]
    for table in shown:
        open_console(width=120).print(table.table)
    out = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    heads = "algorithm hosts measured 95 % law simulated over law over simulated"
    assert out[0] == heads.split()
    assert out[2][:7] == ["ps", "2", "7.6", "7.5", "to", "7.7", "10.5"]
    assert out[2][-2] == "0.72" and "law): ring P^" in shown[1].footnote
    note, _ = notes([*_compared(), *fast], PORTS, 1.25e7)
    assert "law (measured over law): allreduce ps 2x64K 0.72. After a pause" in note
    (note,) = notes(_compared(), PORTS, 1.25e7)
    assert "Slower than simulated" in note and " 1M " not in note and "and 1" in note


def test_growth_and_ratio_have_intervals_unless_they_are_disturbed() -> None:
    """Rule: a growth and a ratio stand with 95 % intervals; beside other programs a ratio has none.

    A row that took much longer than simulated is named, with what the simulation leaves out.
    """
    points = [
        LawPoint(name, hosts, 1 << 20, tuple(each * (1 + (n * 3 % 8) / 1e3) for n in range(8)))
        for name in ("ring", "ps")
        for hosts in (2, 4, 8)
        for each in [simulated(name, hosts, 1 << 20, PORTS)]
    ]

    def below(*rows: LawPoint) -> list[str]:
        (table,) = tables(compared(rows, PORTS, PORTS.rate), PORTS.rate, 120)
        return table.footnote.splitlines()

    growth, ratio = below(*points)
    powers = re.findall(r"P\^([\d.]+) \(([\d.]+) to ([\d.]+); law P\^([\d.]+)\)", growth)
    assert [float(law) for *_, law in powers] == [pytest.approx(p, abs=0.01) for p in (0.40, 1.40)]
    assert all(float(low) <= float(power) <= float(high) for power, low, high, _ in powers)
    of_eight = re.search(r"P = 8: [\d.]+ \(([\d.]+) to ([\d.]+)\)", ratio)
    assert of_eight is not None
    low, high = map(float, of_eight.groups())
    assert low < high < 1.05 * low and low == pytest.approx(8, rel=0.1)
    _, ratio = below(*points[:-1], points[-1]._replace(others=0.5))
    assert re.search(r"P = 4: [\d.]+ \([\d.]+ to .*, P = 8: [\d.]+ \(disturbed\)", ratio)
    assert below(*(p._replace(times=p.times[:1]) for p in points[:2]))[0].endswith(
        ": ring P^0.58 (law P^0.58)"
    )
    slow = points[0]._replace(times=tuple(1.5 * t for t in points[0].times))
    (note,) = notes(compared([slow, *points[1:]], PORTS, PORTS.rate), PORTS, PORTS.rate)
    assert "over simulated): allreduce ring 2x1M 1.51. The simulation has" in note


def test_the_interval_is_that_of_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a law and `reports show` have one interval of a row; too few iterations have none."""
    times = [5e-3 + 1e-5 * (n * 7 % 20) for n in range(20)]
    path = tmp_path / "hosts2.allreduce.jsonl"
    written(path, [allreduce("ring", 2, 1 << n, times[:count]) for n, count in ((16, 20), (18, 3))])
    monkeypatch.setattr(law, "gather", lambda _: [_map({(0, 1): 1.2e7})])
    (many, few), rows = saved(tmp_path)[0], read(path).rows
    assert many.ends == (rows[0].low_s, rows[0].high_s) != (min(times), max(times))
    assert few.ends is None
    shown = "\n".join(lines(compared([many, few], PORTS, 1.25e7), PORTS, 1.25e7))
    assert "(-)" in shown and "95 % interval" in shown


def test_errors_are_of_hosts_that_the_fit_has_not_seen() -> None:
    """A prediction is of another host count than what it was fitted on; the library has none."""
    text = "\n".join(errors(_compared(), 4))
    assert "8x1M" in text and "- 1M: median error" in text
    assert "4x1M" not in text and "library" not in text
    assert not list(errors(_compared(), 8))


def test_collectives_have_tables_of_their_own() -> None:
    """Rule: sizes that whole elements made less are one column, and ratios stand below."""
    points = [
        LawPoint("flat", hosts, 2**20 - less, (seconds,), collective=collective)
        for collective in ("scatter", "broadcast")
        for hosts, less in ((3, 16), (4, 0))
        for seconds in [2.0 * textbook("flat", hosts, collective) * 2**20 / 1e9]
    ]
    text = "\n".join(lines(compared(points, PORTS, 1e9), PORTS, 1e9))
    assert text.count("| algorithm | 3 hosts | 4 hosts |") == 4
    assert text.count("| `flat` | 2.00, 0.02 | 2.00, 0.02 |") == 2
    assert "broadcast `flat`, %: 4x1M" in "\n".join(errors(compared(points, PORTS, 1e9), 3))


def test_what_cannot_be_a_law_is_refused(tmp_path: Path) -> None:
    """One host, a collective without a law, and a folder without rows, are one line each."""
    with pytest.raises(Unsupported, match="there is a law of allgather"):
        _law(["--hosts", "2", "-c", "allreduce,barrier"])
    with pytest.raises(Unsupported, match="--algorithm rign: none of allreduce, scatter has it"):
        _law(["--hosts", "2", "-c", "allreduce,scatter", "-A", "ring,rign"])
    with pytest.raises(Unsupported, match="2 hosts"):
        _law(["--hosts", "1,2"])
    with pytest.raises(ReportError, match="no rows"):
        saved(tmp_path)


def test_earlier_rows_are_kept_and_slips_are_refused_before_a_cluster_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: without --overwrite a folder of rows stays as it is; no refusal needs a cluster."""

    def built(*_: object) -> None:
        raise AssertionError("a cluster is built")

    monkeypatch.setattr(law, "Cluster", built)
    rows = tmp_path / "hosts2.allreduce.jsonl"
    rows.write_text("rows")
    with pytest.raises(StoreError, match=r"has results already; --show .* --overwrite replaces"):
        _law(["--hosts", "4", "--out", str(tmp_path)])
    with pytest.raises(AssertionError, match="a cluster is built"):
        _law(["--hosts", "4", "--out", str(tmp_path), "--overwrite"])
    assert rows.read_text() == "rows"
    with pytest.raises(Unsupported, match="--show needs --out DIR"):
        _law(["--hosts", "2", "--show"])
    with pytest.raises(Unsupported, match="-b 4 MiB is above -e 1 MiB"):
        _law(["--hosts", "2", "-b", "4M", "-e", "1M"])


def test_overwriting_leaves_no_row_of_the_earlier_law(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: rows and the ports that they were simulated with are replaced together."""

    class Built:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(law, "Cluster", lambda network: Built())
    monkeypatch.setattr(law, "watched", lambda cluster: Built())
    monkeypatch.setattr(law, "ports", lambda cluster, folder: None)
    monkeypatch.setattr(law, "measure", lambda *_: None)
    for name in ("hosts2.allreduce.jsonl", "hosts16.allreduce-4096.jsonl"):
        (tmp_path / name).write_text("rows")
    with pytest.raises(ReportError, match="no rows of a law"):
        _law(["--hosts", "2", "--out", str(tmp_path), "--overwrite"])
    assert not list(tmp_path.iterdir())


def test_the_next_command_is_named_for_a_law_that_it_can_compare(
    namespaces: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: the last line is a command that works on the folder as it is."""
    folder = tmp_path / "a law"
    argv = ["--hosts", "2", "--rate", "1Gbit", "-A", "ring,ps", "-b", "16K", "-n", "2"]
    assert _law([*argv, "--out", str(folder)]) == 0
    printed = capsys.readouterr()
    assert "0 of 2 rows done, about " in printed.err
    last = printed.out.splitlines()[-1]
    words = shlex.split(last.removeprefix("next: busbar reports "))
    assert words == ["model", str(folder), "--out", "model.png"]
    assert reports_main(words[:2]) == 0
    assert "No verdict" in capsys.readouterr().out


def test_rows_whose_iterations_differ_are_measured_again() -> None:
    """Rule: a row is taken for disturbed by its own iterations, not by what was expected of it."""
    steady = LawPoint("ring", 4, 1 << 20, (1.0, 1.1, 1.2))
    other = steady._replace(algorithm="ps", times=(1.0, 1.1, 1.21))
    assert unsteady([steady, other, other._replace(size=4)]) == {1 << 20: ["ps"], 4: ["ps"]}


def test_a_law_is_measured_and_shown_again(
    namespaces: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole command on three hosts; its folder shows the same table without measuring.

    Rule: of rows that were measured twice the faster counts, also for what reads the folder, and
    the table says the other. What does not run on so many hosts is left out, with the reason.
    """
    monkeypatch.setattr(law, "STEADY", 0.0)
    argv = ["--hosts", "3", "--rate", "1Gbit", "-c", "allgather", "-A", "doubling,ring,library"]
    argv += ["-b", "16K", "-n", "2", "--md", "--out", str(tmp_path)]
    assert _law(argv) == 0
    first, said = capsys.readouterr()
    assert "3 hosts: left out: doubling needs a power of two" in said
    assert "| `ring` |" in first
    assert "Measured twice" in first
    assert _law([*argv, "--show"]) == 0
    assert capsys.readouterr().out == first
    faster, slower = (
        {row.algorithm: median(row.times_s) for row in read(folder).rows}
        for folder in (tmp_path, tmp_path / "slower")
    )
    points = saved(tmp_path)[0]
    assert [(p.seconds, p.slower) for p in points] == [
        (faster[p.algorithm], slower[p.algorithm]) for p in points
    ]
    assert len(read(tmp_path).rows) == len(points) and all(faster[n] <= slower[n] for n in slower)


def test_the_time_that_is_left_follows_the_rows_that_are_done() -> None:
    """Rule: before any row the estimate stands; rows that took twice theirs double the rest."""
    now = [100.0]
    progress = Progress([1.0, 3.0, 4.0], lambda: now[0])
    progress.begin()
    assert str(progress) == "0 of 3 rows done, about 8 s left"
    now[0] += 8.0
    progress.reach(2)
    assert str(progress) == "2 of 3 rows done, about 8 s left"
    now[0] += 3.0
    progress.reach(1)
    assert str(progress) == "2 of 3 rows done, about 5 s left"


def test_a_dry_run_prints_network_launches_and_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: --dry-run builds no cluster and writes nothing; it has a line for each launch."""
    monkeypatch.setattr(law, "Cluster", None)
    monkeypatch.setattr(law, "launching", lambda words, ranks: ["mpirun", str(ranks), *words])
    argv = ["--hosts", "2,3", "-c", "allgather", "-A", "doubling,ring", "-b", "64K", "-e", "256K"]
    assert _law([*argv, "--dry-run", "--out", str(tmp_path / "law")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "# 3 hosts, 1 rank each" and "100 Mbit/s each way" in out[1]
    starts = [shlex.split(line) for line in out if line.startswith("mpirun ")]
    assert [words[1] for words in starts] == ["3", "2", "3"]
    assert starts[1][-1].endswith("hosts2.allgather.jsonl")
    assert "# 3 hosts: left out: doubling needs a power of two" in "\n".join(out)
    assert out[-1].startswith("# 6 rows in 2 launches: about ")
    assert not [*tmp_path.iterdir()]


def test_each_launch_of_a_law_waits_until_the_cores_are_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: --wait-quiet is an option of each launch's ranks, in seconds; without, none waits."""
    monkeypatch.setattr(law, "launching", lambda words, ranks: ["mpirun", str(ranks), *words])
    for words, waits in ((["--wait-quiet", "10m"], ["600", "600"]), ([], [])):
        assert _law(["--hosts", "2,3", "-A", "ring", "--dry-run", *words]) == 0
        starts = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
        ranks = [start for start in starts if "bench.allreduce" in start]
        assert len(ranks) == 2
        assert [s[s.index("--wait-quiet") + 1] for s in ranks if "--wait-quiet" in s] == waits
        for start in ranks:
            argv = start[start.index("bench.allreduce") + 1 :]
            assert parse(argv, "allreduce").wait_quiet == (600 if words else None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("measured", [True, False])
def test_an_interrupted_law_shows_what_was_measured(
    number: signal.Signals,
    measured: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rule: a signal, also twice as `timeout` sends it, ends a law with the table of its rows.

    The last line has the command that shows them again. Without a row no folder is left.
    """
    folder = tmp_path / "law"

    def interrupted(*_: object) -> None:
        if measured:
            written(folder / "hosts2.allreduce.jsonl", [allreduce("ring", 2, 1 << 16, [5e-3] * 3)])
        assert signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler)
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(law, "Cluster", nullcontext)
    monkeypatch.setattr(law, "watched", nullcontext)
    monkeypatch.setattr(law, "ports", lambda *_: None)
    monkeypatch.setattr(law, "gather", lambda _: [_map({(0, 1): 1.2e7})])
    monkeypatch.setattr(law, "measure", interrupted)
    argv = ["--hosts", "2,4", "-A", "ring", "--rate", "50Mbit", "--out", str(folder)]
    assert _law(argv) == 128 + number
    out, err = capsys.readouterr()
    if measured:
        assert "allreduce of 64K" in out and "50 Mbit/s" in out
        again = f"busbar cluster law --show --out {folder} --rate 50000000bit"
        said = f"busbar: interrupted by {number.name}; 0 of 2 host counts done: {again}"
        assert err.splitlines()[-1] == said
        assert _law(shlex.split(again)[3:]) == 0
        assert capsys.readouterr().out == out
    else:
        assert not out and err.endswith(f"interrupted by {number.name} before any row\n")
        assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_law_is_printed_whole_whatever_signals_come(
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rule: signals while tables are made cut nothing; the command that shows them is named."""
    folder = tmp_path / "law"

    def measured(*_: object) -> None:
        written(folder / "hosts2.allreduce.jsonl", [allreduce("ring", 2, 1 << 16, [5e-3] * 3)])

    monkeypatch.setattr(law, "Cluster", nullcontext)
    monkeypatch.setattr(law, "watched", nullcontext)
    monkeypatch.setattr(law, "ports", lambda *_: None)

    def signalled(folder: Path) -> tuple[list[LawPoint], Topology]:
        for _ in range(2):
            os.kill(os.getpid(), number)
        return saved(folder)

    monkeypatch.setattr(law, "measure", measured)
    monkeypatch.setattr(law, "gather", lambda _: [_map({(0, 1): 1.2e7})])
    monkeypatch.setattr(law, "saved", signalled)
    assert _law(["--hosts", "2", "-A", "ring", "--out", str(folder)]) == 128 + number
    out, err = capsys.readouterr()
    said = f"interrupted by {number.name}; 1 of 1 host count done: busbar cluster law --show"
    assert said in err.splitlines()[-1]
    assert out.count("allreduce of 64K") == 1 and "next: busbar reports model" in out


def test_two_signals_at_once_start_the_end_of_a_cluster_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule: a second signal while the first starts the timer of the end does not start it again.

    A thread that was started twice ended in a KeyError of `threading`.
    """
    starts: list[float] = []
    signalled: list[object] = []

    class Timer:
        def __init__(self, seconds: float, _: object) -> None:
            self.seconds = seconds

        def is_alive(self) -> bool:
            return False

        def start(self) -> None:
            starts.append(self.seconds)
            if len(starts) < 9:
                signalled[0](1)  # type: ignore[operator]

        def cancel(self) -> None: ...

    def run(words: object, env: object, stop: object, receiver: object, **_: object) -> child.Ended:
        signalled.append(receiver)
        receiver(1)  # type: ignore[operator]
        return child.Ended(0, "", 0)

    monkeypatch.setattr("bench.cluster.running.threading.Timer", Timer)
    monkeypatch.setattr(child, "run", run)
    Cluster(Network(hosts=1, rate=1e7)).run(["true"], grace=0.5)
    assert starts == [0.5]
