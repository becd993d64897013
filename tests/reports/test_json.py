"""JSON of nccl-tests, rccl-tests and ours: what it says, also when it is not whole."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import ReportError
from reports.analysis.stragglers import culprits
from reports.exports.formats import nccl_json
from reports.readers.codec import to_json, to_jsonl
from reports.readers.reading import parse, read
from reports.records.measurement import Measurement
from tests.reports.runs import allreduce, timed


def _document(devices: int = 4, **more: Any) -> dict[str, Any]:
    listed = [
        {"rank": n, "group": 0, "hostname": f"n{n // 2}", "device_hex": f"0000:0{n}:00"}
        for n in range(devices)
    ]

    def half(size: int) -> dict[str, float]:
        rate = size / 20e-6 / 1e9
        return {"time": 20.0, "alg_bw": rate, "bus_bw": 1.5 * rate, "nwrong": 0.0}

    words = {"type": "int8", "redop": "sum", "root": "    -1", "experiment_name": ""}
    rows = [
        {
            "size": 1 << k,
            "count": 1 << k,
            **words,
            "out_of_place": half(1 << k),
            "in_place": half(1 << k),
        }
        for k in range(10, 14)
    ]
    known = {
        "version": 4,
        "start_time": "2026-05-01 10:00:00",
        "args": ["./all_reduce_perf"],
        "env": ["SECRET=1", "NCCL_DEBUG=INFO"],
        "nccl_version": 22809,
        "config": {"nthreads": 1, "ngpus": 1, "iterations": 20, "devices": listed},
    }
    return {**known, "results": rows, "out_of_bounds": {"count": 0, "okay": "true"}, **more}


def _ours(n: int = 3) -> list[Measurement]:
    environment = {
        "hosts": ["n0", "n1"],
        "library": "MPICH 5",
        "cpu": "EPYC",
        "started": "2026",
        "mapping": {"node": [0, 0, 1, 1], "cpus": ["0"] * 4, "gpu": [""] * 4},
    }
    own = tuple((1e-5, 2e-5, 3e-5) for _ in range(4))
    one = timed((1e-5, 2e-5, 3e-5), per_rank_s=own)
    return [
        allreduce("ring", 4, 1 << k, one, environment=environment).every[0]
        for k in range(10, 10 + n)
    ]


RCCL = [
    {"numCycle": 0, "name": "AllReduce", "ranks": 8, "size": 8 << k, "type": "float",
    "redop": "sum",
     "inPlace": place, "time": 9.5, "algBw": 0.0, "busBw": 0.0, "wrong": "0"}
    for k in range(4) for place in (0, 1)
]  # fmt: skip
WHOLE = {
    "nccl": (json.dumps(_document()), 2),
    "nccl, indented": (json.dumps(_document(), indent=1), 2),
    "rccl": (json.dumps(RCCL), 1),
    "ours": (to_json(_ours()).decode(), 1),
    "ours as nccl": (nccl_json(_ours()).decode(), 1),
}


@given(st.sampled_from(sorted(WHOLE)), st.integers(0, 1 << 20))
def test_of_a_cut_document_every_whole_row_is_kept(name: str, at: int) -> None:
    """Rule: wherever it ends, whole rows are rows, and the end is said by line and byte."""
    text, each = WHOLE[name]
    cut = text[: at % len(text)]
    found, everything = parse(cut), parse(text)
    complete = sum(end <= len(cut) for _, end in _rows_of(text))
    assert len(found.rows) == complete * each
    figures = [(r.size, r.placement, r.time_s, r.times_s) for r in found.rows]
    assert (
        figures
        == [(r.size, r.placement, r.time_s, r.times_s) for r in everything.rows][: len(figures)]
    )
    assert {r.ranks for r in found.rows} <= {r.ranks for r in everything.rows}
    if cut.strip() and cut.rstrip() != text.rstrip():
        (note,) = found.notes
        assert note.line in (cut.count("\n"), cut.count("\n") + 1)
        assert f"ends early, at byte {len(cut.encode())}" in note.text


def _rows_of(text: str) -> list[tuple[int, int]]:
    """The places where the rows of a whole document begin and end."""
    decoder, found = json.JSONDecoder(), []
    for match in re.finditer(r'\{\s*"(?:format|size|numCycle)"', text):
        row, end = decoder.raw_decode(text, match.start())
        if "environment" not in row:
            found.append((match.start(), end))
    return found


@given(st.sampled_from(sorted(WHOLE)), st.integers(0, 1 << 20))
def test_damage_costs_the_row_that_it_is_in(name: str, at: int) -> None:
    """Rule: one bad byte in a row loses that row at the most, and its line is said."""
    text, each = WHOLE[name]
    rows = _rows_of(text)
    start, end = rows[at % len(rows)]
    place = start + 2 + at % (end - start - 2)
    found = parse(text[:place] + "\x00" + text[place + 1 :])
    assert len(found.rows) == (len(rows) - 1) * each
    assert any(n.line and "damaged at byte" in n.text for n in found.notes)


def test_what_stands_before_the_results_may_be_damaged() -> None:
    """Rule: rows are kept without what is lost: the program, and with it the collective."""
    found = parse(WHOLE["nccl"][0].replace('"SECRET=1"', '"SECRET=1'))
    assert len(found.rows) == 8 and {r.ranks for r in found.rows} == {None}
    assert any("program and ranks are lost" in n.text for n in found.notes)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the file is empty"), ("\n \n", "the file is empty"),
        (WHOLE["nccl"][0][:150], r"the JSON ends early, at byte 150, before any result \(line 1\)"),
        ('{"hello": 1}', "a JSON document of a shape that is not known"), ('{"a": tru',
        "ends early"),
        ('{"a": trum}', "damaged at byte 6"), ('{"a":' * 100_000, "too deep"),
    ],
)  # fmt: skip
def test_json_without_a_row_says_what_is_the_matter(tmp_path: Path, text: str, why: str) -> None:
    """Rule: one line that says what is wrong and where."""
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(ReportError, match=why):
        read(path)


def test_several_documents_in_one_file() -> None:
    """Rule: `cat`ed runs are runs of their own, numbered; an object a line is rccl-tests' too."""
    found = parse(WHOLE["nccl"][0] + "\n" + WHOLE["nccl"][0])
    assert len(found.rows) == 16 and [r.run.number for r in found.rows] == [0] * 8 + [1] * 8
    found = parse("\n".join(map(json.dumps, RCCL)))
    assert len(found.rows) == 8 and not found.notes
    found = parse(WHOLE["ours"][0] + WHOLE["nccl"][0][:-300])
    assert len(found.rows) == 3 + 6 and len(found.notes) == 1


