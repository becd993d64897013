"""Measuring: every pair once, intervals that hold, slow pairs marked, a run under mpirun."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, combinations, pairwise, permutations
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace
from typing import cast

import networkx as nx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench.launch.launch import parse_progress
from bench.links import cli
from bench.links import measure as measuring
from bench.links.cli import Progress, crowded, refusals
from bench.links.measure import (
    EarlyEnd,
    Measured,
    PairOptions,
    PairRun,
    PairTimer,
    Refused,
    as_topology,
    better,
    look_again,
    sorted_out,
    sustained,
    with_racks,
)
from busbar.cpulist import members
from collectives.execution.world import World
from tests.command import reports_main, topology_main
from tests.conftest import REPO, Mpi, Run, environment, thorough, under
from tests.together import together
from topology.model.device import Fact
from topology.model.measured import (
    MARGIN,
    QUANTITIES,
    Estimate,
    RankPlace,
    by_class,
    estimate,
    expected,
    isolated,
    kind_of_pair,
    matrix,
    pace,
    rounds,
    slow,
    with_cpus,
)
from topology.model.merge import merge
from topology.model.topology import Device, Kind, Link, LinkKind, PairFact, Topology
from topology.sources import own_json
from topology.views import measured as view

from .machines import switched

SAMPLES = st.lists(st.floats(1e-9, 1e12), min_size=1, max_size=60)


@given(st.integers(0, 40))
def test_rounds_cover_every_pair_once(size: int) -> None:
    """Rule: P - 1 rounds (P if odd) of disjoint pairs hold every pair exactly once."""
    schedule = rounds(size)
    assert len(schedule) == (0 if size < 2 else size - 1 if size % 2 == 0 else size)
    for at_once in schedule:
        ends = list(chain.from_iterable(at_once))
        assert len(set(ends)) == len(ends)
        assert all(a < b for a, b in at_once)
    assert sorted(chain.from_iterable(schedule)) == list(combinations(range(size), 2))
    assert all(len(at_once) == 1 for at_once in isolated(schedule))
    assert list(chain.from_iterable(isolated(schedule))) == list(chain.from_iterable(schedule))


def _can_host(at_once: tuple[tuple[int, int], ...], places: Sequence[RankPlace]) -> bool:
    """Whether a round's ranks can have a CPU each, by a flow through the graph of affinities."""
    graph = nx.Graph()
    ranks = [rank for pair in at_once for rank in pair if places[rank].cpus]
    for rank in ranks:
        graph.add_edges_from(
            (rank, (places[rank].host, cpu)) for cpu in members(places[rank].cpus) or ()
        )
    matched = nx.bipartite.maximum_matching(graph, top_nodes=ranks)
    return all(rank in matched for rank in ranks)


BINDINGS = ("", "0-3", "0-1", "2-3", "0", "1", "2", "3")
HOSTED = st.builds(RankPlace, st.sampled_from("ab"), st.sampled_from(BINDINGS), st.none())


@given(st.lists(HOSTED, max_size=14))
def test_pairs_at_once_have_a_cpu_a_rank(places: list[RankPlace]) -> None:
    """Rule: all pairs once, at once only where CPUs allow; no pair waits that could have gone."""
    every = rounds(len(places))
    schedule = with_cpus(every, places)
    assert sorted(chain.from_iterable(schedule)) == sorted(chain.from_iterable(every))
    assert all(len(at_once) == 1 or _can_host(at_once, places) for at_once in schedule)
    for at_once, after in pairwise(schedule):
        pair = after[0]
        if any({*at_once, pair} <= {*one} for one in every):
            assert not _can_host((*at_once, pair), places)
    roomy = [RankPlace(str(rank), "0", None) for rank in range(len(places))]
    assert with_cpus(every, roomy) == every


