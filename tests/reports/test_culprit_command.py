"""``reports culprit``: times of ranks and matrices together, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from bench.links.measure import Measured, PairOptions, as_topology
from reports.analysis.outliers import outliers
from reports.readers.reading import read
from tests.reports.runs import allreduce, changed, cli, noisy, saved, timed
from tests.reports.slowness import HOP, MIXED, played
from tests.reports.test_failed_runs import HEAD, ROWS
from topology.model.device import Fact
from topology.model.measured import Estimate, RankPlace
from topology.sources import own_json


def _map(path: Path, slow: Callable[[int, int], bool]) -> Path:
    """A map as ``topology measure -o`` saves it, of four ranks on one host."""
    random, cells = np.random.default_rng(0), {}
    for name, usual in (("latency", 1e-6), ("bandwidth", 1e10), ("bandwidth_both", 2e10)):
        cells[name] = {}
        for a in range(4):
            for b in range(4):
                if a != b:
                    worse = 3.0 if name == "latency" else 1 / 3
                    v = usual * (worse if slow(a, b) else 1) * float(1 + 0.02 * random.random())
                    cells[name][a, b] = Estimate(v, 0.99 * v, 1.01 * v)
    measured = Measured(tuple(RankPlace("n0", "", None) for _ in range(4)), False, cells, "MPI")
    path.write_text(own_json.dump(as_topology(measured, PairOptions())))
    return path


def test_a_matrix_says_what_disturbed_it(tmp_path: Path) -> None:
    """Rule: where other programs ran while pairs were measured, one note says so of the file."""
    path = _map(tmp_path / "m.json", lambda a, b: False)
    assert "other programs" not in cli("culprit", "--matrix", path).err
    topology = own_json.parse(path.read_text())
    facts = (*topology.facts, Fact("others_share", 0.4, "measured"))
    path.write_text(own_json.dump(dataclasses.replace(topology, facts=facts)))
    said = cli("culprit", "--matrix", path).err
    assert said.count("matrix: other programs took up to 40 % of all cores") == 1
    assert "measure again while nothing else runs" in said


def _record(path: Path, **delays: Mapping[int, float]) -> Path:
    results = []
    for c, a in MIXED:
        per_rank = played(c, a, 4, **delays)  # type: ignore[arg-type]
        times = tuple(np.max(per_rank, axis=0).tolist())
        sample = timed(times, per_rank_s=per_rank)
        environment = {"hosts": ["n0"], "mapping": {"node": [0] * 4, "cpus": [], "gpu": [""] * 4}}
        one = allreduce(a, 4, 1024, sample, collective=c, transport="shm", environment=environment)
        results.append(changed(one, root=0))
    saved(path, results)
    return path


def test_both_kinds_of_evidence_meet(tmp_path: Path) -> None:
    """Rule: what times and matrix say of one rank stands under one name, and --fail ends with 1."""
    run_ = _record(tmp_path / "run.jsonl", slow={2: 30 * HOP})
    matrix = _map(tmp_path / "m.json", lambda a, b: 2 in (a, b))
    out = cli("culprit", run_, "--matrix", matrix).out
    assert out.count("CULPRIT") == 1 and "CULPRIT rank 2 (node n0)" in out
    for told in ("by ranks' times", "matrix of latency", "matrix of bandwidth", "6 of 6 pairs"[5:]):
        assert told in " ".join(out.split())
    cli("culprit", run_, "--fail", status=1)
    cli("culprit", "--matrix", matrix, "--fail", status=1)


def test_a_run_without_times_of_ranks_names_both_runs_at_once(tmp_path: Path) -> None:
    """Rule: an ordinary record is answered with a command line for both kinds of times.

    It has the record's options, and its hosts if there are several.
    """
    file = tmp_path / "run.jsonl"
    own, end = "-b 1M -e 4M -A ring", "busbar reports culprit run.jsonl sr.jsonl\n"
    for options, hosts, where in (
        (own, ["a"], ""),
        (f"--host a,b {own}", ["a", "b"], " --host a,b"),
        (f"--hostfile f {own}", ["a", "$(b)"], " --host 'a,$(b)'"),
    ):
        environment = {"options": options, "hosts": hosts}
        saved(file, [changed(r, ranks=4, environment=environment) for r in noisy(1)])
        assert cli("culprit", file, status=2).err.endswith(
            "no times of single ranks: give --matrix FILE, or measure:"
            f" busbar allreduce --ranks 4 {own}{where} --per-rank --out run.jsonl &&"
            f" busbar sendrecv --ranks 4{where} --per-rank --out sr.jsonl && {end}"
        )
    file.write_text("# nThread 1\n" + HEAD + "".join(ROWS))
    said = cli("culprit", file, status=2).err
    assert "measure: busbar allreduce --ranks P --per-rank --out run.jsonl && busbar sendr" in said


def test_a_campaign_has_a_command_of_its_own(tmp_path: Path) -> None:
    """Rule: a run directory of qualify has no times of ranks; its verdicts have a command."""
    saved(tmp_path / "records.jsonl", noisy(1))
    assert "--per-rank" in cli("culprit", tmp_path, status=2).err
    (tmp_path / "verdicts.json").touch()
    said = cli("culprit", tmp_path, status=2).err
    assert said.endswith(f"its verdicts: busbar qualify --resume {tmp_path}\n")


def test_a_failed_run_fails_the_gate(tmp_path: Path) -> None:
    """Rule: with --fail wrong elements end with status 1 and a line, also without a slow host."""
    even = _record(tmp_path / "even.jsonl")
    cli("culprit", even, "--fail")
    wrong = [replace(one, wrong=3) for one in read(even).rows]
    found = cli("culprit", saved(tmp_path / "wrong.jsonl", wrong), "--fail", status=1)
    assert "FAILED" in found.out and "wrong elements in" in found.out


def test_a_throttled_pair_in_a_saved_matrix(tmp_path: Path) -> None:
    """Rule: the link is named by its ends, and healthy runs and matrices name nobody."""
    matrix = _map(tmp_path / "m.json", lambda a, b: {a, b} == {0, 3})
    assert "CULPRIT link rank 0 to rank 3 (node n0)" in cli("culprit", "--matrix", matrix).out
    even, run_ = _map(tmp_path / "e.json", lambda a, b: False), _record(tmp_path / "run.jsonl")
    cli("culprit", run_, "--matrix", even, "--fail")


def test_rows_in_which_everybody_waits_cannot_tell(tmp_path: Path) -> None:
    """Rule: of all-reduces alone, or of too few ranks, no line says that no rank differs.

    The advised send-receive runs on the same hosts; of emulated ones in the same cluster.
    """
    per_rank, two = played("allreduce", "ring", 4), played("allreduce", "ring", 2)
    sample = timed(tuple(np.max(per_rank, axis=0).tolist()), per_rank_s=per_rank)
    emulated = {"HYDRA_LAUNCHER_EXEC": "/run/enter"}
    for variables, told in (
        ({}, "file of busbar sendrecv --ranks 4 --host a,b --per-rank --out sr.jsonl"),
        (emulated, "file of busbar cluster OPTIONS -- busbar sendrecv --ranks 4 --per-rank"),
    ):
        environment = {"hosts": ["a", "b"], "variables": variables}
        row = allreduce("ring", 4, 1024, sample, environment=environment)
        assert told in cli("culprit", saved(tmp_path / "hosts.jsonl", [row])).err
    for name, times in (("all", per_rank), ("few", two)):
        sample = timed(tuple(np.max(times, axis=0).tolist()), per_rank_s=times)
        file = saved(tmp_path / f"{name}.jsonl", [allreduce("ring", len(times), 1024, sample)])
        assert cli("culprit", file).out.startswith("cannot tell")
    assert "nobody stands out" in cli("culprit", _record(tmp_path / "mixed.jsonl")).out


def test_what_cannot_be_judged_is_refused(tmp_path: Path) -> None:
    """Rule: no times of ranks, no matrix, or no such file: one line, status 2."""
    bare = saved(tmp_path / "bare.jsonl", [allreduce("ring", 4, 8, [1e-5] * 9)])
    empty = tmp_path / "t.json"
    empty.write_text(json.dumps({"busbar_topology": 1, "sources": [], "facts": [], "devices": [],
                                 "links": [], "pairs": [], "gaps": []}))  # fmt: skip
    for argv in ([str(bare)], ["--matrix", str(empty)], [str(bare), "--margin", "5"], []):
        captured = cli("culprit", *argv, status=2)
        assert captured.out == "" and len(captured.err.splitlines()) == 1


def test_a_failed_expectation_says_who_it_was(tmp_path: Path) -> None:
    """Rule: below a node's failed rows stands who was slow there, where the ranks' times tell."""
    run_ = _record(tmp_path / "run.jsonl", slow={1: 30 * HOP})
    out = " ".join(cli("show", run_, "--expect", "time < 1 us", status=1).out.split())
    assert "FAILED on n0:" in out and "slow there: rank 1 (node n0): by ranks' times" in out


def _logs(
    folder: Path,
    ratios: Sequence[float],
    noise: float = 0.01,
    slow: Callable[[int, str], bool] = lambda size, placement: size >= 65536,
) -> list[Path]:
    """A log per host, whose rows that are ``slow`` take ``ratios`` times as long."""
    random, files = np.random.default_rng(1), []
    for n, ratio in enumerate(ratios):
        rows = []
        for size in (1024, 4096, 16384, 65536, 2**20, 2**24):
            placements = []
            for placement in ("out", "in"):
                seconds = (2e-5 + size / 1e10) * (1 + noise * random.standard_normal())
                placements.append(timed([seconds * (ratio if slow(size, placement) else 1)] * 6))
            environment = {"hosts": [f"n{n}"]}
            rows.append(changed(allreduce("ring", 8, size, *placements, environment=environment)))
        files.append(saved(folder / f"n{n}.jsonl", rows))
    return files


def test_a_log_that_deviates_from_its_like(tmp_path: Path) -> None:
    """Rule: the slow host's file is named first, with its sizes; a faster one ends with 0."""
    files = _logs(tmp_path, [1, 1, 1.4, 1, 1, 1, 1, 1])
    out = cli("outliers", *files, status=1).out
    first = out.splitlines()[0]
    assert re.search(r"n2\.jsonl \(n2\): slower than the others, \+(3|4)\d\..%", first), first
    assert cli("outliers", tmp_path, status=1).out == out, "a folder stands for its files"
    assert "from 64K" in out and "below 64K" not in out and "1 of 8 files" in out
    document = json.loads(cli("outliers", *files, "--format", "json", status=1).out)
    assert len(document["deviations"]) == 2  # a placement each, and the largest size not again
    for one in document["deviations"]:
        assert one["file"].endswith("n2.jsonl (n2)") and 1.3 < one["ratio"] < 1.5
    assert "1 of 8 files" in cli("outliers", *_logs(tmp_path, [0.6, *[1] * 7])).out


