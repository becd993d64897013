"""Verdicts between runs: their words, when they are refused, and the command as a gate."""

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from busbar.errors import ReportError
from reports.analysis.compare import Comparison, compare, differences, join
from reports.readers.reading import parse as read_text
from reports.records.measurement import Measurement, Noise
from reports.tables.comparison import clocks, remedy, resolution
from tests.command import reports_main as main
from tests.reports.runs import allreduce, changed, cli, launches, noisy, records, rows, saved
from tests.reports.test_failed_runs import HEAD, ROWS

# -- the words


def test_words_follow_an_injected_slowness() -> None:
    """Rule: what was made 8 % slower is called slower, the reverse faster, the rest neither."""
    base, new = launches(1), launches(2, slow=1.08)
    for left, right, word in ((base, new, "slower"), (new, base, "faster")):
        got = {(c.row.base.algorithm, c.word) for c in compare(join(left, right)[0])}
        assert got == {("ring", word), ("tree", "indistinguishable")}


@pytest.mark.parametrize("count", [3, 4])
def test_the_same_machine_is_indistinguishable(count: int) -> None:
    """Rule: runs that differ by chance alone are told apart in few cases at most.

    Of three launches a side, those that chance has separated cannot be told.
    """
    words = [
        c.word
        for seed in range(20)
        for c in compare(join(launches(seed, count), launches(seed + 100, count))[0])
    ]
    assert words.count("indistinguishable") >= len(words) - (5 if count == 3 else 2)
    assert words.count("slower") + words.count("faster") <= 2


_HEAD = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"


def _nccl_log(seed: int, scatter: float, slow: float = 1.0) -> list[Measurement]:
    """The rows of a log of 27 sizes, a figure a row, ``slow`` times as long from 1 MiB on."""
    random, lines = np.random.default_rng(seed), []
    for size in (1 << n for n in range(7, 34)):
        out, into = 1e3 * (20 + size / 2e5) * np.exp(random.normal(0, scatter, 2))
        out, into = ((slow if size >= 1 << 20 else 1) * time for time in (out, into))
        lines.append(f"{size} {size // 4} float sum -1 {out:.3f} 1 1 0 {into:.3f} 1 1 0\n")
    return list(read_text(_HEAD + "".join(lines)).rows)


def _gate(base: int, new: int, scatter: float, slow: float, seed: int = 0) -> list[Comparison]:
    """A comparison of logs, a log each launch."""
    sides = (
        [row for n in range(count) for row in _nccl_log(1000 * seed + first + n, scatter, factor)]
        for first, count, factor in ((0, base, 1.0), (500, new, slow))
    )
    return compare(join(*sides)[0])


@pytest.mark.parametrize(("base", "new"), [(1, 1), (1, 2), (2, 2), (3, 2), (3, 3), (4, 4), (5, 5)])
def test_more_launches_of_a_slowdown_pass_no_gate(base: int, new: int) -> None:
    """Rule: 15 % from 1 MiB on fail a gate of 5 % whatever the number of launches.

    Few launches cannot tell it from chance among so many rows. Then they are no evidence that
    nothing is slower.
    """
    comparisons = _gate(base, new, 0.006, 1.15)
    assert len(comparisons) == 54
    slow = [c for c in comparisons if (c.row.base.nbytes or 0) >= 1 << 20]
    assert all(c.ratio > 1.05 and c.may_be_slower for c in slow)
    assert not any(c.ratio > 1.05 for c in comparisons if c not in slow)
    few = {"untested"} if base + new == 2 else {"cannot tell", "slower"}
    assert {c.word for c in slow} <= ({"slower"} if base >= 5 else few)


@pytest.mark.parametrize("launches", [2, 3, 5])
@pytest.mark.parametrize("scatter", [0.005, 0.03])
def test_no_verdict_of_equality_beside_an_interval_without_it(
    launches: int, scatter: float
) -> None:
    """Rule: no row is indistinguishable whose interval excludes 1, and whose change is notable."""
    for seed in range(5):
        for c in _gate(launches, launches, scatter, 1.04, seed):
            assert c.low is not None and c.high is not None
            if c.word == "indistinguishable" and abs(c.ratio - 1) > 0.011:
                assert c.low <= 1 <= c.high, c


@pytest.mark.parametrize(
    ("launches", "scatter", "most"),
    [(2, 0.01, 0.05), (3, 0.01, 0.05), (4, 0.035, 0.05), (5, 0.035, 0.05)],
)
def test_a_gate_fails_by_chance_as_rarely_as_said(
    launches: int, scatter: float, most: float
) -> None:
    """Rule: a gate of 5 % over 54 rows fails by chance in at most 5 % of runs (docs: Compare).

    From four launches on whatever the scatter, of two or three up to 1 % of scatter.
    """
    runs = 20
    failed = [
        any(c.ratio > 1.05 and c.may_be_slower for c in _gate(launches, launches, scatter, 1, n))
        for n in range(1, 1 + runs)
    ]
    assert sum(failed) <= most * runs


