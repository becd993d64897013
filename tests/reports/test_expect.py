"""Expectations: what rules say, whom they name, and which are refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.errors import ReportError
from reports.expect import check, from_file, parse, parse_rate, parse_share
from tests.reports.runs import noisy, rows


def test_expectations_name_what_failed_and_where() -> None:
    """Rule: each row below its threshold is named with figure, threshold and nodes."""
    found = rows(noisy(1))
    (failure,) = check([parse("allreduce,>=64M,algorithm=ring: busbw >= 0.8*limit")], found, 2e10)
    assert failure.nodes == "n0, n1" and "ring 64M out: busbw is" in failure.text
    assert ">= 16 GB/s" in failure.text
    assert not check([parse("allreduce, <64M: time < 1 ms"), parse("wrong == 0")], found)


def test_a_measured_limit_is_the_limit() -> None:
    """Rule: without --limit a row is held against its own ceiling: 0.8 of it is 1.25 of its time."""
    (row,) = [r for r in rows(noisy(1)) if (r.algorithm, r.size) == ("ring", 2**26)]
    rule = [parse("busbw >= 0.8*limit")]
    for share, kept in ((0.81, True), (0.79, False)):
        held = replace(row, limit_s=share * row.time_s)
        assert (check(rule, [held]) == []) == kept
    with pytest.raises(ReportError, match="none was measured at 64M"):
        check(rule, [row])


def test_an_expectation_of_nothing_fails() -> None:
    """Rule: a rule that no row speaks to would hide a lost test, so it is not kept."""
    (failure,) = check([parse("alltoall: wrong == 0")], rows(noisy(1)))
    assert failure.row is None


@pytest.mark.parametrize(
    "text",
    ["", "busbw", "x: speed > 1", "x: busbw >= ", "x: time < 5", "x: time < 0.5*limit", "x y: wrong = 0",
     "colour=red: wrong = 0", "x: busbw > 1 us", "x: wrong > -1"],
)  # fmt: skip
def test_rules_that_make_no_sense_are_refused(text: str) -> None:
    """Rule: never a silent default; the message repeats the rule."""
    with pytest.raises(ReportError, match="--expect"):
        parse(text)


@given(st.text(max_size=40))
def test_any_rule_is_understood_or_refused(text: str) -> None:
    """Rule: one kind of error and nothing else, for rules, shares and rates."""
    for function in (parse, parse_share, parse_rate):
        try:
            function(text)
        except ReportError as error:
            assert str(error)


def test_rules_from_yaml(tmp_path: Path) -> None:
    """Rule: a list, or expect and limit; anything else is refused, tags that build objects too."""
    path = tmp_path / "rules.yaml"
    path.write_text("limit: 10GB/s\nexpect:\n  - 'allreduce: busbw >= 0.5*limit'\n")
    rules, limit = from_file(path)
    assert limit == 1e10 and rules[0].of_limit
    for bad in ("expects: []", "- 1", "a: [", "!!python/object/apply:os.getcwd []"):
        path.write_text(bad)
        with pytest.raises(ReportError, match=r"rules\.yaml"):
            from_file(path)
