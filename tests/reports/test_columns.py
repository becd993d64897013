"""Large records: whichever way they are read, the rows are the same."""

import io
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from busbar.errors import ReportError
from busbar.statistics import interval
from reports.exports.formats import to_jsonl
from reports.readers import own
from reports.readers.folding import folded
from reports.readers.parquet import read as read_parquet
from reports.readers.parquet import to_parquet
from reports.readers.upgrade import OLD
from reports.records.record import FORMAT, Result, Sample
from reports.records.rows import Row
from tests.reports.runs import allreduce

TIMES = st.lists(st.floats(1e-9, 1e3), max_size=9).map(tuple)
PLAIN = st.builds(
    Sample,
    times=TIMES,
    iterations=st.integers(0, 9),
    timing=st.sampled_from(["each", "loop"]),
    stopped=st.sampled_from(["", "precise", "budget"]),
    wrong=st.none() | st.integers(0, 9),
    skipped=st.sampled_from(["", "too large"]),
    limit=st.none() | st.floats(1e-9, 1e3),
    sent=st.none() | st.integers(0, 1 << 40),
    received=st.none() | st.integers(0, 1 << 40),
    total=st.none() | st.integers(0, 1 << 40),
)
# Every rank has as many times as there are.
SAMPLES = st.builds(
    lambda sample, ranks: replace(sample, per_rank=(sample.times,) * ranks),
    PLAIN,
    st.integers(0, 2),
)
MAPPED = {"cpu": "C", "mapping": {"node": [0, 0], "cpus": ["0", "0"]}, "cpus": 1}
GPUS = st.lists(
    st.fixed_dictionaries(
        {"placement": st.sampled_from(["out", "in"])},
        optional={
            "clock_memory_hz": st.lists(st.floats(1, 1e10), min_size=3, max_size=3),
            "energy_per_op_j": st.none() | st.floats(0, 100),
        },
    ),
    max_size=2,
).map(tuple)
NOISE = st.sampled_from(
    [
        {},
        {"out": {"hz": [3e9, 2e9]}},
        {"in": {"steal": [0.1]}, "out": {"hz": []}},
        {"in": {"hz": [1]}},
    ]
)
RESULTS = st.lists(
    st.builds(
        Result,
        collective=st.sampled_from(["allreduce", "broadcast"]),
        algorithm=st.sampled_from(["ring", "library", "auto"]),
        transport=st.sampled_from(["mpi", "shm"]),
        ranks=st.integers(1, 3),
        size=st.sampled_from([0, 1024, 1 << 40]),
        count=st.integers(0, 9),
        dtype=st.just("float"),
        op=st.just("sum"),
        root=st.integers(-1, 1),
        bus_factor=st.sampled_from([0.0, 1.5]),
        out=st.none() | SAMPLES,
        in_place=st.none() | SAMPLES,
        environment=st.sampled_from([{"cpu": "A"}, {"cpu": "B", "hosts": ["n"]}, MAPPED]),
        schedule=st.sampled_from(["", "abc"]),
        gpus=GPUS,
        noise=NOISE,
        ranks_per_core=st.sampled_from([0.0, 0.5, 8.0]),
        worksharing=st.booleans(),
        format=st.sampled_from([2, FORMAT]),
    ),
    min_size=1,
    max_size=6,
)


@given(RESULTS)
def test_parquet_gives_the_same_rows(results: list[Result]) -> None:
    """Rule: Parquet gives row for row what the JSON lines give."""
    slow = own.read_jsonl("x", to_jsonl(results).decode())
    assert not slow.notes
    if len(slow.rows):
        lines = [replace(row, line=0) for row in slow.rows]
        exported = read_parquet("x", to_parquet(results))
        assert list(map(repr, exported.again())) == list(map(repr, exported))
        assert [replace(row, line=0) for row in exported] == [
            replace(row, run=replace(row.run, source="x")) for row in lines
        ]


@given(TIMES.filter(len))
def test_a_row_has_the_statistics_of_its_times(times: tuple[float, ...]) -> None:
    """Rule: median, interval, extremes, p99 and cv are those of the definitions, row by row."""
    [row] = own.rows([_measured(times)])
    ordered = sorted(times)
    assert row.time_s == pytest.approx(np.median(times))
    assert (row.low_s, row.high_s) == (interval(times) or (None, None))
    assert (row.min_s, row.max_s) == (ordered[0], ordered[-1])
    assert row.p99_s == ordered[-(-len(times) * 99 // 100) - 1]
    assert row.cv == pytest.approx(np.std(times) / np.mean(times), abs=1e-12)


def _measured(times: tuple[float, ...], algorithm: str = "ring", wrong: int | None = 0) -> Result:
    half = Sample(times=times, iterations=len(times), wrong=wrong, limit=min(times))
    return allreduce(algorithm, 2, 1024, half, environment={"cpu": "A"})


@given(st.lists(st.tuples(st.sampled_from("abc"), TIMES.filter(len)), min_size=1, max_size=9))
def test_folding_pools_what_was_measured_again(
    measured: list[tuple[str, tuple[float, ...]]],
) -> None:
    """Rule: one row a thing, in order of appearance, as if all its iterations were of one row."""
    rows = own.rows([_measured(times, name) for name, times in measured])
    pooled: dict[str, tuple[float, ...]] = {}
    for name, times in measured:
        pooled[name] = pooled.get(name, ()) + times
    found = folded(rows)
    expected: list[Row] = list(own.rows([_measured(times, name) for name, times in pooled.items()]))
    assert [replace(r, line=0) for r in found] == [replace(r, line=0) for r in expected]


def test_unknown_counts_stay_unknown_when_folded() -> None:
    """Rule: wrong is added up where it was checked, and unknown where it never was."""
    for wrongs, total in (((None, None), None), ((None, 2), 2), ((1, 2), 3)):
        found = folded(own.rows([_measured((1.0,), wrong=wrong) for wrong in wrongs]))
        assert [row.wrong for row in found] == [total]


def test_rows_of_others_are_not_folded() -> None:
    """Rule: rows that are no columns of ours come back as they are."""
    rows = list(own.rows([_measured((1.0,))] * 2))
    assert folded(rows) is rows


@pytest.mark.parametrize("form", [OLD, FORMAT + 1, True, "3"])
def test_parquet_of_another_format_is_refused(form: object) -> None:
    """Rule: columns of another format are not guessed at; the message says which are read."""
    table = parquet.read_table(pa.BufferReader(to_parquet([_measured((1.0,))])))
    said = json.loads(table.schema.metadata[b"busbar"]) | {"format": form}
    file = io.BytesIO()
    parquet.write_table(table.replace_schema_metadata({"busbar": json.dumps(said)}), file)
    with pytest.raises(ReportError, match=f"Parquet is read from {OLD + 1} to {FORMAT}"):
        read_parquet("x", file.getvalue())
