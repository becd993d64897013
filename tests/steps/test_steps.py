"""Measured steps: right averages, real overlap, records, traces, refusals."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.launch.control_socket import step as steps
from bench.run.recorder import closing_sentences
from bench.run.tuning_file import Range, Tunable, dump
from bench.steps import buckets, session
from bench.steps import main as steps_main
from bench.steps.compute import Exponential
from bench.steps.exchange import Exchange
from bench.steps.options import compute
from bench.steps.server.protocol import update_protocol
from bench.steps.trace import MESSAGES, TraceSpan, chrome
from bench.steps.training.codecs import codec
from bench.steps.training.problem import rule, shape
from bench.timing.measure import FunctionAction
from busbar.errors import Unsupported
from collectives.execution.plan import Plan
from reports.analysis.steps import figures
from reports.readers.codec import measurements, with_steps
from reports.readers.reading import read
from reports.records.cores import Load
from reports.records.measurement import Measurement
from tests.bench.tuning.tunings import rules
from tests.command import reports_main
from tests.conftest import Mpi, Run, called, thorough
from tests.reports.runs import step_of
from tests.together import together

PARSERS: dict[str, Callable[[str], object]] = {
    "problem": lambda text: shape(text, 16),
    "compress": codec,
    "rule": lambda text: rule(text.split()[0], float([*text.split(), "0.1"][1])),
    "protocol": lambda text: update_protocol(text, 4),
    "fusion": buckets.parse_fusion,
    "cycle": lambda text: buckets.parse_fusion(text, 0.005),
    "compute": compute,
    "straggler": lambda text: compute("fixed:1", None, 0, [text]),
}


@pytest.mark.parametrize(
    ("what", "text", "said"),
    [
        ("problem", "resnet", "no problem 'resnet'; there are: softmax, network"),
        ("problem", "softmax:hidden=3", "problem softmax has no parameter 'hidden'"),
        ("problem", "network:hidden=0", "problem network: a size is 0"),
        ("problem", "network:samples=-1", "problem network: a size is -1"),
        ("problem", "network:batch=8", "problem network has no parameter 'batch'"),
        ("problem", "network:hidden=2.5", "hidden must be a whole number, not 2.5"),
        ("problem", "softmax:samples=15", "a batch of 16 from 15 samples"),
        ("problem", "softmax:samples=100000000", "at most 16777216"),
        ("problem", "network:hidden", "is not one key=value"),
        ("compress", "zip", "no compression 'zip'; there are: none, fp16, bf16, int8, 1bit, topk"),
        ("compress", "topk:fraction=0", "fraction 0 is not in (0, 1]"),
        ("compress", "topk:fraction=1.5", "fraction 1.5 is not in (0, 1]"),
        ("compress", "topk:k=5", "compression topk has no parameter 'k'; its parameters: fraction"),
        ("compress", "int8:fraction=0.1", "compression int8 has no parameter 'fraction'"),
        ("rule", "momentum", "no rule 'momentum'; there are: fixed, staleness, distance, adagrad"),
        ("rule", "fixed 0", "--rate 0: a rate is a number above 0"),
        ("rule", "fixed nan", "--rate nan"),
        ("rule", "fixed inf", "--rate inf"),
        ("rule", "distance:c=0", "c must be above 0, not 0"),
        ("rule", "fixed:c=1", "rule fixed has no parameter 'c'; its parameters: none"),
        ("protocol", "k-sync:0", "K is a number from 1 to 4"),
        ("protocol", "k-async:5", "K is a number from 1 to 4"),
        ("protocol", "k-async:-1", "K is a number from 1 to 4"),
        ("protocol", "k-async:²", "K is a number from 1 to 4"),
        ("protocol", "k-async:", "K is a number from 1 to 4"),
        ("protocol", "k-async", "k-async needs its K, as k-async:2"),
        ("protocol", "async:2", "there is k-async:K"),
        ("protocol", "batch-sync", "no protocol"),
        ("protocol", "batch-sync:2", "no protocol"),
        ("protocol", "k-", "no protocol"),
        ("protocol", "", "no protocol ''; there are: sync, "),
        ("fusion", "ddp:1M", "ddp:FIRST,REST"),
        ("fusion", "0", "at least 1 byte"),
        ("fusion", "many", "no size"),
        ("cycle", "ddp", "--cycle goes with"),
        ("cycle", "none", "--cycle goes with"),
        *(("compute", text, "--compute") for text in ("exp:-1", "exp:nan", "exp:1,", "fixed:")),
        *(("compute", text, "--compute") for text in ("fixed:1e99", "often", "model")),
        *(("straggler", text, "RANK:FACTOR") for text in ("1", "1:0", "x:2", "1:-2", "1:inf")),
    ],
)
def test_what_cannot_be_is_one_line(what: str, text: str, said: str) -> None:
    """Rule: a wrong value is refused in one line with the value and what is possible."""
    with pytest.raises(Unsupported) as caught:
        PARSERS[what](text)
    assert said in str(caught.value) and "\n" not in str(caught.value)


MATRIX = "\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n"
TOY = ("--model", "toy", "--scale", "64", "-n", "2", "-w", "1")


def _records(*argv: str) -> list[Measurement]:
    """The records of a run on threads."""
    status, out, err = called(steps, *argv, "--json")
    assert status == 0, (out, err)
    return measurements(out)


@pytest.mark.parametrize("ranks", [1, 3, *thorough(2, 4)])
def test_every_update_averages_every_gradient(ranks: int) -> None:
    """Rule: with any fusion and overlap all ranks end with the average, and bytes are counted.

    A ring moves 2 (P-1) N over all links, a server 2 (P-1) N, a reduce and a broadcast as much.
    """
    updates = "ring,ps,sharded_ps,tree,reduce+broadcast,reduce+broadcast:flat+flat"
    ways: list[tuple[str, ...]] = [
        (),
        ("--fusion", "none", "--overlap", "off"),
        ("--fusion", "4K", "--cycle", "1ms", "--compute", "fixed:2"),
        ("--fusion", "4K", "--cycle", "1ms", "--overlap", "off", "--precision", "fp16"),
        ("--fusion", "all", "--precision", "bf16"),
    ]
    for way in ways:
        found = _records("--threads", str(ranks), "--update", updates, *TOY, *way)
        assert len(found) == len(updates.split(","))
        for one in found:
            assert not one.skipped, one
            assert one.wrong == 0 and len(one.times_s) == 2, (way, one)
            assert one.total_bytes == 2 * (ranks - 1) * (one.size or 0), (way, one.algorithm)


def test_a_wrong_exchange_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: gradients that are not the average are counted and reported; the status is 1."""

    def made(self: Exchange, gradients: object, span: tuple[int, int]) -> FunctionAction:
        self._messages[span] = 0
        return FunctionAction(lambda: None)

    monkeypatch.setattr(Exchange, "_make_plan", made)
    status, out, _ = called(steps, "--threads", "2", "--update", "ring", *TOY)
    assert status == 1 and "10240 gradients are not the ranks' average" not in out
    assert "gradients are not the ranks' average" in out