def test_the_largest_size_is_that_of_the_same_devices(tmp_path: Path) -> None:
    """Rule: hosts with other devices, measured up to a larger size, do not hide a slow one."""
    files = _logs(tmp_path, [1, 1, 1.4, 1, 1, 1, 1], slow=lambda size, _: size == 2**24)
    every = [list(read(file).rows) for file in files]
    for rows in every[:]:
        others = [
            replace(row, run=dataclasses.replace(row.run, devices=("other",))) for row in rows
        ]
        larger = [replace(row, size=2**26, count=2**24) for row in others if row.size == 2**24]
        every.append([row for row in others if row.size != 2**24] + larger)
    result = outliers(every, 0.1)
    assert sorted(one.file for one in result.deviations) == [2, 9]
    assert result.alone == (2**24, 2**26)


def test_a_log_that_deviates_at_its_largest_size_alone(tmp_path: Path) -> None:
    """Rule: a host slow at the largest size only is named there; one other size accuses nobody.

    Nor does one placement of the largest size. The last line says which difference may not show.
    """
    sizes: dict[str, Callable[[int, str], bool]] = {
        "largest": lambda size, _: size == 2**24,
        "small": lambda size, _: size == 1024,
        "middle": lambda size, _: size == 2**20,
        "in place": lambda size, placement: (size, placement) == (2**24, "in"),
    }
    for name, slow in sizes.items():
        files, found = _logs(tmp_path, [1, 1, 1.4, 1, 1, 1, 1], slow=slow), int(name == "largest")
        last = cli("outliers", *files, status=found).out.splitlines()[-1]
        assert last.startswith(f"{found or 'none'} of 7 files") and "(16M is judged alone)" in last
        document = json.loads(cli("outliers", *files, "--format", "json", status=found).out)
        places = [(one["file"][-13:], one["rows_of"]) for one in document["deviations"]]
        assert places == [("n2.jsonl (n2)", "allreduce, float, sum, 8 ranks, ring, at 16M")] * found