def test_a_damaged_first_line_costs_that_line() -> None:
    """Rule: records are told by any of the first lines."""
    text = to_jsonl(_ours()).decode()
    found = parse("#" + text[1:])
    assert len(found.rows) == 3 and [n.line for n in found.notes] == [1, 2]


def test_a_tag_in_brackets_is_no_json() -> None:
    """Rule: what mpirun puts before lines looks like a list and is none."""
    assert not parse("[1,0]<stdout>:hello\n[1,1]<stdout>:hello\n").notes


# -- what nccl-tests say


def test_where_and_when_nccl_tests_ran() -> None:
    """Rule: nodes, GPUs, start, version, NCCL's variables are known, no more of the environment."""
    row = parse(json.dumps(_document())).rows[0]
    assert (row.ranks, row.run.library, row.run.hosts) == (4, "NCCL 2.28.9", ("n0", "n1"))
    environment = row.run.environment
    assert environment["started"] == "2026-05-01T10:00:00"
    assert environment["mapping"]["node"] == [0, 0, 1, 1]
    assert environment["variables"] == {"NCCL_DEBUG": "INFO"} and "SECRET" not in repr(row)


def test_a_count_of_wrong_values_that_no_result_shows_fails_the_run() -> None:
    """Rule: values out of bounds where every result looks right are a note that fails the run."""
    (note,) = parse(json.dumps(_document(out_of_bounds={"count": 5, "okay": "false"}))).notes
    assert note.broken and "the log counts 5 values out of bounds" in note.text