def test_an_average_that_was_there_before_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: the checked exchange starts from each rank's own gradients, not from their average."""
    real, ran = Plan.__call__, Counter[int]()

    def once(self: Plan) -> None:
        ran[id(self)] += 1
        if ran[id(self)] == 1:
            real(self)

    monkeypatch.setattr(Plan, "__call__", once)
    status, out, _ = called(steps, "--threads", "2", "--update", "ring", *TOY)
    assert status == 1 and "gradients are not the ranks' average" in out


def test_plans_of_all_buckets_are_kept(tmp_path: Path) -> None:
    """Rule: no plan is made during the timed steps, however many buckets there are."""
    path = tmp_path / "many.csv"
    path.write_text("name,shape\n" + "".join(f"t{n},2\n" for n in range(130)))
    argv = ("--threads", "2", "--update", "ring", "--model", str(path), "--fusion", "none")
    (one,) = _records(*argv, "-n", "1")
    assert (step_of(one).buckets, step_of(one).plans_made_late) == (130, 0)


def test_short_steps_are_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a loss curve has the time of every update, and each step its compute.

    Steps may be so short that other measurements would keep only the last of each batch.
    """
    monkeypatch.setattr("bench.timing.measure._KEPT", 2)
    way = ("--threads", "1", "--update", "ring", "--budget", "0.05")
    (one,) = _records(*way, "--problem", "softmax:samples=64:features=4", "--batch", "4")
    curve = step_of(one).curve
    assert curve is not None and len(one.times_s) >= curve.updates[-1] > 6
    assert curve.seconds[-1] <= sum(one.times_s) + 1e-9
    drawn = set[int]()
    draw = Exponential.draw

    def note(self: Exponential, rank: int, step: int) -> float:
        drawn.add(step)
        return draw(self, rank, step)

    monkeypatch.setattr(Exponential, "draw", note)
    (one,) = _records(*way, "--model", "toy", "--scale", "64", "--compute", "exp:1")
    assert max(drawn) + 1 == len(one.times_s) == len(step_of(one).compute_s)


def _events(path: Path, lane: str, rank: int = 0) -> list[dict[str, Any]]:
    document = json.loads(path.read_text())
    found = [e for e in document["traceEvents"] if e["ph"] == "X" and e["pid"] == rank]
    return [e for e in found if e["cat"] == lane]


def test_exchange_goes_on_while_ranks_compute(tmp_path: Path) -> None:
    """Rule: only with overlap are buckets exchanged before the backward pass has ended."""
    for overlap in ("on", "off"):
        path = tmp_path / f"{overlap}.json"
        argv = ("--fusion", "none", "--compute", "fixed:100", "--overlap", overlap)
        _records("--threads", "2", "--update", "ring", *TOY, *argv, "--trace", str(path))
        early = 0
        for step in (-1, 0, 1):
            compute = [e for e in _events(path, "compute") if e["args"]["step"] == step]
            exchange = [e for e in _events(path, "exchange") if e["args"]["step"] == step]
            assert len(exchange) == 10
            end = max(e["ts"] + e["dur"] for e in compute)
            early += sum(e["ts"] + e["dur"] < end for e in exchange)
        assert early if overlap == "on" else not early


@pytest.mark.parametrize(
    "way",
    [
        ("ring", "--fusion", "none"),
        ("ring", "--compress", "fp16"),
        ("sharded_ps", "--compress", "int8", "--overlap", "off"),
        ("tree", "--fusion", "4K", "--cycle", "1ms"),
    ],
)
def test_a_trace_has_every_message(tmp_path: Path, way: tuple[str, ...]) -> None:
    """Rule: a trace has each message of each exchange, within it, and none is counted twice."""
    path = tmp_path / "trace.json"
    argv = ("--compute", "fixed:2", "--trace", str(path), "--update", *way)
    (one,) = _records("--threads", "2", *TOY, *argv)
    assert not one.wrong
    sent, messages = 0, 0
    for rank in (0, 1):
        told = _events(path, MESSAGES, rank)
        assert {e["name"] for e in told} <= {f"to {1 - rank}", f"from {1 - rank}"}
        exchanges = [e for e in _events(path, "exchange", rank) if e["name"] != "agree"]
        for e in told:
            assert any(
                x["ts"] - 0.01 <= e["ts"] and e["ts"] + e["dur"] <= x["ts"] + x["dur"] + 0.01
                for x in exchanges
            )
        to = [e for e in told if e["name"].startswith("to") and e["args"]["step"] >= 0]
        messages += len(to)
        sent += sum(e["args"]["bytes"] for e in to)
    if "--cycle" not in way:  # else buckets differ from step to step
        assert (messages / 2, sent / 2) == (step_of(one).messages, one.total_bytes)


def test_a_trace_has_a_process_a_rank_and_no_line_with_two_things_at_once() -> None:
    """Rule: spans that overlap have separate lines, as viewers show those of a line as nested."""
    spans = [
        TraceSpan("a", "fusion", 10.0, 3.0, {}),
        TraceSpan("b", "fusion", 11.0, 4.0, {"bytes": 7}),
        TraceSpan("c", "fusion", 13.0, 1.0, {}),
        TraceSpan("d", "compute", 9.0, 9.0, {}),
    ]
    document = json.loads(chrome({0: (5.0, spans), 1: (105.0, spans[:1])}, "title"))
    events = document["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(names.values()) == {"compute", "fusion", "fusion 2"}
    lines: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in events:
        if e["ph"] == "X":
            lines.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for ends in lines.values():
        ordered = sorted(ends)
        assert all(a[1] <= b[0] for a, b in pairwise(ordered))
    # The second rank's clock is 100 s ahead: its span of 10 by that clock began 94 s before.
    assert min(start for ends in lines.values() for start, _ in ends) == 0
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        "rank 0",
        "rank 1",
    }


def test_records_are_read_by_reports(tmp_path: Path) -> None:
    """Rule: a step's record is read back unchanged, and as a row."""
    path = tmp_path / "steps.jsonl"
    found = _records("--threads", "2", "--update", "ring", *TOY, "--out", str(path))
    (back,) = measurements(path.read_text())
    assert back == found[0]
    assert step_of(back).fusion == "ddp" and step_of(back).kind == "synchronous"
    (row,) = read(path).rows
    assert (row.collective, row.algorithm, row.ranks) == ("step:toy/64", "ring/ddp", 2)
    assert row.times_s == back.times_s


