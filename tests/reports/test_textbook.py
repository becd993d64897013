"""Predictions beside measurements: accuracy by decade, the textbook's comparison, commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from busbar.errors import ReportError
from collectives.predict.fit import Fit, digest, dump_fit
from collectives.predict.machine import Costs, LinkCosts, Machine, one_class
from collectives.schedule.catalogue import draft
from reports.analysis.predicted import predictions
from reports.analysis.textbook import VOLUMES, compare
from reports.readers.reading import read
from reports.records.measurement import Noise, Placements
from reports.records.steps import Step
from reports.tables.accuracy import ALL, AccuracyPoint, as_markdown, errors, pooled, tables
from tests.collectives.predict.predicting import seconds
from tests.reports.runs import allreduce, changed, cli, rows, saved

LINK = LinkCosts.assumed(2e-6, 1e-10, "by hand", 5e-11)
COSTS = Costs({"node": LINK}, 1e-6, 4, False, "mpi")
FIT = Fit((COSTS,))
SIZES = [1 << k for k in range(10, 25, 2)]


def _model(collective: str, name: str, ranks: int, size: int) -> float:
    schedule = draft(collective, name, ranks)
    machine = Machine(one_class("node"), [LINK], 1e-6)
    return float(seconds(schedule, collective, machine, [size])[0])


def _result(
    algorithm: str, size: int, time: float, *, ranks: int = 4, transport: str = "mpi"
) -> Placements:
    times = (time * 0.99, time, time * 1.01) * 3
    return allreduce(algorithm, ranks, size, times, transport=transport)


def _fit(path: Path, costs: Costs = COSTS) -> Path:
    path.write_text(dump_fit([costs]))
    return path


def test_a_row_is_predicted_as_its_schedule() -> None:
    """Rule: a row's prediction is the model's time of its schedule; a library's row has none."""
    names = ("ring", "ps", "recursive_doubling", "library", "no such thing")
    labels = ("double_tree:segments=4", "double_tree:segments=8")
    results = [_result(name, size, 1.0) for name in (*names, *labels) for size in SIZES]
    found = predictions(rows(results), FIT)
    each = [found[n : n + len(SIZES)] for n in range(0, len(found), len(SIZES))]
    for name, times in zip(names[:3], each, strict=False):
        assert times == pytest.approx([_model("allreduce", name, 4, size) for size in SIZES])
    assert each[3] == each[4] == [None] * len(SIZES) and each[5] != each[6]


def test_errors_are_by_algorithm_and_decade(tmp_path: Path) -> None:
    """Rule: median and 95th percentile of |predicted/measured - 1|, over decades of the size."""
    sizes = [1000, 2000, 4000, 8000, 20000]
    ratios = [1.1, 0.9, 1.3, 1.0, 2.0]
    times = [_model("allreduce", "ring", 4, s) / r for s, r in zip(sizes, ratios, strict=True)]
    rows = read(
        saved(
            tmp_path / "a.jsonl", [_result("ring", s, t) for s, t in zip(sizes, times, strict=True)]
        )
    ).rows
    points = [
        AccuracyPoint(r, r.time_s or 0, p or 0)
        for r, p in zip(rows, predictions(rows, FIT), strict=True)
    ]
    found = errors(points)
    decade = found["ring", "1e3"]
    assert (decade.rows, found["ring", "1e4"].rows, found[ALL, ALL].rows) == (4, 1, 5)
    assert decade.median == pytest.approx(0.1, abs=1e-6)
    assert decade.p95 == pytest.approx(0.27, abs=1e-6)
    assert found["ring", "1e4"].median == pytest.approx(1.0)
    assert decade.ratio == pytest.approx(1.05)
    assert "10/27" in as_markdown(found)
    for width in (40, 80, 160):
        heads = [str(c.header) for t in tables(found, width) for c in t.columns]
        assert [h for h in heads if h != "algorithm"] == ["1e3", "1e4", "all", "rows", "ratio"]


def test_the_same_row_again_is_one(tmp_path: Path) -> None:
    """Rule: repeated runs are pooled: one row, the median of all iterations."""
    runs = [
        saved(tmp_path / f"{i}.jsonl", [_result("ring", 4096, t), _result("ps", 4096, 9.0)])
        for i, t in enumerate((1.0, 2.0, 9.0))
    ]
    rows = pooled([row for run in runs for row in read(run).rows])
    assert [r.algorithm for r in rows] == ["ring", "ps"]
    assert rows[0].time_s == pytest.approx(2.0)


