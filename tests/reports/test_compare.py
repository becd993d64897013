"""Verdicts between runs: their error rates, their words, and when they are refused."""

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.cli import main
from reports.compare import compare, differences, join
from reports.exports import to_jsonl
from reports.inference import (
    between_runs,
    chi_squared_p,
    holm,
    likeness,
    rank_test,
    ratio_interval,
    student_p,
    student_quantile,
)
from reports.reading import parse as read_text
from reports.record import Result, Sample

VALUES = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=40)
ENVIRONMENT = {"busbar": "0.1", "library": "MPICH 5", "hosts": ["n0", "n1"], "cpu": "EPYC",
               "ranks_per_node": [2, 2], "variables": {"UCX_TLS": "sm"}}  # fmt: skip


def _records(seed: int, slow: float = 1.0, n: int = 40, **environment: object) -> list[Result]:
    random = np.random.default_rng(seed)
    results = []
    for algorithm in ("ring", "tree"):
        for size in (1024, 2**20, 2**26):
            middle = (1e-5 + size / 1e10) * (slow if algorithm == "ring" else 1)
            times = tuple((middle * (1 + 0.02 * random.gamma(2, 1, n))).tolist())
            results.append(
                Result(
                    "allreduce",
                    algorithm,
                    "mpi",
                    4,
                    size,
                    size // 4,
                    "float",
                    "sum",
                    -1,
                    1.5,
                    Sample(times, n, wrong=0),
                    None,
                    {},
                    {**ENVIRONMENT, **environment},
                )
            )
    return results


def _rows(results: list[Result]) -> list[object]:
    return list(read_text(to_jsonl(results).decode()).rows)


# -- the statistics


@settings(deadline=None)
@given(VALUES, VALUES)
def test_the_rank_test_is_symmetric(base: list[float], new: list[float]) -> None:
    """Rule: swapping the runs keeps p and turns the effect; both stay in their range."""
    one, other = rank_test(base, new), rank_test(new, base)
    assert one.p == pytest.approx(other.p) and one.effect == pytest.approx(-other.effect)
    assert 0 <= one.p <= 1 and -1 <= one.effect <= 1


@settings(deadline=None)
@given(VALUES)
def test_a_run_does_not_differ_from_itself(values: list[float]) -> None:
    """Rule: no effect and p = 1 against itself."""
    assert rank_test(values, values).effect == pytest.approx(0)
    assert rank_test(values, values).p > 0.9


def test_the_rank_test_agrees_with_counting_all_orders() -> None:
    """Rule: near the exact p, found by trying every assignment of ranks to the sides."""
    values = list(range(8))
    for base in ([0, 1, 2, 3], [0, 2, 4, 6], [0, 1, 3, 6]):
        new = [v for v in values if v not in base]
        u = sum(b < n for b in base for n in new)
        extreme, total = 0, 0
        for order in combinations(values, 4):
            rest = [v for v in values if v not in order]
            total += 1
            extreme += abs(sum(b < n for b in order for n in rest) - 8) >= abs(u - 8)
        assert rank_test(base, new).p == pytest.approx(extreme / total, abs=0.05)


def test_tails_are_those_of_the_tables() -> None:
    """Rule: Student's t is exact for whole degrees of freedom, chi-squared within its approximation."""
    from scipy import stats

    for k in range(1, 40):
        for t in (-3.0, 0.0, 0.5, 2.0, 12.0):
            assert student_p(t, k) == pytest.approx(stats.t.sf(t, k), abs=1e-12)
        for x in (0.3 * k, k, 3.0 * k):
            assert chi_squared_p(x, k) == pytest.approx(stats.chi2.sf(x, k), abs=0.015)
    with pytest.raises(ValueError, match="degrees"):
        student_p(1, 0)


def test_false_alarms_are_as_rare_as_said() -> None:
    """Rule: samples of one distribution differ at the 5 % level in about 5 % of the cases."""
    random = np.random.default_rng(1)
    alarms = sum(
        rank_test(random.exponential(size=20).tolist(), random.exponential(size=30).tolist()).p
        < 0.05
        for _ in range(2000)
    )
    assert 0.03 < alarms / 2000 < 0.065


