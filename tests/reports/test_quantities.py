"""The quantities of the field: their formulae, their laws, and the table of scaling."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.records.measurement import Placements
from reports.statistics import quantities as q
from reports.tables.scaling import scaling
from tests.reports.runs import allreduce, cli, rows, saved


def test_worked_cases() -> None:
    """Rule: each formula gives what one works out by hand."""
    assert q.algbw(1e9, 0.5) == 2e9 and q.algbw(8, 0) == float("inf")
    assert q.algbw(1e9, 0.5, share=0.75) == 1.5e9
    assert q.busbw(2e9, 2 * 7 / 8) == 3.5e9
    assert q.of_limit(seconds=4.0, least=3.0) == 0.75
    assert q.speedup(base=2e9, throughput=6e9) == 3
    assert q.efficiency(base=2e9, throughput=6e9, n=4) == 0.75
    assert q.efficiency(base=1 / 2.0, throughput=8 / 4.0, n=8) == 0.5  # t(1) / t(8)
    assert q.joules_per_gb(50.0, 2e9) == 25


@pytest.mark.parametrize(
    "call",
    [
        lambda: q.of_limit(0, 1), lambda: q.of_limit(1, 0), lambda: q.speedup(0, 1),
        lambda: q.efficiency(1, 1, 0), lambda: q.joules_per_gb(1, 0),
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(call: object) -> None:
    """Rule: nothing measured, or nothing to divide by, is an error and no figure."""
    with pytest.raises(ValueError):
        call()  # type: ignore[operator]


# -- scaling


def _results(ranks: int, seconds: float, algorithm: str = "ring") -> list[Placements]:
    times = [seconds * (1 + 0.001 * i) for i in range(20)]
    return [allreduce(algorithm, ranks, 2**20, times)]


def test_scaling_names_its_base_and_follows_the_formulae() -> None:
    """Rule: efficiency on n is t(base) / t(n); speed-up n / base times that; with an interval."""
    (series,) = scaling(
        [r for n, t in ((1, 1.0), (2, 1.25), (4, 2.0)) for r in rows(_results(n, t))]
    )
    assert [s.efficiency for s in series] == pytest.approx([1, 0.8, 0.5])
    assert [s.speedup for s in series] == pytest.approx([1, 1.6, 2])
    assert {s.base.ranks for s in series} == {1} and series[0].low is None
    for s in series[1:]:
        assert s.low is not None and s.high is not None and s.low <= s.efficiency <= s.high
    (series,) = scaling([r for n, t in ((2, 1.0), (8, 2.0)) for r in rows(_results(n, t))])
    assert (series[1].efficiency, series[1].speedup) == pytest.approx((0.5, 2))


@pytest.mark.parametrize(("width", "shown"), [(80, False), (100, True)])
def test_scaling_keeps_names_whole(
    width: int, shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: where a terminal is narrow busbw goes, a name is never folded.

    Tiny speed-ups are told.
    """
    monkeypatch.setenv("COLUMNS", str(width))
    path = tmp_path / "run.jsonl"
    made = [_results(n, 10.0**-n, "halving_doubling") for n in (2, 4)]
    saved(path, [*made[0], *made[1], *_results(2, 1e-6), *_results(4, 1e-2)])
    out = cli("scaling", path).out
    out = out.partition("the fastest")[0]  # the map of winners
    assert out.count("halving_doubling") == 2 and ("busbw" in out) == shown
    assert max(map(len, out.splitlines())) <= width and " 0.0002 " in out


def test_the_table_of_scaling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: the base stands in the heading, the first rule is kept.

    One rank count alone is refused.
    """
    monkeypatch.setenv("COLUMNS", "80")
    files = []
    for ranks in (1, 2, 4):
        path = saved(tmp_path / f"{ranks}.jsonl", _results(ranks, 1.0 + ranks / 4))
        files.append(str(path))
    out = cli("scaling", *files, "--rules").out
    assert "base of speed-up and efficiency: 1 rank" in out and "not kept" in out
    assert "(1)" not in out.partition("not kept: ")[2]
    assert max(map(len, out.splitlines()[1:])) <= 80
    cli("scaling", files[0], status=2)
