"""The map of who wins where: right cells, honest ties, and readable at any width."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bench.api.measured import MeasuredRows
from bench.cluster.launchers import variables
from bench.run.environment import allowed
from bench.run.recorder import closing, closing_sentences
from busbar.errors import ReportError
from reports.analysis.answer import (
    answers,
    best_figure,
    conclusions,
    server_and_ring,
    stretch_table,
    verdict,
    without_rows,
)
from reports.analysis.cautions import causes, command_of, disturbance, limiting, too_disturbed
from reports.analysis.disturbance import mostly_disturbed, tells_others
from reports.analysis.launches import over_launches
from reports.analysis.winners import decided, stretches, winners
from reports.page.answer_part import answer_part, lead
from reports.readers.reading import foreign_name
from reports.records.measurement import Measurement, Noise, Placements, Record, is_emulated
from reports.records.steps import Step
from reports.tables.markdown import markdown
from reports.tables.scaling import answer, caution_lines, conclusion_lines, scaling, winners_map
from tests.reports.runs import allreduce, changed, cli, flat, rows, saved, timed


def _result(
    algorithm: str, ranks: int, size: int, times: tuple[float, ...], wrong: int = 0, **fields: Any
) -> Placements:
    half = timed(times, wrong=wrong)
    return allreduce(algorithm, ranks, size, half, **{"ranks_per_core": 0.5, **fields})


def _rows(*results: Placements) -> list[Measurement]:
    return rows(results)


def _spread(middle: float, seed: int = 0) -> tuple[float, ...]:
    return tuple((middle * (1 + 0.02 * np.random.default_rng(seed).gamma(2, 1, 30))).tolist())


_PAIR = (("ring", 1e-3), ("tree", 2e-3))


def test_the_fastest_wins_with_its_margin() -> None:
    """Rule: a cell has the least median, how much longer the next takes, and if that is sure."""
    rows = _rows(
        *(_result("ring", n, 1024, _spread(1e-3, n)) for n in (2, 4)),
        *(_result("tree", n, 1024, _spread(2e-3, 10 + n)) for n in (2, 4)),
        _result("ps", 4, 1024, _spread(1e-3, 20)),
    )
    (cells,) = winners(rows).values()
    two, four = cells[1024, 2], cells[1024, 4]
    assert two.name == "ring" and two.sure
    assert two.margin == pytest.approx(2, rel=0.05) and (two.low or 9) < 2 < (two.high or 0)
    assert four.name in ("ring", "ps") and not four.sure


def test_what_wins_nothing() -> None:
    """Rule: wrong results and shared work are no winners, however fast.

    A rank count alone has no map.
    """
    slow = [_result("ring", n, 1024, _spread(1e-3)) for n in (2, 4)]
    wrong = _result("tree", 2, 1024, _spread(1e-6), wrong=3)
    shared = _result("worksharing", 4, 1024, _spread(1e-6), worksharing=True)
    (cells,) = winners(_rows(*slow, wrong, shared)).values()
    assert {w.name for w in cells.values()} == {"ring"}
    assert all(w.margin is None and w.sure for w in cells.values())
    assert winners_map(_rows(slow[0]), 80) == []


def test_rounds_that_differ_are_no_certainty() -> None:
    """Rule: where a launch's rounds differ by more than two algorithms do, neither surely wins."""
    rounds = [_result("ring", 2, 1024, _spread(m)) for m in (1.0, 1.6)]
    rounds += [_result("tree", 2, 1024, _spread(m, 5)) for m in (1.7, 1.2)]
    (cells,) = winners(_rows(*rounds, _result("ring", 4, 1024, _spread(1.0)))).values()
    assert not cells[1024, 2].sure


@pytest.mark.parametrize("merged", [False, True])
def test_launches_that_measure_both_are_compared_within(merged: bool) -> None:
    """Rule: what differs from launch to launch meets both algorithms: the margin's interval is that
    of the ratios within launches, whether they stand as rows or as one; with two launches, or where
    one did not measure both, it is that of separate launches, in which nothing is sure.
    """  # noqa: D205
    levels = (1.0, 2.0, 0.5, 1.5, 0.8)

    def results(number: int, level: float) -> list[Placements]:
        place = {"launch": {"number": number, "of": 5, "seed": 1}}
        sides = (("ring", 1.0), ("tree", 1.1 + number / 1000))
        return [
            _result(name, 2, 1024, _spread(level * slow, number), environment=place)
            for name, slow in sides
        ]

    every = [results(number, level) for number, level in enumerate(levels)]
    for some, sure in ((every, True), (every[:2], False), ([*every[:4], every[4][1:]], False)):
        rows = _rows(*(one for launch in some for one in launch))
        (cells,) = winners(over_launches(rows) if merged else rows).values()
        won = cells[1024, 2]
        assert won.sure == sure and won.low is not None and won.high is not None
        if sure:
            assert won.name == "ring" and 1.1 <= won.low < 1.102 < won.high < 1.105


def test_two_transports_of_one_algorithm_are_told_apart() -> None:
    """Rule: where an algorithm went over two transports the map says which was faster."""
    both = [
        _result("ring", n, 1024, _spread(t), transport=name)
        for n in (2, 4)
        for name, t in (("mpi", 2e-3), ("shm", 1e-3))
    ]
    (cells,) = winners(_rows(*both)).values()
    assert {w.name for w in cells.values()} == {"ring shm"}


NAMES = ("ring", "bidirectional_ring", "double_tree:segments=16", "library")