@given(SAMPLES)
@example([1.0, 1.0, 162465605.0, 162465605.0, 1299760241.0, 183604895.0, 0.09375])  # rounding
def test_interval_holds_the_median_and_is_made_of_samples(samples: list[float]) -> None:
    """Rule: low <= median <= high; an end is a sample, or beyond all where they tell too little.

    Order is in the interval alone.
    """
    found = estimate(samples)
    assert found.low <= found.value <= found.high
    assert found.low in samples or found.low < min(samples)
    assert found.high in samples or found.high > max(samples)
    assert estimate(samples[::-1]).value == found.value


def test_interval_has_the_published_ranks() -> None:
    """Rule: for n = 100 the 95 % interval of the median is samples 40 to 61 (Le Boudec)."""
    found = estimate([float(n if n % 2 else 102 - n) for n in range(1, 101)])
    assert (found.low, found.high) == (40, 61)
    assert estimate([3.0, 1.0, 2.0]) == Estimate(2.0, 1.0, 3.0)
    with pytest.raises(ValueError, match="no samples"):
        estimate([])


def measured(values: dict[tuple[int, int], Estimate], places: tuple[RankPlace, ...]) -> Topology:
    """A map of ranks with one quantity filled in."""
    cells = {"latency": {}, "bandwidth": values, "bandwidth_both": {}}
    return as_topology(Measured(places, False, cells, "Test MPI"), PairOptions())


def cluster() -> tuple[RankPlace, ...]:
    """Two hosts of two ranks; the first host's ranks are on one NUMA node each."""
    return (
        RankPlace("a", "0-3", 0),
        RankPlace("a", "4-7", 1),
        RankPlace("b", "0-3", 0),
        RankPlace("b", "0-3", 0),
    )


def test_ranks_are_classed_by_what_they_share() -> None:
    """Rule: same NUMA node, same host and network are different classes."""
    topology = measured({}, cluster())
    assert kind_of_pair(topology, "RANK0", "RANK1") == "same host"
    assert kind_of_pair(topology, "RANK2", "RANK3") == "same NUMA node"
    assert kind_of_pair(topology, "RANK0", "RANK2") == "network"


def test_pairs_in_a_rack_are_compared_with_their_likes() -> None:
    """Rule: where racks were found, a slow pair in a rack is not held to pairs across an uplink."""
    places = tuple(RankPlace(host, "0-3", None) for host in "abcdef")
    near, far = Estimate(12e9, 11.9e9, 12.1e9), Estimate(4e9, 3.9e9, 4.1e9)
    values = {(a, b): near if a // 3 == b // 3 else far for a in range(6) for b in range(6)}
    values |= {(0, 1): Estimate(6e9, 5.9e9, 6.1e9)}
    one_switch = measured({pair: one for pair, one in values.items() if len({*pair}) > 1}, places)
    assert not slow(one_switch, matrix(one_switch, "bandwidth"), True)
    topology = with_racks(one_switch, places, [[0, 1, 2], [3, 4, 5]])
    (found,) = slow(topology, matrix(topology, "bandwidth"), True)
    assert (found.a, found.b, found.kind) == ("RANK0", "RANK1", "same rack")
    assert found.typical == 12e9
    assert kind_of_pair(topology, "RANK0", "RANK5") == "network"


def test_more_ranks_than_cpus_is_said() -> None:
    """Rule: only a host whose ranks share fewer CPUs than they are is named."""
    places = (
        *cluster(),
        *[RankPlace("c", "0-1", 0)] * 3,
        RankPlace("d", "", None),
        RankPlace("d", "", None),
    )
    assert crowded(places) == [("c", 3, 2)]


def test_hosts_of_one_kernel_have_its_cpus_once() -> None:
    """Rule: emulated hosts share their machine's CPUs: their pairs take turns, and that is said."""
    hosts = [RankPlace(f"host{n}", "0-1", None, "one") for n in range(4)]
    assert with_cpus(rounds(4), hosts) == isolated(rounds(4))
    assert crowded(hosts) == [("host0 to host3 (one machine)", 4, 2)]
    apart = [replace(place, kernel=place.host) for place in hosts]
    assert with_cpus(rounds(4), apart) == rounds(4) and crowded(apart) == []


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60), st.floats(0.01, 0.99))
def test_a_rate_is_refused_unless_half_of_the_windows_in_a_row_had_it(
    times: list[float], share: float
) -> None:
    """Rule: equal windows and one long pause pass; windows that are quick after pauses do not.

    A port that lets some bytes pass at once after a pause makes any number of windows quick, one at
    a time.
    """
    lasting = sustained(times)
    assert min(times) <= lasting <= max(times)
    assert lasting <= fmean(times) * (1 + 1e-9) or len(times) % 2
    steady, paused = [times[0]] * 9, [times[0]] * 9 + [1e4 * times[0]]
    # Two quick windows of three, and the third one long: the median is of a quick one.
    bursts = [share * times[0] / 4, share * times[0] / 4, times[0]] * 5
    kept, refused = sorted_out(
        [
            ("bandwidth", n, 9, 1 / median(one), 1 / max(one), 1 / min(one), 1 / sustained(one))
            for n, one in enumerate((steady, paused, bursts))
        ]
    )
    assert {*kept["bandwidth"]} == {(0, 9), (1, 9)} and {*refused["bandwidth"]} == {(2, 9)}


