"""The growth of time with the number of ranks, and the verdict on the law of ports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cluster.launchers import variables
from bench.run.environment import allowed
from busbar.statistics import interval
from reports.analysis.textbook import ALGORITHMS, VOLUMES, LawComparison, compare, grown, total
from reports.records.cores import Load
from reports.records.measurement import Placements, is_emulated
from tests.reports.runs import allreduce, changed, cli, rows, saved

SIZE = 1 << 22
Law = Callable[[str, int], float]


def by_port(name: str, ranks: int) -> float:
    """The law: time goes with the bytes through the busiest port."""
    return VOLUMES[name](ranks)


def by_links(name: str, ranks: int) -> float:
    """Two cores for all ranks: time goes with the bytes of all links together."""
    return total(ranks)


def _results(
    law: Law,
    names: Sequence[str] = ALGORITHMS,
    counts: Sequence[int] = (2, 4, 8, 16),
    *,
    sizes: Sequence[int] = (SIZE,),
    launch: float = 0.0,
    seed: int = 1,
    n: int = 30,
    **fields: Any,
) -> list[Placements]:
    """Times by a law at a rate an algorithm; iterations scatter by 2 %, launches by ``launch``."""
    random = np.random.default_rng(seed)
    found = []
    for place, name in enumerate(names):
        for p in counts:
            shift = float(np.exp(random.normal(0, launch)))
            for size in sizes:
                middle = shift * law(name, p) * size / (1e9 * (1 + place))
                times = (middle * (1 + 0.02 * random.gamma(2, 1, n))).tolist()
                known = {"hosts": ["n0"], "ranks_per_node": [p]}
                found.append(allreduce(name, p, size, times, environment=known, **fields))
    return found


def _ranks(row: Placements) -> int:
    return row.every[0].ranks or 0


def _compared(results: Sequence[Placements]) -> LawComparison:
    return compare(rows(results), [], [], lambda name, p, sizes: [None] * len(sizes))


def _headline(results: Sequence[Placements]) -> str:
    found = _compared(results).verdict
    assert found is not None
    return found.headline


@given(
    st.lists(st.integers(2, 300), min_size=2, max_size=6, unique=True),
    st.floats(-2, 3),
    st.floats(1e-9, 1e3),
)
def test_a_power_of_p_is_found(counts: list[int], exponent: float, scale: float) -> None:
    """Rule: for times that are a power of P the exponent is that power, within the interval."""
    points = {p: [[scale * p**exponent] * 8] for p in counts}
    found = grown("ring", SIZE, points, lambda p: p**exponent)
    assert found is not None and found.exponent == pytest.approx(exponent, abs=1e-6)
    assert found.port == pytest.approx(exponent, abs=1e-6)
    assert found.low is not None and found.high is not None
    assert found.low - 1e-6 <= exponent <= found.high + 1e-6


@given(st.lists(st.integers(2, 300), min_size=2, max_size=6, unique=True))
def test_the_two_laws_are_one_apart(counts: list[int]) -> None:
    """Rule: over any rank counts a server's port grows by one power of P more than a ring's."""
    points = {p: [[1.0] * 8] for p in counts}
    server, ring = (grown(name, SIZE, points, VOLUMES[name]) for name in ("ps", "ring"))
    assert server is not None and ring is not None
    assert server.port - ring.port == pytest.approx(1) and ring.links == pytest.approx(server.port)


def test_the_interval_holds_what_differs_from_launch_to_launch() -> None:
    """Rule: in 95 % of runs whose launches scatter the interval holds the law's exponent.

    Iterations alone do not know of launches: intervals of them alone hold it in few runs.
    """
    held = []
    for seed in range(40):
        (one,) = _compared(_results(by_port, ["ring"], launch=0.1, seed=seed)).growths
        assert one.low is not None and one.high is not None
        held.append(one.low <= one.port <= one.high)
    assert sum(held) / len(held) >= 0.9


def test_two_counts_and_single_figures() -> None:
    """Rule: two rank counts have their iterations' interval, single figures none, one no growth."""
    (two,) = _compared(_results(by_port, ["ring"], [2, 8])).growths
    assert two.low is not None and two.low < two.port < (two.high or 0)
    (bare,) = _compared(_results(by_port, ["ring"], [2, 8], n=1)).growths
    assert (bare.low, bare.high) == (None, None) and bare.follows(bare.port) is None
    assert _compared(_results(by_port, ["ring"], [4])).growths == ()


