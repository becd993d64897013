"""``bench.ab``: two commands interleaved, decided or not, and what is refused."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bench.launch.launch import Interrupted
from bench.options.launching import LaunchTurn
from bench.trials.ab import PairedRows, Side, launch, side, together
from busbar.errors import ReportError, Unsupported
from reports.analysis.cautions import causes
from reports.readers.reading import read
from reports.records.measurement import Measurement, Noise
from tests.command import command
from tests.conftest import Run, good
from tests.reports.runs import allreduce, changed, noisy, rows, timed

LOG = """# nThread 1 nGpus 1 minBytes 1024 maxBytes 1024 step: 2(factor) warmup iters: 1 iters: 20
# size count type redop root time algbw busbw #wrong time algbw busbw #wrong
  1024  256  float  sum  -1  {0}.00  0.1  0.1  0  {0}.00  0.1  0.1  0
"""

main = command("ab")


def _log(folder: Path, name: str, time: int) -> list[str]:
    path = folder / f"all_reduce_perf-{name}.txt"
    path.write_text(LOG.format(time))
    return [sys.executable, "-c", f"print(open({str(path)!r}).read())"]


def test_any_command_whose_log_is_read_is_a_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: rounds end when all rows are decided; the records of all launches are kept."""
    a, b = _log(tmp_path, "a", 10), _log(tmp_path, "b", 20)
    assert main(["--seed", "1", "--out", str(tmp_path / "kept"), "--", *a, "--", *b]) == 0
    out, err = capsys.readouterr()
    assert "+100.0%" in out and "slower" in out and err.count("round ") == 4
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert names == [f"{one}-00{n}.txt" for one in "ab" for n in (1, 2, 3, 4)]
    rounds = [line for line in err.splitlines() if line.startswith("busbar: round ")]
    assert {"(AB)", "(BA)"} >= {line.split()[3].rstrip(":") for line in rounds}
    assert err.startswith("busbar: launches of A and B in turns, 5 min 00 s at most (--budget)\n")


def test_a_large_ratio_is_a_factor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: a ratio of 10 or more and its interval are factors, without an exponent."""
    a, b = _log(tmp_path, "a", 10), _log(tmp_path, "b", 3000)
    assert main(["--", *a, "--", *b]) == 0
    (row,) = capsys.readouterr().out.splitlines()[3:4]
    assert " 300x  300x 300x " in row and "e+" not in row and "slower" in row


def test_an_interrupted_comparison_says_how_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: after a signal the rounds so far are shown, their number is said, the status is 130."""
    a, b = _log(tmp_path, "a", 10), _log(tmp_path, "b", 20)
    for rounds in (0, 1):
        left = [2 * rounds]

        def interrupted(
            one: Side, file: Path, turn: LaunchTurn | None = None, left: list[int] = left
        ) -> Sequence[Measurement]:
            left[0] -= 1
            if left[0] < 0:
                raise Interrupted(signal.SIGINT)
            return launch(one, file, turn)

        monkeypatch.setattr("bench.trials.ab.launch", interrupted)
        assert main(["--", *a, "--", *b]) == 130
        out, err = capsys.readouterr()
        assert f"busbar: interrupted; {rounds} round{'s' * (not rounds)} compared\n" in err
        assert ("size" in out) == bool(rounds)


