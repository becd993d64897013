"""Histories: what was changed is found where it was, and nothing else; the gate follows."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from busbar.errors import ReportError
from busbar.tables import draw_trend
from busbar.units import format_p_value
from reports.analysis.compare import differences
from reports.analysis.history import events, history, in_order, verdict_changes
from reports.readers.qualified import HostVerdict, Qualified
from reports.readers.reading import parse
from reports.records.measurement import Placements
from reports.statistics.change_points import alarms, cuts
from tests.conftest import examples, thorough
from tests.reports.runs import allreduce, cli, rows, saved, to_jsonl

Numbered = list[tuple[int, float]]


def _series(values: NDArray[np.float64]) -> list[Numbered]:
    """Series of runs, a row of the array each."""
    return [[(n, float(v)) for n, v in enumerate(row)] for row in np.atleast_2d(values)]


def _noise(random: np.random.Generator, kind: str, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Medians of runs that differ by 1 % from run to run; ``shared``: all rows of a run alike."""
    z = random.standard_t(4, shape) if kind == "heavy" else random.standard_normal(shape)
    if kind == "shared":
        z = 0.3 * z + random.standard_normal(shape[1])
    return np.asarray(1e-5 * np.exp(0.01 * z))


@pytest.mark.parametrize("kind", ["normal", "heavy", "shared"])
@pytest.mark.parametrize(("rows", "runs"), [(1, 12), *thorough((15, 20))])
def test_false_alarms_are_as_rare_as_said(kind: str, rows: int, runs: int) -> None:
    """Rule: about 5 % of histories without a change are said to have one, whatever their rows."""
    random = np.random.default_rng(7)
    found = [cuts(_series(_noise(random, kind, (rows, runs)))) for _ in range(60)]
    assert sum(any(f) for f in found) <= 8  # expected: 3, and 1.7 as its standard deviation


@pytest.mark.parametrize("kind", ["normal", "heavy", "shared"])
def test_an_injected_step_is_found_where_it_is(kind: str) -> None:
    """Rule: a step of 5 % over noise of 1 % is found in every row that has it, and within a run."""
    random = np.random.default_rng(3)
    hits, exact, others = 0, 0, 0
    for _ in range(20):
        values = _noise(random, kind, (8, 20))
        values[:4, 12:] *= 1.05
        found = cuts(_series(values))
        hits += sum(len(f) == 1 and abs(f[0].at - 12) <= 1 for f in found[:4])
        exact += sum(f[0].at == 12 for f in found[:4] if f)
        others += sum(map(bool, found[4:]))
        assert all(1.02 < f[0].ratio < 1.08 for f in found[:4] if len(f) == 1)
    assert hits >= 72 and exact >= 64 and others <= 3


@pytest.mark.parametrize(("runs", "at"), [(12, 8), (24, 20), (31, 26)])
def test_a_late_step_is_placed_at_its_run(runs: int, at: int) -> None:
    """Rule: a step far greater than the noise is placed at its run, also near the end of a history.

    Ranks alone place it early: among equal levels their order is chance.
    """
    random = np.random.default_rng(8)
    found = []
    for _ in range(10):
        values = _noise(random, "normal", (16, runs))
        values[:, at:] *= 1.3
        found += [cut.at for one in cuts(_series(values)) for cut in one]
    assert found and set(found) == {at}


def test_a_link_of_a_host_that_could_not_be_measured_has_no_verdict() -> None:
    """Rule: without a verdict a link is good only if the run could measure its hosts."""
    runs = [
        Qualified("", 1, "", ("a", "b"), "", tuple(HostVerdict(*one) for one in verdicts))
        for verdicts in (
            [("host", ("a",), "good"), ("host", ("b",), "unreachable")],
            [("host", ("a",), "good"), ("host", ("b",), "good"), ("link", ("a", "b"), "slow")],
            [("host", ("a",), "good"), ("host", ("b",), "slow")],
        )
    ]
    changes = {one.subject: one.verdicts for one in verdict_changes(runs)}
    assert changes == {"b": ("unreachable", "good", "slow"), "link a b": ("", "slow", "good")}


def test_a_change_of_all_rows_is_found_in_a_short_history() -> None:
    """Rule: rows that change together confirm each other: eight runs suffice for 100 rows."""
    random = np.random.default_rng(4)
    values = _noise(random, "normal", (100, 8))
    values[:, 4:] *= 1.1
    assert sum([c.at for c in f] == [4] for f in cuts(_series(values))) >= 95


def test_several_steps_are_found() -> None:
    """Rule: both sides of a cut are looked at again; ratios are those of neighbouring levels."""
    values = _noise(np.random.default_rng(5), "normal", (1, 45))
    values[0, 15:] *= 1.1
    values[0, 30:] /= 1.2
    (found,) = cuts(_series(values))
    assert [c.at for c in found] == [15, 30]
    assert [c.ratio for c in found] == pytest.approx([1.1, 1 / 1.2], rel=0.02)