def test_rows_are_named_by_all_that_their_exchange_differs_in(tmp_path: Path) -> None:
    """Rule: a row's name has its fusion, a late exchange and the compression, in table and record.

    So ``reports compare`` joins no rows of different compression, and says what differs.
    """
    files = {code: tmp_path / f"{code}.jsonl" for code in ("none", "int8")}
    for code, path in files.items():
        argv = ("--update", "ps,sync", "--overlap", "off", "--compress", code, "--out", str(path))
        status, out, err = called(steps, "--threads", "2", *TOY, *argv)
        assert status == 0, err
        end = "" if code == "none" else f"/{code}"
        names = [f"ps/ddp/after{end}", f"sync{end}"]
        assert [row.algorithm for row in read(path).rows] == names
        assert [line.split()[0] for line in out.splitlines() if re.match("  [ps]", line)] == names
    status, _, err = called(reports_main, "compare", str(files["none"]), "--", str(files["int8"]))
    assert (
        status == 2
        and "(algorithm: ps/ddp/after, sync against ps/ddp/after/int8, sync/int8)" in err
    )


def test_overlap_and_compression_take_several_values() -> None:
    """Rule: ``--overlap on,off`` and ``--compress`` with several names measure a row of each, of a
    server one of each compression; the run says what overlap buys, and each name is checked.
    """  # noqa: D205
    argv = ("--threads", "2", *TOY, "--overlap", "on,off", "--update")
    status, out, err = called(steps, *argv, "ring", "--compute", "fixed:20")
    assert status == 0, err
    assert re.search(r"# answer: (cannot tell whether )?overlap makes a step of ring/ddp ", out)
    rows = [line.split()[0] for line in out.splitlines() if line.startswith("  ring")]
    assert rows == ["ring/ddp", "ring/ddp/after"]
    found = _records(*argv, "ps,sync", "--compress", "none,int8")
    assert [row.algorithm for row in found] == [
        "ps/ddp", "ps/ddp/after", "ps/ddp/int8", "ps/ddp/after/int8", "sync", "sync/int8",
    ]  # fmt: skip
    for words, said in (
        (("ring", "--compress", "none,int8"), "ring with --compress int8: it adds"),
        (("ring", "--compress", "none,zip"), "no compression 'zip'"),
        (("sync",), "leave --overlap on,off out"),
        (("ring", "--trace", "t.json"), "one value of --overlap"),
    ):
        status, _, err = called(steps, *argv, *words)
        assert status == 2 and said in err and err.count("\n") == 1, err