def test_refused_rates_are_said_and_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a pair that was refused is measured again; what is refused each time is no cell."""
    nothing = cast("World", None), cluster(), rounds(4), cast("PairTimer", None)
    run = PairRun(*nothing, PairOptions(), print, EarlyEnd())
    cell, odd = Estimate(1e7, 1e7, 1e7), Refused(5.68e9, 1.25e7)

    asked = []

    def look(run: PairRun) -> Measured:
        asked.append({pair for together in run.schedule for pair in together})
        cells = {"latency": {}, "bandwidth": {(2, 3): cell}, "bandwidth_both": {}}
        refused = {"latency": {}, "bandwidth": {(0, 1): odd}, "bandwidth_both": {}}
        return Measured(cluster(), False, cells, "MPI", refused)

    monkeypatch.setattr(measuring, "measure", look)
    first = look(run._replace(schedule=[[(0, 1), (2, 3)]]))
    cells = {**first.cells, "bandwidth": {(0, 2): cell}}
    both = {**first.refused, "bandwidth": {(0, 1): odd, (2, 3): odd}}
    found = look_again(run, replace(first, cells=cells, refused=both), lambda seen: [])
    assert asked[1:] == [{(0, 1), (2, 3)}, {(0, 1)}, {(0, 1)}]
    assert found.cells["bandwidth"] == {(0, 2): cell, (2, 3): cell}
    (line,) = refusals(found)
    assert "rank 0 to rank 1, bandwidth: 5680 MB/s in the median window" in line
    assert "12.5 MB/s" in line and "--bytes" in line


def test_measured_map_is_saved_whole() -> None:
    """Rule: what measure saves, --from reads: same matrix, with its intervals."""
    values = {(0, 1): Estimate(10e9, 9e9, 11e9), (1, 0): Estimate(8e9, 7e9, 9e9)}
    topology = own_json.parse(own_json.dump(measured(values, cluster())))
    assert matrix(topology, "bandwidth") == {
        (f"RANK{a}", f"RANK{b}"): cell for (a, b), cell in values.items()
    }
    assert topology.get("mpi_library") == "Test MPI"


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (None, ""),
        (0.04, ""),
        (0.12, "other programs took up to 12 % of all cores while this was measured"),
        (0.63, "other programs took up to 63 % of all cores while this was measured: do not rely"),
    ],
)
def test_a_map_keeps_what_other_programs_took(
    share: float | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: from 5 % of the cores on, the matrices and all that reads the file say so.

    From 20 % on the figures are not to be relied on, which is a finding.
    """
    places = tuple(RankPlace("a", "0-1", 0) for _ in range(2))
    cells = {"latency": dict.fromkeys(((0, 1), (1, 0)), Estimate(223e-6, 210e-6, 230e-6))}
    cells |= {"bandwidth": {}, "bandwidth_both": {}}
    path = tmp_path / "m.json"
    taken = Measured(places, False, cells, "", others_share=share)
    path.write_text(own_json.dump(as_topology(taken, PairOptions())))
    assert topology_main(["--json", str(path)]) == 0
    out, note = capsys.readouterr()
    topology = own_json.parse(out)
    assert topology.get("others_share") == share
    shown = view.text(topology)
    assert "1 pair, median 223.00 [210.00, 230.00] us\n" in shown
    for text in (shown, note):
        assert ("other programs" in text) is bool(said) and said in " ".join(text.split())
    assert max(map(len, shown.splitlines())) <= 80
    much = share is not None and share >= 0.2
    assert topology_main(["check", "--json", str(path)]) == int(much)
    codes = [one["code"] for one in json.loads(capsys.readouterr().out)]
    assert codes == ["measured-disturbed"] * much


