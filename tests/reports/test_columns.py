"""Large records: whichever way they are read, the rows are the same."""

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyarrow import parquet

from busbar.errors import ReportError
from busbar.statistics import interval
from reports.readers.codec import read_jsonl, run_of, to_jsonl
from reports.readers.own_exports import OLDEST, read_parquet, to_parquet
from reports.records.measurement import FORMAT, GpuSample, Measurement, Noise, Record
from reports.records.table import as_columns, folded, measured
from tests.reports.runs import allreduce, timed

TIMES = st.lists(st.floats(1e-9, 1e3), max_size=9).map(tuple)
CLOCKS = st.none() | st.tuples(*[st.floats(1, 1e10)] * 3)
RUNS = [
    run_of(environment, "allreduce")
    for environment in ({"cpu": "A"}, {"cpu": "B", "hosts": ["n"]}, {"cpu": "C", "cpus": 1})
]
PLAIN = st.builds(
    Record,
    collective=st.sampled_from(["allreduce", "broadcast"]),
    algorithm=st.sampled_from(["ring", "library", "auto"]),
    transport=st.sampled_from(["mpi", "shm"]),
    ranks=st.integers(1, 3),
    size=st.sampled_from([0, 1024, 1 << 40]),
    count=st.integers(0, 9),
    dtype=st.just("float"),
    op=st.just("sum"),
    root=st.integers(-1, 1),
    placement=st.sampled_from(["out", "in"]),
    bus_factor=st.sampled_from([0.0, 1.5]),
    schedule=st.sampled_from(["", "abc"]),
    ranks_per_core=st.sampled_from([None, 0.5, 8.0]),
    worksharing=st.booleans(),
    timing=st.sampled_from(["each", "loop"]),
    across=st.just("max"),
    stopped=st.sampled_from(["", "precise", "budget"]),
    skipped=st.sampled_from(["", "too large"]),
    limit_s=st.none() | st.floats(1e-9, 1e3),
    wrong=st.none() | st.integers(0, 9),
    sent_bytes=st.none() | st.integers(0, 1 << 40),
    received_bytes=st.none() | st.integers(0, 1 << 40),
    total_bytes=st.none() | st.integers(0, 1 << 40),
    times_s=TIMES,
    iterations=st.integers(0, 9),
    noise=st.sampled_from([None, Noise(hz=(3e9, 2e9)), Noise(others=(0.1, 0.3)), Noise(hz=(1.0,))]),
    gpus=st.lists(
        st.builds(GpuSample, clock_memory_hz=CLOCKS, energy_per_op_j=st.none() | st.floats(0, 100)),
        max_size=2,
    ).map(tuple),
)
# Every rank has as many times as there are.
RECORDS = st.builds(
    lambda record, ranks: replace(record, per_rank_s=(record.times_s,) * ranks),
    PLAIN,
    st.integers(0, 2),
)
ROWS = st.lists(st.builds(measured, RECORDS, st.sampled_from(RUNS)), min_size=1, max_size=6)


def _shown(rows: Any) -> list[Measurement]:
    """Rows without what says where they were read."""
    return [replace(row, line=0, run=RUNS[0]) for row in rows]


@given(ROWS)
def test_parquet_gives_the_same_rows(rows: list[Measurement]) -> None:
    """Rule: Parquet gives row for row what the JSON lines give."""
    slow = read_jsonl("x", to_jsonl(rows).decode())
    assert not slow.notes
    exported = read_parquet("x", to_parquet(rows))
    assert _shown(exported) == _shown(slow.rows)
    assert [row.run.environment for row in exported] == [row.run.environment for row in rows]


@given(ROWS)
def test_a_row_is_the_same_in_memory_and_in_columns(rows: list[Measurement]) -> None:
    """Rule: figures of one measurement are those that a column of many has."""
    for one, other in zip(rows, as_columns(rows), strict=True):
        columns = {name: getattr(other, name) for name in ("time_s", "low_s", "cv", "p99_s")}
        assert {name: getattr(one, name) for name in columns} == columns
        assert (one.busbw_bytes_per_s, one.clock_core_hz, one.others_share) == (
            other.busbw_bytes_per_s, other.clock_core_hz, other.others_share
        )  # fmt: skip


@given(TIMES.filter(len))
def test_a_row_has_the_statistics_of_its_times(times: tuple[float, ...]) -> None:
    """Rule: median, interval, extremes, p99 and cv are those of the definitions, row by row."""
    row = _measured(times)
    ordered = sorted(times)
    assert row.time_s == pytest.approx(np.median(times))
    assert (row.low_s, row.high_s) == (interval(times) or (None, None))
    assert (row.min_s, row.max_s) == (ordered[0], ordered[-1])
    assert row.p99_s == ordered[-(-len(times) * 99 // 100) - 1]
    assert row.cv == pytest.approx(np.std(times) / np.mean(times), abs=1e-12)


def _measured(
    times: tuple[float, ...], algorithm: str = "ring", wrong: int | None = 0
) -> Measurement:
    one = timed(times, wrong=wrong, limit_s=min(times))
    return replace(allreduce(algorithm, 2, 1024, one).every[0], run=RUNS[0])


@given(st.lists(st.tuples(st.sampled_from("abc"), TIMES.filter(len)), min_size=1, max_size=9))
def test_folding_pools_what_was_measured_again(
    rounds: list[tuple[str, tuple[float, ...]]],
) -> None:
    """Rule: one row a thing, in order of appearance, as if all its iterations were of one row."""
    rows = as_columns([_measured(times, name) for name, times in rounds])
    pooled: dict[str, tuple[float, ...]] = {}
    for name, times in rounds:
        pooled[name] = pooled.get(name, ()) + times
    expected = as_columns([_measured(times, name) for name, times in pooled.items()])
    assert _shown(folded(rows)) == _shown(expected)


def test_unknown_counts_stay_unknown_when_folded() -> None:
    """Rule: wrong is added up where it was checked, and unknown where it never was."""
    for wrongs, total in (((None, None), None), ((None, 2), 2), ((1, 2), 3)):
        rows = folded(as_columns([_measured((1.0,), wrong=wrong) for wrong in wrongs]))
        assert [row.wrong for row in rows] == [total]


def test_rows_of_others_are_not_folded() -> None:
    """Rule: rows that are no columns of ours come back as they are."""
    rows = [_measured((1.0,))] * 2
    assert folded(rows) is rows


@pytest.mark.parametrize("form", [OLDEST - 1, FORMAT + 1, True, "3"])
def test_parquet_of_another_format_is_refused(form: object) -> None:
    """Rule: columns of another format are not guessed at; the message says which are read."""
    table = parquet.read_table(pa.BufferReader(to_parquet([_measured((1.0,))])))
    facts = json.loads(table.schema.metadata[b"busbar"]) | {"format": form}
    file = io.BytesIO()
    parquet.write_table(table.replace_schema_metadata({"busbar": json.dumps(facts)}), file)
    with pytest.raises(ReportError, match=f"Parquet is read from {OLDEST} to {FORMAT}"):
        read_parquet("x", file.getvalue())