def test_accuracy_command(tmp_path: Path) -> None:
    """Rule: a table of what the fit's transport carried.

    What is left out, and other ranks, are said.
    """
    results = [_result("ring", s, _model("allreduce", "ring", 4, s) / 1.25) for s in SIZES]
    results += [_result("ring", SIZES[0], 1.0, transport="shm")]
    results += [_result("ring", SIZES[0], 1e-5, ranks=8)]
    run, fit = saved(tmp_path / "run.jsonl", results), _fit(tmp_path / "fit.json")
    out, err = cli("accuracy", run, "--fit", fit)
    assert "25/25" in out
    assert "1 row of another transport" in err and "measured with 4 ranks, not with 8" in err
    lines = cli("accuracy", run, "--fit", fit, "--format", "csv").out.splitlines()
    assert len(lines) == 1 + len(SIZES) + 1
    assert float(lines[1].split(",")[-1]) == pytest.approx(0.25, abs=1e-6)


def test_nccl_stands_beside_library_rows(tmp_path: Path) -> None:
    """Rule: with NCCL's log the library's rows are held against NCCL's published model."""
    log = tmp_path / "nccl.log"
    log.write_text(
        "NCCL INFO Pattern 4, crossNic 0, nChannels 12, bw 30.000000/30.000000, type NVL/PIX,"
        " sameChannels 1\n"
    )
    size = 1 << 30
    exact = 56.0e-6 + size / (360e9 * 8 / 14)
    run = saved(
        tmp_path / "gpu.jsonl", [_result("library", size, exact / 1.5, ranks=8, transport="nccl")]
    )
    out = cli("accuracy", run, "--nccl-log", log, "--format", "csv").out
    assert float(out.split(",")[-1]) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("bad", ["none", "source", "fit", "missing", "log", "nothing"])
def test_bad_input_is_one_line(bad: str, tmp_path: Path) -> None:
    """Rule: a run that the fit was made of is refused; so are files that are no fit; exit 2."""
    run = saved(tmp_path / "run.jsonl", [_result("ring", 4096, 1e-3)])
    fit = _fit(tmp_path / "fit.json")
    words = ["accuracy", str(run), "--fit", str(fit)]
    if bad == "none":
        words = words[:2]
    elif bad == "source":
        _fit(fit, Costs(COSTS.links, sources=(digest(run.read_bytes()),)))
    elif bad == "fit":
        fit.write_text('{"busbar_fit": 1, "costs": [{}]}')
    elif bad == "missing":
        words[-1] += ".gone"
    elif bad == "log":
        words = [*words[:2], "--nccl-log", str(run)]
    else:
        saved(run, [_result("library", 4096, 1e-3)])
    out, err = cli(*words, status=2)
    assert out == "" and err.count("\n") == 1 and err.startswith("reports: ")


# -- parameter server and ring


RATES = {"ps": 1e9, "ring": 2e9}


def _textbook() -> list[Placements]:
    return [
        _result(name, size, VOLUMES[name](ranks) * size / rate, ranks=ranks)
        for name, rate in RATES.items()
        for ranks in (2, 3, 4, 8)
        for size in (1 << 20, 1 << 24)
    ]


def _nothing(name: str, ranks: int, sizes: object) -> list[None]:
    return [None] * len(list(sizes))  # type: ignore[call-overload]


def test_the_textbook_scales_as_it_says(tmp_path: Path) -> None:
    """Rule: at one rate the server grows with P - 1, the ring by less than two.

    The rate of each curve is found, over ranks and over sizes.
    """
    found = compare(read(saved(tmp_path / "r.jsonl", _textbook())).rows, [], [], _nothing)
    for cell in found.cells:
        assert cell.rate == pytest.approx(RATES[cell.algorithm])
        assert cell.measured == pytest.approx(cell.over_ranks) == pytest.approx(cell.over_sizes)
        assert cell.counted == pytest.approx(cell.volume)
        measured, by_volume = found.growth(cell)
        assert measured == pytest.approx(by_volume)
    growth = {c.ranks: found.growth(c)[0] for c in found.of("ps", size=1 << 20)}
    assert growth == pytest.approx({2: 1.0, 3: 2.0, 4: 3.0, 8: 7.0})
    assert all((found.growth(c)[0] or 9) < 2 for c in found.of("ring"))


