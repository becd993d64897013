"""Rows of several launches as one row each, with the interval over launches."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from busbar.units import SECONDS, format_seconds
from reports.analysis.cautions import far_off
from reports.analysis.launches import over_launches
from reports.analysis.quality import checklist
from reports.page.method import method_part
from reports.readers.reading import parse, read
from reports.records.measurement import Placements, launch_of
from reports.records.table import folded
from reports.statistics.inference import launch_interval
from reports.tables.scaling import caution_lines
from reports.tables.show import texts
from tests.reports.runs import changed, cli, noisy, rows, saved, to_jsonl


def _launched(number: int, of: int = 4, seed: int = 9, slow: float = 1.0) -> list[Placements]:
    place = {"number": number, "of": of, "seed": seed}
    return noisy(number, slow=slow, launch=place)[::-1]  # in another order than sizes


def test_the_interval_is_over_launches() -> None:
    """Rule: each launch counts once; time and interval are those of its medians; rows by size."""
    slow = (1.0, 1.1, 0.9, 1.05)
    every = rows([r for n, s in enumerate(slow, 1) for r in _launched(n, slow=s)])
    found = over_launches(every)
    assert len(every) == 24 and len(found) == 6 and all(r.launches_s for r in found)
    assert [r.size for r in found] == [1024, 2**20, 2**26] * 2
    for row in found:
        same = [r for r in every if (r.algorithm, r.size) == (row.algorithm, row.size)]
        medians = [float(np.median(r.times_s)) for r in same]
        assert row.launches_s == pytest.approx(medians) and row.iterations == 160
        assert row.time_s == pytest.approx(float(np.exp(np.mean(np.log(medians)))))
        assert (row.low_s, row.high_s) == launch_interval([r.times_s for r in same])
        rate = row.busbw_bytes_per_s or 0.0
        expected = (same[0].busbw_bytes_per_s or 0) * (same[0].time_s or 0)
        assert rate * (row.time_s or 0) == pytest.approx(expected)
    ring, tree = (next(r for r in found if r.algorithm == name) for name in ("ring", "tree"))
    width = [(r.high_s or 0) / (r.low_s or 1) for r in (ring, tree)]
    assert width[0] > 1.1 > width[1]  # the ring's launches differ, and no iteration says so
    assert "4 launches' medians" in " ".join(texts(found, 80))


def test_a_launch_far_from_the_others_is_named(tmp_path: Path) -> None:
    """Rule: `show`, `compare` and a run's end name a launch far from all others, and its rows.

    It is also named by merged rows, and by its file if launches are files. Nothing is said of
    launches that scatter or have two modes, and of fewer than four.
    """

    def runs_of(*slow: float) -> list[Placements]:
        return [r for n, s in enumerate(slow, 1) for r in _launched(n, len(slow), slow=s)]

    far = (
        "launch 4 took up to 1[23]\\d\\d times as long as the others in 3 of 6 rows (allreduce ring"
    )
    every = rows(runs_of(1, 1.1, 0.9, 1300, 1))
    assert re.match(far.replace("(", r"\("), far_off(every)) and far_off(over_launches(every))
    # The times of the launch and of the others, so that the usual time is known as well.
    times = re.search(r": ([\d.]+) (\w+) against ([\d.]+) (\w+)\)$", far_off(every))
    assert times is not None
    own, others = (float(times[n]) * SECONDS[times[n + 1]] for n in (1, 3))
    assert own > 1000 * others
    assert far_off(over_launches(every)) == far_off(every)
    assert any("launch 4 took" in line for line in caution_lines(every, 80))
    for slow in ((1, 1.1, 0.9, 1.2, 1), (1, 1, 3, 3, 3), (1, 1.5, 2.2, 3, 4.5), (1, 1, 900)):
        assert far_off(rows(runs_of(*slow))) == ""
    fast = far_off(rows(runs_of(1, 1, 0.01, 1)))
    assert re.match(r"launch 3 was up to [\d.]+ times as fast as the others in 3 of 6 rows ", fast)
    assert fast.endswith("), which may have been slowed")
    assert far_off(rows(runs_of(1, 90, 1, 1, 1, 1, 80))).count("launch ") == 2
    path = saved(tmp_path / "far.jsonl", runs_of(1, 1.1, 0.9, 1300, 1))
    near = saved(tmp_path / "near.jsonl", runs_of(1, 1.1, 0.9, 1.05, 1))
    assert "launch 4 took up to 1" in cli("show", path).err
    err = cli("compare", near, path).err
    assert "NEW: launch 4 took up to 1" in err and "BASE: launch" not in err
    apart = [saved(tmp_path / f"{n}.jsonl", noisy(n, slow=[1, 1, 70, 1][n])) for n in range(4)]
    assert f"BASE: {apart[2]} took up to 7" in cli("compare", *apart, "--", near).err


def test_cycles_of_a_launch_are_one_sample() -> None:
    """Rule: what a launch measured twice is one median, folded before or not."""
    results = [*_launched(1), *_launched(1), *_launched(2)]
    every = rows(results)
    again = folded(parse(to_jsonl(results).decode()).rows)
    for given in (every, again):
        found = over_launches(given)
        assert len(found) == 6
        assert {len(r.launches_s) for r in found} == {2}


def test_launches_of_a_run_directory_are_pooled(tmp_path: Path) -> None:
    """Rule: files of a run directory are launches of one command, for tables and expectations; but
    not files with the same launch, which are of two commands with one seed.
    """  # noqa: D205
    for number, name in enumerate(("records", "records-2", "records-3"), 1):
        saved(tmp_path / f"{name}.jsonl", _launched(number, of=3))
    said = cli("show", tmp_path, "--expect", "allreduce: busbw >= 900GB/s", status=1).out
    assert (
        said.count("3 launches' medians") == 1 and said.count("allreduce ring 1K out: busbw") == 1
    )
    missed = cli(
        "show", tmp_path, "--format", "json", "--expect", "allreduce: busbw >= 900GB/s", status=1
    )
    assert len(json.loads(missed.out)["failures"]) == 6
    rule = ("--expect", "allreduce: busbw >= 900GB/s")
    said = cli("compare", tmp_path, tmp_path, *rule, status=1).out
    assert said.count("allreduce ring 1K out: busbw") == 1
    assert "3 launches' medians" not in cli("show", tmp_path / "records.jsonl").out
    for number in (1, 2):
        saved(tmp_path / f"records-{number + 3}.jsonl", _launched(number, of=3))
    found = over_launches(read(tmp_path).rows)
    assert sorted(len(r.launches_s) for r in found) == [0] * 30


def test_one_launch_of_several_has_its_own_interval() -> None:
    """Rule: a row that one launch measured has that launch's median and interval, and says so."""
    first, second = rows(_launched(1)), rows([*_launched(1), *_launched(2)[:3]])
    alone = over_launches(first)
    by_size = {(r.algorithm, r.size): r for r in first}
    for row in alone:
        known = by_size[row.algorithm, row.size]
        assert (row.time_s, row.low_s, row.high_s) == (known.time_s, known.low_s, known.high_s)
        assert not row.launches_s and row.low_s
    said = " ".join(texts(alone, 80))
    assert "rows of one launch: its median" in said and "launches' medians" not in said
    said = " ".join(texts(over_launches(second), 80))
    assert "2 launches' medians" in said and "other rows of one launch" in said