def test_less_than_the_noise_is_no_change() -> None:
    """Rule: what is significant but smaller than --noise is not said."""
    values = _noise(np.random.default_rng(6), "normal", (1, 60)) ** 0.1
    values[0, 30:] *= 1.005
    assert cuts(_series(values), noise=0.001)[0] and not cuts(_series(values), noise=0.01)[0]


@given(st.lists(st.lists(st.floats(1e-9, 1e3), max_size=12), max_size=4), st.data())
@examples(40)
def test_any_series_are_judged(values: list[list[float]], data: st.DataObject) -> None:
    """Rule: short, constant and gappy series are no errors; cuts lie inside, in order, seeded."""
    series = [
        list(zip(sorted(data.draw(st.sets(st.integers(0, 30), min_size=len(v), max_size=len(v)))),
                 v, strict=True)) for v in values
    ]  # fmt: skip
    found = cuts(series)
    assert found == cuts(series)
    for f, s in zip(found, series, strict=True):
        places = [c.at for c in f]
        assert places == sorted(set(places)) and all(2 <= at <= len(s) - 2 for at in places)
    full = [s for s in series if s]
    alarms(full, [[] for _ in full])


def test_the_last_runs_raise_an_alarm_before_a_change_is_certain() -> None:
    """Rule: a last run far out is said at once, by itself; ordinary last runs hardly ever are."""
    random = np.random.default_rng(8)
    found, false = 0, 0
    for _ in range(40):
        values = _noise(random, "normal", (5, 15))
        false += bool(alarms(_series(values), [[] for _ in values]))
        values[0, -1] *= 1.1
        made = alarms(_series(values), [[] for _ in values])
        found += any(a.series == 0 and a.ratio > 1.05 for a in made)
    assert found >= 38 and false <= 3


def test_a_course_is_drawn_between_its_extremes() -> None:
    """Rule: a mark a value, least to greatest, a bar before each cut, plain without UTF-8."""
    assert (
        draw_trend([1, 2, 8], [2]) == "▁▂|█" and draw_trend([5, 5]) == "▁▁" and draw_trend([]) == ""
    )
    assert draw_trend([1, 8], ascii_only=True).isascii()
    assert format_p_value(0.0123) == "p 0.012" and format_p_value(0.0) == "p < 1e-9"


# -- from records


def _record(
    random: np.random.Generator, slow: float = 1.0, **environment: object
) -> list[Placements]:
    known = {"busbar": "0.1", "library": "MPICH 5", "hosts": ["n0"], "cpu": "EPYC", "cpus": 4,
             "ranks_per_node": [4], "variables": {}, **environment}  # fmt: skip
    level = float(np.exp(0.005 * random.standard_normal()))
    made = []
    for algorithm, factor in (("ring", slow), ("tree", 1.0)):
        times = level * factor * 1e-4 * (1 + 0.02 * random.gamma(2, 1, 15))
        made.append(allreduce(algorithm, 4, 2**20, times.tolist(), environment=known))
    return made


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """Sixteen runs; from the eleventh on rings are 8 % slower, with another library."""
    random, names = np.random.default_rng(0), []
    for n in range(16):
        more = {"slow": 1.08, "library": "MPICH 6"} if n >= 10 else {}
        path = tmp_path / f"{n:02}.jsonl"
        path.write_bytes(to_jsonl(_record(random, **more)))  # type: ignore[arg-type]
        names.append(str(path))
    return names