def test_logs_that_are_alike_or_too_few(tmp_path: Path) -> None:
    """Rule: noise names no file; what may not show is said, and three files cannot tell."""
    files = _logs(tmp_path, [1.0] * 8, noise=0.05)
    assert cli("outliers", *files).out.startswith("none of 8 files")
    assert "cannot tell" in cli("outliers", *files[:3], status=2).err
    assert "may not show" in cli("outliers", *files[:4]).out
    assert "at least 1" in cli("outliers", *files, "--ranks", "0", status=2).err
    apart = _logs(tmp_path, [1, 1e4, 1e8, 1e12])
    assert "no difference would show" in cli("outliers", *apart).out
    assert json.loads(cli("outliers", *apart, "--format", "json").out)["least_ratio_seen"] is None


def test_a_log_that_is_no_log_is_an_outlier(tmp_path: Path) -> None:
    """Rule: a host whose log cannot be read, lacks rows or has wrong elements fails the others."""
    files = _logs(tmp_path, [1.0] * 6)
    for spoil, said in (("", "no.jsonl"), (files[0].read_text().rsplit("\n", 3)[0], "lacks 2 row")):
        (tmp_path / "no.jsonl").write_text(spoil)
        out = cli("outliers", *files, tmp_path / "no.jsonl", status=1).out
        assert any(line.startswith("FAILED") and said in line for line in out.splitlines())
        assert "1 FAILED" in out.splitlines()[-1]