def test_rounds_end_with_their_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: with --most, rows that are not decided in time are reported as undecided."""
    a, b = _log(tmp_path, "a", 10), _log(tmp_path, "b", 20)
    assert main(["--most", "2", "--", *a, "--", *b]) == 0
    out, err = capsys.readouterr()
    assert "undecided" in out and "2 of 2 rows are undecided" in err


def test_settings_of_a_benchmark_are_launched_shuffled(run: Run, tmp_path: Path) -> None:
    """Rule: a benchmark's name makes a side; records have the seed; the difference is named.

    Two algorithms take turns in one launch, unless they are to be separate.
    """
    rest = ("--transport", "inproc", "--ranks", "2", "-b", "1K", "-e", "2K", "-n", "9", "-N2")
    words = [w for name in ("ring", "ps") for w in ("--", "allreduce", *rest, "-A", name)]
    for separate, files in (((), ["ab"]), (("--separate",), ["a", "b"])):
        folder = tmp_path / "-".join(files)
        argv = ("-m", "bench.ab", *separate, "--most", "1", "--seed", "5", "--out", str(folder))
        out = good(run(sys.executable, *argv, *words))
        assert "compared: algorithm ring against ps" in out
        assert sorted(path.name for path in folder.iterdir()) == [f"{x}-001.jsonl" for x in files]
        kept = [read(path).rows for path in folder.iterdir()]
        assert all(
            rows[0].run.environment["launch"] == {"number": 1, "of": 0, "seed": 5} for rows in kept
        )
        assert [len(rows) for rows in kept] == [16 // len(files)] * len(files)  # a placement a row
        assert len(out.splitlines()) == 3 + 1 + 4  # two sizes, two placements


@pytest.mark.parametrize(
    ("a", "b", "algorithms"),
    [
        (["-A", "ring"], ["-A", "ps"], ("ring", "ps")),
        (
            ["-A", "double_tree:segments=4"],
            ["-A", "library"],
            ("double_tree:segments=4", "library"),
        ),
        (["-A", "ring"], ["-A", "ring"], None),
        (["-A", "ring,ps"], ["-A", "ps"], None),
        (["-A", "ring", "-e", "1M"], ["-A", "ps"], None),
        (["-A", "ring"], ["-A", "ring", "--sync", "window"], None),
    ],
)
def test_two_algorithms_share_launches_and_nothing_else_does(
    a: list[str], b: list[str], algorithms: tuple[str, str] | None
) -> None:
    """Rule: one launch measures both sides only if they differ in nothing but one algorithm."""
    both = together(*(side(name, ["allreduce", *words]) for name, words in (("A", a), ("B", b))))
    assert (both and both.algorithms) == algorithms
    if both and algorithms:
        assert both.side.words[-4:] == ("-A", algorithms[0], "-A", algorithms[1])
    other = side("B", ["allgather", "-A", "ring"])
    assert together(side("A", ["allreduce", "-A", "ps"]), other) is None


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        ([], 2, "two commands are needed"),
        (["--", "allreduce"], 2, "two commands are needed"),
        (["--", "--", "allreduce"], 2, "no command A"),
        (["--", "allreduce", "--frob", "--", "allreduce"], 2, "--frob"),
        (["--", "allreduce", "--ranks", "2,4", "--", "allreduce"], 2, "one launch"),
        (["--frob", "--", "allreduce", "--", "allreduce"], 2, "--frob"),
        (["--", "allreduce", "--", "/no/such"], 3, "B: /no/such: cannot be started"),
        (["sleep 0.1", "sleep 0.11"], 2, "write -- A… -- B…, as in -- allreduce -A ring -- all"),
        (["allreduce", "-A", "ring", "--", "allreduce"], 2, "'allreduce' does not follow --"),
        (
            ["--", sys.executable, "-c", "1", "--", sys.executable, "-c", "1"],
            1,
            "nothing to compare: it printed nothing; the rows that a benchmark prints are compared",
        ),
        (
            ["--", sys.executable, "-c", "print(1)", "--", sys.executable, "-c", "print(1)"],
            1,
            "nothing to compare: no row of nccl-tests, OSU, IMB or Busbar could be read",
        ),
        (["--", sys.executable, "-c", "1/0", "--", sys.executable, "-c", "1/0"], 1, "ZeroDivision"),
    ],
)
def test_misuse_is_one_line(
    argv: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: what cannot be compared is refused in one line, if possible before anything runs."""
    assert main(argv) == status
    out, err = capsys.readouterr()
    refusal = [line for line in err.splitlines() if "at most (--budget)" not in line]
    assert said in err and not out and len(refusal) == 1
    assert "/busbar-" not in err  # a folder that is removed