@pytest.mark.parametrize(
    ("code", "text"),
    [(22809, "2.28.9"), (23007, "2.30.7"), (20903, "2.9.3"), (2804, "2.8.4"), (2708, "2.7.8")],
)
def test_versions_of_nccl(code: int, text: str) -> None:
    """Rule: NCCL's number is its version, by either of its two schemes."""
    assert parse(json.dumps(_document(nccl_version=code))).rows[0].run.library == f"NCCL {text}"
    head = f"# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library={code}\n"
    table = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    table += " 1024 256 float sum -1 10.00 0.10 0.15 0 10.00 0.10 0.15 0\n"
    assert parse(head + table).rows[0].run.library == f"NCCL {text}"


def test_groups_have_communicators_of_their_own() -> None:
    """Rule: a world that nccl-tests split in two halves has half of the devices as ranks."""
    document = _document()
    for n, device in enumerate(document["config"]["devices"]):
        device["group"] = n % 2
    for one in document["results"]:
        for half in (one["out_of_place"], one["in_place"]):
            half["bus_bw"] = half["alg_bw"]
    assert parse(json.dumps(document)).rows[0].ranks == 2


def _per_iteration(skipped: int) -> dict[str, Any]:
    """Rank 2 comes late: the others wait for it."""
    own = [[30.0 + i % 3 + n / 9 for i in range(12)] for n in range(4)]
    own[2] = [10.0 + i % 3 for i in range(12)]
    longest = [max(times) for times in zip(*own, strict=True)]
    return {"skipped_iterations": skipped, "times_us": longest, "per_process_max_times_us": own}


def test_times_of_every_process_are_those_of_ranks() -> None:
    """Rule: with a GPU a process they tell who is late, by node and GPU.

    Skipped ones are left out.
    """
    document = _document()
    for row in document["results"]:
        row["out_of_place_per_iter"] = _per_iteration(2)
    out = [r for r in parse(json.dumps(document)).rows if r.placement == "out"]
    assert {len(r.times_s) for r in out} == {10}
    assert [len(times) for times in out[0].per_rank_s] == [10] * 4
    suspects = culprits(out).suspects
    assert [s.name for s in suspects] == ["rank 2 (node n1, GPU 0000:02:00)"]
    document["config"]["ngpus"] = 2  # two ranks a process: whose times they are is not known
    assert not parse(json.dumps(document)).rows[0].per_rank_s


def test_what_we_write_in_its_shape_says_as_much() -> None:
    """Rule: our -J has ranks, nodes, library, raw times and every rank's, as our records have."""
    row, *others = parse(nccl_json(_ours()).decode()).rows
    assert [r.size for r in (row, *others)] == [1 << 10, 1 << 11, 1 << 12]
    assert (row.ranks, row.run.hosts, row.run.library) == (4, ("n0", "n1"), "MPICH 5")
    assert row.iterations == 3 and len(row.per_rank_s) == 4
    assert row.per_rank_s[0] == row.times_s == pytest.approx((1e-5, 2e-5, 3e-5))


def test_ours_says_what_its_times_are_of_the_iterations() -> None:
    """Rule: a time in our -J is the median or the mean, as the run printed, and is read as that."""
    made = allreduce("ring", 4, 1 << 10, (1e-5, 2e-5, 6e-5)).every
    for statistic, time_s in (("median", 2e-5), ("mean", 3e-5)):
        (row,) = parse(nccl_json(made, statistic).decode()).rows
        assert (row.statistic, row.time_s) == (statistic, pytest.approx(time_s))
