"""The figures of steps: exposed and hidden communication, speed-up, and how they are shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import unescape
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import busbar
from bench.steps.options import StepOptions
from bench.steps.step_table import closing_lines, header, ports_law, row, scaling_lines
from busbar.canvas import canvas
from busbar.statistics import interval
from reports.analysis.answer import exchanges_alone
from reports.analysis.cautions import too_disturbed
from reports.analysis.disturbance import widened
from reports.analysis.steps import answers, fastest, fastest_samples, figures
from reports.figures.steps import _stacked, bars
from reports.page.answer_part import answer_part, doubt
from reports.page.steps_part import steps_part
from reports.readers.codec import run_of, to_jsonl
from reports.records.measurement import Measurement, Noise
from reports.records.steps import Step
from reports.records.table import measured
from reports.tables.markdown import markdown
from tests.command import reports_main
from tests.reports.runs import timed


def _options(*words: str) -> StepOptions:
    return StepOptions.parse(words, StepOptions.make_parser())


def _result(
    step: dict[str, Any],
    times: Sequence[float] = (),
    name: str = "ring/ddp",
    *,
    model: str = "step:m",
    ranks: int = 4,
    **fields: Any,
) -> Measurement:
    """Steps that took so long."""
    record = timed(
        times, collective=model, algorithm=name, transport="mpi", ranks=ranks, size=8, count=2,
        dtype="float", op="sum", root=-1, bus_factor=0.0, step=msgspec.convert(step, Step),
        **fields,
    )  # fmt: skip
    return measured(record, run_of({}, model))


#: What a record says of eight steps, all of whose figures have intervals.
STEP: dict[str, Any] = {
    "gradients": 4, "batch": 8, "compute_s": [0.09] * 8,
    "exchange_s": [0.10, 0.11, 0.10, 0.10, 0.09, 0.10],
    "one_rank_s": 0.1, "one_rank_interval_s": [0.099, 0.102], "predicted_s": 0.1,
}  # fmt: skip
TIMES = [0.11 + 0.001 * n for n in range(8)]


def test_figures_follow_from_the_record() -> None:
    """Rule: exposed is T_step less T_compute; hidden is the rest; speed-up is over one rank."""
    step = {**STEP, "compute_s": [0.09, 0.10, 0.11], "exchange_s": [0.08]}
    found = figures(_result(step, [0.12] * 7))
    assert found is not None and found.exposed and found.hidden and found.speedup
    assert found.exposed.value == pytest.approx(0.02) and found.exposed.ends is None
    assert found.hidden.value == pytest.approx(0.75)
    assert found.rate.value == pytest.approx(4 * 8 / 0.12)
    assert found.speedup.value == pytest.approx(4 * 0.1 / 0.12)
    assert found.efficiency and found.efficiency.value == pytest.approx(0.1 / 0.12)
    # As many computes as steps are held against each other draw by draw.
    drawn = {**step, "compute_s": [0.01 * n for n in range(1, 8)]}
    paired = figures(_result(drawn, [0.01 * n + 0.002 for n in range(1, 8)]))
    assert paired is not None and paired.exposed == pytest.approx((0.002,) * 3)
    # Without compute there is nothing to hide behind, and no rank to be faster than.
    none = figures(_result({**step, "compute": "none"}, [0.12] * 7))
    assert none is not None and none.hidden is none.speedup is none.efficiency is None


def test_figures_of_learners_are_those_that_they_measured() -> None:
    """Rule: with servers, the record has the exposed communication; speed-up is over a learner.

    Efficiency is over all ranks, servers included, as it is of all-reduces. A push follows its
    gradient, so no share of the exchange is hidden by overlap, nor is one with ``--overlap off``.
    """
    step = {
        "gradients": 1, "batch": 8, "learners": 4,
        "exposed_s": 0.005, "exposed_interval_s": [0.004, 0.006],
        "one_rank_s": 0.1, "one_rank_interval_s": [0.09, 0.11], "exchange_s": [0.01] * 6,
    }  # fmt: skip
    found = figures(_result(step, [0.03] * 6, "async", ranks=5, timing="loop"))
    assert found is not None and found.exposed == (0.005, 0.004, 0.006)
    assert found.compute == pytest.approx(0.025) and found.hidden is None and found.speedup
    assert found.speedup.value == pytest.approx(0.1 / 0.03) and found.speedup.ends
    assert found.efficiency and found.efficiency.value == pytest.approx(0.1 / 0.03 / 5)
    after = figures(_result({**STEP, "overlap": False}, TIMES))
    assert after is not None and after.exposed is not None and after.hidden is None
    # Of ranks of several hosts, whose clocks differ, it is not known what is exposed.
    unknown = {name: value for name, value in step.items() if not name.startswith("exposed")}
    apart = figures(_result(unknown, [0.03] * 6, "async", ranks=5, timing="loop"))
    assert apart is not None and apart.compute is None
    assert apart.exposed is None and apart.hidden is None


def test_every_figure_has_an_interval_and_its_prediction() -> None:
    """Rule: a figure of several medians has an interval from the intervals of all of them."""
    found = figures(_result(STEP, TIMES))
    assert found is not None and found.step.ends is not None
    low, high = found.step.ends
    assert found.rate.ends == pytest.approx((32 / high, 32 / low))
    assert found.predicted == 0.1
    assert found.over_predicted and found.over_predicted.ends == pytest.approx(
        (low * 10, high * 10)
    )
    for one in (found.exposed, found.hidden, found.speedup, found.efficiency):
        assert one is not None and one.ends is not None and one.ends[0] < one.value < one.ends[1]
    # Wider than one part's alone leaves open, narrower than both at their worst.
    assert found.speedup is not None and found.speedup.ends is not None
    lowest, highest = 4 * 0.099 / high, 4 * 0.102 / low
    assert lowest < found.speedup.ends[0] < 4 * 0.1 / high
    assert 4 * 0.1 / low < found.speedup.ends[1] < highest


def test_no_interval_of_a_step_is_below_its_compute() -> None:
    """Rule: the interval of few steps that depend on each other reaches beyond all of them, but not
    below the compute alone, nor does what follows from it; a step that was measured is kept in.
    """  # noqa: D205
    apart = [0.11, 0.12, 0.36, 0.37, 1.2, 1.4]
    bare = interval(apart)
    assert bare is not None and bare[0] < 0.1 and bare[1] > 1.4
    found = figures(_result({**STEP, "compute_s": [0.1] * 6}, apart))
    assert found is not None and found.step == (pytest.approx(0.365), 0.1, bare[1])
    assert found.rate.high == pytest.approx(4 * 8 / 0.1)
    below = figures(_result({**STEP, "compute_s": [0.2] * 6}, apart))
    assert below is not None and below.step.low == 0.11


def test_two_times_of_a_file_say_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: where show and compare have different times of a file, each says which it has: of an
    update of a server the mean and the median of its parts, and over launches the geometric mean.
    """  # noqa: D205
    served = {**STEP, "update": "async", "learners": 3}
    paths = []
    for number in range(4):
        rows = [
            _result({**STEP, "update": "ring"}, TIMES),
            _result(served, [*TIMES, 0.2 + number / 100], "async", timing="loop"),
        ]
        paths.append(tmp_path / f"{number}.jsonl")
        paths[-1].write_bytes(
            to_jsonl([replace(row, run=run_of({"launch": number}, "step:m")) for row in rows])
        )
    reports_main(["show", str(paths[0])])
    out = " ".join(capsys.readouterr().out.split())
    assert "time of async: the mean; in reports compare the median of parts" in out
    reports_main(["compare", str(paths[0]), str(paths[1])])
    out = " ".join(capsys.readouterr().out.split())
    assert "base, new: of async the median of parts, in reports show the mean" in out
    reports_main(["compare", *map(str, paths[:2]), "--", *map(str, paths[2:])])
    out = " ".join(capsys.readouterr().out.split())
    assert "base, new: the geometric mean of the launches' medians; of async the median" in out
    for path in paths:
        path.write_bytes(to_jsonl([row for row in busbar.load(path) if row.timing != "loop"]))
    reports_main(["compare", str(paths[0]), str(paths[1])])
    out = capsys.readouterr().out
    assert "NEW against BASE" in out and "base, new" not in out


