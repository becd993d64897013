"""The codec of our own records: what is written is read, whichever way a line is decoded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from docs import record as described
from reports.readers import codec
from reports.readers.codec import measurements, read_jsonl, read_list, run_of, to_json, to_jsonl
from reports.readers.reading import read
from reports.records.measurement import Measurement, Overlap, Record, Window
from reports.records.steps import LossCurve, Step
from reports.records.table import measured
from tests.reports.runs import allreduce, timed
from tests.reports.test_columns import PLAIN

GOLDEN = Path(__file__).parent / "golden"
RUN = run_of({"busbar": "1", "hosts": ["n0"]}, "allreduce")
SERIES = st.lists(st.floats(1e-9, 1e3), max_size=4).map(tuple)


def _named(values: Any) -> Any:
    """Objects whose keys are those that a line is split at, among others."""
    return st.dictionaries(st.sampled_from(["times_s", "a", 'x","times_s":[', "step"]), values)


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "é", '"}', "\\"]),
    lambda inner: st.lists(inner, max_size=2) | _named(inner),
    max_leaves=4,
)


def _whole(plain: Record, also: bool, warm_up: tuple[float, ...], **more: Any) -> Record:
    times = {"operation": plain.times_s} if also else {}
    return replace(plain, also=times, warm_up_s=warm_up, **more)


RECORDS = st.builds(
    _whole,
    PLAIN,
    also=st.booleans(),
    warm_up=SERIES,
    parameters=_named(JSON),
    library_facts=_named(JSON),
    chosen_algorithm=st.sampled_from(["", "ring"]),
    injected=st.none() | st.just(0.02),
    per_iteration=st.sampled_from([1, 200]),
    window=st.none()
    | st.builds(Window, arrival=st.sampled_from(["", "late:0:5"]), lost=st.integers(0, 9)),
    overlapped=st.none() | st.just(Overlap(1.0, 2.0, 2.5)),
    core_wait=st.sampled_from([(), (0.5, 0.0)]),
    step=st.none()
    | st.builds(
        Step,
        kind=st.sampled_from(["", "async", "é"]),
        compute_s=SERIES,
        stragglers=st.sampled_from([{}, {"1": 2.0}]),
        curve=st.none() | st.just(LossCurve((0.0,), (0.0,), (2.3,))),
        lost=st.sampled_from([(), ((0.5, 1, "killed"),)]),
    ),
)
ROWS = st.lists(RECORDS.map(lambda record: measured(record, RUN)), min_size=1, max_size=5)


def _placeless(rows: Any) -> list[Measurement]:
    return [replace(row, line=0, run=RUN) for row in rows]


@given(ROWS)
def test_what_is_written_is_read(rows: list[Measurement]) -> None:
    """Rule: a measurement comes back whole from its line, with its figures and environment."""
    text = to_jsonl(rows).decode()
    again = measurements(text)
    assert _placeless(again) == rows and again[0].run.environment == RUN.environment


def _shuffled(line: str, order: list[int]) -> str:
    members = list(json.loads(line).items())
    places = sorted(range(len(members)), key=lambda at: (order[at % len(order)], at))
    return json.dumps(dict(members[at] for at in places), separators=(",", ":"))


@given(ROWS, st.lists(st.integers(0, 99), min_size=1, max_size=40), st.booleans())
def test_both_ways_of_decoding_agree(
    rows: list[Measurement], order: list[int], shuffle: bool
) -> None:
    """Rule: a line split before its times gives what the line as a whole gives, in any order."""
    first, *lines = to_jsonl(rows).decode().splitlines()
    lines = [_shuffled(line, order) if shuffle else line for line in lines]
    quick = read_jsonl("x", "\n".join([first, *lines]))
    slow = read_list("x", [json.loads(line) for line in (first, *lines)])
    assert not quick.notes and not slow.notes
    assert _placeless(quick.rows) == _placeless(slow.rows)


@given(ROWS, st.integers(0, 10**6), st.sampled_from(["\x00", "}", ",", '"', "-", "e"]))
def test_damage_costs_its_line(rows: list[Measurement], at: int, odd: str) -> None:
    """Rule: of damaged lines each is noted by its number, and all others are kept."""
    first, *lines = to_jsonl(rows).decode().splitlines()
    number = at % len(lines)
    place = at % len(lines[number])
    lines[number] = lines[number][:place] + odd + lines[number][place + 1 :]
    found = read_jsonl("x", "\n".join([first, *lines]))
    kept = {row.line for row in found.rows}
    assert {n + 2 for n in range(len(lines))} - kept <= {number + 2}
    assert {note.line for note in found.notes} <= {number + 2}
    assert number + 2 in kept or found.notes


def test_the_bounds_of_a_record() -> None:
    """Rule: what a record must have, and a time that is one, is asked of either way of decoding."""
    line = to_jsonl(allreduce("ring", 2, 1024, (1e-5, 2e-5)).every).decode()
    for old, new in (
        ('"ranks":2,', ""),
        ('"bus_factor":1.0', '"bus_factor":1e9'),
        ('"size":1024', '"size":18446744073709551616'),
        ('"placement":"out"', '"placement":"up"'),
        ("[0.00001,", "[-1,"),
        ("[0.00001,", "[1e-300,"),
        ("[0.00001,", "[NaN,"),
        ('"wrong":0', '"wrong":true'),
        ('"iterations":2', '"per_rank_s":[[1e-5]]'),
        ('"iterations":2', '"also":{"a":[1e-5]}'),
        ('"iterations":2', '"warm_up_s":[1e-300]'),
    ):
        damaged = line.replace(old, new)
        if damaged == line:  # a default is not written
            damaged = line.replace('"bus_factor"', f'{new},"bus_factor"')
        found = read_jsonl("x", damaged)
        assert not found.rows and found.notes[0].line == 2, (old, new)


def test_a_json_list_is_the_same_objects() -> None:
    """Rule: ``.json`` holds what the lines hold, environments included."""
    rows = allreduce("ring", 2, 1024, (1e-5, 2e-5), (3e-5,), environment={"busbar": "1"}).every
    lines = [json.loads(line) for line in to_jsonl(rows).splitlines()]
    assert json.loads(to_json(rows)) == lines


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.jsonl")), ids=lambda path: path.stem)
def test_old_records_are_the_same_in_format_4(path: Path) -> None:
    """Rule: every record of an older format can be written in this one, and is the same then."""
    old = measurements(path.read_text())
    again = measurements(to_jsonl(old).decode())
    assert old and _placeless(again) == _placeless(old)
    figures = [(row.algorithm, row.placement, row.time_s, row.low_s) for row in old]
    assert [(r.algorithm, r.placement, r.time_s, r.low_s) for r in read(path).rows] == figures


def test_damaged_parts_of_old_records_are_left_out() -> None:
    """Rule: noise, GPUs and facts of steps that are none cost themselves, each with a note."""
    record = {
        "format": 3, "collective": "allreduce", "algorithm": "ring", "transport": "mpi",
        "ranks": 2, "size": 8, "count": 2, "dtype": "float", "op": "sum", "root": -1,
        "bus_factor": 1.0, "environment": {}, "noise": {"out": {"hz": "x", "steal": [0.1]}},
        "out": {"times": [1e-5], "sync": "none"}, "step": {"fusion": 3, "update": "ring"},
        "gpus": [{"placement": "out", "rank": 0, "clock_sm_hz": "fast"}],
    }  # fmt: skip
    found = read_jsonl("x", json.dumps(record))
    assert len(found.rows) == 1
    text = " ".join(note.text for note in found.notes)
    assert all(word in text for word in ("noise: hz", "window is", "step: fusion", "clock_sm_hz"))
    (one,) = measurements(json.dumps(record))
    assert one.noise and one.noise.steal == (0.1,) and one.step and one.step.update == "ring"


def test_the_schema_and_the_page_are_those_of_the_type() -> None:
    """Rule: docs/record.md and the schema in the package are made from the types, anew."""
    root = Path(codec.__file__).parents[2]
    assert (root / described.SCHEMA).read_text() == described.schema()
    assert (root / described.PAGE).read_text() == described.page()
    properties = json.loads(described.schema())["$defs"]["Line"]["properties"]
    assert set(properties) == {"format", "run", *Record.__struct_fields__}


def test_numbers_of_numpy_are_written() -> None:
    """Rule: a NumPy number in a record is written as Python's; anything else is no record."""
    import numpy as np

    one = measured(timed((np.float64(1e-5),), parameters={"n": np.int64(3)}), RUN)
    assert b'"n":3' in to_jsonl([one])
    with pytest.raises(TypeError):
        to_jsonl([replace(one, parameters={"n": object()})])


def test_msgspec_does_what_the_codec_counts_on() -> None:
    """Rule: a line of another format, and an unknown field behind the times, are refused."""
    with pytest.raises(msgspec.ValidationError, match="format"):
        codec._LINE.decode(b'{"format":3}')
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        codec._TAILS.decode(b'{"times_s":[1],"ranks":2}')