def test_rows_without_a_verdict_are_counted_with_their_sizes(tmp_path: Path) -> None:
    """Rule: of rows that have no verdict the comparison says how many look slower, and where.

    On a terminal and as Markdown.
    """
    logs = []
    for number, slow in ((1, 1.0), (501, 1.15)):
        logs.append(str(tmp_path / f"{number}.log"))
        rows = _nccl_log(number, 0.006, slow)
        lines = [
            f"{a.nbytes} {a.count} float sum -1 {1e6 * (a.time_s or 0)} 1 1 0"
            f" {1e6 * (b.time_s or 0)} 1 1 0\n"
            for a, b in zip(rows[::2], rows[1::2], strict=True)
        ]
        Path(logs[-1]).write_text(_HEAD + "".join(lines))
    text = "Without a verdict: 28 rows over 5 % slower, from 1M to 8G; none over 5 % faster."
    shown = cli("compare", *logs).out
    assert text in " ".join(shown.split())
    assert "NEW against BASE: 54 untested: one launch a side; largest" in shown
    assert text.partition(": ")[2] in cli("compare", *logs, "--format", "md").out


def test_a_difference_below_the_noise_is_none() -> None:
    """Rule: significant but smaller than --noise is still indistinguishable."""
    base = launches(1, n=5)
    new = launches(2, slow=1.02, n=5)
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


def test_a_log_without_algorithms_is_held_against_the_library() -> None:
    """Rule: an old nccl-tests log stands beside a run of ours; what it lacks matches anything."""
    ours = rows(records(["ring", "library"], [2], [1024, 1 << 20]))
    lacks = {"algorithm": "", "transport": "", "op": "", "root": None}
    log = [replace(r, **lacks) for r in ours if r.algorithm == "library"]
    for base, new in ((log, ours), (ours, log)):
        joined, lost, added = join(base, new)
        assert {(j.base.size, j.base.placement) for j in joined} == {
            (r.size, r.placement) for r in log
        }
        assert all({j.base.algorithm, j.new.algorithm} == {"", "library"} for j in joined)
        assert {r.algorithm for r in (*lost, *added)} == {"ring"}
    other_type = [replace(r, dtype="int8") for r in log]
    with pytest.raises(ReportError, match=r"\(algorithm: none against ring, library; dtype: int8"):
        join(other_type, ours)


def test_what_differs_is_named() -> None:
    """Rule: machine and mapping forbid, versions and variables are said."""
    base = rows(noisy(1))
    other = {"library": "Open MPI 5", "cpu": "Xeon", "ranks_per_node": [4], "variables": {}}
    found = {(d.kind, d.name, d.forbids) for d in differences(base, rows(noisy(1, **other)))}
    assert found == {
        ("versions", "library", False),
        ("machine", "cpu", True),
        ("mapping", "ranks_per_node", True),
        ("versions", "UCX_TLS", False),
    }
    assert not differences(base, rows(noisy(2)))


def test_what_a_log_does_not_know_forbids_nothing() -> None:
    """Rule: an older record without a fingerprint is compared; that it is unknown is said."""
    base, new = rows(noisy(1)), rows(noisy(1, fingerprint=["abc"], cpu=None))
    found = {d.name: d for d in differences(base, new)}
    assert set(found) == {"fingerprint", "cpu"} and not any(d.forbids for d in found.values())
    assert str(found["fingerprint"]) == "machine: fingerprint unknown -> abc"


def test_where_ranks_ran_is_compared_rank_by_rank() -> None:
    """Rule: the same machine with ranks on other CPUs or GPUs is another mapping."""
    one = {"mapping": {"node": [0, 0], "cpus": ["0", "1"], "gpu": ["", ""]}}
    two = {"mapping": {"node": [0, 0], "cpus": ["0", "2"], "gpu": ["", ""]}}
    (found,) = differences(rows(noisy(1, **one)), rows(noisy(1, **two)))
    assert (found.kind, found.name, found.forbids) == ("mapping", "mapping cpus", True)