def test_a_change_is_told_with_what_else_changed(
    runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: run, rows, amount and what differs from the run before are named; lines fit."""
    for width in (80, 160):
        monkeypatch.setenv("COLUMNS", str(width))
        out = cli("history", *runs).out
        text = " ".join(out.split())
        assert "change with run 11" in text and "1 of 2 rows slower by +" in text
        assert "allreduce ring 1M out" in text and "library MPICH 5 -> MPICH 6" in text
        table = out.split("change with")[0].splitlines()
        assert max(map(len, table)) <= width
        (course,) = [line.split()[-1] for line in table if " ring " in line]
        assert course.index("|") == 10 and len(course) == 17


@pytest.mark.parametrize(
    ("chosen", "share", "status"),
    [
        (slice(None), "5%", 1),
        (slice(None), "20%", 0),
        (slice(0, 10), "5%", 0),
        (slice(0, 11), "5%", 1),  # one slow run: an alarm, not yet a change
        (slice(10, None), "5%", 0),  # the level since the change is the only one known
    ],
)
def test_the_gate_follows_the_latest_change(
    runs: list[str], chosen: slice, share: str, status: int
) -> None:
    """Rule: exit 1 when the latest change, or the last runs, are over --fail-slower slower."""
    cli("history", *runs[chosen], "--fail-slower", share, status=status)


def test_a_gain_passes(runs: list[str]) -> None:
    """Rule: after a change for the better the gate is open."""
    cli("history", *runs[::-1], "--fail-slower", "1%")


def test_one_run_that_differs_alone_is_told(runs: list[str], tmp_path: Path) -> None:
    """Rule: of a history without a change, a run that is far from the others is named."""
    slow = saved(tmp_path / "slow.jsonl", _record(np.random.default_rng(1), slow=1.3))
    out = " ".join(cli("history", *runs[:2], slow, *runs[2:5]).out.split())
    assert out.count("against the other runs") == 1 and "run 3 (" in out
    assert "no lasting change in 2 rows over 6 runs" in out
    out = cli("history", *runs[:6]).out
    assert "no change in 2 rows over 6 runs" in out and "against the other" not in out


def test_few_runs_cannot_tell(runs: list[str]) -> None:
    """Rule: a history in which no change can show does not say that there is none."""
    for n, few in ((2, True), (5, True), (6, False)):
        out = cli("history", *runs[:n]).out
        assert ("too few runs to tell" in out, "no change" in out) == (few, not few), n


def test_a_gate_over_few_runs_says_that_it_judged_nothing(runs: list[str]) -> None:
    """Rule: --fail-slower passes where no change could show, and says so; --fail-unjudged fails."""
    rows = "2 of 2 rows have fewer than 6 runs"
    note = f"not judged: {rows}; --fail-unjudged fails such rows"
    assert cli("history", *runs[:5], "--fail-slower", "5%").out.splitlines()[-1] == note
    csv_of = cli("history", *runs[:5], "--fail-slower", "5%", "--format", "csv")
    assert note in csv_of.err and note not in csv_of.out
    failed = cli("history", *runs[:5], "--fail-unjudged", status=1).out
    assert failed.splitlines()[-1] == f"FAILED: {rows}"
    assert "judged" not in cli("history", *runs[:6], "--fail-slower", "5%", "--fail-unjudged").out


def test_every_point_is_in_the_csv(runs: list[str]) -> None:
    """Rule: --format csv has a line a point, with interval and level; stdout has nothing else."""
    out = cli("history", *runs, "--format", "csv", "--fail-slower", "5%", status=1).out
    table = list(csv.DictReader(io.StringIO(out)))
    assert len(table) == 32
    ring = [line for line in table if line["algorithm"] == "ring"]
    assert [int(line["level"]) for line in ring] == [0] * 10 + [1] * 6
    assert all(float(r["low_s"]) <= float(r["time_s"]) <= float(r["high_s"]) for r in table)


def test_what_cannot_be_a_history_is_refused(runs: list[str], tmp_path: Path) -> None:
    """Rule: one run, nothing in common, another machine: one line and status 2."""
    other = saved(tmp_path / "other.jsonl", _record(np.random.default_rng(1), cpu="Xeon"))
    for argv in ([runs[0]], [*runs[:2], str(other)]):
        captured = cli("history", *argv, status=2)
        assert not captured.out and len(captured.err.splitlines()) == 1
    err = cli("history", *runs[:2], other, "--anyway").err
    assert "machine: cpu EPYC -> Xeon" not in err  # said with changes only


def test_runs_are_ordered_by_when_they_started() -> None:
    """Records say when; a file without that leaves the order that was given. It forbids nothing."""
    random = np.random.default_rng(5)
    days = ["2026-11-03T10:00:00+00:00", "2026-11-01T10:00:00+00:00", "2026-11-02T10:00:00+00:00"]
    made = [(day, rows(_record(random, started=day))) for day in days]
    assert [name for name, _ in in_order(made)] == sorted(days)
    assert not differences(made[0][1], made[1][1])
    unsaid = ("unsaid", rows(_record(random)))
    assert [name for name, _ in in_order([*made, unsaid])] == [*days, "unsaid"]


def test_runs_may_lack_rows_and_raw_times() -> None:
    """Rule: a series is made of the runs that have it; single figures have no interval."""
    random = np.random.default_rng(2)
    one, two = (rows(_record(random)) for _ in range(2))
    made = history([("a", one), ("b", two[:1]), ("c", two)])
    assert [len(s.points) for s in made.series] == [3, 2] and events(made) == []
    table = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    line = "  1024  256  float  sum  -1  10.00  0.1  0.1  0  10.00  0.1  0.1  0\n"
    bare = list(parse(table + line).rows)
    assert {p.low for s in history([("a", bare), ("b", bare)]).series for p in s.points} == {None}
    with pytest.raises(ReportError, match="no two"):
        history([("a", one[:1]), ("b", one[1:])])
