"""Figures of training steps: what is read of a record, and that anything else is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from busbar.canvas import canvas
from busbar.errors import ReportError
from reports.analysis.steps import figures, summaries
from reports.figures.steps import _losses, _per_update, bars, picture
from reports.readers.codec import measurements, run_of, step_measurements, to_jsonl
from reports.records.measurement import Measurement, Noise
from reports.records.steps import Step
from reports.records.table import measured
from tests.reports.runs import timed

CURVE = {"seconds": [0.0, 0.5, 1.0], "updates": [0, 5, 10], "loss": [2.3, 1.5, 1.2]}


def _result(update: str, **step: Any) -> Measurement:
    facts = {"update": update, "problem": "softmax", "compute": "exp:100", **step}
    record = timed(
        [0.1 + n / 100 for n in range(10)], collective="step:softmax", algorithm=update,
        transport="inproc", ranks=4, size=1320, count=330, dtype="float", op="sum", root=-1,
        bus_factor=0.0, step=msgspec.convert(facts, Step),
    )  # fmt: skip
    return measured(record, run_of({}, "step:softmax"))


def _of_format_3(update: str, **step: Any) -> str:
    """The line that earlier versions wrote; they took any fact of a step."""
    return json.dumps({
        "format": 3, "collective": "step:softmax", "algorithm": update, "transport": "inproc",
        "ranks": 4, "size": 1320, "count": 330, "dtype": "float", "op": "sum", "root": -1,
        "bus_factor": 0.0, "environment": {}, "out": {"times": [0.1, 0.2], "iterations": 2},
        "step": {"update": update, "problem": "softmax", **step},
    })  # fmt: skip


def test_what_a_record_says() -> None:
    """Rule: sync and async are k-sync at K = P and k-async at K = 1; all-reduces have no K.

    The time that is drawn is that of the table.
    """
    names = ("sync", "async", "k-sync:2", "k-batch-async:3", "ring", "k-sync:x")
    found = summaries([_result(name, predicted_s=0.2, curve=CURVE) for name in names])
    assert [(one.family, one.k) for one in found] == [
        ("k-sync", 4),
        ("k-async", 1),
        ("k-sync", 2),
        ("k-batch-async", 3),
        (None, 4),
        (None, 4),
    ]
    first = found[0]
    table = figures(_result("sync"))
    assert table is not None and first.step == table.step and first.step.ends is not None
    # Updates of a server are correlated: their time is a mean over blocks, with Student's interval.
    loops = measured(replace(_result("sync"), timing="loop"), run_of({}, "step:softmax"))
    paced = summaries([loops])[0].step
    assert paced == pytest.approx((0.145, 0.145 - 0.02166, 0.145 + 0.02166), abs=1e-5)
    assert paced == (loops.time_s, loops.low_s, loops.high_s)
    assert first.predicted == 0.2 and first.title == "softmax, 4 ranks, compute exp:100"
    assert first.loss is not None and first.loss.loss == (2.3, 1.5, 1.2)
    assert summaries([_result("sync", learners=3)])[0].k == 3
    assert summaries([_result("one_shot", compress="int8")])[0].name == "one_shot/int8"
    # A protocol's compressed gradients are no point of the line of those that are not.
    assert summaries([_result("sync", compress="int8")])[0].family is None


NAN = float("nan")
NONE = (None, [], "x", {}, {"seconds": [], "updates": [], "loss": []})


@pytest.mark.parametrize(
    "curve",
    [*NONE, CURVE | {"seconds": "abc"}]
    + [CURVE | {"loss": loss} for loss in ([1.0], [1.0, None, 2.0], [1.0, NAN, 2.0])],
)
def test_a_curve_that_is_none_is_left_out(curve: object) -> None:
    """Rule: a file of anybody's breaks no figure: what is not of its kind is not drawn."""
    found = summaries(measurements(_of_format_3("ring", curve=curve, predicted_s="soon")))
    assert found[0].loss is None and found[0].predicted is None and found[0].name == "ring"


def test_only_steps_with_times_are_drawn() -> None:
    """Rule: a collective's row is no step, one that was skipped has no time; of none, an error."""
    plain = replace(_result("ring"), step=None)
    skipped = replace(_result("ring"), times_s=(), skipped="no memory")
    assert summaries([plain, skipped]) == []
    with pytest.raises(ReportError, match="no record of training steps"):
        picture([], "png")


def test_a_picture_is_what_its_name_says() -> None:
    """Rule: every protocol is drawn, with and without curves, in the form asked for."""
    names = ("sync", "k-sync:2", "k-batch-sync:2", "async", "k-async:2", "k-batch-async:3", "ring")
    given = [_result(name, curve=CURVE, predicted_s=0.1) for name in names]
    drawn = picture(given, "svg")
    assert drawn.startswith(b"<?xml")
    assert b"k-async:K, async, expected" in drawn and b"time per update (ms)" in drawn
    assert picture([_result("ring")], "png").startswith(b"\x89PNG")