# -- the command line as a gate


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Runs that are alike, slower, on another machine, and wrong."""
    wrong = noisy(4)
    wrong[0] = changed(wrong[0], wrong=3)
    made = {"part": noisy(2)[:4], "base": noisy(1), "same": noisy(2), "slow": noisy(3, slow=1.08),
            "other": noisy(3, cpu="Xeon"), "wrong": wrong}  # fmt: skip
    for name, results in made.items():
        saved(tmp_path / f"{name}.jsonl", results)
    saved(tmp_path / "elsewhere.jsonl", [changed(r, ranks=8) for r in noisy(1)])
    return tmp_path


@pytest.mark.parametrize(
    ("new", "extra", "status"),
    [
        ("same", ["--fail-slower", "5%"], 0),
        ("slow", [], 0),
        ("slow", ["--fail-slower", "5%"], 1),
        ("slow", ["--fail-slower", "20%"], 0),
        ("wrong", ["--fail-slower", "5%"], 1),
        ("part", ["--fail-slower", "5%"], 1),
        ("part", ["--fail-slower", "5%", "--allow-missing"], 0),
        ("part", [], 0),
        ("part", ["--fail-missing"], 1),
        ("same", ["--fail-missing"], 0),
        ("part", ["--fail-missing", "--allow-missing"], 2),
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
    cli("compare", *files, *extra, status=status)


def test_rows_that_are_missing_stand_in_the_last_lines(runs: Path) -> None:
    """Rule: a gate that fails since NEW is short says how many rows, and what accepts them."""
    words = ("compare", runs / "base.jsonl", runs / "part.jsonl", "--fail-slower", "5%")
    text = "2 rows of BASE are missing in NEW; --allow-missing accepts that"
    assert cli(*words, status=1).out.splitlines()[-1] == f"FAILED: {text}"
    assert json.loads(cli(*words, "--format", "json", status=1).out)["failed"] == [text]


@pytest.mark.parametrize("width", [80, 160])
def test_tables_fit_and_cut_nothing(
    runs: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: at 80 and at 160 columns no line is wider and no figure is cut short.

    A command is one line, however long, so that it can be copied.
    """
    monkeypatch.setenv("COLUMNS", str(width))
    base, slow = runs / "base.jsonl", runs / "slow.jsonl"
    commands = (["show", base], ["compare", base, slow], ["import", base])
    out = "".join(cli(*words).out for words in commands)
    table = [line for line in out.splitlines() if str(runs) not in line]
    (command,) = [line for line in table if line.startswith("busbar ")]
    assert command.endswith(" --launches 7 --out FILE.jsonl")
    assert max(len(line) for line in table if line != command) <= width and "…" not in out
    assert "cannot tell" in out and "▁" in out and "64M" in out


@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_import_writes_what_it_read(runs: Path, form: str) -> None:
    """Rule: --out writes the file, --format the same to stdout; both hold every row."""
    target = runs / f"out.{form}"
    source = str(runs / "base.jsonl")
    cli("import", source, "--out", target)
    assert cli("import", source, "--format", form).out == target.read_text()
    text = target.read_text()
    rows = json.loads(text) if form == "json" else text.splitlines()[form == "csv" :]
    assert len(rows) == 6
    cli("import", source, "--out", runs / "out.xls", status=2)


def test_import_keeps_what_it_can(runs: Path) -> None:
    """Rule: one unreadable file is an error of its own, the others are still printed."""
    (runs / "bad.txt").write_text("nothing of note")
    captured = cli("import", runs / "bad.txt", runs / "base.jsonl", "--format", "csv", status=2)
    assert len(captured.out.splitlines()) == 7 and "bad.txt: no row" in captured.err


def test_unstable_rows_of_both_sides_are_said(runs: Path) -> None:
    """Rule: a verdict stands beside what is wrong with the rows that it rests on."""
    few = [changed(r, times_s=r.every[0].times_s[:3]) for r in noisy(2)]
    saved(runs / "few.jsonl", few)
    err = cli("compare", runs / "base.jsonl", runs / "few.jsonl", "--details").err
    assert "NEW: 6 of 6 rows have fewer than 6 iterations" in err and "BASE:" not in err


def test_the_answer_is_last_and_notes_that_repeat_are_one_line(runs: Path) -> None:
    """Rule: the last line says how many rows are slower; a note of every row stands once."""
    words = ["compare", runs / "base.jsonl", runs / "slow.jsonl"]
    assert cli(*words).out.splitlines()[-1].startswith("NEW against BASE: 6 cannot tell")
    few = [changed(r, times_s=r.every[0].times_s[:3]) for r in noisy(2)]
    both = saved(runs / "few.jsonl", few)
    line = "BASE and NEW: 6 of 6 rows have fewer than 6 iterations"
    assert cli("compare", both, both, "--details").err.count(line) == 1
    cut = [runs / f"cut{k}.jsonl" for k in range(2)]
    for k, path in enumerate(cut):
        head, *lines = saved(path, noisy(k)).read_text().splitlines()
        spoilt = [line.replace('"size":', '"size":-') for line in lines[:2]]
        path.write_text("\n".join([head, *spoilt, *lines[2:]]))
    err = cli("compare", *cut).err
    assert "(and 3 more like it)" in err and err.count(str(runs)) == 1