def test_the_ratio_interval_covers_as_often_as_it_says() -> None:
    """Rule: about 95 % of the intervals hold the true ratio of medians."""
    random = np.random.default_rng(2)
    hits = 0
    for _ in range(300):
        base, new = random.lognormal(0, 0.3, 40), 1.5 * random.lognormal(0, 0.3, 40)
        low, high = ratio_interval([base.tolist()], [new.tolist()]) or (0, 0)
        hits += low <= 1.5 <= high
    assert 0.91 <= hits / 300 <= 0.99


def test_runs_that_differ_widen_the_interval() -> None:
    """Rule: what changes from run to run is no difference: nearly all intervals still hold 1."""
    random = np.random.default_rng(3)

    def side() -> list[list[float]]:
        return [(m * random.lognormal(0, 0.01, 40)).tolist() for m in random.lognormal(0, 0.2, 6)]

    def flat(runs: list[list[float]]) -> list[float]:
        return [t for one in runs for t in one]

    apart, together = 0, 0
    for _ in range(40):
        base, new = side(), side()
        low, high = ratio_interval(base, new) or (0, 0)
        apart += low <= 1 <= high
        low, high = ratio_interval([flat(base)], [flat(new)]) or (0, 0)
        together += low <= 1 <= high
    assert apart >= 34 and together < apart


def _alike(random: np.random.Generator, n: int, r: float) -> list[float]:
    """Times whose logarithms are an autoregression: neighbours have the correlation r."""
    x, found = random.standard_normal(), []
    for step in random.standard_normal(n):
        x = r * x + (1 - r * r) ** 0.5 * step
        found.append(float(np.exp(0.1 * x)))
    return found


def test_iterations_that_resemble_their_neighbours_count_for_less() -> None:
    """Rule: false alarms stay near 5 % where neighbours are alike; as independent ones, a fifth."""
    random, careful, naive = np.random.default_rng(4), 0, 0
    for _ in range(400):
        base, new = _alike(random, 80, 0.6), _alike(random, 80, 0.6)
        careful += rank_test(base, new, [likeness([base]), likeness([new])]).p < 0.05
        naive += rank_test(base, new).p < 0.05
    assert careful <= 40 and naive >= 60  # of a level of 5 %: 20, and 4.4 as its standard deviation


def test_blocks_of_neighbours_widen_the_interval() -> None:
    """Rule: the bootstrap of alike iterations holds the true ratio nearly as often as it says."""
    random, hits = np.random.default_rng(5), 0
    for _ in range(80):
        low, high = ratio_interval([_alike(random, 150, 0.6)], [_alike(random, 150, 0.6)]) or (0, 0)
        hits += low <= 1 <= high
    assert hits >= 69  # blind to likeness it would be 62


@pytest.mark.parametrize("r", [0.0, 0.5, 0.9])
def test_likeness_is_the_correlation_of_neighbours(r: float) -> None:
    """Rule: estimated without much bias from short runs, whatever differs between them."""
    random = np.random.default_rng(6)
    runs = [[m * t for t in _alike(random, 60, r)] for m in random.lognormal(0, 1, 60)]
    assert likeness(runs) == pytest.approx(r, abs=0.08)
    assert likeness([[1.0] * 50, [2.0]]) == 0


@pytest.mark.parametrize(("base", "new"), [(2, 2), (3, 3), (5, 1)])
def test_few_runs_a_side_say_little(base: int, new: int) -> None:
    """Rule: what differs from run to run is allowed for, however few there are: t, not the bootstrap."""
    random, hits = np.random.default_rng(7), 0

    def side(n: int) -> list[list[float]]:
        return [(m * random.lognormal(0, 0.01, 9)).tolist() for m in random.lognormal(0, 0.1, n)]

    for _ in range(400):
        low, high = between_runs(side(base), side(new)) or (0, 0)
        hits += low <= 1 <= high
    assert 0.92 <= hits / 400 <= 0.98
    assert between_runs(side(1), side(1)) is None and between_runs([[0.0]], side(2)) is None


def test_students_quantile_turns_its_tail_back() -> None:
    """Rule: the t of a chance has that chance; two of the tables' values."""
    assert student_quantile(0.025, 2) == pytest.approx(4.303, abs=5e-4)
    assert student_quantile(0.025, 30) == pytest.approx(2.042, abs=5e-4)
    for k in (1, 4, 17):
        assert student_p(student_quantile(0.1, k), k) == pytest.approx(0.1)