def test_a_line_is_named_as_its_update() -> None:
    """Rule: a line of one K has the name that ``--update`` has; one of several K has K in it."""
    pytest.importorskip("matplotlib")
    for names, label in (
        (["sync"], "sync, measured"),
        (["k-sync:2"], "k-sync:2, measured"),
        (["k-sync:2", "k-sync:3"], "k-sync:K, measured"),
        (["k-sync:2", "sync"], "k-sync:K, sync, measured"),
    ):
        axes = canvas(6, 4).subplots()
        _per_update(axes, summaries([_result(name) for name in names]))
        assert axes.get_legend_handles_labels()[1] == [label]


def test_an_update_has_one_name_and_one_colour_in_all_panels() -> None:
    """Rule: rows that differ have names that differ, and each its colour in times and losses."""
    pytest.importorskip("matplotlib")
    names = ("sync", "async", "ring", "ps")
    rows = [_result(name, curve=CURVE) for name in names]
    rows += [replace(_result("ring", curve=CURVE), algorithm="ring/ddp/after")]
    group = summaries(rows)
    assert [one.name for one in group[:2]] == ["sync", "async"] and group[3].name == "ps"
    assert group[4].name == "ring/ddp/after" and len({one.name for one in group}) == 5
    assert {one.title for one in group} == {group[0].title}
    times, losses = canvas(6, 4).subplots(2, 1)
    _per_update(times, group)
    _losses(losses, group, "seconds")
    colours = {
        str(bars.get_label()).removesuffix(", measured"): bars.lines[0].get_color()
        for bars in times.containers
    }
    assert {str(line.get_label()): line.get_color() for line in losses.lines} == colours
    assert len(set(colours.values())) == 5


def test_steps_without_a_loss_have_no_empty_panels_beside_losses() -> None:
    """Rule: beside losses or servers, all-reduces of a model have no panels of their own."""
    pytest.importorskip("matplotlib")
    plain = _result("ring", problem="", model="vgg16")
    drawn = picture([_result("sync", curve=CURVE), plain], "svg")
    assert b"vgg16" not in drawn and b"softmax" in drawn
    assert b"vgg16" in picture([plain], "svg")


def test_the_legend_shows_a_dotted_line_as_dotted() -> None:
    """Rule: a sample of a line in the legend is at least two periods of its dots long."""
    axes = canvas(6, 4).subplots()
    _per_update(axes, summaries([_result(f"k-async:{k}", predicted_s=0.1) for k in (1, 2)]))
    legend = axes.get_legend()
    assert legend is not None
    (dotted,) = (line for line in axes.lines if "expected" in str(line.get_label()))
    period = sum(dotted._dash_pattern[1])
    assert legend.handlelength * legend._fontsize >= 2 * period > 0


def test_a_picture_says_that_steps_were_disturbed() -> None:
    """Rule: figures of steps whose rows ran beside other programs say so below the axes."""
    quiet = _result("ring", compute_s=[0.01] * 8)
    noisy = replace(quiet, noise=Noise(others=(0.4,)))
    beside = measured(noisy, run_of({}, "step:softmax"))
    for draw in (picture, bars):
        assert b"ran beside" not in (draw([quiet, quiet], "svg") or b"")
        assert b"1 of 2 rows ran beside other programs" in (draw([quiet, beside], "svg") or b"")


def test_records_are_found_among_other_lines(tmp_path: Path) -> None:
    """Rule: lines that are no records of steps are passed over, in a file and in a directory."""
    good = to_jsonl([_result("ring", curve=CURVE)]).decode().splitlines()[1]
    lines = [good, "x", '{"step": 3}', '{"step": {}}', '"step"', good[:-9], "[" * 9999 + '"step"']
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(lines))
    for where in (path, tmp_path):
        found = step_measurements(where)
        assert len(found) == 1 and found[0].step == _result("ring", curve=CURVE).step


def test_all_reduces_of_one_k_do_not_hide_each_other() -> None:
    """Rule: all-reduces are side by side at their K, within the axes, however many they are."""
    pytest.importorskip("matplotlib")
    for names in (["ring", "ps"], [f"tree{n}" for n in range(30)]):
        axes = canvas(6, 4).subplots()
        _per_update(axes, summaries([_result(name) for name in names]))
        places = [float(bars.lines[0].get_xdata()[0]) for bars in axes.containers]
        assert len(set(places)) == len(names) and sum(places) / len(names) == pytest.approx(4)
        assert axes.get_xlim()[0] < min(places) and max(places) < axes.get_xlim()[1]
        assert list(axes.get_xticks()) == [4]