def test_a_quiet_comparison_is_the_line_with_the_verdict(runs: Path) -> None:
    """Rule: --quiet prints the line that ends the whole text, and lines of a gate that FAILED.

    The exit status is the same. What is known of the rows is printed with --details and counted
    without. The rules on reporting are printed on request alone.
    """
    few = [changed(r, times_s=r.every[0].times_s[:3]) for r in noisy(2, slow=2.0)]
    words = ["compare", runs / "base.jsonl", saved(runs / "few.jsonl", few)]
    gate = ["--fail-slower", "5%"]
    whole, short = cli(*words), cli(*words, "--quiet")
    assert short.out == whole.out.splitlines(keepends=True)[-1] and not short.err
    assert "fewer than 6 iterations" not in whole.err and "1 note on the rows" in whole.err
    assert "fewer than 6 iterations" in cli(*words, "--details").err
    assert "Hoefler" not in whole.out and "Hoefler" in cli(*words, "--rules").out
    whole, short = (cli(*words, *gate, *more, status=1) for more in ((), ("--quiet",)))
    assert short.out.splitlines() == whole.out.splitlines()[-2:]
    assert short.out.splitlines()[1].startswith("FAILED")


def test_the_verdict_names_the_largest_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: the verdict names the slowest slower row and the fastest faster one, with their change.

    It also says that the sides were not launched in turns. Lines have 80 columns at most.
    """
    factors = {1024: 1.5, 4096: 3.0, 16384: 0.5, 65536: 1.0}

    def side(day: int, factors: dict[int, float]) -> list[Path]:
        files = []
        for n in range(5):
            times = [1e-3 + 1e-6 * n + 1e-8 * k for k in range(20)]
            known = {"started": f"2026-11-{day:02}T0{n}:00:00+00:00"}
            made = [
                allreduce("ring", 2, size, [one * factor for one in times], environment=known)
                for size, factor in factors.items()
            ]
            files.append(saved(tmp_path / f"{day}-{n}.jsonl", made))
        return files

    base, new = side(1, dict.fromkeys(factors, 1.0)), side(2, factors)
    monkeypatch.setenv("COLUMNS", "80")
    out = cli("compare", *base, "--", *new, "-q").out
    assert " ".join(out.split()) == (
        "NEW against BASE: 1 faster (allreduce ring 16K out -50.0%), 2 slower (most: allreduce ring"
        " 4K out +200.0%), 1 indistinguishable; launched one after the other"
    )
    assert max(map(len, out.splitlines())) <= 80
    same = cli("compare", *base, "--", *side(3, dict.fromkeys(factors, 1.0)), "-q").out
    assert same == "NEW against BASE: 4 indistinguishable\n"


def test_one_launch_a_side_cannot_tell(runs: Path) -> None:
    """Rule: iterations of one launch do not show what changes from launch to launch: no verdict of
    them, but the command that can tell; what one launch measured twice is no second launch.
    """  # noqa: D205
    twice = saved(runs / "twice.jsonl", [*noisy(3, slow=1.5), *noisy(4, slow=1.5)])
    for new in (runs / "slow.jsonl", twice):
        out = " ".join(cli("compare", runs / "base.jsonl", new).out.split())
        assert "6 cannot tell: one launch a side" in out
        assert not re.search(r"\d slower|slower [A-Z]", out)
        assert "The command busbar ab has both sides take turns." in out
        assert re.search(
            r"busbar allreduce --ranks \d+ -A ring\S* (-b|--sizes) .* --launches 7", out
        )


@pytest.mark.parametrize("one_side", ["BASE", "NEW"])
@pytest.mark.parametrize("others", [0.77, 0.0])
def test_one_launch_on_a_side_gives_no_verdict(runs: Path, one_side: str, others: float) -> None:
    """Rule: the scatter of several launches is no scatter of one, which may be of another mode.

    Its rows have no verdict, however far from the others; the last line says why. A gate fails if
    they look slower, and if other programs ran beside the launch, so that nothing could be judged.
    """
    noise = Noise(others=(others,))
    moved = [changed(r, noise=noise) for r in noisy(70, slow=50, sizes=(2**20, 2**26))]
    alone = [saved(runs / "alone.jsonl", [r for r in moved if r.every[0].algorithm == "ring"])]
    five = [saved(runs / f"one-{n}.jsonl", noisy(71 + n)) for n in range(5)]
    base, new = (alone, five) if one_side == "BASE" else (five, alone)
    words = ["compare", *base, "--", *new]
    last = cli(*words).out.splitlines()[-1]
    gate = " ".join(
        cli(
            *words,
            "--fail-slower",
            "5%",
            "--allow-missing",
            status=int(bool(others) or new is alone),
        ).out.split()
    )
    beside = f"one launch of {one_side} ran beside other programs"
    reason = beside if others else "one launch on a side"
    assert last == f"NEW against BASE: 2 cannot tell: {reason}"
    if one_side == "NEW":
        which = "one launch beside other programs" if others else "so few launches"
        said = f"{which} cannot tell 2 of them from chance"
        assert gate.endswith(f"FAILED: 2 rows are slower by more than 5%; {said}")
    elif others:
        assert gate.endswith("FAILED: none of 2 rows could be judged")
    else:
        assert "FAILED" not in gate and "not judged: 2 of 2 rows cannot tell" in gate


def test_a_verdict_on_sides_that_followed_each_other_says_so(tmp_path: Path) -> None:
    """Rule: if all launches of a side began before those of the other, a verdict says so.

    A change of the machine in between looks like one of the code. Nothing is said without such a
    verdict, of sides in turns, and where a log does not say when it began.
    """

    def told(slow: float, *minutes: int | None) -> str:
        paths = []
        for n, minute in enumerate(minutes):
            at = {} if minute is None else {"started": f"2026-11-28T10:{minute:02}:00+00:00"}
            kept = noisy(n, slow=slow if n % 2 else 1.0, **at)
            paths.append(saved(tmp_path / f"{n}.jsonl", kept))
        return " ".join(cli("compare", *paths[::2], "--", *paths[1::2]).out.split())

    note = "BASE and NEW were launched one after the other: "
    follow, turns = (0, 4, 1, 5, 2, 6, 3, 7), (0, 1, 2, 3, 4, 5, 6, 7)
    assert "slower" in told(1.5, *follow) and note in told(1.5, *follow)
    assert "slower" in told(1.5, *turns) and note not in told(1.5, *turns)
    assert note not in told(1.0, *follow)
    assert note not in told(1.5, None, *follow[1:])


def test_a_library_that_changed_too_speaks_of_the_machine(tmp_path: Path) -> None:
    """Rule: if the library's rows changed in the direction of the others', `compare` says so.

    Not if they changed in the other direction, in half of the rows at most, or alone; nor if the
    sides were launched in turns.
    """

    def told(ring: Sequence[float], library: Sequence[float], turns: bool = False) -> str:
        sides: tuple[list[str], list[str]] = ([], [])
        for n in range(10):
            new = n % 2 if turns else n // 5
            times = [(3 + (n * k) % 7 / 50) * 1e-6 for k in range(1, 9)]
            known = {"started": f"2026-11-28T10:{n:02}:00+00:00"}
            made = [
                allreduce(
                    name,
                    2,
                    1024 << at,
                    [one * (factor if new else 1.0) for one in times],
                    environment=known,
                    transport="mpi" if name == "library" else "shm",
                )
                for name, factors in (("ring", ring), ("library", library))
                for at, factor in enumerate(factors)
            ]
            sides[new].append(saved(tmp_path / f"{n}.jsonl", made))
        whole, short = (
            " ".join(cli("compare", *sides[0], "--", *sides[1], *more).out.split())
            for more in ((), ("-q",))
        )
        assert ("; library is " in short) == (", and library is " in whole)
        return short.partition("; library is ")[2]

    assert told((0.5, 0.5), (0.4, 1.0, 0.4)) == "faster, too, in 2 of 3 rows"
    assert told((2, 2), (2, 2, 3)) == "slower, too, in 3 of 3 rows"
    for ring, library in (((2, 2), (0.5, 0.5)), ((2, 2), (2, 1)), ((1, 1), (2, 2)), ((2, 2), ())):
        assert told(ring, library) == ""
    assert told((2, 2), (2, 2), turns=True) == ""


def test_two_algorithms_are_compared_on_request(tmp_path: Path) -> None:
    """Rule: sides of two algorithms are refused with --ignore as the remedy, and compared by it."""
    both = noisy(1)
    files = [
        saved(tmp_path / f"{name}.jsonl", [r for r in both if r.every[0].algorithm == name])
        for name in ("ring", "tree")
    ]
    err = cli("compare", *files, status=2).err
    assert "(algorithm: ring against tree); --ignore algorithm compares them" in err
    shown = cli("compare", *files, "--ignore", "algorithm")
    assert "compared: algorithm ring against tree" in shown.err
    assert shown.out.count("ring against tree") == 3 and "3 cannot tell" in shown.out
    document = json.loads(cli("compare", *files, "--ignore=algorithm", "--format=json").out)
    names = {(one["algorithm"], one["new_algorithm"]) for one in document["comparisons"]}
    assert names == {("ring", "tree")}
    assert "ring against tree" in cli("compare", *files, "--ignore=algorithm", "--format=md").out
    other = saved(tmp_path / "both.jsonl", both)
    err = cli("compare", other, files[0], "--ignore", "algorithm", status=2).err
    assert "--ignore algorithm: BASE has ring, tree; choose one algorithm a side" in err
    err = cli("compare", *files, "--ignore", "size", status=2).err
    assert "--ignore: no setting to ignore 'size'; there are: algorithm, transport" in err


def test_a_folder_of_logs_is_a_side(tmp_path: Path) -> None:
    """Rule: a folder without records is read log by log, each a launch, as files beside `--` are.

    A folder with neither is refused with the endings that count.
    """
    for side, first, count in (("last", 0, 3), ("now", 500, 2)):
        (tmp_path / side).mkdir()
        for n in range(count):
            row = f"1024 256 float sum -1 {10 + n}.0 1 1 0 {10 + n + first / 100} 1 1 0\n"
            (tmp_path / side / f"n{n}.log").write_text(_HEAD + row)
        (tmp_path / side / "notes.md").write_text("no log")
    folders = cli("compare", tmp_path / "last", tmp_path / "now", "--format", "json").out
    files = [sorted((tmp_path / side).glob("*.log")) for side in ("last", "now")]
    assert folders == cli("compare", *files[0], "--", *files[1], "--format", "json").out
    assert {tuple(c["launches"]) for c in json.loads(folders)["comparisons"]} == {(3, 2)}
    (tmp_path / "none").mkdir()
    refused = cli("compare", tmp_path / "last", tmp_path / "none", status=2).err
    assert "without records (.jsonl" in refused and "without logs (.log" in refused


def test_md_of_several_files_a_side_names_compare(runs: Path) -> None:
    """Rule: md takes one file a side; the refusal of more names the command that takes them."""
    files = [runs / "base.jsonl", runs / "same.jsonl"]
    assert "(NEW against BASE)" in cli("md", *files).out
    for words in ([*files, "--", runs / "slow.jsonl"], [*files, runs / "slow.jsonl"]):
        assert "compare A… -- B… --format md" in cli("md", *words, status=2).err
    assert "unrecognized arguments: --frob" in cli("md", *files, "--frob", status=2).err


def test_a_file_against_itself_and_against_a_log(runs: Path) -> None:
    """Rule: the same files are noted, single iterations have their remedy, and a log without an
    environment is one line, not one for each fact of the other side.
    """  # noqa: D205
    once = [changed(r, times_s=r.every[0].times_s[:1]) for r in noisy(2)]
    path = saved(runs / "once.jsonl", once)
    err = cli("compare", path, "--", path).err
    assert "BASE and NEW have 1 launch in common" in err and "raise -n or --budget" in err
    counted = saved(runs / "counted.jsonl", [changed(r, stopped="iterations") for r in once])
    assert "measure more iterations (raise -n) to have" in cli("compare", counted, counted).err
    log = saved(runs / "bare.jsonl", noisy(2))
    head, *lines = log.read_text().splitlines()
    bare = {**json.loads(head), "environment": {}}
    log.write_text("\n".join([json.dumps(bare), *lines]))
    err = cli("compare", runs / "base.jsonl", log).err
    assert "unknown" not in err
    assert "NEW is a log without environment: facts that it lacks are not compared" in err


@pytest.mark.parametrize("counts", [(2, 4), (2, 4, 8), (4,)])
def test_other_rank_counts_are_named_instead_of_the_mapping(
    counts: tuple[int, ...], tmp_path: Path
) -> None:
    """Rule: runs on other rank counts are refused with the counts, not with each rank's place."""
    files = []
    for name, ranks in (("base", (2,)), ("new", counts)):
        made = [
            one
            for p in ranks
            for one in records(["ring"], [p], mapping={"node": [0] * p, "gpu": [None] * p})
        ]
        files.append(saved(tmp_path / f"{name}.jsonl", made))
    err = cli("compare", *files, status=2).err
    text = ", ".join(map(str, counts[:-1])) + f" and {counts[-1]}" if counts[1:] else "4"
    assert f"same setting: 2 ranks against {text} ranks (--anyway" in " ".join(err.split())