def test_the_interval_is_as_wide_as_those_of_the_times() -> None:
    """Rule: levels of time that last widen the exponent's interval as they widen the times' own.

    Of two rank counts of which one has no scatter, it is the other's interval over log(P) alone.
    """
    levels = [1.0, 1.3, 1.0, 1.3]
    points = {2: [[1.0] * 60], 8: [[2.0 * level for level in levels for _ in range(15)]]}
    found = grown("ring", SIZE, points, lambda p: 1.0)
    ends = interval(points[8][0])
    assert found is not None and found.low is not None and found.high is not None
    assert ends is not None and ends[1] > 1.1 * ends[0]
    assert found.low <= np.log(ends[0]) / np.log(4) + 1e-9
    assert found.high >= np.log(ends[1]) / np.log(4) - 1e-9


def test_where_the_law_holds_it_is_said() -> None:
    """Rule: each algorithm near its own port's exponent and not the other's: the law holds."""
    for fields in ({}, {"ranks_per_core": 8.0}):  # links may be slower than any core
        assert _headline(_results(by_port, launch=0.02, **fields)).startswith(
            "Times grow by the law"
        )
    found = _compared(_results(by_port)).verdict
    assert (
        found is not None and "ps as P^1.2" in found.details and "ring as P^0.30" in found.details
    )
    assert "sharded_ps as P^0.29" in found.details


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ranks_per_core": 8.0}, "This machine cannot show the law: 16 ranks share 2 cores"),
        ({"ranks_per_core": 0.1}, "This machine cannot show the law: all ranks are on one host"),
        ({"worksharing": True, "ranks_per_core": 8.0}, "These rows cannot show the law: work of"),
    ],
)
def test_why_it_cannot_be_shown(fields: dict[str, Any], said: str) -> None:
    """Rule: where all times go with what all links carry, what is shared is named."""
    found = _compared(_results(by_links, **fields)).verdict
    assert found is not None and found.headline.startswith(said)
    if "worksharing" not in fields:
        assert "as P^1.29, as they do" in found.details


def test_without_intervals_there_is_no_verdict() -> None:
    """Rule: what has no interval denies no law; the reason and the remedy are said."""
    for fields in ({"ranks_per_core": 8.0}, {"ranks_per_core": 0.1}):
        found = _compared(_results(by_links, counts=[2, 16], n=5, **fields)).verdict
        assert found is not None and found.headline == "No verdict on the law"
        assert "Fewer than 6 iterations" in found.details and "(-n)" in found.details


def test_ranks_per_core_explain_nothing_on_emulated_hosts() -> None:
    """Rule: the ports of emulated hosts are the limit; a record tells them by the remote shell."""
    known = {"hosts": ["host0", "host1"], "variables": allowed(variables({}))}
    assert is_emulated(known) and not is_emulated({"variables": {"FI_PROVIDER": "tcp"}})
    results = [
        changed(one, known, ranks_per_core=2.0) for one in _results(by_links, ranks_per_core=2.0)
    ]
    assert _headline(results) == "Times do not grow by the law here"


def test_emulated_hosts_are_not_warned_of_as_crowded(tmp_path: Path) -> None:
    """Rule: ranks of emulated hosts share cores, and their ports are the limit. So neither a
    heading, a warning nor the page calls them oversubscribed, and rule 2 has its reason.
    """  # noqa: D205
    known = {
        "hosts": ["host0", "host1"], "variables": allowed(variables({})), "cpus": 8,
        "ranks_per_node": [1, 1],
    }  # fmt: skip
    real = _results(by_links, counts=[2], ranks_per_core=2.0)
    emulated = [changed(one, known, ranks_per_core=2.0) for one in real]
    more = _results(by_links, counts=[4])  # growth takes two counts
    for results, is_crowded in ((real, True), (emulated, False)):
        file = saved(tmp_path / "r.jsonl", results)
        shown, page = cli("show", file, "--rules"), tmp_path / "r.html"
        cli("html", file, "--out", page)
        for text in (shown.out + shown.err, page.read_text().split("<script")[0]):
            assert ("oversubscribed: 2 ranks per core" in text) == is_crowded
            assert ("share cores" in text) == is_crowded
        assert ("2 emulated hosts" in shown.out) != is_crowded
        legend = " ".join(cli("model", saved(tmp_path / "m.jsonl", [*results, *more])).out.split())
        assert "from 2 to 4 ranks P-1 grows 3 times, and log 3 / log 2 = 1.58." in legend
        assert ("a port passes some bytes at once" in legend) != is_crowded
        words = " ".join(shown.out.split())
        assert ("emulated hosts share the CPUs of one machine" in words) != is_crowded
    assert "times include ranks waiting" in Load(4, 2).remark(4)
    assert "busbar cluster says whether ports" in Load(4, 2, emulated=True).remark(4)