def test_a_step_that_noise_made_faster_than_its_compute_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: no table has a negative exposed time, or a share above 100 %, as a figure.

    The command, reports, the page and Python say what it means. `frame` has the raw seconds.
    """
    pytest.importorskip("pandas")
    said = (
        "exposed < 0, hidden >100%, eff. >100%: the step took less time than its computation alone,"
        " as measured; that is noise of the measurement"
    )
    step = {**STEP, "update": "ring", "compute_s": [0.12] * 8, "one_rank_s": 0.14}
    fast = _result({**step, "one_rank_interval_s": [0.13, 0.15]}, TIMES)
    path = tmp_path / "step.jsonl"
    path.write_bytes(to_jsonl([fast]))
    for columns in ("80", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        reports_main(["show", str(path)])
        shown = capsys.readouterr().out
        printed = "\n".join([*row(fast), *closing_lines([fast])])
        for text in (shown, printed):
            assert said in " ".join(text.replace("\n#", "").split()), text
            assert not re.search(r"-[0-9.]+ ms|[1-9][0-9]{2,}%(?<!100%)", text), text
    rows = busbar.load(path)
    assert said in " ".join(str(rows).split()) and said in unescape(steps_part([fast]))
    assert rows.frame()["step_exposed_s"][0] == pytest.approx(0.1135 - 0.12)
    assert "noise of" not in "".join([*closing_lines([_result(STEP, TIMES)]), *row(fast)])


def test_python_has_the_steps_of_a_record(tmp_path: Path) -> None:
    """Rule: `busbar.load` keeps a step's facts; `frame` and `figures` show those of `plot`."""
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    path = tmp_path / "step.jsonl"
    path.write_bytes(to_jsonl([_result({**STEP, "update": "ring"}, TIMES)]))
    rows = busbar.load(path)
    assert rows[0].step is not None and rows[0].step.compute_s == tuple(STEP["compute_s"])
    table = rows.frame()
    first = table.iloc[0]
    assert first.step_exposed_s == pytest.approx(0.0235)
    assert (first.step_compute_s, first.step_exchange_s) == pytest.approx((0.09, 0.1))
    assert first.samples_per_s == pytest.approx(4 * 8 / 0.1135)
    assert table.attrs["units"]["samples_per_s"] == "1/s"
    reports_main(["plot", str(path), "--out", str(tmp_path)])
    assert {one.stem for one in tmp_path.glob("*.png")} == set(rows.figures()) == {"steps-exposed"}