def test_one_run_a_side_is_said(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: iterations of one run do not show what changes from run to run, and the reader is told."""
    assert main(["compare", str(runs / "base.jsonl"), str(runs / "same.jsonl")]) == 0
    assert "one run a side" in capsys.readouterr().err
    folder = runs / "several"
    folder.mkdir()
    for name in ("base", "same"):
        (folder / f"{name}.jsonl").write_bytes((runs / f"{name}.jsonl").read_bytes())
    assert main(["compare", str(folder), str(runs / "same.jsonl")]) == 0
    assert "one run a side" not in capsys.readouterr().err


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), max_size=30))
def test_holm_keeps_order_and_only_raises(values: list[float]) -> None:
    """Rule: corrected p are no smaller, at most 1, and in the same order."""
    adjusted = holm(values)
    assert all(p <= q <= 1 for p, q in zip(values, adjusted, strict=True))
    pairs = sorted(zip(values, adjusted, strict=True))
    assert [q for _, q in pairs] == sorted(adjusted)


def test_holm_on_a_worked_case() -> None:
    """Rule: the k-th smallest of n is multiplied by n - k + 1."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


# -- the words


def test_words_follow_an_injected_slowness() -> None:
    """Rule: what was made 8 % slower is called slower, the other way round faster, the rest neither."""
    base, new = _rows(_records(1)), _rows(_records(2, slow=1.08))
    for left, right, word in ((base, new, "slower"), (new, base, "faster")):
        got = {(c.row.base.algorithm, c.word) for c in compare(join(left, right)[0])}
        assert got == {("ring", word), ("tree", "indistinguishable")}


def test_the_same_machine_is_indistinguishable() -> None:
    """Rule: runs that differ by chance alone are told apart in few cases at most."""
    words = [
        c.word
        for seed in range(20)
        for c in compare(join(_rows(_records(seed)), _rows(_records(seed + 100)))[0])
    ]
    assert words.count("indistinguishable") >= len(words) - 2


def test_a_difference_below_the_noise_is_none() -> None:
    """Rule: significant but smaller than --noise is still indistinguishable."""
    base = _rows(_records(1, n=2000))
    new = _rows(_records(2, slow=1.02, n=2000))
    joined = [j for j in join(base, new)[0] if j.base.algorithm == "ring"]
    assert {c.word for c in compare(joined, noise=0.01)} == {"slower"}
    assert {c.word for c in compare(joined, noise=0.05)} == {"indistinguishable"}


def test_single_figures_are_untested_and_repeated_runs_are_samples() -> None:
    """Rule: without raw times nothing is called slower; several runs of a log make a sample."""
    row = "  1024  256  float  sum  -1  {}.00  0.1  0.1  0  {}.00  0.1  0.1  0\n"
    head = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"

    def log(*times: int) -> list[object]:
        return list(read_text("".join(head + row.format(t, t) for t in times)).rows)

    assert {c.word for c in compare(join(log(10), log(20))[0])} == {"untested"}
    mixed = (3, 8, 1, 6, 9, 0, 5, 2, 7, 4)
    many = compare(join(log(*(10 + n for n in mixed)), log(*(20 + n for n in mixed)))[0])
    assert {c.word for c in many} == {"slower"}


def test_what_differs_is_named() -> None:
    """Rule: machine and mapping forbid, versions and variables are said."""
    base = _rows(_records(1))
    other = {"library": "Open MPI 5", "cpu": "Xeon", "ranks_per_node": [4], "variables": {}}
    found = {(d.kind, d.name, d.forbids) for d in differences(base, _rows(_records(1, **other)))}
    assert found == {("versions", "library", False), ("machine", "cpu", True),
                     ("mapping", "ranks_per_node", True), ("versions", "UCX_TLS", False)}  # fmt: skip
    assert not differences(base, _rows(_records(2)))


def test_what_a_log_does_not_know_forbids_nothing() -> None:
    """Rule: an older record without a fingerprint is compared; that it is unknown is said."""
    base, new = _rows(_records(1)), _rows(_records(1, fingerprint=["abc"], cpu=None))
    found = {d.name: d for d in differences(base, new)}
    assert set(found) == {"fingerprint", "cpu"} and not any(d.forbids for d in found.values())
    assert str(found["fingerprint"]) == "machine: fingerprint unknown -> abc"


def test_where_ranks_ran_is_compared_rank_by_rank() -> None:
    """Rule: the same machine with ranks on other CPUs or GPUs is another mapping."""
    one = {"mapping": {"node": [0, 0], "cpus": ["0", "1"], "gpu": ["", ""]}}
    two = {"mapping": {"node": [0, 0], "cpus": ["0", "2"], "gpu": ["", ""]}}
    (found,) = differences(_rows(_records(1, **one)), _rows(_records(1, **two)))
    assert (found.kind, found.name, found.forbids) == ("mapping", "mapping cpus", True)


# -- the command line as a gate


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Runs that are alike, slower, on another machine, and wrong."""
    wrong = _records(4)
    wrong[0] = replace(wrong[0], out=replace(wrong[0].out, wrong=3))  # type: ignore[type-var]
    made = {"part": _records(2)[:4], "base": _records(1), "same": _records(2), "slow": _records(3, slow=1.08),
            "other": _records(3, cpu="Xeon"), "wrong": wrong}  # fmt: skip
    for name, results in made.items():
        (tmp_path / f"{name}.jsonl").write_bytes(to_jsonl(results))
    (tmp_path / "elsewhere.jsonl").write_bytes(to_jsonl([replace(r, ranks=8) for r in _records(1)]))
    return tmp_path


@pytest.mark.parametrize(
    ("new", "extra", "status"),
    [
        ("same", ["--fail-slower", "5%"], 0),
        ("slow", [], 0),
        ("slow", ["--fail-slower", "5%"], 1),
        ("slow", ["--fail-slower", "20%"], 0),
        ("wrong", ["--fail-slower", "5%"], 1),
        ("part", ["--fail-slower", "5%"], 0),
        ("part", ["--fail-missing"], 1),
        ("same", ["--fail-missing"], 0),
        ("other", [], 2),
        ("other", ["--anyway"], 0),
        ("elsewhere", [], 2),
        ("missing", [], 2),
        ("same", ["--fail-slower", "5"], 2),
        ("same", ["--expect", "allreduce: busbw >= 1"], 1),
        ("same", ["--expect", "allreduce,>=64M: busbw >= 1"], 0),
        ("same", ["--expect", "allreduce: busbw >= limit"], 2),
        ("same", ["--expect", "nonsense"], 2),
    ],
)
def test_exit_status(runs: Path, new: str, extra: list[str], status: int) -> None:
    """Rule: 0 passes, 1 fails the gate, 2 cannot be judged."""
    files = [str(runs / "base.jsonl"), str(runs / f"{new}.jsonl")]
    assert main(["compare", *files, *extra]) == status


@pytest.mark.parametrize("width", [80, 160])
def test_tables_fit_and_cut_nothing(
    runs: Path, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: at 80 and at 160 columns no line is wider and no figure is cut short."""
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["show", str(runs / "base.jsonl")]) == 0
    assert main(["compare", str(runs / "base.jsonl"), str(runs / "slow.jsonl")]) == 0
    assert main(["import", str(runs / "base.jsonl")]) == 0
    out = capsys.readouterr().out
    table = [line for line in out.splitlines() if str(runs) not in line]
    assert max(map(len, table)) <= width and "…" not in out
    assert "slower" in out and "▁" in out and "64M" in out