def test_several_hosts_leave_it_unexplained() -> None:
    """Rule: with a core and host a rank nothing in a record explains it: the law fails."""
    results = [
        changed(one, {"hosts": [f"n{i}" for i in range(_ranks(one))]}, ranks_per_core=0.5)
        for one in _results(by_links)
    ]
    assert _headline(results) == "Times do not grow by the law here"


def test_what_is_too_uncertain_or_too_little_has_no_verdict() -> None:
    """Rule: wide intervals, or a lone algorithm, decide nothing; that is said, with the remedy."""
    wide = [
        changed(one, {"hosts": ["a", "b"]}, ranks_per_core=0.5)
        for one in _results(by_port, counts=[2, 3, 4], launch=0.3, seed=1)
    ]
    found = _compared(wide).verdict
    assert found is not None and found.headline == "No verdict on the law"
    assert "too wide" in found.details
    for few in (_results(by_port, ["ring", "sharded_ps"]), _results(by_port, counts=[4])):
        alone = _compared(few).verdict
        assert alone is not None and "; run busbar cluster law --hosts " in alone.details


def test_a_verdict_that_lacks_rows_names_them_and_their_command() -> None:
    """Rule: what is missing is said by algorithm and count, and on emulated hosts for a law."""
    emulated = {"hosts": ["host0", "host1"], "variables": allowed(variables({}))}
    kept = [r for r in _results(by_port, ["ring", "ps"], [2, 4]) if r.every[0].algorithm == "ring"]
    kept += _results(by_port, ["ps"], [2])
    for known, command in (
        ({"hosts": ["a", "b"]}, "busbar allreduce --ranks 2,4 -A ring,ps -b 4M -e 4M"),
        (emulated, "busbar cluster law --hosts 2,4 -A ring,ps -b 4M --out DIR"),
    ):
        found = _compared([changed(one, known) for one in kept]).verdict
        assert found is not None and found.headline == "No verdict on the law"
        unit = "hosts" if known is emulated else "ranks"
        assert found.details.endswith(f"ps is missing on 4 {unit}; run {command}.")


def test_rank_counts_that_share_cores_do_not_blur_those_that_do_not() -> None:
    """Rule: where two counts have a core a rank the verdict is theirs."""

    def law(name: str, p: int) -> float:
        return by_port(name, p) if p <= 4 else 50 * by_links(name, p)

    results = [changed(one, ranks_per_core=_ranks(one) / 4) for one in _results(law)]
    found = _compared(results).verdict
    assert found is not None and found.headline.startswith("Times grow by the law")
    assert "from 2 to 4 ranks" in found.details


def test_what_counts_and_what_is_left_out() -> None:
    """Rule: the transport with the most rows; own work before shared.

    Runs of one thing together.
    """
    mine = _results(by_port)
    shm = [changed(one, transport="shm") for one in _results(by_links, counts=[2])]
    shared = [changed(one, worksharing=True) for one in _results(by_links)]
    found = _compared([*shared, *mine, *shm])
    assert found.notes == ("3 rows of other transports than mpi left out",)
    assert found.verdict is not None and found.verdict.headline.startswith("Times grow by the law")
    again = [changed(one, times_s=tuple(3 * t for t in one.every[0].times_s)) for one in mine]
    (cell,) = _compared([*mine, *again, *again]).of("ps", ranks=2)
    (once,) = _compared(mine).of("ps", ranks=2)
    assert cell.measured == pytest.approx(3 * (once.measured or 0), rel=0.05)


@pytest.mark.parametrize("width", [80, 160])
def test_the_command_ends_in_a_verdict(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: tables, growth and verdict fit the terminal; the figure's title is the verdict.

    The law is that of the bytes through the busiest port, as in `cluster law`.
    """
    monkeypatch.setenv("COLUMNS", str(width))
    run, figure = tmp_path / "r.jsonl", tmp_path / "f.svg"
    saved(run, _results(by_links, sizes=(1 << 16, 1 << 22), ranks_per_core=8.0))
    out = cli("model", run, "--out", figure).out
    assert max(map(len, (x for x in out.splitlines() if x != str(figure)))) <= max(width, 96)
    assert (
        "sharded_ps" in out
        and "P^0.29" in out
        and "16 ranks share 2 cores" in " ".join(out.split())
    )
    assert " law  all links" in out and "; law P^0.29)" in " ".join(out.split())
    drawn = figure.read_text(encoding="utf-8")
    assert "This machine cannot show the law: 16 ranks share 2 cores" in drawn
    assert drawn.count("GB/s") >= 6 and "at one rate" not in drawn