def test_compression_leaves_the_buckets_as_they_are() -> None:
    """Rule: buckets are closed by the bytes that gradients have before compression."""
    model = ("--model", "resnet50", "--scale", "400", "--compute", "none", "-n", "1")
    run = ("--threads", "2", *model, "--update", "sharded_ps", "--compress", "none,fp16,int8")
    for fusion in ("ddp", "4M"):
        buckets = [step_of(row).buckets for row in _records(*run, "--fusion", fusion)]
        assert len(buckets) == 3 and len(set(buckets)) == 1 and (buckets[0] or 0) > 2


def test_a_straggler_is_no_base_of_a_speed_up() -> None:
    """Rule: speed-up is relative to ranks that are no stragglers, so it is at most the rank count.

    The mean over all ranks' own times would be a quarter of the step at least here.
    """
    slow = ("--compute", "fixed:5", "--straggler", "1:40", "--threads", "4")
    (found,) = _records(*TOY, *slow, "--update", "ring")
    step = step_of(found)
    assert step.one_rank_s and step.one_rank_s < (found.time_s or 0) / 5
    assert step.stragglers == {"1": 40.0}
    one = figures(found)
    assert one is not None and one.efficiency is not None and one.efficiency.value <= 1


def test_a_sweep_of_fusions_names_the_best() -> None:
    """Rule: --sweep fusion has a row a bucket size, and says which is best and which is as good.

    Of one update this is the answer, and the only one.
    """
    argv = ("--model", "toy", "--scale", "16", "-n", "8", "--sweep", "fusion", "--update", "ring")
    status, out, err = called(steps, "--threads", "2", *argv)
    assert status == 0, err
    rows = [line.split()[0] for line in out.splitlines() if line.startswith("  ring/")]
    assert rows == [f"ring/{how}" for how in ("none", "256K", "1M", "ddp", "all")]
    text = " ".join(out.replace("\n#", "").split())
    best = r"answer: (cannot tell the )?best fusion of ring: \w+, [\d.]+ .s a sample"
    assert re.search(best, text) and "the least time" not in text