def test_without_runs_it_predicts(tmp_path: Path) -> None:
    """Rule: `reports model` alone predicts, says by which costs, and draws."""
    target = tmp_path / "model.svg"
    out, err = cli("model", "-n", "2-4", "-b", "1M", "-e", "8M", "--out", target)
    rows = [line.split() for line in out.splitlines() if line.split()[:1] == ["4"]]
    assert [row[2:4] for row in rows] == [["6N", "6N"]] * 2 + [["1.5N", "1.5N"]] * 4
    assert "verdict" not in out and "law" not in out  # nothing was measured
    assert "12.5 GB/s" in err and "<svg" in target.read_text(encoding="utf-8")


def test_measured_stands_next_to_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: with runs and a fit, each measured row has the textbook's and the predicted time."""
    run, fit = saved(tmp_path / "r.jsonl", _textbook()), _fit(tmp_path / "fit.json")
    monkeypatch.setenv("COLUMNS", "120")
    out = cli("model", run, "--fit", fit).out
    (row,) = [x.split() for x in out.splitlines() if x.split()[:3] == ["8", "16M", "14N"]]
    assert row[3] == "14N" and row[4:6] == ["235", "ms"] and row[-2:] == ["7.00x", "7.00x"]


def test_what_was_not_measured_has_no_table(tmp_path: Path) -> None:
    """Rule: runs of a ring alone are told alone, without an empty table of the server."""
    run = saved(tmp_path / "r.jsonl", [r for r in _textbook() if r.every[0].algorithm == "ring"])
    out = cli("model", run).out
    assert "all-reduce by ring" in out and "all-reduce by ps" not in out


def test_one_number_of_ranks_is_no_fit(tmp_path: Path) -> None:
    """Rule: with one number of ranks no fitted time stands beside what was measured."""
    only = [one for one in _textbook() if one.every[0].ranks == 4]
    several, one = (
        cli("model", saved(tmp_path / f"{n}.jsonl", results)).out
        for n, results in enumerate((_textbook(), only))
    )
    assert "law, fitted" in several and "grows" in several
    assert "measured" in one and " law, fitted " not in one and "grows" not in one


def test_a_figure_has_no_panel_of_one_point(tmp_path: Path) -> None:
    """Rule: one size, or one rank count, has one panel; times have units; no title says nothing."""
    one_size = [one for one in _textbook() if one.every[0].size == 1 << 20]
    one_count = [one for one in _textbook() if one.every[0].ranks == 4]
    texts = []
    for n, results in enumerate((_textbook(), one_size, one_count)):
        target = tmp_path / f"{n}.svg"
        cli("model", saved(tmp_path / f"{n}.jsonl", results), "--out", target)
        texts.append(target.read_text(encoding="utf-8"))
    assert ["ranks P" in text for text in texts] == [True, True, False]
    assert ["size N (bytes)" in text for text in texts] == [True, False, True]
    assert all(" ms" in text and "No verdict" not in text for text in texts)


@pytest.mark.parametrize(
    "words",
    [
        ["-n", "x"],
        ["-n", "0"],
        ["-b", "2M", "-e", "1M"],
        ["--out", "figure.bmp"],
        ["--fit", "gone.json"],
        ["gone.jsonl"],
    ],
)
def test_bad_options_of_model(words: list[str]) -> None:
    """Rule: one line, exit 2."""
    assert cli("model", *words, status=2).err.count("\n") == 1


def test_a_run_without_ps_and_ring_is_refused() -> None:
    """Rule: a run of other things says what to run instead."""
    found = rows([_result("tree", 4096, 1.0)])
    assert found
    with pytest.raises(ReportError, match="-A ps,ring,sharded_ps --ranks"):
        compare(found, [], [], _nothing)
    steps = [replace(row, step=Step(update="ring")) for row in found]
    with pytest.raises(ReportError, match=r"training steps.*busbar reports show and reports plot"):
        compare(steps, [], [], _nothing)


def test_missing_predictions_have_their_remedy(tmp_path: Path) -> None:
    """Rule: where measured times stand without predicted ones the option that gives them is named;
    a figure's load is that of all rows.
    """  # noqa: D205
    noisy = [changed(one, noise=Noise(others=(0.9,))) for one in _textbook()]
    target = tmp_path / "model.svg"
    done = cli("model", saved(tmp_path / "r.jsonl", noisy), "--out", target)
    assert "no predicted times: --fit FILE" in done.err
    rows_in_all = f"{len(noisy)} of all {len(noisy)} rows"
    assert rows_in_all in " ".join(target.read_text(encoding="utf-8").split()), rows_in_all
    assert "no predicted" not in cli("model", "-n", "2-4").err