@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_import_writes_what_it_read(
    runs: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: --out writes the file, --format the same to stdout; both hold every row."""
    target = runs / f"out.{form}"
    source = str(runs / "base.jsonl")
    assert main(["import", source, "--out", str(target)]) == 0
    assert main(["import", source, "--format", form]) == 0
    assert capsys.readouterr().out == target.read_text()
    text = target.read_text()
    rows = json.loads(text) if form == "json" else text.splitlines()[form == "csv" :]
    assert len(rows) == 6
    assert main(["import", source, "--out", str(runs / "out.xls")]) == 2


def test_import_keeps_what_it_can(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: one unreadable file is an error of its own, the others are still printed."""
    (runs / "bad.txt").write_text("nothing of note")
    assert main(["import", str(runs / "bad.txt"), str(runs / "base.jsonl"), "--format", "csv"]) == 2
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 7 and "bad.txt: no row" in captured.err


def test_unstable_rows_of_both_sides_are_said(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: a verdict stands beside what is wrong with the rows that it rests on."""
    few = [replace(r, out=replace(r.out, times=r.out.times[:3])) for r in _records(2) if r.out]
    (runs / "few.jsonl").write_bytes(to_jsonl(few))
    assert main(["compare", str(runs / "base.jsonl"), str(runs / "few.jsonl")]) == 0
    err = capsys.readouterr().err
    assert "NEW: 6 of 6 rows have fewer than 6 iterations" in err and "BASE:" not in err