def test_a_prediction_stands_beside(tmp_path: Path) -> None:
    """Rule: with a machine's costs there is a prediction: compute and exposed communication."""
    path = tmp_path / "map.txt"
    path.write_text(MATRIX)
    argv = ("--compute", "fixed:5", "--topology", str(path), "--update", "ring")
    for overlap, ends in (("on", (0.005, 0.0052)), ("off", (0.005, 0.0055))):
        (one,) = _records("--threads", "2", *TOY, *argv, "--overlap", overlap)
        assert ends[0] < (step_of(one).predicted_s or 0) < ends[1]
        assert step_of(one).predicted_by == "topology"


@pytest.mark.parametrize("update", ["one_shot", "ps", "sharded_ps"])
def test_compressed_exchanges_are_predicted_by_their_bytes(tmp_path: Path, update: str) -> None:
    """Rule: a prediction uses the compressed bytes, and a line says that it leaves out coding.

    With a server half of the bytes, the sum that is sent back, are not compressed.
    """
    path = tmp_path / "map.txt"
    path.write_text(MATRIX)
    argv = ("--threads", "2", "--model", "toy", "-n", "1", "-w", "0", "--topology", str(path))
    seconds = {}
    for code in ("none", "fp16", "int8"):
        (one,) = _records(*argv, "--update", update, "--compress", code)
        seconds[code] = step_of(one).predicted_s or 0.0
    # What fp16 saves is half of the bytes; messages cost the same for all.
    half = seconds["none"] - seconds["fp16"]
    bits = 8.03 / 32
    share = bits if update == "one_shot" else (1 + bits) / 2
    assert seconds["none"] - seconds["int8"] == pytest.approx(2 * (1 - share) * half, rel=0.01)
    assert seconds["none"] > seconds["fp16"] > 0.45 * seconds["none"]
    _, out, _ = called(steps, *argv, "--update", update, "--compress", "int8")
    assert "    predicted without coding, " in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--model", "resnet"], "did you mean resnet50?"),
        (["--update", "rign"], "did you mean ring?"),
        (["--update", "ring:hops=3"], "no parameter 'hops'"),
        (["--update", "auto", "--tuning", "none.json"], "there is no none.json"),
        (["--update", "ring,"], "a name is missing"),
        (["--update", "reduce+broadcast:flat"], "reduce+broadcast:binomial+binomial"),
        (["--update", "torus:grid=2x2", "--ranks", "3"], "2x2"),
        (["--straggler", "2:3", "--threads", "2"], "there are 2 ranks"),
        (
            ["--straggler", "0:3", "--threads", "3", "--update", "async"],
            "rank 0 serves async and computes nothing; learners are ranks 1 to 2",
        ),
        (["--cycle", "5"], "write a time such as 5ms"),
        (["--update", "sync", "--threads", "3", "--fusion", "all"], "leave --fusion out"),
        (["--update", "sync", "--threads", "3", "--sweep", "fusion"], "has no buckets"),
        (["--scale", "0"], "at least 1"),
        (["--sweep", "ranks"], "--ranks P"),
        (["--sweep", "ranks", "--threads", "2"], "not --threads"),
        (["--sweep", "fusion", "--trace", "t.json"], "one run"),
        (["--trace", "t.json"], "one run"),
        (["--fit", "none.json", "--update", "ring", "--threads", "2", "-n", "1"], "none.json"),
        (["--update", "ring", "--compress", "int8"], "ring with --compress int8: it adds"),
        (["--update", "library", "--compress", "1bit"], "library with --compress 1bit"),
        (["--compress", "zip"], "no compression 'zip'"),
        (["--compress", "fp16", "--precision", "bf16"], "leave --precision out"),
        (["--problem", "softmax", "--model", "toy"], "--model does not go with --problem"),
        (["--problem", "softmax", "--precision", "fp16"], "--precision does not go with"),
        (["--problem", "softmax", "--rule", "adam"], "no rule 'adam'"),
        (["--problem", "softmax", "--rate", "0"], "--rate"),
        (["--problem", "nothing"], "no problem 'nothing'"),
        (["--problem", "softmax:samples=9"], "a batch of 32 from 9 samples"),
        (["--problem", "softmax", "--plot", "a.gif"], "its name ends with .png, .svg or .pdf"),
    ],
)
def test_bad_input_is_one_line_and_starts_nothing(argv: list[str], said: str) -> None:
    """Rule: status 2 and one line that says what to write, before any rank is started."""
    model = [] if {"--model", "--problem"} & {*argv} else ["--model", "toy"]
    status, out, err = called(steps, *model, *argv)
    assert (status, out, err.count("\n")) == (2, "", 1), (out, err)
    assert said in err