def test_builds_are_known_by_what_they_start() -> None:
    """Rule: a benchmark of another Python writes records, but gets no newer option."""
    made = side("A", ["/old/bin/python", "-m", "bench.allreduce", "--ranks", "2"])
    assert made.ours and not made.shuffles
    assert side("A", ["mpirun", "-n", "2", "busbar", "allreduce"]).ours
    assert not side("A", ["all_reduce_perf", "-b", "8"]).ours
    assert side("A", ["allreduce", "-n", "3"]).shuffles
    with pytest.raises(Unsupported, match="no command"):
        side("A", [])


def test_other_programs_beside_a_comparison_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: below the table stands what disturbed the rows of all rounds, as below a run's table.

    Lines have 80 columns at most; without disturbance there is none.
    """
    monkeypatch.setenv("COLUMNS", "80")
    for share in (0.0, 0.61):
        pairs, every = PairedRows(0.01), list[Measurement]()
        for seed in (1, 2):
            sides = [
                rows([changed(one, noise=Noise(others=(share,))) for one in noisy(seed + side)])
                for side in (0, 10)
            ]
            pairs.add(*sides)
            every += [*sides[0], *sides[1]]
        lines = list(pairs.lines())
        said = " ".join(" ".join(lines[len(pairs.pairs) + 1 :]).split())
        assert said == causes(every) and ("other programs took up to 61 %" in said) == bool(share)
        assert max(map(len, lines[len(pairs.pairs) + 1 :]), default=0) <= 80


def test_turns_of_a_launch_are_compared_turn_by_turn() -> None:
    """Rule: if a launch measures both sides, a level that both share is no difference."""
    pairs, levels = PairedRows(0.01), (1.0, 1.5, 0.7)
    random = np.random.default_rng(1)
    for number in range(8):
        place = {"launch": {"number": number, "of": 0, "seed": 1}}
        turns = [
            allreduce(name, 2, 1024, 1e-5 * level * slow * random.lognormal(0, 1e-3, 9),
                      environment=place)
            for level in levels
            for name, slow in (("ring", 1.0), ("ps", 1.05))
        ]  # fmt: skip
        made = rows(turns)
        pairs.add(*([r for r in made if r.algorithm == name] for name in ("ring", "ps")))
    assert pairs.words == ["slower"] and "+5.0%" in list(pairs.lines())[-1]


def test_pairs_are_decided_row_by_row() -> None:
    """Rule: a side that is 8 % slower is called slower; equal sides are indistinguishable."""
    pairs = PairedRows(0.03)
    for turn in range(12):
        pairs.add(rows(noisy(turn)), rows(noisy(100 + turn, slow=1.08)))
    assert sorted(pairs.words) == ["indistinguishable"] * 3 + ["slower"] * 3 and pairs.decided
    with pytest.raises(ReportError, match="nothing to compare"):
        PairedRows(0.01).add(rows(noisy(1))[:1], rows(noisy(1))[1:2] + rows(noisy(1))[4:])


def test_sides_that_are_timed_otherwise_say_so() -> None:
    """Rule: if sides are timed in different ways, the difference is named."""
    pairs = PairedRows(0.01)
    usual, other = (
        rows([allreduce("ring", 2, 1024, timed((1e-5, 2e-5), **how))])
        for how in ({}, {"across": "rank0", "timing": "loop"})
    )
    pairs.add(usual, other)
    assert pairs.against == "timing each against loop, across max against rank0"


@pytest.mark.parametrize(("own", "status"), [(True, 4), (False, 1)])
def test_a_launch_that_fails_gives_its_status(
    own: bool, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: `ab` ends with a benchmark's exit status, but with 1 for any other command."""
    script = tmp_path / "busbar"
    script.write_text("raise SystemExit(4)")
    failing = [sys.executable, str(script), "allreduce" if own else "other"]
    assert main(["--", *failing, "--", *failing]) == status
    assert "exit status 4" in capsys.readouterr().err