def test_other_runs_stay_what_they_are() -> None:
    """Rule: runs without a launch, of other commands, or with nonsense there, stay apart."""
    alone = rows(noisy(1))
    assert over_launches(alone) is alone and launch_of(alone[0].run) is None
    assert launch_of(rows(noisy(1, launch={"seed": "x", "of": 2, "number": 1}))[0].run) is None
    two = over_launches(rows([*_launched(1, seed=1), *_launched(2, seed=2), *noisy(3)]))
    assert len(two) == 18


def test_a_skipped_row_keeps_its_reason() -> None:
    """Rule: where no launch has times the row says why, as that of one run does."""
    skipped = []
    for number in (1, 2):
        for one in _launched(number):
            skipped.append(changed(one, times_s=(), skipped="no memory"))
    assert {r.skipped for r in over_launches(rows(skipped))} == {"no memory"}


def test_the_interval_over_launches_covers_as_often_as_it_says() -> None:
    """Rule: about 95 % of the intervals of three and of ten launches hold the true middle."""
    random = np.random.default_rng(5)
    for n in (3, 10):
        hits = 0
        for _ in range(1000):
            low, high = launch_interval([[m] for m in random.lognormal(0, 0.1, n)]) or (0, 0)
            hits += low <= 1 <= high
        assert 0.93 <= hits / 1000 <= 0.97, n
    assert launch_interval([[1.0]]) is None and launch_interval([[0.0], [1.0]]) is None


def test_reports_of_launches_have_one_time_and_say_how_it_is_made(tmp_path: Path) -> None:
    """Rule: `model` has the times over launches that `show` has; the page says what they are.

    CSV has no times of iterations, which fit no cell. Where the answer has a mean of ratios over
    sizes, the rule against it is not kept.
    """
    path = saved(
        tmp_path / "r.jsonl",
        [r for n, s in enumerate((1, 8, 1, 1), 1) for r in _launched(n, slow=s)],
    )
    every = over_launches(read(Path(path)).rows)
    ring = next(r for r in every if (r.algorithm, r.size) == ("ring", 2**20))
    assert format_seconds(ring.time_s) in cli("model", path).out
    assert format_seconds(ring.time_s) in cli("show", path).out
    head, *lines = cli("show", path, "--format", "csv").out.splitlines()
    assert "time_s" in head.split(",") and "times_s" not in head and max(map(len, lines)) < 2000
    rules = {rule.number: rule for rule in checklist(every)}
    assert rules[4].state == "not kept" and "geometric mean" in rules[4].why
    single = read(Path(path)).rows
    for some, said in ((every, True), (single, False)):
        page = method_part(some, {id(r.run): "a" for r in some}, None)
        assert ("geometric mean of their medians" in page) is said