def test_a_single_figure_is_drawn_into_the_file_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: `plot --out FILE` writes a single figure in the form of the ending; of several figures
    nothing is written, and one line names the folder to give.
    """  # noqa: D205
    pytest.importorskip("matplotlib")
    path, figure = tmp_path / "step.jsonl", tmp_path / "loss.svg"
    row = _result({**STEP, "update": "ring"}, TIMES)
    path.write_bytes(to_jsonl([row]))
    assert reports_main(["plot", str(path), "--out", str(figure)]) == 0
    assert figure.read_bytes().startswith(b"<?xml") and capsys.readouterr().out == f"{figure}\n"
    assert reports_main(["plot", str(path), "--out", str(figure), "--format", "png"]) == 2
    assert "its ending says svg; leave --format out" in capsys.readouterr().err
    figure.unlink()
    path.write_bytes(to_jsonl([row, _result({**STEP, "update": "sync"}, TIMES, "sync")]))
    assert reports_main(["plot", str(path), "--out", str(figure)]) == 2
    assert capsys.readouterr().err == (
        f"reports: {figure}: there are 2 figures, so --out names a folder: --out {tmp_path}"
        " --format svg\n"
    )
    assert not figure.exists()


@pytest.mark.parametrize("columns", [40, 80, 120, 160, 200])
def test_rows_fit_the_terminal_and_nothing_is_left_out(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: at any width every figure and its interval is shown, and no line is too long."""
    monkeypatch.setenv("COLUMNS", str(columns))
    step = {**STEP, "messages": 123, "buckets": 7}
    for name in ("ring/ddp", "hierarchical:dims=2x2/ddp/after"):
        options = _options("--model", "toy", "--update", "ring,async", "--compute", "exp:3")
        lines = [
            *header(options, 4, None, None, ""),
            *row(_result(step, TIMES, name, sent_bytes=1 << 20)),
        ]
        assert max(map(len, lines)) <= columns, lines
        text = " ".join(" ".join(lines).split())
        for word in ("predicted", "ratio", "speed-up", "1M", "messages", "123", "buckets", " 7"):
            assert word in text
        assert text.count("±") + text.count("..") == 7  # all but what was counted


def test_the_end_of_steps_says_what_their_figures_mean() -> None:
    """Rule: the update with the least time is named with its interval and the next, in time per
    sample as they are compared, also where other programs leave that open; a hidden share below
    0, ``-`` and other programs are said in words.
    """  # noqa: D205
    slow = {**STEP, "update": "library", "predicted_s": None}
    rows = [
        _result({**STEP, "update": "ring"}, TIMES, noise=Noise(others=(0.1,))),
        _result(slow, [3 * t for t in TIMES], "library/ddp"),
    ]
    text = " ".join(line.removeprefix("#").strip() for line in closing_lines(rows))
    assert "hidden none: " in text and "none" in "\n".join(row(rows[1])) and "-" in text
    assert (
        "predicted, ratio - of library/ddp: the library has no schedule" in text
        and "other programs took" in text
    )
    assert re.search(
        r"ring/ddp takes the least time: 3.55 ms a sample \(95 % in this launch: [\d.]+ ms to"
        r" [\d.]+ ms\);"
        r" library/ddp takes 3\.00 times as long \(2\.\S+ to [34]\.\S+\)[^,]",
        text,
    ), text
    noisy = [replace(one, others_share=0.6) for one in rows]
    assert re.search(
        r"ring/ddp took 3.55 ms a sample .*; other programs took up to 60 % of all cores$",
        fastest(noisy),
    )
    assert closing_lines([_result({**STEP, "update": "ring"}, TIMES)]) == []
    served = _result({**STEP, "update": "async", "learners": 3}, TIMES, "async")
    text = " ".join(line.removeprefix("#").strip() for line in closing_lines([rows[0], served]))
    assert (
        "hidden - of async: a push to a server follows its gradient" in text
        and "overlap off" not in text
    )
    assert "hidden none" not in text
    alone = " ".join(closing_lines([served]))
    assert "hidden -: a push to a server follows its gradient" in alone


_HOSTS: dict[str, Any] = {"ranks_per_node": [1, 1, 1, 1]}


def _both(ring: Sequence[float], ps: Sequence[float], **run: Any) -> list[Measurement]:
    """Steps by ring and by ps on 4 ranks, whose exchange alone takes so long."""
    rows = [
        _result(
            {**STEP, "update": name, "fusion": "ddp", "exchange_s": alone}, TIMES, f"{name}/ddp"
        )
        for name, alone in (("ring", ring), ("ps", ps))
    ]
    return [replace(row, run=run_of(run, "step:m")) for row in rows]


def test_a_server_is_held_against_a_ring_in_steps_too() -> None:
    """Rule: below steps of both stands what the exchange of ps takes over that of the ring, beside
    the law, and for ranks of one host, which has no ports, the command that emulates hosts.
    """  # noqa: D205
    small = exchanges_alone(_both([1e-3] * 9, [1.1e-3] * 9))
    assert small.startswith("exchanges alone: ps took 1.10 times as long as ring (1.10 to 1.10);")
    assert (
        "; between 4 hosts with ports it should take 4 times as long (busbar cluster --hosts 4 --"
        in small
    )
    assert small.endswith("the exchange is at most 0.97 % of a step: compute decides")
    apart = exchanges_alone(_both([0.05] * 9, [0.2] * 9, **_HOSTS))
    assert apart.endswith(
        "(4.00 to 4.00); by the bytes through the busiest port it should take 4 times as long"
    )
    assert exchanges_alone(_both([1e-3] * 9, [])) == ""
    assert exchanges_alone(_both([1e-3] * 9, [2e-3] * 9)[:1]) == ""