@given(
    st.integers(46, 200),
    st.lists(st.sampled_from([1, 2, 3, 4, 8, 16, 128]), min_size=2, max_size=6, unique=True),
    st.lists(st.sampled_from([0, 1000, 1024, 1 << 20, 1 << 30]), min_size=1, unique=True),
    st.data(),
)
def test_the_map_fits_and_has_every_cell(
    width: int, counts: list[int], sizes: list[int], data: st.DataObject
) -> None:
    """Rule: no line is wider than asked; each size and rank count has its winner in its column."""
    results, expected = [], []
    for n in counts:
        for size in sizes:
            name = data.draw(st.sampled_from(NAMES))
            expected.append(name)
            results.append(
                _result(
                    name,
                    n,
                    size,
                    (1e-3,) * data.draw(st.sampled_from([1, 8])),
                    ranks_per_core=n / 4,
                )
            )
    (lines,) = winners_map(_rows(*results), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for name in NAMES:
        found = sum(text.split().count(word) for word in (name, f"~{name}"))
        assert found == expected.count(name)
    for n in counts:
        assert f"{n} rank{'s' * (n > 1)}" in text
    crowded = ", ".join(str(n) for n in sorted(counts) if n > 4)
    assert (f"; {crowded} ranks share cores (" in " ".join(text.split())) == bool(crowded)
    assert "*" not in text


def test_80_columns_have_four_counts_side_by_side() -> None:
    """Rule: 2, 4, 8 and 16 ranks stand in one block at 80 columns, and on single lines at 160."""
    rows = _rows(
        *(
            _result(name, n, size, _spread(t * n, n), ranks_per_core=n / 2)
            for name, t in (("sharded_ps", 1e-3), ("ring", 1.3e-3), ("ps", 2e-3))
            for n in (2, 4, 8, 16)
            for size in (1 << 16, 1 << 20, 1 << 30)
        )
    )
    for width, each in ((78, 2), (158, 1)):
        (lines,) = winners_map(rows, width)
        heads = [n for n, line in enumerate(lines) if line.lstrip().startswith("size")]
        assert len(heads) == 1 and max(map(len, lines)) <= width
        assert len(lines) == heads[0] + 1 + 3 * each


def _sweep(times: dict[str, tuple[float, ...]], ranks: int = 4) -> list[Measurement]:
    """Algorithms with a time a size, from 8 bytes on by factors of 8."""
    return _rows(
        *(
            _result(name, ranks, 8 ** (n + 1), _spread(t, n + 10 * len(name)))
            for name, row in times.items()
            for n, t in enumerate(row)
        )
    )


def test_stretches_change_for_certain_winners_only() -> None:
    """Rule: sizes go to who wins them; within noise they stay with the one of the size before."""
    rows = _sweep(
        {
            "library": (1e-6, 1e-6, 1.001e-6, 9e-6, 9e-5, 9e-4),
            "ring": (2e-6, 2e-6, 1e-6, 3e-6, 3e-5, 3e-4),
            "tree": (9e-6, 9e-6, 9e-6, 9e-6, 9e-6, 9e-5),
        }
    )
    (cells,) = winners(rows).values()
    found = stretches(cells, 4)
    assert [(one.name, one.sizes) for one in found] == [
        ("library", (8, 512)),
        ("ring", (4096, 4096)),
        ("tree", (32768, 262144)),
    ]
    assert [one.sure for one in found] == [False, True, True]
    assert stretches(cells, 2) == []
    tree = cells[262144, 4]
    assert tree.against == "ring" and tree.library == pytest.approx(10, rel=0.1)


def test_rows_without_an_algorithm_have_a_stretch_too() -> None:
    """Rule: a log that names no algorithm, as nccl-tests' does not, is answered as well."""
    (cells,) = winners(_sweep({"": (1e-6, 1e-6)})).values()
    assert [(one.name, one.sizes) for one in stretches(cells, 4)] == [("library", (8, 64))]


def test_the_answer_says_what_to_take() -> None:
    """Rule: a line a stretch: sizes, name, figures, how the next does; then crossovers."""
    rows = _sweep({"library": (1e-6, 1e-6, 1e-5, 9e-5), "ring": (2e-6, 2e-6, 5e-6, 3e-5)})
    lines = answer(rows, 78)
    assert lines[0].startswith("the fastest of allreduce") and "4 ranks" in lines[0]
    assert lines[1].split()[:4] == ["sizes", "algorithm", "first,", "last"]
    assert lines[2].split()[:4] == ["8", "-", "64", "library"] and lines[2].endswith("x ring")
    assert " us" in lines[2] and "GB/s" not in lines[2]
    assert lines[3].split()[:4] == ["512", "-", "4K", "ring"] and "library" in lines[3]
    assert lines[4] == "crossovers: library to ring between 64 and 512"
    said = r"library was 1\.99 times as fast as ring from 8 to 64 \(.*\); the fastest was"
    assert re.fullmatch(said + " ring from 512 to 4K", " ".join(map(str.strip, lines[5:])))
    assert len(lines) == 7
    assert answer(_sweep({"ring": (1e-6, 2e-6)}), 78) == []


@given(st.integers(60, 160), st.integers(2, 6), st.data())
def test_answers_fit_and_are_aligned(width: int, sizes: int, data: st.DataObject) -> None:
    """Rule: columns begin where their headings do, whatever names are as long as."""
    middles = st.lists(st.floats(1e-6, 1e-2), min_size=sizes, max_size=sizes).map(tuple)
    rows = _sweep({name: data.draw(middles) for name in ("ring", "halving_doubling", "library")})
    lines = answer(rows, width)
    heads = next(n for n, line in enumerate(lines) if "algorithm" in line)
    at = lines[heads].index("algorithm")
    until = next(n for n, line in enumerate(lines) if re.search("crossovers|~:| fast", line))
    for line in lines[heads + 1 : until]:
        assert line[at - 2 : at] == "  " and line[at:].startswith(
            ("ring", "halving", "library", "~")
        )
    assert max(map(len, lines)) <= max(width, 104)


@given(st.floats(1.2, 50), st.integers(2, 5), st.booleans())
def test_the_sentence_has_the_ratio_that_was_measured(
    ratio: float, sizes: int, against_library: bool
) -> None:
    """Rule: the closing sentence has the geometric mean of the ratios, inside their interval."""
    other = "library" if against_library else "tree"
    rows = _sweep({"ring": (1e-5,) * sizes, other: (1e-5 * ratio,) * sizes})
    said = answer(rows, 1000)[-1]
    match = re.fullmatch(
        rf"ring was ([\d.]+) times as fast as {other} from 8 to \S+ \(([\d.]+) to ([\d.]+)\)", said
    )
    assert match is not None, said
    middle, low, high = map(float, match.groups())
    assert low <= middle <= high and middle == pytest.approx(ratio, rel=0.05)


@pytest.mark.parametrize(
    ("fast", "text"),
    [(5e-6, "cannot tell from"), (1.6e-5, r"at least 1\.[56]\d?x"), (1.9e-2, r"[12]\d+-[12]\d+x")],
)
def test_a_ratio_that_is_not_known_is_said_in_words(fast: float, text: str) -> None:
    """Rule: an interval from below 1 to thousands is not shown; a lower end that is known is."""
    ring, tree = _result("ring", 2, 1024, (1e-5, 1.01e-5) * 20), (fast, 2e-2) * 20
    shown = "\n".join(answer(_rows(ring, _result("tree", 2, 1024, tree)), 1000))
    assert re.search(rf"  ({text}) tree$", shown, re.M), shown


def test_a_sentence_has_no_interval_that_says_nothing() -> None:
    """Rule: from below 1 to 4 times as much nothing can be told; of a wide one the lower end."""
    ring = _result("ring", 2, 1024, (1e-5, 1.01e-5) * 20)
    cannot = "cannot tell whether ring is faster than tree at 1K"
    cases = (
        (5e-6, 2e-2, cannot),
        (5e-6, 2.2e-5, cannot),
        (7e-6, 2e-5, r"ring may be no faster than tree at 1K: .*"),
        (2e-5, 2e-2, r"ring was at least (1\.9\d|2\.0\d?) times as fast as tree at 1K \(95 %\)"),
    )
    for fast, slow, text in cases:
        tree = _result("tree", 2, 1024, (fast, slow) * 20)
        assert re.fullmatch(text, conclusions(_rows(ring, tree))[-1])


def test_what_cannot_be_told_is_said_once() -> None:
    """Rule: one statement for each setting: the table's cell, or the sentence if it has intervals.

    Neither a sentence nor the line on a tilde says it again.
    """
    ring = [_result("ring", 2, size, (1e-5, 1.01e-5) * 20) for size in (1024, 2048)]
    wild, near = (_result("tree", 2, n, (t, 2e-2) * 20) for n, t in ((1024, 5e-6), (2048, 8e-6)))
    said = "\n".join(answer(_rows(*ring, wild, near), 1000))
    assert said.count("cannot tell") == 1 and "may be as fast" not in said
    near = _result("tree", 2, 2048, (0.6e-5, 2e-5) * 20)
    said = "\n".join(answer(_rows(*ring, wild, near), 1000))
    assert "x tree at 2K" in said and said.count("cannot tell whether ring is faster than") == 1
    assert said.count("cannot tell") == 1 and "may be as fast" not in said


def test_the_sentences_of_a_disturbed_run_have_its_medians() -> None:
    """Rule: where other programs let nothing be told, sentences have figures and no verdict."""
    noise = Noise(others=(0.7,))
    pair = (("ring", 1e-5), ("ps", 3e-5))
    every = _rows(
        *(_result(n, 2, 1 << k, _spread(t * k), noise=noise) for n, t in pair for k in (10, 20))
    )
    first, *more = conclusions(every)
    assert first.startswith("too disturbed to compare algorithms: ")
    assert len(more) == 1 and re.fullmatch(
        r"medians alone: ring from 1K to 1M 1\d\d us, \d\.\d+ GB/s"
        r" \(ps 3\d\d us, \d\.\d+ GB/s\)",
        more[0],
    ), more
    few = [row for row in every if (row.algorithm, row.size) != ("ps", 1024)]
    assert conclusions(few)[1].startswith("medians alone: ring at 1M ")


def test_a_winner_that_may_be_none_has_its_figures() -> None:
    """Rule: ``may be no faster`` stands with the ratio and the interval, as a sure winner does."""
    ring, tree = _result("ring", 2, 1024, (1e-5, 1.01e-5) * 20), (9e-6, 1.3e-5) * 20
    said = answer(_rows(ring, _result("tree", 2, 1024, tree)), 1000)[-1]
    match = re.fullmatch(
        r"ring may be no faster than tree at 1K: (\S+) times as fast, but the interval is (\S+) to"
        r" (\S+)",
        said,
    )
    assert match is not None, said
    middle, low, high = map(float, match.groups())
    assert low <= 1 < middle <= high


def test_a_size_without_an_interval_makes_no_sure_sentence() -> None:
    """Rule: a row of one iteration, without an interval, is told from rows that surely win."""
    few, many = (1e-5,), (1e-5, 1.01e-5) * 20
    short = [_result("ring", 2, 1024, few), _result("library", 2, 1024, (4e-5,))]
    long = [_result("ring", 2, 2048, many), _result("library", 2, 2048, (9e-5, 9.1e-5) * 20)]
    said = answer(_rows(*short, *long), 1000)[-1]
    assert re.fullmatch(
        r"ring was \S+ times as fast as library at 2K \(8.* to 9.*\);"
        r" cannot tell at 1K: too few iterations for an interval",
        said,
    ), said
    assert answer(_rows(*short), 1000)[-1].startswith(
        "library took 4.00 times as long as ring at 1K; too few iterations for an interval,"
    )


def test_a_disturbed_run_says_first_that_it_is_to_be_repeated() -> None:
    """Rule: where other programs ran beside most rows, this and the command to repeat come first.

    So they do in the sentences alone and on a page, and the closing line does not say it again.
    """
    known = {"environment": {"busbar": "0.1"}, "noise": Noise(others=(0.91,))}
    every = _rows(
        *(_result(name, 2, 1024 * n, _spread(t), **known) for n in (1, 2) for name, t in _PAIR)
    )
    lines = [line.strip() for line in answer(every, 78)[:5]]
    said = " ".join(lines)
    assert said.startswith(
        "too disturbed to compare algorithms: other programs took up to 91 % of all cores in 4 of 4"
        " rows, which may have moved all iterations of a row, so the interval of one launch does"
        " not show it; repeat the run: busbar allreduce --ranks 2 -A ring,tree -b 1K -e 2K"
        " --placement out --wait-quiet 10m"
    ), said
    assert sum(line.startswith("busbar ") for line in lines) == 1  # to be copied
    assert conclusions(every)[0].startswith("too disturbed") and disturbance(every) == ""
    assert "too disturbed" in lead(every) and "Too disturbed" in answer_part(every)
    assert markdown(every).startswith("too disturbed")
    # Rows that last 0.1 s or more tell that nothing else ran; shorter ones tell nothing.
    for scale, first in ((10, "the fastest of"), (1, "too disturbed")):
        others = (_result(name, 2, 4096, _spread(scale * t)) for name, t in _PAIR * 4)
        assert answer([*every, *_rows(*others)], 78)[0].startswith(first)


@pytest.mark.parametrize(
    ("options", "names", "words"),
    [
        ("-b 1K", "ring,tree", "-b 1K --wait-quiet 10m"),
        ("-b 1K --order size", "ring,tree", "-b 1K --order size --wait-quiet 10m"),
        ("-b 1K --wait-quiet 5", "ring,tree", "-b 1K --wait-quiet 5 --launches 7"),
        ("-b 1K --order size --wait-quiet 5m", "ring,tree", "-b 1K --wait-quiet 5m --launches 7"),
        ("-b 1K --wait-quiet 5", "ring", "-b 1K --wait-quiet 10m"),
    ],
)
def test_a_disturbed_run_waits_first(options: str, names: str, words: str) -> None:
    """Rule: the remedy for other programs is to wait until they have ended.

    Where that was in vain, several launches cover them; a single algorithm has nothing to compare.
    """
    known = {"environment": {"options": options}, "noise": Noise(others=(0.91,))}
    every = _rows(*(_result(name, 2, 1024, _spread(1e-3), **known) for name in names.split(",")))
    _, command, *more = too_disturbed(every).splitlines()
    assert command == f"busbar allreduce --ranks 2 {words}"
    instead = ["if they stay: --launches 7 instead, whose intervals cover them"]
    assert more == (instead if "," in names and "--wait-quiet" not in options else [])


def test_collectives_on_emulated_ports_are_told_apart_beside_other_programs() -> None:
    """Rule: no program makes a port faster. So on emulated hosts of one rank each, collectives that
    were measured beside other programs have an interval from the least time of their bytes, and
    need not be repeated if it tells; where ranks share a port, or its rate is not known, they do.
    """  # noqa: D205

    def beside(each: Sequence[int], **variables: str) -> list[Measurement]:
        known = {"ranks_per_node": list(each), "variables": variables}
        noisy = {"environment": known, "noise": Noise(others=(0.6,))}
        ring, ps = (
            _rows(_result(name, 4, 1 << 20, _spread(seconds), **noisy))
            for name, seconds in (("ring", 0.2), ("ps", 0.6))
        )
        return [
            *(replace(row, sent_bytes=1_500_000, received_bytes=1_500_000) for row in ring),
            *(replace(row, sent_bytes=3_000_000, received_bytes=3_000_000) for row in ps),
        ]

    told = beside([1] * 4, BUSBAR_PORT_RATE="1e7")
    (one,) = (winner for cells in winners(told).values() for winner in cells.values())
    low, high = one.low, one.high
    # ps took at least 0.3 s without the programs, and ring at least 0.15 s.
    assert one.sure and low == pytest.approx(3 * 0.3 / 0.6, rel=0.1)
    assert high == pytest.approx(3 * 0.2 / 0.15, rel=0.1)
    assert too_disturbed(told) == ""
    for untold in (
        beside([1] * 4),
        beside([2, 2], BUSBAR_PORT_RATE="1e7"),
        beside([1] * 4, BUSBAR_PORT_RATE="fast"),
    ):
        (one,) = (winner for cells in winners(untold).values() for winner in cells.values())
        assert (one.low, one.high) == (0.0, math.inf) and "repeat the run" in too_disturbed(untold)


def test_an_algorithm_without_a_row_is_named() -> None:
    """Rule: an answer names each algorithm of which every row was skipped, with the reason."""
    skipped = [Record(skipped="there is no type"), Record(skipped="another")]
    times = [1e-5 + 1e-8 * n for n in range(20)]
    every = flat(
        [allreduce("ring", 2, 1024, times, skipped[0]), allreduce("library", 2, 1024, *skipped)]
    )
    assert caution_lines(every, 80)[0] == "no library in the answer: there is no type"
    assert without_rows(every[:2]) == without_rows(every[2:]) == []


def test_a_setting_of_several_launches_is_not_of_one_because_rows_are_short() -> None:
    """Rule: a run of several launches is never too disturbed, whichever rows tell of others."""

    def launch(number: int, seconds: float, others: float) -> list[Measurement]:
        known = {"environment": {"number": number}, "noise": Noise(others=(others,))}
        return _rows(*(_result(name, 2, 1024, [seconds] * 9, **known) for name in ("ring", "ps")))

    assert mostly_disturbed(launch(1, 0.1, 0.9))
    assert not mostly_disturbed([*launch(1, 0.1, 0.9), *launch(2, 1e-5, 0.0)])


def test_a_mean_over_many_iterations_lasted_as_long_as_they_did() -> None:
    """Rule: a row whose one time is the mean of 35 updates is not as short as that time."""
    short = replace(_rows(_result("ring", 2, 1024, [0.03]))[0], timing="loop", iterations=1)
    assert not tells_others(short)
    assert tells_others(replace(short, iterations=35))
    assert not tells_others(replace(short, iterations=35, timing="each"))


def test_a_disturbed_run_of_steps_waits_first() -> None:
    """Rule: training steps have the same first remedy, with the run's options, and no launches."""
    step = Step(kind="synchronous", model="toy", tensors=1, update="ring", compute="fixed:1")
    for options in ("--model toy --seed 3 --plot a.png", "--model toy --wait-quiet 5m"):
        known = {"environment": {"options": options}, "noise": Noise(others=(0.91,))}
        rows = _rows(*(_result(name, 2, 1024, _spread(1e-3), **known) for name in ("ring", "ps")))
        rows = [replace(row, step=step) for row in rows]
        again = f"busbar step --ranks 2 {options.removesuffix(' --wait-quiet 5m')}"
        assert too_disturbed(rows).splitlines()[1:] == [f"{again} --wait-quiet 10m"]
        assert ("(try --wait-quiet 10m)" in causes(rows)) == ("--wait-quiet" not in options)


def test_emulated_hosts_have_the_remedy_without_a_command() -> None:
    """Rule: where no command can be given, both texts on other programs say --wait-quiet 10m."""
    shell = {"variables": {"HYDRA_LAUNCHER_EXEC": "/run/enter"}}
    known = {"environment": shell, "noise": Noise(others=(0.91,))}
    rows = _rows(*(_result(name, 2, 1024, _spread(1e-3), **known) for name in ("ring", "ps")))
    assert is_emulated(rows[0].run.environment)
    for text in (too_disturbed(rows), causes(rows)):
        assert text.endswith("(try --wait-quiet 10m)") and "\n" not in text, text


def test_an_answer_of_launches_says_in_what_time_they_were_started(tmp_path: Path) -> None:
    """Rule: an answer over launches has a line on the time from the first to the last of them.

    It is below a run's whole answer, below its sentences alone, and among `show`'s warnings. None
    where a time is not known, is of another form, or where nothing is compared.
    """

    def rows(number: int, started: str, times: int = 30) -> list[Measurement]:
        place = {"launch": {"number": number, "of": 3, "seed": 1}, "started": started}
        return _rows(
            *(
                _result(name, 2, 1024, _spread(t, number)[:times], environment=place)
                for name, t in _PAIR
            )
        )

    at = [f"2026-11-28T{time}+00:00" for time in ("10:00:00", "10:00:50", "10:02:05")]
    every = [row for n, one in enumerate(at, 1) for row in rows(n, one)]
    told = "3 launches within 2 min 05 s do not show slower changes of the machine: repeat later"
    for report in (closing, closing_sentences):
        lines = " ".join(report(every, "median")).replace("#", "").split()
        assert " ".join(lines).endswith(told)
        for other in ("", "yesterday"):
            some = [*every, *rows(4, other)]
            assert "launches within" not in " ".join(report(some, "median"))
        alone = [row for row in every if row.algorithm == every[0].algorithm]
        assert "launches within" not in " ".join(report(alone, "median"))
    shown = cli("show", saved(tmp_path / "three.jsonl", every))
    assert shown.err.count(told) == 1 and "launches within" not in shown.out


def test_an_answer_of_one_launch_says_so(tmp_path: Path) -> None:
    """Rule: one line, of 80 columns at most, says that intervals are of one launch, and the remedy.

    It is below a run's whole answer and below its sentences alone, and among `show`'s warnings; not
    of several launches, or where no interval tells anything. Of rows in a file it also says that a
    comparison needs several launches, with or without an answer.
    """

    def rows(number: int = 0, times: int = 30, **more: Any) -> list[Measurement]:
        place = {"launch": {"number": number, "of": 2, "seed": 1}} if number else {}
        return _rows(
            *(
                _result(name, 2, size, _spread(t, number)[:times], environment=place, **more)
                for name, t in _PAIR
                for size in (1024, 4096)
            )
        )

    for report in (closing, closing_sentences):
        lines = report(rows(), "median")
        told = [line for line in lines if "--launches 7" in line]
        assert told == lines[-1:] and "one launch" in told[0] and len(told[0]) <= 80
        for other in (
            [*rows(1), *rows(2)],
            over_launches([*rows(1), *rows(2)]),
            [*rows(), *rows()],
            rows(times=3),
            rows(noise=Noise(others=(0.91,))),
            [row for row in rows() if row.algorithm == "ring"],
        ):
            assert "one launch:" not in "".join(report(other, "median"))
        of_several = "a comparison with another run needs several"
        text = " ".join(
            " ".join(report(rows(), "median", more="--out a.jsonl")[-2:]).replace("#", "").split()
        )
        said = f"one launch: others may lie outside these intervals, and {of_several}"
        assert text.endswith(f"{said} (--launches 7)")
        for other in (rows(times=3), [row for row in rows() if row.algorithm == "ring"]):
            last = report(other, "median", more="--out a.jsonl")[-1].removeprefix("# ")
            assert last == f"one launch: {of_several} (--launches 7)"
        for other in ([*rows(1), *rows(2)], [*rows(), *rows()], []):
            assert of_several not in " ".join(report(other, "median", more="--out a.jsonl"))
    shown = cli("show", saved(tmp_path / "one.jsonl", rows()))
    assert shown.err.count(told[0].removeprefix("# ")) == 1 and "--launches" not in shown.out
    several = saved(tmp_path / "two.jsonl", [*rows(1), *rows(2)])
    assert "--launches" not in cli("show", several).err


def test_nothing_firm_follows_a_disturbed_run() -> None:
    """Rule: of single launches beside other programs no ratio is known, however far apart they are.

    One row is no reason; several launches have an interval that holds what differs between them.
    """

    def said(rows: Sequence[Measurement]) -> str:
        return " ".join([*answer(rows, 1000), *conclusions(rows), markdown(rows)])

    known = {"environment": {"busbar": "0.1"}, "noise": Noise(others=(0.6,))}
    pair = (("ring", 1e-6), ("library", 2e-2), ("ps", 3e-2))
    rows = [_result(name, 2, 4096, _spread(t), **known) for name, t in pair]
    every = _rows(*rows)
    assert "cannot tell from library" in said(every) and "~ring" in said(every)
    assert not re.search(r"times as (?:fast|long)|\d[ x]+or more|\dx", said(every))
    for report in (closing, closing_sentences):  # the options that no record has
        lines = report(every, "median", more="-q --out x-2.jsonl")
        assert sum(one.endswith(" --wait-quiet 10m -q --out x-2.jsonl") for one in lines) == 1
    assert MeasuredRows(every).best()[0].verdict == "cannot tell"
    two = [
        _result("ring", 2, 2048, _spread(2e-6), **known),
        _result("ps", 2, 2048, _spread(1e-6), **known),
    ]
    (ranges,) = answers([*every, *_rows(*two)]).values()
    assert [one.name for one in ranges] == ["ps", "ring"]  # each size has its own
    calm = [_result(name, 2, 1 << n, _spread(t)) for name, t in pair for n in (10, 20)]
    assert re.search(r"ring was \d+ times as fast as library", said(_rows(*rows[:1], *calm)))
    launches = [
        _rows(_result(n, 2, 4096, _spread(t, k), **known)) for n, t in pair for k in range(5)
    ]
    each = [row for launch in launches for row in launch]
    assert "ring was" in said(each) and "too disturbed" not in said(each)
    assert disturbance(each).startswith("times may be disturbed")


def test_an_interval_over_launches_covers_what_disturbed_them() -> None:
    """Rule: rows of several launches are not too disturbed to compare, also merged; rows of one
    launch beside them count.
    """  # noqa: D205
    noise = Noise(others=(0.6,))

    def launched(number: int, *names: str) -> list[Placements]:
        place = {"launch": {"number": number, "of": 3, "seed": 1}}
        return [_result(n, 2, 4096, _spread(1e-3), environment=place, noise=noise) for n in names]

    every = _rows(*(one for n in (1, 2, 3) for one in launched(n, "ring", "library")))
    assert not mostly_disturbed(every) and not mostly_disturbed(over_launches(every))
    assert mostly_disturbed(_rows(*launched(1, "ring", "library")))
    assert mostly_disturbed(over_launches(_rows(*launched(1, "ring", "library"))))
    first = _rows(*launched(1, "ring", "library", "tree", "ps"), *launched(2, "ring"))
    assert mostly_disturbed(first)


@pytest.mark.parametrize(
    ("sizes", "more", "words"),
    [
        ((1024, 4096, 16384), {}, "-b 1K -e 16K -f 4 --placement out"),
        ((1024, 4096, 5120), {}, "--sizes 1K,4K,5K --placement out"),
        ((1024,), {"dtype": "half", "op": "max"}, "-b 1K -e 1K -d half -o max --placement out"),
    ],
)
def test_the_command_to_repeat_a_run_has_what_its_rows_say(
    sizes: Sequence[int], more: Mapping[str, Any], words: str
) -> None:
    """Rule: sizes, factor, type, operation and placement are those of the rows."""
    rows = _rows(*(_result("ring", 2, size, _spread(1e-5), **more) for size in sizes))
    step = Step(kind="synchronous", model="toy", tensors=1, update="ring", compute="fixed:1")
    assert command_of([replace(rows[0], step=step)]) == (
        "busbar step --ranks 2 --model toy --compute fixed:1 --update ring"
    )
    assert command_of(rows) == f"busbar allreduce --ranks 2 -A ring {words}"


@pytest.mark.parametrize(
    ("environment", "option"),
    [({"qualify": {"launch": 5, "stage": "pairs"}}, "--repeats"), ({}, "-n or --budget")],
)
def test_the_option_to_raise_is_one_of_the_command(
    environment: Mapping[str, Any], option: str
) -> None:
    """Rule: launches of `busbar qualify`, which has neither -n nor a budget, name `--repeats`."""
    rows = _rows(_result("ring", 2, 1024, _spread(1e-5), environment=environment))
    assert limiting(rows) == option


@pytest.mark.parametrize(
    ("environment", "command"),
    [
        ({"options": "-n 20 --nonblocking"}, "busbar allreduce --ranks 2 -n 20 --nonblocking"),
        ({"options": "--threads 2 -n 20"}, "busbar allreduce --threads 2 -n 20"),
        ({"options": "--learners 2 -n 20"}, "busbar allreduce --learners 2 -n 20"),
        ({"options": "-n 20; rm x"}, "busbar allreduce --ranks 2 -A ring -b 1K -e 1K"),
        ({"options": "$(x)"}, "busbar allreduce --ranks 2 -A ring -b 1K -e 1K"),
        ({"options": "-n 20", "variables": allowed(variables({}))}, ""),
    ],
)
def test_the_command_to_repeat_a_run_has_the_options_that_it_recorded(
    environment: Mapping[str, Any], command: str
) -> None:
    """Rule: options come from the record, unless a shell would read more than options in them.

    An option that says how many ranks there are stands without `--ranks`, which it excludes.
    The command on emulated hosts is another one, and not named.
    """
    rows = _rows(_result("ring", 2, 1024, _spread(1e-5), environment=environment))
    assert command_of(rows).removesuffix(" --placement out") == command


def test_next_names_algorithms_and_sizes() -> None:
    """Rule: ``next takes`` names every algorithm that comes next, and its sizes if not all tell."""
    long = [_result(name, 2, 2048, _spread(t, n)) for n, (name, t) in enumerate(_PAIR)]
    short = [_result(name, 2, 1024, (t,)) for name, t in (("ring", 1e-3), ("ps", 2e-3))]
    text = "\n".join(answer(_rows(*short, *long), 200))
    assert re.search(r"1K - 2K  ~ring .* [\d.]+-[\d.]+x tree at 2K\n", text), text
    (alone,) = answers(_rows(*short)).values()
    assert stretch_table(alone)[1][0][3] == "2.00x ps"


def test_one_rank_has_no_winner() -> None:
    """Rule: from one rank nothing crosses a link, so no algorithm is called the fastest."""
    times = {"ring": 1e-5, "library": 4e-5}
    rows = _rows(*(_result(name, 1, 1024, (t, 1.01 * t) * 20) for name, t in times.items()))
    (line,) = answer(rows, 1000)
    assert line.startswith("no answer: with one rank") and "--ranks N" in line


def test_sizes_with_one_algorithm_are_no_part_of_the_answer() -> None:
    """Rule: of an interrupted run the answer covers the sizes that two algorithms have."""
    sizes = [64 << 10, 256 << 10, 1 << 20]
    rows = _rows(
        *(_result("ring", 2, size, _spread(1e-3, n)) for n, size in enumerate(sizes)),
        *(_result("ps", 2, size, _spread(2e-3, 9 + n)) for n, size in enumerate(sizes[:2])),
    )
    text = "\n".join(answer(rows, 100))
    assert "64K - 256K  ring" in text and "1M" not in text
    assert re.search(r"ring was [\d.]+ times as fast as ps from 64K to 256K", text)


def test_a_size_that_cannot_tell_leaves_the_others_their_answer() -> None:
    """Rule: one size of wide scatter hides neither the ratio at most sizes nor its own doubt."""
    wide = [(1e-6, 1e-4)[n % 2] for n in range(40)]
    rows = [
        _result(name, 2, size, (time, 1.01 * time) * 20, noise=Noise(others=(0.0,)))
        for size in (1024, 2048, 4096)
        for name, time in (("ring", 1e-5), ("library", 4e-5))
    ]
    rows += [_result("ring", 2, 8192, wide), _result("library", 2, 8192, [t * 1.1 for t in wide])]
    lines = answer(_rows(*rows), 1000)
    assert re.fullmatch(
        r"ring was 4\.0\d times as fast as library at 1K, 2K, 4K"
        r" \(3\.\d+ to 4\.\d+\);"
        r" cannot tell at 8K: the interval is too wide",
        lines[-1],
    ), lines
    # The others' ratio comes first, and the reason is that of the size.
    programs = {"environment": {"busbar": "0.1"}, "noise": Noise(others=(0.6,))}
    for size, pair, more, why in (
        (16384, (1e-5, 1.1e-5), programs, "cannot tell at 16K: other programs took cores"),
        (16384, (1e-5, 1e-5), {}, r"at 16K it may be no faster \(0\.9\d? to 1\.\d+\)"),
    ):
        calm = rows[:6]
        calm += [
            _result(name, 2, size, (time, 1.01 * time) * 20, **more)
            for name, time in zip(("ring", "library"), pair, strict=True)
        ]
        said = answer(_rows(*calm), 1000)[-1]
        assert re.fullmatch(rf"ring was 4\.0\d times .* at 1K, 2K, 4K \(.*\); {why}", said), said
    told = r"1K - 8K +~ring .* 3\.9\d?-4\.\d+x library at 1K, 2K, 4K"
    assert re.search(told, "\n".join(lines)), lines


@given(st.sampled_from((2, 4, 8)), st.floats(0.5, 20), st.sampled_from(("ring", "sharded_ps")))
def test_a_parameter_server_is_held_against_a_ring(ranks: int, ratio: float, kin: str) -> None:
    """Rule: a line a rank count says how much longer the server took, and what the law says.

    Of the largest size that both have. One host has no ports, so the line says that the law is
    that of hosts, and which command emulates them. Cores that ranks share are named.
    """
    rows = _rows(
        *(_result(kin, ranks, size, _spread(1e-3, size)) for size in (8, 1024)),
        *(_result("ps", ranks, size, _spread(1e-3 * ratio, 9)) for size in (8, 1024, 4096)),
    )
    (line,) = server_and_ring(rows)
    match = re.fullmatch(
        rf"ps took ([\d.]+) times as long as {kin} \(([\d.]+) to ([\d.]+)(: perhaps no \w+)?\)"
        rf" at 1K on {ranks} ranks;"
        rf" between {ranks} hosts with ports it should take {ranks} times as long"
        r" \(busbar cluster law\)",
        line,
    )
    assert match is not None, line
    assert float(match[1]) == pytest.approx(ratio, rel=0.05)
    assert bool(match[4]) == (float(match[2]) < 1 < float(match[3])) or 1.0 in map(
        float, match.group(2, 3)
    )
    assert server_and_ring([r for r in rows if r.algorithm != "ps"]) == []
    (crowded,) = server_and_ring([replace(r, ranks_per_core=2.0) for r in rows])
    cores = {2: "1 core", 4: "2 cores", 8: "4 cores"}[ranks]
    assert crowded == f"{line}; {ranks} ranks share {cores}"


def test_a_sentence_without_a_table_names_the_next(tmp_path: Path) -> None:
    """Rule: closing sentences alone say how much slower the next is, and the one on ps."""
    times = {"ring": 1e-5, "ps": 2e-5, "library": 4e-5}
    every = _rows(*(_result(name, 2, 1024, _spread(t)) for name, t in times.items()))
    first, second = conclusions(every)
    assert re.fullmatch(
        r"ring was 4\S* times as fast as library .*\), and 1\.9\S* to 2\.\S+ times as fast as ps",
        first,
    )
    assert [second] == server_and_ring(every)
    assert "as fast as ps" not in answer(every, 1000)[-2]
    pair = [row for row in every if row.algorithm != "ps"]
    assert "ps" not in conclusions(pair)[0]
    wide = {"ring": _spread(1e-5), "ps": _spread(2e-5), "library": (1e-6, 1e-3) * 20}
    doubtful = [*every, *_rows(*(_result(name, 2, 2048, each) for name, each in wide.items()))]
    said = r" at 1K \(.*\), and 1\.9\S* to 2\.\S+ times as fast as ps; cannot tell at 2K: .* wide"
    assert re.search(f"{said}$", conclusions(doubtful)[0]), conclusions(doubtful)
    times["ps"] = 1e-5
    near = _rows(*(_result(name, 2, 1024, _spread(t)) for name, t in times.items()))
    assert re.search(r"; next takes 0\.9\S*x \w+$", conclusions(near)[0]), conclusions(near)


def test_two_algorithms_that_cannot_be_told_apart_have_one_sentence() -> None:
    """Rule: of two algorithms "cannot tell" names both once, with all sizes."""
    wild = (1e-6, 1e-3) * 8
    every = _rows(
        *(
            _result(name, 2, size, [t * f for t in wild])
            for size, (a, b) in ((1024, (1, 1.1)), (2048, (1.1, 1)), (4096, (1, 1.1)))
            for name, f in (("ring", a), ("tree", b))
        )
    )
    assert len(conclusions(every)) == 1
    assert re.fullmatch(
        r"cannot tell whether (ring is faster than tree|tree is faster than ring) at 1K, 2K, 4K",
        conclusions(every)[0],
    )


@pytest.mark.parametrize(
    ("fast", "said"),
    [
        (7e-6, "cannot tell whether ps takes longer than ring at 1K on 2 ranks;"),
        (9.7e-6, "ps took "),
        (1.2e-5, "ps took "),
    ],
)
def test_either_may_take_longer(fast: float, said: str) -> None:
    """Rule: no ratio is given whose interval reaches 10 % below and above one; a near one is."""
    ring, ps = (1e-5, 1.01e-5) * 20, (fast, 1.03e-5 if fast < 1e-5 and fast > 9e-6 else 2e-5) * 20
    rows = _rows(_result("ring", 2, 1024, ring), _result("ps", 2, 1024, ps))
    assert server_and_ring(rows)[0].startswith(said)


def test_the_map_names_what_the_ranges_name() -> None:
    """Rule: the map of sizes by ranks and the ranges of sizes name the same algorithm to take."""
    rows = [
        row
        for n in (2, 4)
        for row in _sweep({"ring": (1e-5, 1.004e-5), "tree": (2e-5, 1e-5)}, ranks=n)
    ]
    (cells,) = winners(rows).values()
    for n in (2, 4):
        (only,) = stretches(cells, n)
        assert {decided(cells)[size, n][0].removeprefix("~") for size in (8, 64)} == {only.name}


def test_markdown_and_show_begin_with_the_answer(tmp_path: Path) -> None:
    """Rule: what to take at which sizes stands in Markdown and in the terminal's report, too."""
    file = tmp_path / "r.jsonl"
    rows = {"library": (1e-6, 9e-5), "ring_of": (2e-6, 3e-5)}
    results = [
        _result(name, 4, 1024 ** (n + 1), _spread(t, n))
        for name, row in rows.items()
        for n, t in enumerate(row)
    ]
    saved(file, results)
    text = cli("md", file).out
    assert text.startswith(
        "**The fastest of allreduce, float, sum, out-of-place, 4 ranks, by size**"
    )
    assert "| 1K | library | 1.0" in text and "| 1M | ring\\_of | " in text
    assert "Crossovers<!-- -->" not in text
    assert "Crossovers: library to ring\\_of between 1K and 1M" in text
    shown = cli("show", file).out
    assert "the fastest of allreduce, float, sum, out-of-place, 4 ranks" in shown
    assert "crossovers: library to ring_of between 1K and 1M" in shown


def test_a_wrong_result_is_no_best_figure() -> None:
    """Rule: neither the best figure nor a map nor a speed-up counts rows with wrong elements."""
    wrong, right = _result("ring", 4, 1024, _spread(1e-6), wrong=7), _spread(1e-3)
    assert "tree at 1K" in best_figure(_rows(wrong, _result("tree", 4, 1024, right)))
    assert best_figure(_rows(wrong)) == ""
    log = changed(_result("ring", 4, 1024, right), algorithm="")
    assert best_figure(_rows(log)).endswith(" at 1K") and ":  at" not in best_figure(_rows(log))
    with pytest.raises(ReportError, match="no two rows differ in their number of ranks"):
        scaling(_rows(wrong, _result("ring", 2, 1024, right)))


def test_scaling_is_over_all_launches() -> None:
    """Rule: time, busbw, speed-up and efficiency are of all launches, as their interval is."""
    disturbed, usual = 8e-3, 1e-3
    found = [
        row
        for k in range(6)
        for ranks in (2, 4)
        for row in _rows(
            _result("ring", ranks, 1024, _spread(disturbed if (k, ranks) == (0, 4) else usual, k))
        )
    ]
    base, four = scaling(found)[0]
    assert (four.low or 9) < four.efficiency < (four.high or 0)
    assert four.row.time_s == pytest.approx(usual * 8 ** (1 / 6), rel=0.05)
    assert four.row.busbw_bytes_per_s == pytest.approx(
        (base.row.busbw_bytes_per_s or 0) * 1.5 / 8 ** (1 / 6), rel=0.05
    )


def test_an_answer_without_a_rate_is_over_all_launches() -> None:
    """Rule: of a barrier, which has no busbw, the time is that of all launches, too."""
    found = [
        replace(one, collective="barrier", size=0, busbw_bytes_per_s=None)
        for middle in (1e-6, 4e-6, 4e-6)
        for one in _rows(_result("ring", 4, 0, _spread(middle)))
    ]
    (cells,) = winners(found).values()
    assert cells[0, 4].row.time_s == pytest.approx(1e-6 * 16 ** (1 / 3), rel=0.05)


def test_the_library_over_several_transports_is_still_the_library() -> None:
    """Rule: of a library's rows over two transports the faster one is what others stand beside."""
    found = [
        one
        for transport, slow in (("mpi", 2.0), ("shm", 1.0))
        for name, middle in (("ring", 1e-3), ("ps", 2e-3), ("library", 4e-3))
        for one in _rows(_result(name, 4, 1024, _spread(slow * middle), transport=transport))
    ]
    (cells,) = winners(found).values()
    won = cells[1024, 4]
    assert (won.name, won.library_name) == ("ring shm", "library shm")
    assert won.library == pytest.approx(4, rel=0.05)
    (ranges,) = answers(found).values()
    assert stretch_table(ranges)[0][-1] == "library takes"


def test_next_takes_says_how_many_sizes_have_an_interval() -> None:
    """Rule: a ratio of single iterations is no interval; the head or the cell says it has none."""
    found = _rows(
        _result("ring", 4, 1 << 20, _spread(1e-3)),
        _result("tree", 4, 1 << 20, _spread(1.5e-3)),
        _result("ring", 4, 1 << 21, (1e-3,)),
        _result("tree", 4, 1 << 21, (9e-3,)),
    )
    other = _rows(_result("ps", 4, 1 << 22, (1e-3,)), _result("ring", 4, 1 << 22, (3e-3,)))
    for some, head, texts in (
        (found, "95 %", [r"1\.4\S*-1\.5\S*x tree at 1M"]),
        (found[2:], "no interval", [r"9\.00x tree"]),
        ([*found[:2], *other], "95 %", [r"1\.4\S*-1\.5\S*x tree", "3.00x ring, no interval"]),
    ):
        (ranges,) = answers(some).values()
        heads, lines = stretch_table(ranges)
        cells = [line[heads.index(f"next takes ({head})")] for line in lines]
        assert len(cells) == len(texts) and all(map(re.fullmatch, texts, cells)), cells


def test_rows_without_intervals_say_what_the_figures_show() -> None:
    """Rule: of printed figures the answer has the ratios, and that chance is not excluded.

    It doubts none of them as an interval would: show, Markdown, page and Python alike.
    """
    times = {"ring": (1e-3, 2e-3, 3e-3, 4e-3, 9e-3), "library": (3e-3, 8e-3, 6e-3, 9e-3, 8e-3)}
    found = [
        replace(row, times_s=())
        for row in _rows(
            *(
                _result(name, 2, 1 << (20 + n), (time,))
                for name, each in times.items()
                for n, time in enumerate(each)
            )
        )
    ]
    why = "the rows have no intervals, so chance is not excluded"
    said = (
        "library took 2.00 to 4.00 times as long as ring at all 4 sizes from 1M to 8M;"
        f" ring took 1.12 times as long as library at 16M; {why}"
    )
    lines = answer(found, 1000)
    assert lines[-1] == f"{said} (~)" and "2.00-4.00x library" in lines[2]
    assert conclusions(found) == [said]
    assert said in markdown(found).replace("\\", "") and said in answer_part(found)
    for text in ("\n".join(lines), markdown(found).split("\n\n**")[0], answer_part(found)):
        assert not re.search("may be|cannot tell|95 %", text), text
    (cells,) = winners(found).values()
    assert {verdict(w) for w in cells.values()} == {"no interval"}
    two = [*found, *(replace(row, ranks=4) for row in found)]
    (drawn,) = winners_map(two, 100)
    assert "in parentheses: no interval" in drawn[1] and "(3.00)" in drawn[4]
    turns = ((n < len(times["ring"])) == bool(n % 5 % 2) for n in range(len(found)))
    many = [replace(r, time_s=2e-3 if slow else 1e-3) for r, slow in zip(found, turns, strict=True)]
    assert re.search(r"took the least time at .*; the rows", conclusions(many)[0]), many


def test_a_sentence_names_the_sizes_that_are_certain() -> None:
    """Rule: a sentence doubts no size at which the map of rank counts has a sure winner."""
    rivals = ("ps", "tree", "chain", "ps")
    found = _rows(
        *(_result("ring", 2, 1 << (20 + n), _spread(1e-3, n)) for n in range(4)),
        *(
            _result(name, 2, 1 << (20 + n), _spread(2e-3 if n % 2 else 1.004e-3, n))
            for n, name in enumerate(rivals)
        ),
    )
    ((ring,),) = answers(found).values()
    assert [w.sure for w in ring.won] == [False, True, False, True]
    assert conclusions(found)[0] == "ring was the fastest at 2M, 8M, and may be at 1M, 4M"


_TIMES = st.one_of(
    st.tuples(st.floats(1e-6, 1e-3)),
    st.builds(
        lambda middle, wide: tuple(middle * (1 + wide * (n % 5) / 4) for n in range(12)),
        st.floats(1e-6, 1e-3),
        st.sampled_from([0.01, 0.3, 30.0]),
    ),
)


@given(
    st.dictionaries(
        st.sampled_from(("ring", "ps", "tree", "library")),
        st.lists(_TIMES, min_size=4, max_size=4),
        min_size=2,
    )
)
def test_a_range_has_the_figures_of_its_algorithm(
    sweep: dict[str, list[tuple[float, ...]]],
) -> None:
    """Rule: a range's figures are its algorithm's at each of its sizes, whichever is the fastest.

    Its sentences by themselves are recognised as Busbar's.

    The fastest joins another's range only where an interval says that both may be as fast, and no
    sentence doubts a size that is marked as certain. The conclusion names every size.
    """
    found = _rows(
        *(
            _result(name, 2, 1 << (20 + n), times)
            for name, row in sweep.items()
            for n, times in enumerate(row)
        )
    )
    by_size = {(r.algorithm, r.size): r.time_s for r in found}
    (cells,) = winners(found).values()
    (ranges,) = answers(found).values()
    assert sum(len(one.won) for one in ranges) == len(cells)
    for one in ranges:
        for w in one.won:
            fastest = cells[w.row.size or 0, 2]
            assert w.name == one.name == w.row.algorithm
            assert w.row.time_s == by_size[one.name, w.row.size]
            assert w.against != one.name
            rival = (by_size[w.against, w.row.size] or 0) / (w.row.time_s or 1)
            assert w.margin == pytest.approx(rival)
            if w.name != fastest.name:
                assert fastest.low is not None and fastest.low <= 1 and not w.sure
    said = "\n".join(answer(found, 1000))
    certain = {at[0]: w.name for at, w in cells.items() if w.sure}
    for name, other, ends in re.findall(
        r"(?:^|whether )(\w+) (?:is faster than|may be no faster than) (\w+)([^;\n]*)", said, re.M
    ):
        sizes = [int(size) << 20 for size in re.findall(r"(\d+)M", ends)]
        doubted = [s for s in certain if min(sizes) <= s <= max(sizes)]
        assert not doubted, (name, other, said)
    cannot_tell = (
        r"(?:; at|cannot tell at|which was the fastest at) ((?:\d+M(?:, )?)+)(?: it may be|:|$)"
    )
    for doubts in re.findall(cannot_tell, said, re.M):
        assert not {int(size) << 20 for size in re.findall(r"(\d+)M", doubts)} & certain.keys()
    for name, sizes in re.findall(r"(?:the fastest was|,) (\w+) at ((?:\d+M(?:, )?)+)", said):
        assert {certain[int(size) << 20] for size in re.findall(r"(\d+)M", sizes)} == {name}, said
    (conclusion, *_) = conclusions(found)
    for text in ("\n".join(conclusion_lines(found, 40)), f"# {conclusion}", said):
        assert "Busbar's summary" in foreign_name(text), text
    ends = [tuple(map(int, pair)) for pair in re.findall(r"from (\d+)M to (\d+)M", conclusion)]
    single = {int(size) for size in re.findall(r"(\d+)M", conclusion)}
    for size in (size >> 20 for size, _ in cells):
        assert size in single or any(low <= size <= high for low, high in ends), conclusion
    if "whether ps takes longer" in said:
        assert certain.get(8 << 20) not in ("ring", "ps")


def test_server_and_ring_leave_shared_work_out_and_name_transports() -> None:
    """Rule: two sentences of one rank count say of which transport each is."""
    pair = [
        _result(name, 4, 1 << 20, _spread(middle), transport=transport)
        for transport, ps in (("mpi", 2e-3), ("shm", 3e-3))
        for name, middle in (("ring", 1e-3), ("ps", ps))
    ]
    mpi, shm = server_and_ring(_rows(*pair))
    assert "on 4 ranks, mpi;" in mpi and "on 4 ranks, shm;" in shm
    shared = [_result(n, 4, 1 << 20, _spread(1e-3), worksharing=True) for n in ("ring", "ps")]
    assert server_and_ring(_rows(*shared)) == []


@pytest.mark.parametrize("width", range(40, 161, 8))
def test_ranges_keep_sizes_and_algorithm_at_any_width(width: int) -> None:
    """Rule: `library takes` stays at 80 columns; sizes, algorithm and `next takes` at any width."""
    found = [
        row
        for n, size in enumerate((1 << 16, 1 << 18, 1 << 20))
        for name, middle in (("ring", 1e-3), ("ps", 1.8e-3), ("library", 9e-3))
        for row in _rows(_result(name, 2, size, _spread(middle) if n else (middle,)))
    ]
    text = "\n".join(answer(found, width))
    assert re.search(r"64K - 1M +~?ring .*\dx ps at 256K, 1M", text)
    assert "library takes" in text or width < 80
    assert "first, last" in text or width < 96