def test_more_than_there_is_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: gradients that do not fit into memory are refused, with a scale that may fit."""
    monkeypatch.setattr(steps_main, "free_memory", lambda: 64 << 30)
    words = ("--model", "llama3_8b", "--ranks", "8", "--update", "ring")
    status, out, err = called(steps, *words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "8 ranks' gradients of llama3_8b are 239.3 GiB" in err and "--scale 9" in err


def test_a_quiet_step_prints_its_answer_alone(tmp_path: Path) -> None:
    """Rule: ``--quiet`` is that of the benchmarks: the closing sentences of the rows, no table.

    With ``--json`` the rows are what is printed.
    """
    path = tmp_path / "steps.jsonl"
    words = ("--threads", "2", *TOY, "--update", "ring,ps", "--out", str(path))
    status, out, err = called(steps, *words, "-q")
    assert status == 0 and " done, " not in err
    rows = with_steps(path, read(path).rows)
    assert out.splitlines() == closing_sentences(rows, "median", more=f"--out {path}")
    assert " takes " in out and "exposed" not in out and "#" not in out
    status, out, _ = called(steps, *words, "--overwrite", "--json", "--quiet")
    assert status == 0 and out.count('"algorithm"') == 2


def test_quiet_json_of_several_rank_counts_is_the_rows(run: Run) -> None:
    """Rule: ``--json --quiet`` prints the rows of all launches as JSON, and nothing else."""
    words = ("--ranks", "1,2", *TOY, "--update", "ring", "--transport", "inproc")
    done = run(sys.executable, "-m", "bench.step", *words, "--json", "-q")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and [one["ranks"] for one in lines if "ranks" in one] == [1, 2]


def test_a_trace_refuses_an_unknown_folder(tmp_path: Path) -> None:
    """Rule: a file that cannot be written is refused before anything is measured."""
    path = tmp_path / "none" / "trace.json"
    status, out, err = called(
        steps, "--threads", "2", *TOY, "--update", "ring", "--trace", f"{path}"
    )
    assert status == 2 and "ring" not in out and "no folder" in err


@pytest.mark.parametrize("mpi", ["mpich", *thorough("openmpi")], indirect=True)
def test_steps_on_real_mpi(mpi: Mpi, run: Run, tmp_path: Path) -> None:
    """Rule: over MPI updates are right on every transport, and only rank 0 prints."""
    trace, rows = tmp_path / "trace.json", tmp_path / "rows.jsonl"
    passes, shared = tmp_path / "passes.json", tmp_path / "shared.jsonl"
    toy = ["-m", "bench.step", *TOY, "--compute", "fixed:3"]
    tuned = tmp_path / "tuning.json"
    mixed, alike = tmp_path / "mixed.jsonl", tmp_path / "alike.jsonl"
    ranges = (
        Range(1, Tunable("ring", "shm"), 1e-6),
        Range(1 << 14, Tunable("library", "mpi"), 1e-5),
    )
    tuned.write_bytes(dump([replace(rules(ranges, ranks=3), transport="shm")], {}))
    auto = [*toy, "--transport", "shm", "--update", "auto", "--tuning", str(tuned)]
    messages = [*toy, "--transport", "mpi"]
    accesses = [*toy, "--transport", "shm", "--update", "ring", "--trace", str(passes)]
    commands = [
        [*toy, "--update", "ring,library,reduce+broadcast,ps", "--out", str(rows)],
        [*messages, "--update", "ring,library", "--fusion", "4K", "--cycle", "1ms"],
        [*messages, "--update", "ring", "--precision", "bf16", "--trace", str(trace)],
        [*accesses, "--out", str(shared)],
        [*auto, "--fusion", "1M", "--out", str(mixed)],
        [*auto, "--fusion", "all", "--out", str(alike)],
        [*toy, "--update", "library", "--overlap", "off", "--precision", "fp16"],
        [*toy, "--update", "nonsense"],
    ]
    *right, skipped, refused = together(run, mpi, 3, *commands)
    for done in (*right, skipped):
        assert done.returncode == 0 and "not the ranks' average" not in done.stdout, done
        assert done.stdout.count("# training step of toy/64") == 1
    assert "skipped: MPI has no type for float16" in skipped.stdout
    found = measurements(rows.read_text())
    assert [one.wrong for one in found] == [0, 0, 0, 0]
    assert {e["pid"] for e in json.loads(trace.read_text())["traceEvents"]} == {0, 1, 2}
    told = [_events(trace, MESSAGES, rank) for rank in range(3)]
    for one in range(3):  # what one sends is what the other receives, in each step
        for other in {0, 1, 2} - {one}:
            sent, received = (
                sorted((*e["args"].values(),) for e in told[a] if e["name"] == f"{way} {b}")
                for a, way, b in ((one, "to", other), (other, "from", one))
            )
            assert sent and sent == received
    # Two buckets of 16 KiB are the library's and one of 8 KiB is not; one of 40 KiB is.
    ((both,), (whole,)) = (measurements(path.read_text()) for path in (mixed, alike))
    assert both.transport == "shm+mpi" and step_of(both).transports == {"mpi": 2, "shm": 1}
    assert whole.transport == "mpi" and not step_of(whole).transports
    # On shm a trace has the passes over other ranks' memory: in each step as many bytes as counted.
    (row,) = measurements(shared.read_text())
    moved = Counter[int]()
    for rank in range(3):
        for event in _events(passes, MESSAGES, rank):
            assert event["name"].split()[1] != str(rank) and event["dur"] >= 0
            moved[event["args"]["step"]] += event["args"]["bytes"]
    assert row.total_bytes and set(moved.values()) == {row.total_bytes}
    assert refused.returncode == 2 and refused.stderr.count("no update 'nonsense'") == 1


def test_auto_takes_what_tuning_found_for_each_bucket(tmp_path: Path) -> None:
    """Rule: --update auto uses, for every bucket, the file's algorithm for its size."""
    one, other = Tunable("ring", "inproc"), Tunable("ps", "inproc")
    ranges = (Range(1, one, 1e-6), Range(1 << 14, other, 1e-5))
    made = replace(rules(ranges, ranks=2), transport="inproc", default=one)
    path = tmp_path / "tuning.json"
    path.write_bytes(dump([made], {}))
    way = ("--tuning", str(path), "--update", "auto", "--threads", "2")
    for how, messages in (("none", 10 * 4), ("all", 2)):
        (found,) = _records(*TOY, *way, "--fusion", how)
        assert found.wrong == 0
        # Ten tensors of 4 KiB go round a ring in 2 (P-1) messages a rank; 40 KiB to a server.
        assert step_of(found).messages == messages


@pytest.mark.parametrize("crowded", [False, True])
def test_auto_refuses_rules_of_other_conditions(
    crowded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: rules for ranks that share cores do not apply to ranks with a core each, or reverse.

    If a file has both, those for this run's ranks are used.
    """
    monkeypatch.setattr(session, "load", lambda *_: Load(2, 1 if crowded else 2))
    path = tmp_path / "tuning.json"
    way = ("--tuning", str(path), "--update", "auto", "--threads", "2", "--fusion", "all")
    kinds = []
    for kind, name in ((True, "ring"), (False, "ps")):
        one = Tunable(name, "inproc")
        made = rules((Range(1, one, 1e-6),), ranks=2)
        kinds.append(replace(made, transport="inproc", default=one, oversubscribed=kind))
    path.write_bytes(dump(kinds, {}))
    (found,) = _records(*TOY, *way)
    assert step_of(found).messages == (4 if crowded else 2)
    path.write_bytes(dump([one for one in kinds if one.oversubscribed is not crowded], {}))
    (found,) = _records(*TOY, *way)
    assert found.skipped and "does not apply" in found.skipped