def test_launches_far_apart_leave_a_table_to_read(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: an interval of more than a factor of 100 is ``-`` and tells nothing, which is said.

    A verdict is never cut.
    """
    monkeypatch.setenv("COLUMNS", "80")
    sides = [
        [
            str(saved(runs / f"{side}-{slow}.jsonl", noisy(ord(side) + slow, slow=slow)))
            for slow in (1, 50)
        ]
        for side in "xy"
    ]
    out = cli("compare", *sides[0], "--", *sides[1]).out
    words = [line.split() for line in out.splitlines()]
    table = [line for line in words if line[1:2] in (["ring"], ["tree"])]
    assert len(table) == 6, out
    for line in table:
        told = ["-", "cannot", "tell"] if line[1] == "ring" else ["indistinguishable"]
        assert line[-len(told) :] == told
    text = " ".join(out.split())
    assert " launches a side do not tell every difference from chance: launch more often" in text
    assert text.endswith("3 indistinguishable, 3 cannot tell: the interval reaches a factor of 2")


def test_a_gate_that_judged_nothing_fails(runs: Path) -> None:
    """Rule: --fail-slower fails if no row of several launches could be judged, and says so.

    The advice names more launches than there were.
    """
    sides = [
        [
            str(
                saved(
                    runs / f"{side}-{n}.jsonl",
                    [
                        one
                        for one in noisy(ord(side) + n, slow=(1, 50)[n % 2])
                        if one.every[0].algorithm == "ring"
                    ],
                )
            )
            for n in range(6)
        ]
        for side in "xy"
    ]
    words = ["compare", *sides[0], "--", *sides[1]]
    cli(*words)
    out = " ".join(cli(*words, "--fail-slower", "5%", status=1).out.split())
    assert out.endswith("FAILED: none of 3 rows could be judged") and "--launches 12" in out


def test_a_gate_counts_the_rows_that_it_does_not_judge_and_fails_them_if_asked(runs: Path) -> None:
    """Rule: rows that cannot tell pass beside rows with a verdict, and the last line counts them.

    With --fail-unjudged they fail, also without --fail-slower. Single figures, as of logs, are
    judged.
    """
    sides: dict[str, list[str]] = {"x": [], "y": []}
    for side, files in sides.items():
        for n in range(6):
            made = noisy(ord(side) + n, slow=(1, 50)[n % 2])  # the rings only
            files.append(str(saved(runs / f"{side}-{n}.jsonl", made)))
    words = ["compare", *sides["x"], "--", *sides["y"]]
    rows = "3 of 6 rows cannot tell"
    note = f"not judged: {rows}; --fail-unjudged fails such rows"
    assert cli(*words, "--fail-slower", "5%").out.splitlines()[-1] == note
    assert json.loads(cli(*words, "--format", "json").out)["unjudged"] == 3
    for more in ([], ["--fail-slower", "5%"]):
        out = cli(*words, "--fail-unjudged", *more, status=1).out
        assert out.splitlines()[-1] == f"FAILED: {rows}"
    whole = [runs / "base.jsonl", runs / "same.jsonl"]  # one launch a side has no verdict
    assert cli("compare", *whole, "--fail-slower", "5%").out.splitlines()[-1].startswith("not jud")
    assert "FAILED: 6 of 6 rows" in cli("compare", *whole, "--fail-unjudged", status=1).out
    bare = [runs / name for name in ("bare-a.txt", "bare-b.txt")]
    for path in bare:
        path.write_text("# nThread 1\n" + HEAD + "".join(ROWS))
    assert "judged" not in cli("compare", *bare, "--fail-slower", "5%", "--fail-unjudged").out


def test_several_files_a_side_are_launches(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: a*.jsonl -- b*.jsonl, as a folder of records, are the launches of a side, with options
    anywhere; an end of the line without files, or a file given twice, is refused.
    """  # noqa: D205
    sides: list[list[str]] = []
    for side, slow in (("a", 1.0), ("b", 1.08)):
        made = [
            saved(runs / f"{side}{k}.jsonl", noisy(ord(side) + 50 * k, slow=slow)) for k in range(4)
        ]
        sides.append(list(map(str, made)))
    words = ["compare", *sides[0], "--", sides[1][0], "--noise", "2%", *sides[1][1:]]
    out = " ".join(cli(*words).out.split())
    assert "3 slower (most: allreduce ring 1K out +8.3%), 3 indistinguishable" in out
    # What is not told apart may still differ: by how much, and who could tell.
    assert "4 launches a side do not see a difference below" in out
    cli(*words, "--fail-slower", "5%", status=1)
    for bad, said in (
        (sides[0][:1], "several files a side"),
        (sides[0][:3], "several files a side"),
        ([*sides[0], "--"], "several files a side"),
        ([sides[0][0], sides[0][0], "--", sides[1][0]], "is given twice"),
        ([*sides[0], "--", sides[1][0], "--frob"], "unrecognized arguments"),
    ):
        assert main(["compare", *bad]) == 2, bad
        assert said in capsys.readouterr().err, bad


def test_rows_of_a_comparison_are_in_order(runs: Path) -> None:
    """Rule: by algorithm and size, though launches measure rows in random order."""
    every = noisy(1)
    for name in ("base", "new"):
        saved(runs / f"{name}.jsonl", [every[n] for n in (4, 2, 0, 3, 5, 1)])
    for form in ("table", "md"):
        out = cli("compare", runs / "base.jsonl", runs / "new.jsonl", "--format", form).out
        shown = re.findall(r"\b(1K|1M|64M)\W+(ring|tree)\b", out)
        assert shown == [(size, name) for name in ("tree", "ring") for size in ("1K", "1M", "64M")]


def test_what_is_not_seen_is_a_share_or_a_factor() -> None:
    """Rule: below twice the time the least difference that is seen is a share, else a factor."""

    def seen(*scatters: float) -> str:
        sides = [
            [
                row
                for n, seconds in enumerate((1.0, 1.05, 0.95, 1.02))
                for k, scatter in enumerate(scatters)
                for row in rows([allreduce("ring", 2, 1024 << k, [seconds**scatter] * 9)], f"{n}")
            ]
            for _ in "ab"
        ]
        alike = [
            dataclasses.replace(one, word="indistinguishable") for one in compare(join(*sides)[0])
        ]
        return resolution(alike).partition(" below ")[2].partition(";")[0]

    assert seen(1, 2) == "15 % to 32 %, by the row" and seen(1, 1) == "15 %"
    assert seen(1, 8) == "15 % to a factor of 3.1, by the row"
    assert seen(8, 20) == "a factor of 3.1 to 17, by the row"


def test_another_core_clock_is_told() -> None:
    """Rule: where a side's cores ran at another clock, by 1 % and more, the comparison says so."""

    def sides(*hz: float | None) -> str:
        both = [
            [replace(row, clock_core_hz=one) for row in launches(seed)]
            for seed, one in enumerate(hz)
        ]
        return clocks(compare(join(*both)[0]))

    assert "Core clocks differ in 6 of 6 rows, NEW's by -10.0 %" in sides(4e9, 3.6e9)
    assert sides(4e9, 4.02e9) == sides(4e9, None) == ""


@pytest.mark.parametrize(
    ("collective", "said"),
    [("allreduce", "busbar allreduce --ranks"), ("latency", "busbar pt2pt --ranks")],
)
def test_the_command_that_can_tell_exists(collective: str, said: str) -> None:
    """Rule: what is advised is a command that there is: tests of pairs have one door."""
    base, new = (
        [
            replace(row, collective=collective, run=dataclasses.replace(row.run, format="busbar 3"))
            for row in one
        ]
        for one in (rows(noisy(1)), rows(noisy(2)))
    )
    assert said in remedy(compare(join(base, new)[0]))


def test_wrong_elements_of_any_launch_fail(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: --fail-slower fails for wrong elements of a later launch, and of a row BASE lacks."""
    base = [saved(runs / f"b{k}.jsonl", noisy(k)) for k in range(3)]
    new = [saved(runs / f"n{k}.jsonl", noisy(50 + k)) for k in range(3)]
    words = [*base, "--", *new, "--fail-slower", "50%"]
    cli("compare", *words)
    spoilt = noisy(51)
    saved(new[1], [changed(spoilt[0], wrong=9), *spoilt[1:]])
    assert "FAILED: NEW has wrong elements in 1 row\n" in cli("compare", *words, status=1).out
    saved(new[1], [*noisy(51), changed(spoilt[0], wrong=9, algorithm="other")])
    assert "FAILED: NEW has wrong elements" in cli("compare", *words, status=1).out
    capsys.readouterr()


def test_the_three_columns_are_of_one_quantity() -> None:
    """Rule: base, new and change are of the medians of raw times, whatever a log's figure is."""
    ours = rows(records(["ring"], [2], [1024]))[:1]
    slow = [
        replace(ours[0], time_s=2.8 * (ours[0].time_s or 0), run=dataclasses.replace(ours[0].run))
    ]
    (one,) = compare(join(ours, slow)[0])
    assert one.base == one.new and one.change == pytest.approx(1)


def test_links_in_a_circle_are_refused_in_one_line(tmp_path: Path) -> None:
    """Rule: a link that leads to itself is no traceback on any Python."""
    path = tmp_path / "r.jsonl"
    path.symlink_to(path.name)
    said = cli("compare", path, path, "--", path, path, status=2)
    assert "is given twice" in said.err
    assert "Too many levels" in cli("compare", path, path, status=2).err


def test_logs_of_rates_alone_are_advised_to_keep_times(tmp_path: Path) -> None:
    """Rule: a log that has bandwidths and no time has no iterations that an option could raise."""
    log = tmp_path / "bw.txt"
    log.write_text("# OSU MPI Bandwidth Test v7.3\n# Size   Bandwidth (MB/s)\n1   3.37\n2   6.81\n")
    other = tmp_path / "other.txt"
    other.write_text(log.read_text().replace("3.37", "3.38"))
    said = cli("compare", log, other).err
    assert "no interval; keep raw times to have a test" in said