@pytest.mark.parametrize("share", [None, 0.6])
@pytest.mark.parametrize(
    ("slow", "subjects"),
    [
        (lambda pair: False, set()),
        (lambda pair: 2 in pair, {("RANK2",)}),
        (lambda pair: {*pair} == {0, 1}, {("RANK0-RANK1",)}),
    ],
)
def test_check_names_the_slow_rank_or_link_as_culprit_does(
    slow: Callable[[tuple[int, int]], bool],
    subjects: set[tuple[str, ...]],
    share: float | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rule: rates below 3/4 are `pair-slow`, named by what explains them, also where disturbed.

    `reports culprit --matrix` accuses the same rank or link of the same file.
    """
    places = tuple(RankPlace(f"host{n}", "0-1", 0) for n in range(5))
    cells: dict[str, dict[tuple[int, int], Estimate]] = {
        name: {
            pair: Estimate(
                *(rate * (1 + 0.001 * sum(pair)) for rate in (value, 0.99 * value, value))
            )
            for pair in permutations(range(5), 2)
            if (value := 12e6 * (0.5 if slow(pair) else 1.0))
        }
        for name in ("bandwidth", "bandwidth_both")
    }
    path = tmp_path / "m.json"
    path.write_text(
        own_json.dump(
            as_topology(
                Measured(places, False, {"latency": {}, **cells}, "", others_share=share),
                PairOptions(),
            )
        )
    )
    assert topology_main(["check", "--json", str(path)]) == int(bool(subjects or share))
    found = json.loads(capsys.readouterr().out)
    assert {tuple(f["subjects"]) for f in found if f["code"] == "pair-slow"} == subjects
    assert any(f["code"] == "measured-disturbed" for f in found) == bool(share)
    for one in (f for f in found if f["code"] == "pair-slow"):
        assert ("other programs took" in one["evidence"]) == bool(share)
        assert one["harm"] == pytest.approx(0.5, abs=0.02)
    reports_main(["culprit", "--matrix", str(path)])
    accused = re.findall(r"CULPRIT (.*) \(", capsys.readouterr().out)
    shown = {("RANK2",): "rank 2", ("RANK0-RANK1",): "link rank 0 to rank 1"}
    assert accused == [shown[one] for one in subjects]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_few_ranks_cannot_show_which_is_slow(
    ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: of three ranks the slow pairs are named and no rank is; of two nothing is compared."""
    places = tuple(RankPlace(f"host{n}", "0-1", 0) for n in range(ranks))
    cells: dict[str, dict[tuple[int, int], Estimate]] = {
        name: {
            pair: Estimate(rate, 0.99 * rate, 1.01 * rate)
            for pair in permutations(range(ranks), 2)
            if (rate := 6e6 if ranks - 1 in pair else 12e6)
        }
        for name in ("bandwidth", "bandwidth_both")
    }
    path = tmp_path / "m.json"
    measured = Measured(places, False, {"latency": {}, **cells}, "")
    path.write_text(own_json.dump(as_topology(measured, PairOptions())))
    topology_main(["check", "--json", str(path)])
    slow = [f for f in json.loads(capsys.readouterr().out) if f["code"] == "pair-slow"]
    reports_main(["culprit", "--matrix", str(path)])
    accused = " ".join(capsys.readouterr().out.split())
    if ranks == 2:
        assert not slow and "two ranks have one pair" in accused
    elif ranks == 3:
        (one,) = slow
        assert "too few to tell which" in one["evidence"] and "too few to tell which" in accused
        assert one["harm"] == pytest.approx(0.5)
    else:
        assert [f["subjects"] for f in slow] == [["RANK3"]] and "CULPRIT rank 3" in accused


def test_expectation_comes_from_the_map_of_the_host() -> None:
    """Rule: merged with the host's map, ranks on two sockets are promised the link between them."""
    places = (RankPlace("a", "0-7", 0), RankPlace("a", "8-15", 1), RankPlace("a", "8-15", 1))
    topology = merge([measured({}, places), switched([[1], [1]])])
    assert expected(topology, "RANK0", "RANK1") == 10e9
    assert expected(topology, "RANK1", "RANK2") is None
    assert expected(measured({}, cluster()), "RANK0", "RANK3") is None


@given(st.integers(3, 28).map(lambda n: 1 << n), st.floats(0, 100))
def test_a_sweep_ends_also_over_slow_links(nbytes: int, seconds: float) -> None:
    """A size takes a tenth of a second of a block at most, or the least number of exchanges."""
    usual, fewest = pace(nbytes), (1, 3)
    trips, count = pace(nbytes, seconds)
    assert all(
        least <= n <= most for least, n, most in zip(fewest, (trips, count), usual, strict=True)
    )
    assert trips * count * seconds <= 0.1 or count == 3
    assert (trips, count) != fewest or usual == fewest or seconds > 0.01


@given(st.integers(3, 7), st.floats(0.2, 0.9), st.floats(0.001, 0.04), st.booleans(), st.data())
def test_a_slow_pair_is_marked_and_only_that(
    size: int, factor: float, noise: float, more_is_better: bool, data: st.DataObject
) -> None:
    """Rule: a pair worse than its class by more than noise and margin is marked, no other is."""
    a, b = sorted(data.draw(st.permutations(range(size)))[:2])
    value = dict.fromkeys(combinations(range(size), 2), 10.0)
    value[a, b] *= factor if more_is_better else 1 / factor
    cells = {
        (f"RANK{x}", f"RANK{y}"): Estimate(v, v * (1 - noise), v * (1 + noise))
        for (x, y), v in value.items()
    }
    topology = measured({}, (RankPlace("a", "", 0),) * size)
    found = [(entry.a, entry.b) for entry in slow(topology, cells, more_is_better)]
    assert found == ([(f"RANK{a}", f"RANK{b}")] if factor < 1 - 3 * MARGIN or found else [])


def test_overlapping_intervals_are_noise() -> None:
    """Rule: a pair whose interval reaches the others' is not marked, however low its median is."""
    cells = {
        ("RANK0", "RANK1"): Estimate(5.0, 4.0, 10.0),
        ("RANK0", "RANK2"): Estimate(10.0, 9.0, 11.0),
        ("RANK1", "RANK2"): Estimate(10.0, 9.0, 11.0),
    }
    topology = measured({}, (RankPlace("a", "", 0),) * 3)
    assert slow(topology, cells, more_is_better=True) == ()
    assert slow(topology, {("RANK0", "RANK1"): cells["RANK0", "RANK1"]}, True) == ()


def test_classes_of_gpus_are_the_cells_of_the_matrix() -> None:
    """Rule: others' measured GPU matrices are compared within PIX, PHB, NV#."""
    link = Link(LinkKind.NVLINK, "GPU0", "GPU1", "x", 2)
    gpus = tuple(Device(f"GPU{n}", Kind.GPU, n) for n in range(3))
    facts = tuple(
        PairFact(f"GPU{a}", f"GPU{b}", Fact(name, value, "log"))
        for a, b, level, rate in ((0, 1, "SYS", 40e9), (0, 2, "PHB", 11e9), (1, 2, "PHB", 10e9))
        for name, value in (("level", level), ("bandwidth", rate))
    )
    topology = Topology(gpus, (link,), facts, (), (), ("log",))
    cells = matrix(topology, "bandwidth")
    assert {kind: len(pairs) for kind, pairs in by_class(topology, cells).items()} == {
        "NV2": 1,
        "PHB": 2,
    }
    shown = view.text(topology)
    assert "NV2: 1 directed pair, median 40.00 GB/s" in shown
    assert "link rates promise 12.00, 88 % reached" in shown


MEASURE = ("-m", "topology", "measure")


def test_mpirun_fills_the_matrix(mpich: Mpi, run: Run, tmp_path: Path) -> None:
    """Rule: over each transport three ranks give six directed cells of each quantity.

    The map is printed once and saved.
    """
    ways = set(permutations((f"RANK{rank}" for rank in range(3)), 2))
    settings = ("--bytes", "64K", "--repetitions", "2", "--json")
    cases = {"mpi": (), "shm": ("--isolated",)}
    commands = (
        (*MEASURE, *settings, "--transport", name, *options, "-o", str(tmp_path / name))
        for name, options in cases.items()
    )
    for transport, done in zip(cases, together(run, mpich, 3, *commands), strict=True):
        saved = tmp_path / transport
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == json.loads(saved.read_text())
        topology = own_json.parse(saved.read_text())
        assert topology.get("pairs_at_once") is False and topology.get("transport") == transport
        assert 0 <= topology.others_share <= 1 and topology.get("others_share") is not None
        for name in QUANTITIES:
            cells = matrix(topology, name)
            assert set(cells) == ways
            assert all(0 < cell.low <= cell.value <= cell.high for cell in cells.values())


def test_the_first_signal_ends_the_rounds_and_the_second_the_process() -> None:
    """Rule: a signal is a reason to end at the next round, and handlers are as before then."""
    alone = SimpleNamespace(broadcast=lambda reason: reason)  # rank 0 of one
    end, seen = EarlyEnd(), list[int]()
    before = {which: signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
        with end.at_signals():
            assert not end.is_due(cast("World", alone))
            signal.raise_signal(signal.SIGTERM)
            assert end.is_due(cast("World", alone)) and not seen
            signal.raise_signal(signal.SIGTERM)
            assert seen == [signal.SIGTERM]
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
    assert end.reason == "interrupted by SIGTERM" and end.signal == signal.SIGTERM
    assert EarlyEnd(0.0).is_due(cast("World", alone))
    assert not EarlyEnd(1e6).is_due(cast("World", alone))


@pytest.mark.parametrize("how", ["--total", *thorough("SIGTERM")])
def test_a_measurement_that_ends_early_keeps_its_pairs(
    mpich: Mpi, tmp_path: Path, how: str
) -> None:
    """Rule: at a signal, or when --total is over, the round ends, and the map has its pairs.

    It says how many; the sweep and the racks that were to follow are left out.
    """
    saved = tmp_path / "map.json"
    reps = "300" if how == "--total" else "1500"
    slow = ("--isolated", "--repetitions", reps, "--bytes", "256K", "--sweep", "1M", "--racks")
    total = ("--total", "0.5") if how == "--total" else ()
    command = under(mpich, 4, *MEASURE, *slow, *total, "-o", str(saved))
    with subprocess.Popen(
        command, cwd=REPO, env=environment(), stdout=-1, stderr=-1, text=True
    ) as process:
        if how == "SIGTERM":
            assert process.stderr is not None
            while not re.match("busbar: [1-5] of 6 ", line := process.stderr.readline()):
                assert line, process.wait()
            process.terminate()
        out, err = process.communicate(timeout=120)
    reason = "the time of --total is over" if total else "interrupted by SIGTERM"
    (said,) = [line for line in err.splitlines() if line.startswith("note: ended early")]
    count = re.fullmatch(rf"note: ended early: {reason}; (\d) of 6 pairs measured", said)
    assert count and 1 <= int(count[1]) < 6, err
    assert process.returncode == (0 if total else 143)
    topology = own_json.parse(saved.read_text())
    assert topology.get("ended_early") == said.removeprefix("note: ended early: ")
    assert len(matrix(topology, "latency")) == 2 * int(count[1])
    assert topology.get("racks") is None and said.partition(": ")[2].partition(": ")[2] in out


def test_bad_input_under_mpirun_is_one_line(mpich: Mpi, run: Run) -> None:
    """Rule: only rank 0 complains, everyone ends, the status is 2."""
    bad = {
        "no-such-file": ("--from", "no-such-file"),
        "much": ("--bytes", "much"),
        "--transport warp: one of mpi, shm": ("--transport", "warp"),
    }
    ended = together(run, mpich, 2, *((*MEASURE, *options) for options in bad.values()))
    for said, done in zip(bad, ended, strict=True):
        assert done.returncode == 2 and "Traceback" not in done.stdout + done.stderr
        assert done.stderr.count(said) == 1, done


@given(st.floats(1e6, 1e10), st.floats(0.01, 100))
def test_of_two_looks_the_better_counts(rate: float, other: float) -> None:
    """Rule: a busy moment does not accuse a pair; one that is slow twice stays slow."""
    first = {
        "latency": {(0, 1): Estimate(1e-5, 1e-5, 1e-5), (0, 2): Estimate(7e-4, 7e-4, 7e-4)},
        "bandwidth": {(0, 1): Estimate(rate, rate, rate)},
    }
    again = {
        "latency": {(0, 2): Estimate(1e-5, 1e-5, 1e-5)},
        "bandwidth": {(0, 1): Estimate(rate * other, rate * other, rate * other)},
    }
    found = better(first, again)
    assert found["latency"] == dict.fromkeys([(0, 1), (0, 2)], Estimate(1e-5, 1e-5, 1e-5))
    assert found["bandwidth"][0, 1].value == max(rate, rate * other)


def test_rates_of_slow_links_are_told_in_three_digits() -> None:
    """Rule: 100 Mbit/s is 0.0125 GB/s, not 0.01."""
    places = tuple(RankPlace(f"host{rank}", "0", None) for rank in range(2))
    cells = {
        "latency": {p: Estimate(1e-5, 1e-5, 1e-5) for p in ((0, 1), (1, 0))},
        "bandwidth": {p: Estimate(1.25e7, 1.24e7, 1.26e7) for p in ((0, 1), (1, 0))},
        "bandwidth_both": {p: Estimate(2.5e7, 2.5e7, 2.5e7) for p in ((0, 1), (1, 0))},
    }
    shown = view.text(as_topology(Measured(places, False, cells, ""), PairOptions()))
    assert "0.0125" in shown
    assert "0.0250" in shown
    assert "10.00" in shown


def test_progress_is_a_line_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: off a terminal a long measurement prints lines of progress, and a short one none.

    Each says how long the rounds of this part take from now, by the mean of those done.
    """
    now = iter([0.0, 1.0, 6.0, 7.0, 12.0, 20.0, 30.0])
    monkeypatch.setattr(cli.time, "monotonic", lambda: next(now))
    progress = Progress()
    for done in range(4):
        progress(done, 4, "pairs")
    for done in range(2):
        progress(done, 2, "sweep of sizes")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "busbar: 1 of 4 done, 6 s passed, about 15 s left: pairs",
        "busbar: 3 of 4 done, 12 s passed, about 4 s left: pairs",
        "busbar: 0 of 2 done, 20 s passed: sweep of sizes",
        "busbar: 1 of 2 done, 30 s passed, about 10 s left: sweep of sizes",
    ]
    shown = [parse_progress(line) for line in err.splitlines()]
    assert [(at.done, at.of) for at in shown if at is not None] == [(1, 4), (3, 4), (0, 2), (1, 2)]