def test_exchanges_are_compared_by_the_rule_of_the_benchmarks() -> None:
    """Rule: the exchanges alone have no ratio where other programs may have moved them, or where
    its interval allows either; an interval with 1 is `perhaps no longer`, a wide one is shown.
    """  # noqa: D205
    rows = _both([0.05] * 9, [0.2] * 9, **_HOSTS)
    for beside in (
        [replace(one, others_share=0.9) for one in rows],
        _both([0.05] * 4 + [0.5] * 5, [0.06] * 5 + [0.4] * 4, **_HOSTS),
    ):
        said = exchanges_alone(beside)
        assert said.startswith("exchanges alone: cannot tell whether ps takes longer than ring; by")
        assert "ps took" not in said
    near = exchanges_alone(_both([0.1] * 9, [0.099] * 4 + [0.105] * 5, **_HOSTS))
    assert re.search(
        r"ps took 1\.05 times as long as ring \(0\S+ to 1\S+: perhaps no longer\)", near
    )
    ring = [0.03, 0.07, 0.028, 0.08, 0.03, 0.06, 0.029, 0.07, 0.03]
    wide = exchanges_alone(_both(ring, [0.2] * 9, **_HOSTS))
    assert re.search(r"ps took 6\.67 times as long as ring \(2\.\d+ to \d\S+\); by", wide), wide


def test_exchanges_stand_beside_the_law_of_the_ports() -> None:
    """Rule: where the rate of ports is known, each exchange alone is held against its bytes."""
    rows = [
        replace(row, step=replace(row.step, port_s=port_s, port_rate=25e6))
        for row, port_s in zip(_both([0.05] * 9, [0.2] * 9, **_HOSTS), (0.04, 0.2), strict=True)
        if row.step is not None
    ]
    said = ports_law(rows)
    assert "port of 200 Mbit/s: ring/ddp 50.0 ms / 40.0 ms = 1.25, ps/ddp 200 ms / 200 ms" in said
    assert ports_law(_both([0.05] * 9, [0.2] * 9)) == ""


def test_buckets_that_overlap_are_the_reason_between_hosts() -> None:
    """Rule: between hosts, a ratio below that of the bytes has its reason beside it, which is only
    that of several buckets, and only if the interval is below the law.
    """  # noqa: D205
    why = "; buckets overlap at the server; --fusion all sends one"
    for ps, buckets, hosts, is_said in (
        (0.17, 5.0, _HOSTS, True),
        (0.17, 1.0, _HOSTS, False),
        (0.21, 5.0, _HOSTS, False),
        (0.17, 5.0, {}, False),
    ):
        rows = _both([0.05] * 9, [ps] * 9, **hosts)
        rows = [replace(one, step=replace(one.step, buckets=buckets)) for one in rows if one.step]
        assert (why in exchanges_alone(rows)) == is_said, (ps, buckets)


