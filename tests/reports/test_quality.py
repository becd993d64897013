"""The twelve rules: every verdict follows from the rows, and each can be lost and won."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reports.analysis.quality import Rule, checklist, in_one_line
from reports.records.measurement import Measurement, Run

ENVIRONMENT = {"cpu": "EPYC", "cpus": 2, "kernel": "6.1", "revision": "abc",
    "mapping": {"node": [0]},
               "ranks_per_node": [2], "variables": {}}  # fmt: skip
RUN = Run("x", 0, "busbar", "busbar allreduce", "busbar 1", "MPICH 5", ("n0",), (), ENVIRONMENT)
TIMES = tuple(1e-5 + 1e-7 * i for i in range(100))


def _row(**changes: object) -> Measurement:
    row = Measurement(run=RUN, line=1, collective="allreduce", size=1024, algorithm="ring",
              transport="mpi", ranks=2, dtype="float",
              op="sum", root=-1, statistic="median", time_s=1.5e-5, low_s=1.4e-5, high_s=1.6e-5,
              min_s=1e-5, max_s=2e-5, p99_s=2e-5, cv=0.1, algbw_bytes_per_s=1e9,
              busbw_bytes_per_s=1e9, iterations=100, times_s=TIMES, timing="each",
              across="max")  # fmt: skip
    return replace(row, **changes)  # type: ignore[arg-type]


def _run(**environment: object) -> Run:
    kept = {k: v for k, v in {**ENVIRONMENT, **environment}.items() if v is not None}
    return dataclasses.replace(RUN, environment=kept)


def _rule(number: int, *rows: Measurement, **more: object) -> Rule:
    return checklist(rows, **more)[number - 1]  # type: ignore[arg-type]


GOOD = (_row(), _row(algorithm="library", transport="mpi"))


def test_a_good_record_keeps_every_rule_that_applies() -> None:
    """Rule: with base, intervals, setup, bound and distribution nothing is found fault with."""
    rules = checklist(GOOD, limit=1e10)
    assert [r.number for r in rules] == list(range(1, 13))
    assert {r.number: r.why for r in rules if r.state == "not kept"} == {}
    assert "MPICH" not in in_one_line(rules) and in_one_line(rules).endswith(" kept")
    (none,) = (dataclasses.replace(rule, state="not kept") for rule in rules if rule.number == 11)
    line = in_one_line([*(rule for rule in rules if rule.number != 11), none])
    assert line.endswith("; not kept: upper bounds are shown (11)")


@pytest.mark.parametrize(
    ("number", "rows", "why"),
    [
        (1, (_row(ranks=2), _row(ranks=4)), "the base would be 2"),
        (2, (_row(time_s=None, algbw_bytes_per_s=None), _row()), "1 of 2 rows"),
        (2, (_row(run=_run(cpus=64)),), "2 ranks on 64 CPUs"),
        (2, (_row(run=_run(cpus=None)),), "does not say what there was"),
        (2, (_row(run=_run(mapping={"gpu": ["0000:1b:00.0"]})),), "how many GPUs"),
        (3, (_row(time_s=None),), "only rates"),
        (4, (_row(), _row(algorithm="library", time_s=None)), "1 row of ratios"),
        (5, (_row(low_s=None, times_s=()),), "1 have no raw times"),
        (5, (_row(low_s=None, times_s=TIMES[:3]),), "fewer than 6"),
        (6, (_row(statistic="mean"),), "a mean"),
        (7, (_row(low_s=None), _row(algorithm="tree")), "no interval to compare"),
        (8, (_row(p99_s=None, max_s=None),), "no extremes"),
        (9, (_row(run=_run(kernel=None)),), "kernel or driver"),
        (9, (_row(run=dataclasses.replace(RUN, library="")),), "version of the library"),
        (
            10,
            (_row(), _row(timing="", run=dataclasses.replace(RUN, format="osu"))),
            "(osu) of 1 of 2 rows",
        ),
        (11, (_row(),), "no bound"),
        (12, (_row(times_s=()),), "no distribution"),
    ],
)
def test_each_rule_can_be_broken(number: int, rows: tuple[Measurement, ...], why: str) -> None:
    """Rule: no verdict is fixed: rows that lack what a rule asks break it, and say why."""
    rule = _rule(number, *rows)
    assert rule.state == "not kept" and why in rule.why, rule


@pytest.mark.parametrize("number", [1, 4, 7])
def test_what_is_not_shown_cannot_be_broken(number: int) -> None:
    """Rule: rules on ratios and comparisons do not apply to rows that stand alone."""
    assert _rule(number, _row()).state == "does not apply"


def test_the_same_again_is_no_comparison() -> None:
    """Rule: several tables of one thing in a log stand beside nothing but themselves."""
    assert _rule(7, _row(low_s=None), _row(low_s=None)).state == "does not apply"


def test_a_comparison_is_tested_or_not() -> None:
    """Rule: in a comparison the words decide: an untested row breaks the seventh rule."""
    assert _rule(7, _row(), words=["slower", "faster"]).state == "kept"
    assert _rule(7, _row(), words=["slower", "untested"]).state == "not kept"


def test_one_rank_is_a_base() -> None:
    """Rule: a series of rank counts that begins with 1 has its base case."""
    assert _rule(1, _row(ranks=1), _row(ranks=2)).state == "kept"


def test_skipped_rows_have_reasons() -> None:
    """Rule: a row that was skipped with a reason is not something left out in silence."""
    rule = _rule(2, _row(), _row(time_s=None, algbw_bytes_per_s=None, skipped="no memory"))
    assert rule.state == "kept" and "1 row was skipped" in rule.why


def test_nothing_timed_nothing_applies() -> None:
    """Rule: without a figure no rule is claimed to be kept."""
    for rows in ((), (_row(time_s=None, algbw_bytes_per_s=None, skipped="no memory"),)):
        assert {r.state for r in checklist(rows)} == {"does not apply"}


@given(st.lists(st.builds(
    _row,
    ranks=st.sampled_from([None, 1, 2]), size=st.sampled_from([None, 0, 1024]),
    time_s=st.sampled_from([None, 1e-5]), low_s=st.sampled_from([None, 1e-6]),
    statistic=st.sampled_from(["median", "mean"]), iterations=st.sampled_from([None, 5, 200]),
    algorithm=st.sampled_from(["", "ring", "library"]), times_s=st.sampled_from([(), TIMES]),
    run=st.sampled_from([RUN, _run(cpus=None), Run("y", 0, "osu")]),
), max_size=6))  # fmt: skip
def test_any_rows_have_twelve_verdicts(rows: list[Measurement]) -> None:
    """Rule: whatever a log holds, each rule has one verdict and a reason."""
    rules = checklist(rows)
    assert len(rules) == 12 and all(r.why and str(r).startswith(str(r.number)) for r in rules)


def test_more_rows_never_mend_a_rule() -> None:
    """Rule: a row that breaks a rule of its own breaks it for the whole report."""
    broken: Callable[[Measurement], bool] = lambda r: _rule(5, _row(), r).state == "not kept"  # noqa: E731
    assert broken(_row(low_s=None)) and not broken(_row())
