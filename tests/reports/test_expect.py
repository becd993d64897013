"""Expectations: how they may be written, what keeps them, and that nothing passes unseen."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from busbar.errors import ReportError
from reports.analysis.expect import check, from_file, parse_rate, parse_share
from reports.analysis.expect import parse_rule as parse
from reports.records.measurement import Measurement, Run
from tests.reports.runs import cli

RUN = Run("run.jsonl", 0, "busbar", hosts=("n0", "n1"))


def _row(algorithm: str, size: int, placement: str = "out", **more: object) -> Measurement:
    """A row of 10 us for every 64 KiB, on four ranks."""
    time = size / 65536 * 1e-5
    known = {"ranks": 4, "dtype": "float", "op": "sum", "wrong": 0, "time_s": time, "cv": 0.02}
    known |= {"busbw_bytes_per_s": 1.5 * size / time, "transport": "mpi", "max_s": 2 * time}
    return replace(
        Measurement(
            run=RUN,
            line=1,
            collective="allreduce",
            size=size,
            placement=placement,
            algorithm=algorithm,
            **known,
        ),
        **more,
    )  # type: ignore[arg-type]


ROWS = [_row(a, s, p) for a in ("ring", "tree") for s in (1 << 16, 1 << 26) for p in ("out", "in")]


def _spoken(text: str) -> list[tuple[str, int | None, str]]:
    rule = parse(text + ": wrong == 0")
    return [(r.algorithm, r.size, r.placement) for r in ROWS if rule.concerns(r)]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("allreduce", 8), ("all_reduce", 8), ("AllReduce", 8), ("all_reduce_perf", 8), ("all*", 8),
        ("broadcast", 0), ("all*|broadcast", 8), (">=64M", 4), ("<64M", 4), (">64M", 0),
        ("64M", 4), ("=64M", 4), ("!=64M", 4), ("size >= 64M", 4), (">=64MiB", 4), (">=64mb", 4),
        ("64K..64M", 8), ("64K - 1M", 4), ("size=64K..1M", 4), (">=0.5M", 4), ("67108864", 4),
        ("in-place", 4), ("in", 4), ("placement=out-of-place", 4), ("algorithm=ring", 4),
        ("algorithm=r*", 4), ("algorithm=ring|tree", 8), ("algorithm!=ring", 4),
        ("algorithm=Ring", 0),
        ("ranks=4", 8), ("ranks>=4", 8), ("ranks>4", 0), ("4 ranks", 8), ("ranks=2|4", 8),
        ("dtype=float32", 8), ("transport=mpi,op=sum,in,>=1M", 2), ("", 8),
    ],
)  # fmt: skip
def test_rows_are_selected_as_people_write_it(text: str, rows: int) -> None:
    """Rule: names of other tools, binary units, ranges, globs and alternatives.

    All parts must fit.
    """
    assert len(_spoken(text)) == rows


# A row of 64 KiB takes 10 us, at most 20 us; busbw 9.8304 GB/s.
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("busbw >= 9.8", True), ("busbw >= 9.9", False), ("busbw ≥ 9.8 GB/s", True),
        ("busbw >= 9800 MB/s", True), ("busbw >= 0.0099 TB/s", False), ("busbw >= 9.2 GiB/s",
        False),
        ("busbw >= 78 Gb/s", True), ("busbw >= 79 Gbit/s", False), ("9.8 < busbw < 9.9", True),
        ("busbw between 9 and 9.5", False), ("busbw between 9 GB/s and 10 GB/s", True),
        ("time < 11us", True), ("time < 10 µs", False), ("time <= 1e4 ns", True), ("1 ms > time",
        True),
        ("latency > 9.9us", True), ("max < 19 us", False), ("wrong != 0", False), ("cv < 5%", True),
        ("busbw >= 0.98*limit", True), ("busbw >= 99% of limit", False), ("busbw >= limit * 0.98",
        True),
        ("busbw > limit", False), ("busbw >= 98 % limit", True), ("wrong = 0", True),
        ("0.5*limit < busbw <= limit", True),
    ],
)  # fmt: skip
def test_a_figure_is_held_against_what_is_written(text: str, kept: bool) -> None:
    """Rule: units, both directions, both bounds, and shares of a limit of 10 GB/s."""
    (row,) = [r for r in ROWS if (r.algorithm, r.size, r.placement) == ("ring", 1 << 16, "out")]
    assert (check([parse(text)], [row], 1e10) == []) == kept


def test_expectations_name_what_failed_and_where() -> None:
    """Rule: each row below its threshold is named with figure, threshold and nodes."""
    (failure, _) = check([parse("allreduce,>=64M,algorithm=ring: busbw >= 0.99*limit")], ROWS, 1e10)
    assert failure.nodes == "n0, n1"
    assert failure.text == "allreduce ring 64M out: busbw is 9.83 GB/s, wanted >= 9.9 GB/s"
    assert not check([parse("allreduce, <64M: time < 1 ms"), parse("wrong == 0")], ROWS)


def test_a_measured_limit_is_the_limit() -> None:
    """Rule: without --limit a row is held against its own roofline: 0.8 of it is 1.25 times."""
    row = _row("ring", 1 << 26)
    rule = [parse("busbw >= 0.8*limit")]
    for share, kept in ((0.81, True), (0.79, False)):
        held = replace(row, limit_s=share * (row.time_s or 0))
        assert (check(rule, [held]) == []) == kept
    with pytest.raises(ReportError, match="none was measured at 64M"):
        check(rule, [row])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "alltoall: wrong == 0",
            "no row matches 'alltoall: wrong == 0': none has alltoall (there is",
        ),
        (">=1G: wrong == 0", "none has >=1G (sizes are 64K to 64M)"),
        ("algorithm=ring|rabenseifner: wrong == 0", "no row with algorithm=rabenseifner matches"),
        ("ring: wrong == 0", "(there is allreduce; did you mean algorithm=ring?)"),
    ],
)
def test_an_expectation_of_nothing_fails(text: str, why: str) -> None:
    """Rule: a rule, or one of its names, that no row matches would hide a lost test."""
    (failure,) = check([parse(text)], ROWS)
    assert failure.row is None and why in failure.text


@pytest.mark.parametrize("text", ["time < 1 s", "wrong == 0", "busbw >= 0", "p99 < 1 s"])
def test_a_figure_that_is_not_known_fails(text: str) -> None:
    """Rule: a row that was skipped, or whose figures were no numbers, keeps nothing."""
    lost = replace(ROWS[0], time_s=None, wrong=None, busbw_bytes_per_s=None, skipped="no memory")
    (failure,) = check([parse(text)], [lost])
    assert "is not known: no memory" in failure.text


@pytest.mark.parametrize("sign", [">>", "=>", "> =", "<>"])
def test_what_is_no_comparison_is_named(sign: str) -> None:
    """Rule: the message on a rule quotes the part that is not understood."""
    with pytest.raises(ReportError, match=f"'{sign}' is no comparison; there are >=, <=, >, <"):
        parse(f"busbw {sign} 3")


@pytest.mark.parametrize(
    "text",
    ["", "busbw", "x: speed > 1", "x: busbw >= ", "x: time < 5", "x: time < 0.5*limit",
    "x y: wrong = 0", "avg busbw > 0.5*limit", "avg speed > 1", "avg > 1",
     "colour=red: wrong = 0", "x: busbw > 1 us", "x: wrong > -1", "x: busbw >= 80%",
     "x: busbw > nan",
     "x: busbw > inf", "x: busbw > 1e999", "1.3: wrong = 0", "ranks=all: wrong = 0",
     "algorithm>=ring: wrong = 0", "x: busbw > 5 limit more", "1 < busbw < 2 < 3", "x: busbw => 1"],
)  # fmt: skip
def test_rules_that_make_no_sense_are_refused(text: str) -> None:
    """Rule: never a silent default; the message repeats the rule."""
    with pytest.raises(ReportError, match="--expect"):
        parse(text)


@given(st.text(max_size=40) | st.from_regex(r"[a-z0-9=<>,|*. ]{0,20}: [a-z0-9<>=%*./ ]{0,20}"))
def test_any_rule_is_understood_or_refused(text: str) -> None:
    """Rule: one kind of error and nothing else, for rules, shares and rates."""
    for function in (parse, parse_share, parse_rate):
        try:
            function(text)
        except ReportError as error:
            assert str(error)


def test_rules_from_yaml(tmp_path: Path) -> None:
    """Rule: a list, or expect and limit.

    A rule needs no quotes, whatever YAML makes of its colon.
    """
    path = tmp_path / "rules.yaml"
    text = "limit: 10GB/s\nexpect:\n  - 'allreduce: busbw >= 0.5*limit'\n  - a,>=1M: time < 1 ms\n"
    path.write_text(text + "  - wrong == 0\n")
    rules, limit = from_file(path)
    assert limit == 1e10 and rules[0].bounds[0].of_limit
    assert [r.text for r in rules[1:]] == ["a,>=1M: time < 1 ms", "wrong == 0"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("expects: []", 1), ("- 1", 1), ("a: [", 1), ("!!python/object/apply:os.getcwd []", 1),
        ("limit: 3GB/s\nexpect:\n- wrong == 0\n- busbw >= 3 ms\n", 4),
        ("limit: fast\nexpect: [w]", 1),
        ("- wrong = 0\n- >=64M: busbw > 1\n", 2), ("- wrong = 0\n- {a: 1, b: 2}\n", 2),
        ("expect: []", 1),
        ("[]", 1), ("- wrong = 0\n-\t[x", 2), ("? [a]\n: b\n", 1), ("limit: 3GB/s\n", 1),
        ("- &a [*a]\n", 1),
    ],
)  # fmt: skip
def test_what_is_wrong_in_yaml_is_said_by_line(tmp_path: Path, text: str, line: int) -> None:
    """Rule: file and line; no rule at all is an error too; tags that build objects are refused."""
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(ReportError, match=rf"rules\.yaml:{line}: "):
        from_file(path)


def test_an_empty_file_of_rules_is_no_pass(tmp_path: Path) -> None:
    """Rule: nothing is expected by mistake only."""
    path = tmp_path / "rules.yaml"
    path.write_text("# all commented out\n")
    with pytest.raises(ReportError, match="a list of rules is wanted"):
        from_file(path)
    cli("show", path, "--expect-file", path, status=2)


def test_a_rule_without_end_is_refused_in_a_line() -> None:
    """Rule: a message quotes what it refuses, so what it quotes has a bound."""
    with pytest.raises(ReportError) as caught:
        parse(f"busbw >= {'9' * 5000} GB/s")
    assert "5014 characters" in str(caught.value) and len(str(caught.value)) < 100


@given(
    st.lists(st.floats(1e9, 1e11), min_size=1, max_size=8),
    st.floats(1.0, 100.0),
    st.sampled_from([">=", "<"]),
)
def test_an_average_is_of_all_rows(rates: list[float], bound: float, comparison: str) -> None:
    """Rule: `avg` holds the mean against the bound, wherever the figure stands in the rule."""
    rows = [replace(ROWS[0], busbw_bytes_per_s=rate) for rate in rates]
    mean = sum(rates) / len(rates) / 1e9
    kept = mean >= round(bound, 3) if comparison == ">=" else mean < round(bound, 3)
    flipped = {">=": "<=", "<": ">"}[comparison]
    if abs(mean - round(bound, 3)) < 1e-6:
        return  # the mean's last digits decide
    for rule in (f"avg busbw {comparison} {bound:.3f}GB/s", f"{bound:.3f} {flipped} avg busbw"):
        assert len(check([parse(f"allreduce: {rule}")], rows)) == (not kept)
    assert check([parse(f"broadcast: avg busbw {comparison} {bound:.3f}")], rows)
    lost = replace(rows[0], busbw_bytes_per_s=None)
    (failure,) = check([parse("avg busbw > 0")], [*rows, lost])
    assert "is not known" in failure.text