def test_which_update_is_faster_is_told_only_where_intervals_can() -> None:
    """Rule: where the interval reaches 1 or is missing the sentence says that it cannot tell."""
    for times, end in (
        ([t * 1.001 for t in TIMES], r"library/ddp takes 1\.00 times as long \(0.\S+ to 1.\S+\)"),
        (TIMES[:1], r"no interval of their ratio: measure more steps \(raise --budget or -n\)"),
    ):
        text = fastest(
            [
                _result({**STEP, "update": "ring"}, TIMES[: len(times)]),
                _result({**STEP, "update": "library"}, times, "library/ddp"),
            ]
        )
        assert re.fullmatch(rf"cannot tell whether \S+ or \S+ takes less time: .*{end}", text), text


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        (
            (0.06, 0.06),
            r"ring/ddp takes the least time: .*; ps/ddp takes 3\.\d\d times as long \(.*\)",
        ),
        ((0.06, 0.3), r"cannot tell whether .*; other programs took up to 30 % of all cores"),
        ((0.3, 0.3), r"cannot tell whether .*; other programs took up to 30 % of all cores"),
    ],
)
def test_a_run_and_its_record_have_one_verdict(
    shares: tuple[float, float], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: the end of a run, `reports show`, its page and its Markdown name the fastest update in
    the same sentence, with the reason where that is open.
    """  # noqa: D205
    rows = [
        replace(_result({**STEP, "update": "ring"}, TIMES), others_share=shares[0]),
        replace(
            _result({**STEP, "update": "ps"}, [3 * t for t in TIMES], "ps/ddp"),
            noise=Noise(others=(shares[1],)),
            others_share=shares[1],
        ),
    ]
    rows[0] = replace(rows[0], noise=Noise(others=(shares[0],)))
    path = tmp_path / "step.jsonl"
    path.write_bytes(to_jsonl(rows))
    reports_main(["show", str(path)])
    shown = " ".join(capsys.readouterr().out.split())
    ended = " ".join(" ".join(line.removeprefix("#") for line in closing_lines(rows)).split())
    verdict = fastest(rows)
    assert re.fullmatch(says, verdict), verdict
    assert verdict in shown and verdict in ended
    assert verdict in markdown(rows).replace(
        "<!-- -->", ""
    ) and f"<p>{verdict}.</p>" in answer_part(rows)
    assert "may be as fast" not in shown and "the fastest of" not in shown


@pytest.mark.parametrize(
    ("others", "messages", "says"),
    [
        # ps: 3 times 113.5 ms, of which 0.55 are left, less 3 messages of 5 ms: 172 ms.
        ((0.12, 0.45, 0.0), 3, r"ring/ddp takes the least time: .*; ps/ddp takes 3\.00 times"),
        ((0.12, 0.7, 0.0), 3, r"cannot tell whether ring/ddp or ps/ddp .*took up to 70 % of all"),
        ((0.12, 0.45, 0.0), 20, r"cannot tell whether ring/ddp or ps/ddp .*took up to 45 % of all"),
        ((0.12, 0.45, 0.95), 3, r"cannot tell whether ring/ddp or sync .*; ps/ddp takes 3\.00"),
        ((0.12, 0.45, 0.7), 3, r"ring/ddp takes the least time: .*; ps/ddp takes 3\.00 times"),
    ],
)
def test_a_difference_beyond_the_disturbance_is_told(
    others: Sequence[float], messages: int, says: str
) -> None:
    """Rule: programs with a share s of the cores lengthen a step to 1/(1-s) times at most, and each
    message by 5 ms. A greater difference is told, by the load of the two rows that are compared; a
    run of which it is told is not to be repeated.
    """  # noqa: D205
    times = [0.1135 + 1e-5 * n for n in range(9)]
    rows = [
        replace(
            _result({**STEP, "update": name, "messages": messages}, [k * t for t in times], label),
            noise=Noise(others=(share,)),
            others_share=share,
        )
        for name, label, k, share in zip(
            ("ring", "ps", "sync"), ("ring/ddp", "ps/ddp", "sync"), (1, 3, 9), others, strict=True
        )
    ]
    rows = [*rows, replace(rows[2], algorithm="async", others_share=0.0, noise=None)]
    verdict = fastest(rows)
    assert re.match(says, verdict), verdict
    disturbed = [replace(row, others_share=max(0.21, row.others_share or 0.0)) for row in rows[:2]]
    ended = " ".join(closing_lines(disturbed))
    assert ("too disturbed" in ended) == fastest(disturbed).startswith("cannot tell"), ended
    assert ("Too disturbed" in doubt(disturbed)) == ("too disturbed" in ended)
    assert "other programs took up to" in ended


def test_an_interval_is_widened_by_what_other_programs_can_have_done() -> None:
    """Rule: each end moves by the most that a side can have been lengthened; without the number of
    messages there is no limit, and without other programs nothing moves.
    """  # noqa: D205
    ring, ps = (
        replace(_result({**STEP, "messages": 4}, [t] * 9), others_share=share)
        for t, share in ((0.1, 0.1), (0.4, 0.5))
    )
    low, high = widened((3.9, 4.1), [ps], [ring], unknown=True) or (0.0, 0.0)
    assert low == pytest.approx(3.9 * (0.4 * 0.5 - 0.02) / 0.4)
    assert high == pytest.approx(4.1 * 0.1 / (0.1 * 0.9 - 0.02))
    # A little load counts only where most of the run was much disturbed.
    assert (widened((3.9, 4.1), [ps], [ring], unknown=False) or (0, 0))[1] == 4.1
    quiet = replace(ps, others_share=0.0)
    assert widened((3.9, 4.1), [quiet], [quiet], unknown=True) == (3.9, 4.1)
    uncounted = replace(ps, step=None)
    assert widened((3.9, 4.1), [uncounted], [ring], unknown=True) == (0.0, inf)
    assert widened(None, [quiet], [quiet], unknown=True) is None


def test_the_answer_over_launches_is_of_launches() -> None:
    """Rule: with several runs the interval is that of runs, and a ratio that of each run's ratio.

    With one run the sentence says that the interval is of this launch.
    """

    def run(number: int, slow: float) -> list[Measurement]:
        made = []
        for update, k in (("ring", 1.0), ("ps", 3.0)):
            facts = {**STEP, "update": update, "fusion": "ddp"}
            made.append(_result(facts, [k * slow * t for t in TIMES], f"{update}/ddp"))
        launch = run_of({"started": f"2026-11-28T10:00:0{number}+00:00"}, made[0].collective)
        return [replace(row, run=launch) for row in made]

    one = fastest(run(1, 1.0))
    assert " a sample (95 % in this launch: " in one
    apart = [row for n, slow in enumerate((1.0, 2.0, 4.0)) for row in run(n, slow)]
    several = fastest(apart)
    assert " a sample (95 % over 3 launches: " in several
    # Launches differ by a factor of four, and the ratio within each is the same.
    assert several.endswith("ps/ddp takes 3.00 times as long (3.00 to 3.00)")
    two = fastest(apart[:4])
    assert " a sample (95 % over 2 launches: " in two and "3.00 to 3.00" not in two


def test_the_best_fusion_is_decided_as_the_fastest_update_is() -> None:
    """Rule: a fusion is called best where the run can tell, by what other programs can have done;
    steps too short to show other programs say that. With one update that is the only answer.
    """  # noqa: D205
    quiet = [
        _result(
            {**STEP, "update": "ring", "fusion": fusion}, [k * t for t in TIMES], f"ring/{fusion}"
        )
        for fusion, k in (("none", 2), ("1M", 1), ("all", 1.01))
    ]
    (line,) = answers(quiet, fusions=True)
    assert fastest_samples(quiet) == [line]  # as `show` has it of the run's file
    assert re.match(
        r"best fusion of ring: 1M, .* a sample; not told from all: ring/all takes", line
    )
    assert "; worst: ring/none takes 2.00 times as long (1.50 to 2.67)" in line
    disturbed = [replace(row, others_share=0.9) for row in quiet]
    (line,) = answers(disturbed, fusions=True)
    assert line.startswith("cannot tell the best fusion of ring: 1M")
    assert line.endswith("other programs took up to 90 % of all cores")
    short = [
        _result(
            {**STEP, "update": "ring", "fusion": name}, [t / 1e4 for t in TIMES], f"ring/{name}"
        )
        for name in ("ddp", "256K")
    ]
    (line,) = answers([*short, *disturbed], fusions=True)
    assert "not told from 256K" in line and ": steps of less than 0.1 s do not show other" in line
    other = replace(quiet[0], algorithm="ps/none", step=replace(quiet[0].step, update="ps"))
    first, second = answers([*quiet, other], fusions=True)
    assert first.startswith("cannot tell whether ring/1M or") and "best fusion of ring:" in second
    assert "best fusion" not in "".join(answers(quiet))


def _with_and_without(factor: float, name: str = "ring", **fields: Any) -> list[Measurement]:
    """Steps of one exchange with overlap, and without it, which takes ``factor`` times as long."""
    facts = {**STEP, "update": name, "fusion": "ddp"}
    return [
        _result({**facts, "overlap": True}, TIMES, f"{name}/ddp", **fields),
        _result(
            {**facts, "overlap": False}, [factor * t for t in TIMES], f"{name}/ddp/after", **fields
        ),
    ]


def test_what_overlap_buys_is_said_by_the_rule_of_the_fastest_update() -> None:
    """Rule: where an exchange was measured with overlap and without, the answer is how many times
    as fast overlap makes a step, with the interval by which updates are compared; a loss and what
    cannot be told are said as such, and with several updates each has a sentence.
    """  # noqa: D205
    (line,) = answers(_with_and_without(2.0))
    assert re.fullmatch(
        r"overlap makes a step of ring/ddp 2\.00 times as fast \(95 %: 1\.50 to 2\.67\)", line
    ), line
    assert "(1.50 to 2.67)" in fastest(_with_and_without(2.0))
    (line,) = answers(_with_and_without(0.5))
    assert line.startswith("overlap makes a step of ring/ddp take 2.00 times as long (95 %: 1.50")
    (line,) = answers(_with_and_without(1.01))
    assert line.startswith(
        "cannot tell whether overlap makes a step of ring/ddp faster: ring/ddp/after takes 1.01"
    )
    noisy = [replace(row, others_share=0.9) for row in _with_and_without(2.0)]
    assert answers(noisy)[0].endswith("faster: other programs took up to 90 % of all cores")
    both = [*_with_and_without(2.0), *_with_and_without(3.0, "ps")]
    first, *gains = answers(both)
    assert first == fastest(both) and len(gains) == 2 and "ps/ddp 3.00 times" in gains[1]
    assert "overlap" not in "".join(answers(both[::2]))
    assert fastest_samples(_with_and_without(2.0)) == answers(_with_and_without(2.0))
    assert f"# answer: {answers(_with_and_without(2.0))[0]}" in closing_lines(
        _with_and_without(2.0)
    )


def test_no_program_makes_a_port_faster() -> None:
    """Rule: without other programs a row takes no less than its bytes through the port, so its
    ratio has an interval where the waits of messages alone would leave none.
    """  # noqa: D205
    rows = [
        replace(
            _result(
                {**STEP, "update": name, "messages": messages, "port_rate": 1e6}, [t] * 9, name
            ),
            others_share=0.95,
            sent_bytes=sent,
            received_bytes=received,
        )
        for name, t, messages, sent, received in (
            ("ring", 0.18, 48, 150_000, 150_000),
            ("ps", 0.62, 24, 310_000, 200_000),
        )
    ]
    ring, ps = rows
    assert widened((3.4, 3.5), [ps], [ring], unknown=True) == pytest.approx(
        (3.4 * 0.31 / 0.62, 3.5 * 0.18 / 0.15)
    )
    assert re.match(r"ring takes the least time: .*; ps takes 3\.44 times .*\(1\.7", fastest(rows))
    # A port's burst may make a row a little faster than its rate: that is no lengthening.
    quick = replace(ps, sent_bytes=700_000)
    assert widened((3.4, 3.5), [quick], [quick], unknown=True) == (3.4, 3.5)


def test_no_program_shortens_a_sleep() -> None:
    """Rule: beside other programs a step takes no less than its sleeping compute, and one that
    exchanges afterwards also the time of its bytes; so overlap is told there. Compute that burns a
    core has no such least time.
    """  # noqa: D205
    rows = [
        replace(row, others_share=0.9, sent_bytes=100_000, received_bytes=100_000)
        for row in _with_and_without(2.0)
    ]
    facts = {"compute_by": "sleep", "compute_s": (0.1,) * 8, "port_rate": 1e6}
    asleep = [replace(row, step=replace(row.step, **facts)) for row in rows if row.step]
    during, after = asleep
    # 95 ms of sleep at least, and 100 ms of bytes: during it, or after it.
    assert widened((2.0, 2.0), [after], [during], unknown=True) == pytest.approx(
        (2.0 * 0.195 / 0.227, 2.0 * 0.1135 / 0.1)
    )
    (line,) = answers(asleep)
    assert re.match(r"overlap makes a step of ring/ddp 2\.00 times as fast \(95 %: 1\.2", line)
    burning = [
        replace(row, step=replace(row.step, compute_by="burn")) for row in asleep if row.step
    ]
    assert answers(burning)[0].startswith("cannot tell")


def test_an_update_of_several_runs_is_one_contender() -> None:
    """Rule: what two runs measured is compared with another update, and not with itself."""
    ring = [_result({**STEP, "update": "ring"}, [f * t for t in TIMES]) for f in (1.0, 1.01)]
    ps = _result({**STEP, "update": "ps"}, [3 * t for t in TIMES], "ps/ddp")
    assert "; ps/ddp takes 2.9" in fastest([*ring, ps])
    assert fastest(ring) == ""


def test_the_lowest_loss_is_named_beside_the_fastest_update() -> None:
    """Rule: with two loss curves the closing lines name the lower end, whichever is faster."""
    ends = {"ring": 0.9, "tree": 0.6, "ps": 0.7}
    results = [
        _result(
            {
                **STEP,
                "update": name,
                "curve": {"seconds": [0.0, 2.0], "updates": [0, 9], "loss": [2.3, end]},
            },
            TIMES,
            f"{name}/ddp",
        )
        for name, end in ends.items()
    ]
    named = "# lowest loss at the end: tree 0.6 after 2.00 s; next ps 0.7 after 2.00 s"
    assert named in closing_lines(results)
    assert "lowest loss" not in "".join(closing_lines(results[:1]))


def test_the_header_says_what_ranks_do() -> None:
    """Rule: one line says how many servers and learners a row has, and what eff. is divided by."""
    for names, said in (
        ("ring,tree", ""),
        ("ring,ps", "ring, ps: all 4 ranks compute, rank 0 of ps serves, too; "),
        ("ring,sync,async", "ring: all 4 ranks compute; sync, async: 1 server, 3 learners; "),
        ("k-sync:2", "k-sync:2: 1 server, 3 learners; "),
    ):
        options = _options("--model", "toy", "--update", names, "--compute", "exp:3")
        text = " ".join(line.strip("# ") for line in header(options, 4, None, None, ""))
        assert (f" {said}eff.: speed-up over all 4 ranks" in text) == bool(said), text
        assert ("update of the weights" in text) == ("sync" in names)
    two = _options("--model", "toy", "--update", "sync", "--servers", "2")
    assert "sync: 2 servers, 3 learners" in " ".join(header(two, 5, None, None, ""))


def test_one_rank_is_said_to_exchange_nothing() -> None:
    """Rule: a run of one rank says that it exchanges nothing, and what to give; its figures speak
    of no hidden exchange, and no update of it is called faster.
    """  # noqa: D205
    alone = header(_options("--model", "toy", "--update", "ring,ps"), 1, None, None, "")
    assert "# 1 rank exchanges nothing; give --ranks 4" in alone
    assert not any("all 1 rank" in line for line in alone)
    launch = ("--sweep", "ranks", "--ranks", "1", "--after", "rows.jsonl")
    assert "# 1 rank exchanges nothing" in header(_options(*launch), 1, None, None, "")
    rows = [
        _result({**STEP, "update": name}, [k * t for t in TIMES], name, ranks=1)
        for name, k in (("ring", 1), ("ps", 3))
    ]
    text = " ".join(closing_lines(rows))
    assert "hidden -: 1 rank exchanges nothing" in text and "hidden none" not in text
    assert fastest(rows) == "" and "answer" not in text


def test_k_is_explained_above_the_table() -> None:
    """Rule: where an update has a K, a line says what it counts."""
    for name, explained in (("k-sync:2", True), ("sync", False)):
        options = _options("--model", "toy", "--update", name, "--compute", "exp:3")
        text = " ".join(header(options, 4, None, None, ""))
        assert ("the server changes the weights with K gradients" in text) == explained


def test_reports_show_the_figures_of_steps(tmp_path: Path, capsys: Any) -> None:
    """Rule: `reports show` has exposed, hidden and efficiency of steps, and no bandwidth."""
    path = tmp_path / "step.jsonl"
    path.write_bytes(to_jsonl([_result({**STEP, "update": "ring"}, TIMES)]))
    reports_main(["show", str(path)])
    out = capsys.readouterr().out
    assert "busbw" not in out and "23.5 ms" in out and "76.5%" in out, out
    assert {"exposed", "hidden", "eff."} <= set(out.split())


def test_updates_of_fewer_gradients_stand_beside_all_reduces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: `reports show` has all updates of a model in one table, with samples/s, which ranks
    serve, and which update takes the least time a sample; times of unequal work are not compared.
    """  # noqa: D205
    path = tmp_path / "step.jsonl"
    served = {**STEP, "update": "async", "gradients": 1, "learners": 3, "servers": 1}
    rows = [
        _result({**STEP, "update": "ring"}, TIMES),
        _result(served, [t / 2 for t in TIMES], "async", model="step:m/1 gradients"),
    ]
    path.write_bytes(to_jsonl(rows))
    reports_main(["show", str(path)])
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("step:m,") == 1 and "gradients" not in out and "the fastest of" not in out
    assert f"{4 * 8 / 0.1135:.0f}" in out and f"{8 / 0.05675:.0f}" in out
    assert "ring: all 4 ranks compute; async: 1 server, 3 learners; eff.: speed-up over" in out
    assert "ring/ddp takes the least time: 3.55 ms a sample" in out
    assert "async takes 2.00 times as long (" in out


def test_only_all_reduces_are_said_to_overlap() -> None:
    """Rule: the header says when gradients are sent; pushes to a server follow their gradient."""
    for names, said in (
        ("ring", "exchange overlaps the backward pass"),
        ("ring,async", "all-reduce overlaps the backward pass, a push follows its gradient"),
        ("sync,k-sync:2", "; a push follows its gradient"),
    ):
        lines = header(_options("--model", "toy", "--update", names), 4, None, None, "")
        assert any(line.endswith(said) for line in lines), lines
    off = header(
        _options("--model", "toy", "--update", "ring", "--overlap", "off"), 4, None, None, ""
    )
    assert any("exchange after the backward pass" in line for line in off)
    both = _options("--model", "toy", "--update", "ring", "--overlap", "on,off")
    (line,) = (line for line in header(both, 4, None, None, "") if "backward" in line)
    assert line.endswith("exchange overlaps the backward pass, or follows it (/after)")


def test_a_sweep_of_ranks_is_held_against_one_rank(tmp_path: Path) -> None:
    """Rule: 1, 2, 4 … P ranks are launched, and efficiency is samples/s over P times one rank's."""
    options = _options("--sweep", "ranks", "--ranks", "6")
    assert options.rank_counts == (1, 2, 4, 6)
    # A launch of the sweep has one count.
    again = _options("--sweep", "ranks", "--ranks", "6", "--ranks", "2", "--after", "rows.jsonl")
    assert again.rank_counts == () and again.ranks == 2
    made = [
        _result({"gradients": ranks, "batch": 10}, [seconds], ranks=ranks)
        for ranks, seconds in ((1, 0.1), (2, 0.1), (4, 0.2))
    ]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(to_jsonl(made))
    lines = scaling_lines(path)
    shares = [line.split()[6] for line in lines[3:]]
    assert shares == ["100%", "100%", "50.0%"] and lines[-1].endswith("█" * 10)
    path.write_bytes(to_jsonl([*made[:1], _result({"gradients": 2, "batch": 10}, [0.09], ranks=2)]))
    lines = scaling_lines(path)
    assert ">100%" in lines[-2] and lines[-1] == (
        "# above 100% of as many times 1 rank: noise of the measurement"
    )
    slow = {"stragglers": {"0": 2.0}, "gradients": 1, "batch": 10}
    path.write_bytes(to_jsonl([_result(slow, [0.2], ranks=1), *made[1:]]))
    lines = scaling_lines(path)
    assert "the 1 rank measured is a straggler" in lines[1] and "%" not in "".join(lines)


def test_a_disturbed_sweep_of_ranks_says_so_once_below_its_table(tmp_path: Path) -> None:
    """Rule: the command to repeat a sweep is that of all its launches, and stands below the table;
    a launch has none of its own.
    """  # noqa: D205
    environment = {"options": "--model toy -n 8 --sweep ranks -A ring"}
    rows = [
        replace(
            _result({"gradients": ranks, "batch": 10, "update": "ring"}, [0.1] * 8, ranks=ranks),
            noise=Noise(others=(0.9,)),
            run=run_of(environment, "step:m"),
        )
        for ranks in (1, 2)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(to_jsonl(rows))
    lines = scaling_lines(path, "--json")
    text = " ".join(" ".join(line.removeprefix("#") for line in lines).split())
    table, _, cautions = text.partition("too disturbed to rely on these figures: other programs")
    assert "efficiency" in table and "took up to 90 % of all cores in 2 of 2 rows" in cautions
    command = "step --ranks 1,2 --model toy -n 8 --sweep ranks -A ring --wait-quiet 10m --json"
    assert cautions.count(command) == 1
    disturbed = [replace(row, others_share=0.9) for row in rows]
    assert "repeat the run" in " ".join(closing_lines(disturbed))
    assert "repeat" not in " ".join(closing_lines(disturbed, whole=False))
    # One rank has a transport of its own, which makes no second update of one; two updates are.
    other = replace(disturbed[0], transport="inproc")
    assert "too disturbed to rely on these figures" in too_disturbed([other, disturbed[1]])
    assert "to compare steps" in too_disturbed([replace(other, algorithm="ps/ddp"), disturbed[1]])


def test_a_page_and_a_figure_show_what_is_exposed() -> None:
    """Rule: a page has a part for steps, with names escaped; `plot` draws them."""
    step = {**STEP, "compute_s": [0.09], "exchange_s": [0.08], "messages": 12}
    one = _result(step, [0.12] * 7, "ring/<script>", model="step:<b>m")
    odd = _result({}, [0.12], "ring/<script>")
    text = steps_part([one, odd])
    assert "step:&lt;b&gt;m" in text and "<script>" not in text and "30.0 ms" in text
    assert steps_part([]) == "" and steps_part([_result({})]) == ""
    drawn = bars([one, odd], "svg")
    assert drawn is not None and b"exposed exchange" in drawn
    assert bars([odd], "svg") is None


def test_the_legend_of_bars_hides_none() -> None:
    """Rule: the longest bar is nearly as wide as the axes, so the legend is beside the axes."""
    pytest.importorskip("matplotlib")
    one = _result({**STEP, "compute_s": [0.09]}, TIMES)
    known = figures(one)
    assert known is not None
    figure = canvas(8, 3)
    axes = figure.subplots()
    _stacked(axes, [(one, known)])
    figure.draw_without_rendering()
    legend = axes.get_legend()
    assert legend is not None
    inside, outside = axes.get_window_extent(), legend.get_window_extent()
    assert inside.x1 <= outside.x0 and outside.x1 <= figure.bbox.x1


@pytest.mark.parametrize("options", ["", "--model toy --compute exp:3 --update ring -n 12"])
def test_steps_are_compared_by_commands_that_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str
) -> None:
    """Rule: the advice of compare for a step names only commands and options that exist."""
    paths = []
    for name, more in (("a", 0.0), ("b", 0.001)):
        times = [0.1 + more + 0.0001 * n for n in range(12)]
        step = {"update": "ring", "model": "toy", "compute": "exp:3"}
        one = _result(step, times, model="step:toy/exp:3", ranks=2, iterations=12)
        run = run_of({"options": options} if options else {}, one.collective)
        paths.append(tmp_path / f"{name}.jsonl")
        paths[-1].write_bytes(to_jsonl([replace(one, run=run)]))
    reports_main(["compare", *map(str, paths)])
    out = capsys.readouterr().out
    told = (
        "several times, with --out FILE of its own, and compare a*.jsonl -- b*.jsonl: busbar step"
    )
    assert told in " ".join(out.split())
    (words,) = re.findall(r"^busbar step (.*)$", out, re.MULTILINE)
    read = StepOptions.parse(words.split(), StepOptions.make_parser())
    assert (read.model, read.update, read.launch_counts) == ("toy", "ring", (2,))
