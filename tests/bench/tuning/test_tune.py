"""Tuning: what is chosen, the command that chooses, and its time limit."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.launch.child import Ended
from bench.options.options import Choice, parse
from bench.run.contenders import Contender, SizeDependentContender
from bench.run.environment import RunContext
from bench.run.session import Session
from bench.run.tuning_file import Range, Tunable, dump, load, lookup
from bench.run.tuning_file import parse as parse_rules
from bench.tuning.decide import collect, decide, of_files, slower, table, tied, tune
from bench.tuning.launches import Course, Effort, Launch, effort, launches_within
from busbar.errors import Unsupported
from collectives.predict.fit import dump_fit
from collectives.predict.machine import Costs, LinkCosts
from collectives.schedule.catalogue import spec
from reports.records.measurement import Measurement, Noise, Placements
from reports.statistics.inference import ratio_interval
from tests.bench.run.test_pace import Clock
from tests.bench.tuning.tunings import LIBRARY, A, B, as_open_mpi, choice, rules
from tests.command import command
from tests.conftest import Mpi, Run, called, examples, good, interruptible, on_threads, popen
from tests.reports.runs import allreduce, changed, of_format_2, rows, to_jsonl

main = command("tune")


def rounds(seed: int, middle: float, n: int = 3, each: int = 30) -> list[list[float]]:
    """Times as a machine gives them: skewed, and with rounds that differ by a per cent or so."""
    random = np.random.default_rng(seed)
    shifts = random.normal(1, 0.01, n)
    return [(middle * s * (1 + random.gamma(2, 0.02, each))).tolist() for s in shifts]


class TestDecide:
    """What is preferred to what."""

    def test_noise_never_beats_the_default(self) -> None:
        """Candidates that do not differ leave the default chosen, whatever the draw."""
        for seed in range(60):
            times = {c: rounds(3 * seed + i, 1.0) for i, c in enumerate((A, B, LIBRARY))}
            assert decide({1024: times}, LIBRARY, 0.02)[0].choice == LIBRARY, f"seed {seed}"

    def test_what_is_surely_faster_is_taken(self) -> None:
        """A candidate a third faster replaces the default at its sizes and only there."""
        slow, fast = rounds(1, 1.5), rounds(2, 1.0)
        same = rounds(3, 1.0)
        found = decide(
            {1 << 10: {A: slow, LIBRARY: fast}, 1 << 20: {A: same, LIBRARY: rounds(4, 1.5)}},
            LIBRARY,
            0.02,
        )
        assert [(one.low, one.choice) for one in found] == [(1 << 10, LIBRARY), (1 << 20, A)]
        assert found[1].default_seconds is not None
        assert found[1].default_seconds > found[1].seconds

    def test_choices_do_not_flip_between_equals(self) -> None:
        """Where two are equally fast and beat the default, the one chosen before stays."""
        sizes = {
            1 << n: {
                A: rounds(10 + n, 1.0 if n else 0.5),
                B: rounds(40 + n, 1.0),
                LIBRARY: rounds(70 + n, 3.0),
            }
            for n in range(12)
        }
        assert [one.choice for one in decide(sizes, LIBRARY, 0.02)] == [A]

    def test_a_size_without_the_default_still_gets_a_choice(self) -> None:
        """A default that failed at a size does not stand in the way of what was measured."""
        (found,) = decide({8: {A: rounds(1, 1.0)}}, LIBRARY, 0.02)
        assert found == Range(8, A, pytest.approx(1.04, rel=0.1))

    def test_predictions_are_compared_as_they_are(self) -> None:
        """Predictions have no spread: the margin alone says what is a tie."""
        times = {A: [[1.0] * 12], B: [[1.04] * 12], LIBRARY: [[1.06] * 12]}
        assert tied(times, 0.05) == (A, B)

    def test_a_single_iteration_beats_nothing(self) -> None:
        """One measured time has a spread that nobody knows: the default stays."""
        assert tied({A: [[1.0]], B: [[1.04]], LIBRARY: [[3.0]]}, 0.05) == (A, B, LIBRARY)

    @given(
        st.dictionaries(
            st.integers(0, 1 << 30),
            st.dictionaries(
                st.sampled_from([A, B, LIBRARY]), st.floats(1e-7, 10), min_size=1, max_size=3
            ),
            min_size=1,
            max_size=8,
        )
    )
    def test_every_size_gets_a_measured_choice_that_is_near_the_best(
        self, seconds: dict[int, dict[Tunable, float]]
    ) -> None:
        """Ranges rise, no neighbours are alike, and no size gets what is slower than allowed."""
        sizes = {n: {c: [[t] * 12] for c, t in times.items()} for n, times in seconds.items()}
        found = decide(sizes, LIBRARY, 0.05)
        assert [one.low for one in found] == sorted({one.low for one in found})
        assert all(a.choice != b.choice for a, b in pairwise(found))
        made = rules(found)
        for n, times in seconds.items():
            chosen = times[choice(made, n)]
            assert chosen <= 1.05 * min(times.values()) * (1 + 1e-9)


class TestShared:
    """What was measured on shared cores, or by shared work, and what was not."""

    def test_oversubscribed_runs_have_rules_of_their_own(self) -> None:
        """Rows of ranks that shared cores are not weighed against rows with a core a rank."""
        crowded, free = (_rows("ring", 1e-3, per_core=n) for n in (2.0, 0.5))
        found = collect([*crowded, *free], "out")
        assert [key.oversubscribed for key in found] == [True, False]
        made = tune(found, "library", 0.02)
        assert {one.oversubscribed for one in made} == {True, False}
        assert parse_rules(dump(made, {}), Path("t")) == made
        assert "oversubscribed" in "\n".join(table(made))

    @pytest.mark.parametrize(
        ("of_file", "here", "taken"),
        [
            (True, True, True),
            (False, False, True),
            (None, True, True),
            (True, None, True),
            (True, False, False),
            (False, True, False),
        ],
    )
    def test_rules_of_the_other_kind_are_not_taken(
        self, of_file: bool | None, here: bool | None, taken: bool
    ) -> None:
        """A file measured oversubscribed is refused where ranks have cores, and vice versa."""
        one = replace(rules((Range(0, A, 1e-6),)), transport="mpi", oversubscribed=of_file)
        where = ([one], Path("t.json"), "allreduce", 4, ("mpi",), here)
        if taken:
            assert lookup(*where) == one
        else:
            with pytest.raises(Unsupported, match="measures here"):
                lookup(*where)

    def test_a_run_of_its_own_kind_is_preferred(self) -> None:
        """Of two sets of rules for the same ranks the one measured as this run goes is taken."""
        kinds = [
            replace(rules((Range(0, A, 1e-6),)), transport="mpi", oversubscribed=kind)
            for kind in (None, True, False)
        ]
        for kind in (True, False):
            found = lookup(kinds, Path("t"), "allreduce", 4, ("mpi",), kind)
            assert found.oversubscribed is kind

    def test_shared_work_wins_nothing(self, tmp_path: Path) -> None:
        """Whatever is fastest because ranks share its work is no candidate, and that is said."""
        path = tmp_path / "r.jsonl"
        fast = changed(_record("worksharing", 1e-6), worksharing=True)
        path.write_bytes(to_jsonl([fast, _record("ring", 1e-3), _record("tree", 2e-3)]))
        series, _, notes = of_files([path], "out")
        (sizes,) = series.values()
        assert {c.algorithm for times in sizes.values() for c in times} == {"ring", "tree"}
        assert [note for note in notes if note.startswith("1 row left out")]
        path.write_text(json.dumps(of_format_2("shm", {}, seconds=1e-6)) + "\n")
        with pytest.raises(Unsupported, match="ranks shared their work"):
            of_files([path], "out")


def _record(algorithm: str, seconds: float, per_core: float = 1.0) -> Placements:
    return allreduce(algorithm, 4, 1024, (seconds,) * 8, ranks_per_core=per_core)


def _rows(algorithm: str, seconds: float, per_core: float) -> list[Measurement]:
    return _record(algorithm, seconds, per_core).every


class TestCommand:
    """``python -m bench.tune`` and ``-A auto``."""

    @pytest.mark.timeout(120)
    def test_measure_then_auto(self, tmp_path: Path) -> None:
        """What a tuning run writes, ``-A auto`` follows, size by size; the record says what ran."""
        out = tmp_path / "tuning.json"
        sizes = ("-b", "1K", "-e", "64K", "-f", "64")
        argv = "--ranks 2,3 --transport inproc --launches 2 --row-budget 0.02 --default ring"
        said = good(called(main, argv, "-A ring,one_shot,sharded_ps", *sizes, "--out", str(out)))
        found = {one.ranks: one for one in load(out)}
        assert set(found) == {2, 3}
        assert "allreduce, 3 ranks" in said
        record = tmp_path / "auto.jsonl"
        argv = ("--ranks 3 -A auto -n 2 --tuning", str(out), "--out", str(record), *sizes)
        out_text = good(on_threads("allreduce", *argv))
        rows = [json.loads(line) for line in record.read_text().splitlines()]
        rows = [row for row in rows if "algorithm" in row]
        assert len(rows) == 4
        for row in rows:
            assert row["algorithm"] == "auto"
            chosen = choice(found[3], row["size"]).algorithm
            assert row["chosen_algorithm"] == chosen
            assert f"# at {row['size']} B auto is {chosen} over inproc\n" in out_text
            assert row["wrong"] == 0

    def test_the_table_names_every_transport_that_auto_takes(self) -> None:
        """Rule: a table of auto names what carries its sizes, be it the library's transport."""
        options = parse(["-b", "1K"], "allreduce")
        ours, library = (
            Contender(spec("allreduce"), options, Choice(name), 2) for name in ("ring", "library")
        )
        names = SimpleNamespace(name="shm"), SimpleNamespace(name="mpi")
        results = Session.__new__(Session)
        results._opened = cast("RunContext", SimpleNamespace(transport=names[0], baseline=names[1]))
        both = SizeDependentContender("auto", [(0, ours), (1024, library), (4096, ours)])
        assert results._through(both) == "shm, mpi"
        assert (results._through(ours), results._through(library)) == ("shm", "mpi")

    def test_a_dry_run_measures_nothing(self, tmp_path: Path) -> None:
        """Rule: --dry-run names every run and the time, starts none and leaves no file."""
        out = str(tmp_path / "tuning.json")
        argv = "--ranks 2,3 --transport inproc --launches 2 -b 1K -e 2K --dry-run --out"
        said = good(called(main, argv, out))
        assert sorted(said.splitlines()) == ["allreduce-2-inproc"] * 2 + ["allreduce-3-inproc"] * 2
        assert not list(tmp_path.iterdir())

    def test_deciding_again_gives_the_same(self, tmp_path: Path) -> None:
        """``--from`` on kept records writes the same rules: nothing depends on the day."""
        kept = str(tmp_path / "run.jsonl")
        good(on_threads("allreduce", "--ranks 2 -A all -b 1K -e 2K -n 8 -N 2 --out", kept))
        texts = []
        for name in ("a.json", "b.json"):
            good(called(main, "--from", kept, "--out", str(tmp_path / name)))
            texts.append((tmp_path / name).read_bytes())
        assert texts[0] == texts[1]

    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            (["--from", "nothing.jsonl"], "nothing.jsonl"),
            (["--collective", "allredduce"], "no collective 'allredduce'"),
            (["--noise", "lots"], "no share"),
            (["--open-mpi", "--nccl"], "exclude each other"),
            (["--launcher", "'/no/such/launcher -n {ranks}'"], "/no/such/launcher"),
            (["-b", "1Q"], "'1Q' is no size"),
            (["--budget", "30"], "time of the whole search: write 30m or 30s"),
            (["--from", "README.md", "-b", "1K"], "nothing is measured with --from"),
            (["--from", "README.md", "--ranks", "4"], "--ranks: nothing is measured with --from"),
        ],
    )
    def test_misuse_is_one_line(self, tmp_path: Path, argv: list[str], said: str) -> None:
        """A wrong option or file ends with status 2 (a missing launcher with 3) and no file."""
        out = tmp_path / "t.json"
        status, _, err = called(main, *argv, "--out", str(out))
        assert status == (3 if said.startswith("/no") else 2), err
        assert said in err.strip().splitlines()[-1]
        assert not out.exists()

    def test_from_model(self, tmp_path: Path) -> None:
        """Predictions choose the fewest steps for small sizes and the fewest bytes for large ones.

        On links of 10 us and 1 GB/s without contention, 2 lg P steps of halving and doubling beat
        the ring's 2(P-1), and lg P steps of whole vectors are best only while small. At the largest
        sizes latency is less than the margin, so that the ring, the default, stays.
        """
        link = LinkCosts.assumed(1e-5, 1e-9, "by hand")
        fit, out = tmp_path / "fit.json", tmp_path / "t.json"
        fit.write_text(dump_fit([Costs({"node": link}, ranks=8, transport="mpi")]))
        argv = (
            "--from-model", str(fit), "--ranks", "8", "-b", "64", "-e", "64M", "-f", "16",
            "--out", str(out), "--open-mpi-rules", str(tmp_path / "rules.conf"),
        )  # fmt: skip
        good(called(main, *argv, "-A ring,recursive_doubling,halving_doubling"))
        (made,) = load(out)
        assert made.source == "predicted"
        assert [one.choice.algorithm for one in made.ranges] == [
            "recursive_doubling",
            "halving_doubling",
            "ring",
        ]
        # lg P (a + n b) meets 2 lg P a + 2 n b (P-1)/P at n = lg P a / (b (lg P - 2 (P-1)/P)).
        even = 3 * 1e-5 / (1e-9 * (3 - 2 * 7 / 8))
        assert made.ranges[1].low / 16 <= even <= made.ranges[1].low
        rules_text = (tmp_path / "rules.conf").read_text()
        assert as_open_mpi(rules_text, 2, 8, 64) == 3
        assert as_open_mpi(rules_text, 2, 8, made.ranges[1].low) == 6
        assert as_open_mpi(rules_text, 2, 8, 1 << 26) == 4

    def test_rules_for_other_ranks_are_not_used(self, tmp_path: Path) -> None:
        """``-A auto`` without rules for these ranks ends in one line that says what there is."""
        path = tmp_path / "t.json"
        path.write_bytes(dump([rules((Range(0, A, 1e-6),), 8)], {}))
        status, _, err = on_threads("allreduce", "--ranks 2 -A auto --tuning", str(path))
        assert status == 2
        assert "allreduce on 8 ranks over mpi/library" in err

    def test_refused_under_a_launcher(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Started by a launcher it refuses: every rank would start runs of its own."""
        monkeypatch.setenv("PMI_RANK", "0")
        monkeypatch.setenv("PMI_SIZE", "2")
        status, _, err = called(main)
        assert status == 2 and "without mpirun" in err


def test_launches_are_what_choices_are_drawn_by() -> None:
    """Rule: the samples are launches; if there is only one launch, they are its rounds."""
    made = []
    for number in (1, 2):
        place = {"launch": {"number": number, "of": 2, "seed": 4}}
        times = rounds(number, 1e-5, n=3, each=6)
        made += [allreduce("ring", 4, 1024, one, environment=place) for one in times]
    for results, units in ((made, [18, 18]), (made[:3], [6, 6, 6])):
        ((_, sizes),) = collect(rows(results), "out").items()
        assert [len(one) for one in sizes[1024][Tunable("ring", "mpi")]] == units


def test_every_run_has_its_turn_with_every_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: --launches 2 starts every run twice, in rounds; the second goes on with its records."""
    told: list[list[str]] = []

    def start(module: list[str], ranks: int, argv: list[str], **_: object) -> Ended:
        told.append(argv)
        Path(argv[argv.index("--out") + 1]).write_bytes(to_jsonl([]))
        return Ended(0, "", 0)

    monkeypatch.setattr("bench.tuning.launches.run_of_its_own", start)
    argv = ["--transport", "mpi", "-A", "ring,tree", "--ranks", "2,4", "-b", "1K", "-e", "1K"]
    main([*argv, "--launches", "2", "--seed", "3", "--out", str(tmp_path / "t.json")])
    outs = [words[words.index("--out") + 1] for words in told]
    assert len(outs) == 4 and set(outs[:2]) == set(outs[2:]) and len(set(outs)) == 2
    assert [words[words.index("--launch") + 1] for words in told] == ["1/2:3"] * 2 + ["2/2:3"] * 2
    assert ["--after" in words for words in told] == [False] * 2 + [True] * 2


def test_earlier_choices_and_records_are_not_replaced_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: only --overwrite replaces what an earlier tuning wrote, and then all of its records.

    An interruption before the first row says nothing of records, for there are none, and leaves
    none.
    """

    def start(module: list[str], ranks: int, argv: list[str], **_: object) -> Ended:
        return Ended(0, "", signal.SIGINT)

    monkeypatch.setattr("bench.tuning.launches.run_of_its_own", start)
    out, folder = tmp_path / "t.json", tmp_path / "t.json.records"
    argv = ("--transport mpi -A ring,tree -b 1K -e 1K --out", str(out))
    status, _, err = called(main, *argv)
    assert status == 130 and err.splitlines()[-1] == "busbar: interrupted" and not folder.exists()
    folder.mkdir()
    earlier = dump([rules((Range(0, A, 1e-6),))], {})
    record = folder / "allreduce-8-mpi.jsonl"
    record.write_bytes(to_jsonl([_record("ring", 1e-3)]))
    status, _, err = called(main, *argv)
    assert status == 2 and f"{folder}: has records already; --from decides" in err
    out.write_bytes(earlier)
    status, _, err = called(main, *argv)
    assert status == 2 and f"{out}: has choices already; --overwrite" in err
    assert out.read_bytes() == earlier and record.exists()
    assert called(main, "--overwrite", *argv)[0] == 130
    assert out.read_bytes() == earlier and not record.exists()


_RUNS = st.lists(st.builds(Effort, st.integers(1, 500), st.floats(0.1, 1e4)), min_size=1)


@given(_RUNS, st.floats(6, 36000), st.lists(st.floats(0, 3), min_size=50, max_size=50))
def test_runs_that_keep_to_their_share_keep_to_the_whole(
    runs: list[Effort], whole: float, shares: list[float]
) -> None:
    """Rule: whatever share of its time a run takes, all end in time; what one leaves others get."""
    clock, said = Clock(), list[str]()
    begin = clock()
    course = Course(runs, whole, said.append, clock)
    course.announce()
    for share in shares[: len(runs)]:
        if course.over:
            break
        within, each = course.within(), course.row_seconds()
        assert within is not None and each is not None
        with course.run("a"):
            clock.now += min(share, 1.0) * within
    assert clock.now - begin <= whole + 0.1 * len(runs)
    assert f"{len(runs)} run" in said[0] and "within" in said[0]


def test_without_a_limit_it_says_how_long_at_most_and_what_is_left() -> None:
    """Rule: the estimate before is the bound of the rows; that within goes by what they took."""
    clock, said = Clock(), list[str]()
    course = Course([Effort(10, 100.0), Effort(30, 300.0)], None, said.append, clock)
    course.announce()
    assert said == ["2 runs of 40 rows in all, 6 min 40 s at most; --budget 10m limits it"]
    assert (course.within(), course.row_seconds(), course.over) == (None, None, False)
    with course.run("one") as on_line:
        clock.now += 20
        on_line("busbar: 7 of 10 done, 20 s passed: ring\n")
        on_line("busbar: 8 of 10 done, 20 s passed: ring\n")  # too soon after the one before
    with course.run("two"):
        pass
    assert said[1:] == [
        "1/2 one",
        "1/2 one: 7 of 10 rows, about 1 min 34 s left in all",
        "2/2 two, about 1 min 00 s left in all",
    ]


def test_what_a_run_takes_is_known_before() -> None:
    """Rule: rows are sizes, algorithms, placements and rounds; what cannot run has none."""
    argv = ("-A", "ring,tree,library", "-b", "1K", "-e", "16K", "-f", "4", "--placement", "out")
    once = effort(Launch("x", "allreduce", 2, (*argv, "--budget", "1")))
    assert once.rows == 9 and 9.0 <= once.seconds < 60
    assert effort(Launch("x", "allreduce", 2, (*argv, "-N", "3"))).rows == 27
    assert effort(Launch("x", "allreduce", 3, ("-A", "recursive_doubling"))) == Effort(0, 0.0)


def test_launches_give_way_to_rows() -> None:
    """Rule: with little time there are fewer launches, and never none."""
    runs = [Effort(100, 1.0)]
    assert [launches_within(runs, m, 3) for m in (None, 600.0, 24.0, 0.6)] == [3, 3, 1, 1]


def test_one_launch_is_said_and_a_disturbed_one_prefers_nothing(tmp_path: Path) -> None:
    """Rule: one launch a row is said; if other programs disturbed it, the default stays."""
    base, fast = 1e-3, 1e-4
    launch = {"of": 3, "seed": 1}

    def decided(others: float, launches: int) -> tuple[Tunable, str]:
        made = [
            allreduce(
                name, 4, 1024, (seconds,) * 200,
                noise=Noise(others=(others,)), environment={"launch": {**launch, "number": number}},
            )
            for number in range(1, launches + 1)
            for name, seconds in (("library", base), ("ring", fast))
        ]  # fmt: skip
        path = tmp_path / "r.jsonl"
        path.write_bytes(to_jsonl(made))
        series, doubt, notes = of_files([path], "out")
        (rules,) = tune(series, "library", 0.02, doubt=doubt)
        return rules.ranges[0].choice, " ".join(notes)

    for others, launches, best, said in (
        (0.0, 1, "ring", "another may choose otherwise"),
        (0.6, 1, "library", "the default stays"),
        (0.6, 3, "ring", ""),
    ):
        chosen, notes = decided(others, launches)
        assert (chosen.algorithm, said in notes) == (best, True), notes
        assert bool(said) == bool(notes), notes


@examples(40)
@given(st.integers(0, 2**32 - 1), st.floats(1.0, 1.4), st.integers(12, 60), st.integers(1, 4))
def test_the_short_way_says_what_the_drawing_says(
    seed: int, factor: float, each: int, rounds: int
) -> None:
    """Rule: what is decided without a bootstrap is what the bootstrap decides."""
    random = np.random.default_rng(seed)
    sides = [
        [(f * random.normal(1, 0.02) * (1 + random.gamma(2, 0.1, each))).tolist()
         for _ in range(rounds)]
        for f in (1.0, factor)
    ]  # fmt: skip
    found = ratio_interval(*sides)
    assert slower(sides[0], sides[1], 0.02) == (found is not None and found[0] > 1.02)


LONG = ["-m", "bench.tune", "--ranks", "2", "-A", "ring,one_shot", "-b", "1K", "-e", "1K"]


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_ctrl_c_keeps_what_was_found(mpich: Mpi, tmp_path: Path, times: int) -> None:
    """Rule: an interrupted tuning says so at once, and what it does: it decides on its rows.

    It ends with 130. A second Ctrl-C ends it with a line that says where the rows are.
    """
    out = tmp_path / "t.json"
    endless = ("--transport", "inproc,mpi", "-N", "10000000", "--launches", "1")
    line = (mpich.python, *LONG, *endless, "--row-budget", "0.05", "--out", str(out))
    with popen(line, preexec_fn=interruptible) as process:
        assert process.stderr is not None
        for said in process.stderr:
            far = re.search(r": (\d+) of \d+ rows, ", said)
            if far and int(far[1]) >= 8:  # each algorithm has some
                break
        process.send_signal(signal.SIGINT)
        for said in process.stderr:
            if said.startswith("busbar: interrupted: the present run ends, then "):
                break
        if times > 1:
            process.send_signal(signal.SIGINT)
        text, err = process.communicate()
    assert process.returncode == 130, err
    if times > 1:
        kept = f"what was measured is kept: --from {out}.records decides on it"
        assert err.splitlines() == [f"busbar: interrupted; {kept}"] and not out.exists()
        return
    assert f"interrupted: {out} is decided on the rows that 1 of 2 runs have" in err
    assert {one.transport for one in load(out)} == {"inproc"} and "allreduce, 2 ranks" in text


@pytest.mark.parametrize("measured", [True, False])
def test_ctrl_c_between_runs_says_where_the_rows_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: bool
) -> None:
    """Rule: Ctrl-C while no run goes on ends with one line; without rows no folder is left."""
    out, folder = tmp_path / "t.json", tmp_path / "t.json.records"

    def start(module: list[str], ranks: int, argv: list[str], **_: object) -> Ended:
        if measured:
            path = Path(argv[argv.index("--out") + 1])
            path.write_bytes(to_jsonl([_record("ring", 1e-3)]))
        raise KeyboardInterrupt

    monkeypatch.setattr("bench.tuning.launches.run_of_its_own", start)
    status, _, err = called(main, "--transport mpi -A ring,tree -b 1K -e 1K --out", str(out))
    kept = f"; what was measured is kept: --from {folder} decides on it" if measured else ""
    assert status == 130 and err.splitlines()[-1] == f"busbar: interrupted{kept}"
    assert folder.exists() == measured and not out.exists()


def test_a_budget_ends_what_would_not_end(mpich: Mpi, run: Run, tmp_path: Path) -> None:
    """Rule: --budget holds for all runs; one whose time is over gives what it has."""
    out = tmp_path / "t.json"
    many = ["--transport", "inproc", "-n", "400000", "--launches", "50", "--budget", "3s"]
    done = run(mpich.python, *LONG, *many, "--out", str(out))
    assert done.returncode in (0, 1), done.stderr
    assert "within 3 s" in done.stderr and "Traceback" not in done.stderr
    assert out.exists() == ("none of " not in done.stderr)
