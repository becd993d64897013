"""What else the machine did while a row ran: what is read, what it comes to, and what is named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.run.noise import cause, look, not_quiet, noted
from busbar.counters import Look, between, gathered, waiting
from collectives.execution.inproc.world import InprocWorld, run
from reports.records.measurement import Noise

_TICK = os.sysconf("SC_CLK_TCK")


def _look(at: float, busy: float, steal: float = 0.0, mine: float = 0.0, **more: Any) -> Look:
    rest: dict[str, Any] = {"switches": 0, "forced": 0, "migrations": 0, "hz": None, "waited": 0}
    rest |= more
    return Look("m", at, mine=mine, busy=busy, steal=steal, cpus=4, **rest)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc of two cores, with the thread on core 1 of a host that tells its frequency."""
    (tmp_path / "thread-self").mkdir()
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("abc\n")
    numbers = [100, 20, 30, 9000, 50, 4, 6, 70]
    line = " ".join(str(n * _TICK) for n in numbers)
    (tmp_path / "stat").write_text(f"cpu  {line} 1 1\ncpu0 {line} 1 1\ncpu1 {line} 1 1\nintr 5\n")
    (tmp_path / "thread-self/sched").write_text("a\nse.nr_migrations      :    7\n")
    (tmp_path / "thread-self/schedstat").write_text("5000000000 1000000000 7\n")
    fields = ["S", *["0"] * 35, "1", "0"]
    (tmp_path / "thread-self/stat").write_text(f"12 (a) b) {' '.join(fields)}\n")
    (tmp_path / "cpu1/cpufreq").mkdir(parents=True)
    (tmp_path / "cpu1/cpufreq/scaling_cur_freq").write_text("2500000\n")
    return tmp_path


def test_what_the_kernel_tells_is_read(proc: Path) -> None:
    """Rule: busy is user, nice and system; not idle, interrupts, waiting for disks or steal."""
    found = look(proc, proc, clock=lambda: None)
    assert (found.machine, found.busy, found.steal, found.cpus) == ("abc", 150.0, 70.0, 2)
    assert (found.migrations, found.hz, found.waited) == (7, 2.5e9, 1.0)


def test_the_clock_of_a_core_is_measured(proc: Path) -> None:
    """Rule: it is that of additions that need each other, of some GHz, whatever the kernel says."""
    told = look(proc, proc).hz
    assert told != 2.5e9 and 5e8 < (told or 0) < 1e10
    assert look(proc, proc, clock=lambda: 3e9).hz == 3e9


@pytest.mark.parametrize("text", ["", "cpu 1 2\n", "cpu a b c d e f g h\n"])
def test_a_kernel_that_does_not_tell(tmp_path: Path, text: str) -> None:
    """Rule: without the files, or with others in their place, nothing is made up."""
    (tmp_path / "thread-self").mkdir()
    for name in ("stat", "thread-self/schedstat"):
        (tmp_path / name).write_text(text)
    before, after = (look(tmp_path, tmp_path, clock=lambda: None) for _ in range(2))
    seen = between(before, after)
    found = gathered([seen])
    assert waiting(seen) == 0 and not {"steal", "others", "migrations", "hz"} & set(found)


def test_shares_are_of_all_cores_and_without_our_own_ranks() -> None:
    """Rule: others are what was busy less what this run's ranks on the machine took."""
    ranks = [
        between(_look(10, 100), _look(20, 130, steal=4, mine=9)),
        between(_look(10, 100), _look(20, 130, steal=4, mine=5)),
    ]
    assert gathered(ranks) == {"steal": [0.1], "others": [0.4]}  # 4 and 30 - 14 of 40 seconds


def test_waiting_is_a_share_of_the_time_since() -> None:
    """Rule: only what was waited since counts, and ranks that waited a tenth and more are named."""
    ranks = [between(_look(10, 0, waited=1.0), _look(14, 0, waited=end)) for end in (2.0, 1.2)]
    assert [waiting(one) for one in ranks] == pytest.approx([0.25, 0.05])
    assert noted([0.02, 0.48, 0.1]) == "2 ranks waited for a core (rank 1 48 %)"
    assert noted([0.02, 0.48]) == "rank 1 waited for a core (48 %)" and noted([0.0, 0.09]) == ""


def test_of_less_than_ten_ticks_nothing_is_told() -> None:
    """Rule: a row of milliseconds has no share of cores, whose counters it hardly moves."""
    short = between(_look(10, 100), _look(10 + 5 / _TICK, 101, switches=3))
    assert gathered([short]) == {"switches": [3]}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({}, ""),
        ({"steal": [0.01], "others": [0.04]}, ""),
        ({"steal": [0.12], "others": [0.31]}, "other programs took 31 % of all cores; steal 12 %"),
        ({"hz": [3e9, 2e9]}, "rank 1's core at 2.00 of 3.00 GHz"),
    ],
)
def test_the_likely_cause_is_named_greatest_first(found: dict[str, Any], said: str) -> None:
    """Rule: what is above its threshold is named, the greatest share first, and nothing else."""
    assert cause(Noise(**found)) == said


@pytest.mark.parametrize(("busy", "rounds"), [([8.0, 8.0, 0.0], 3), ([0.0], 1), ([8.0] * 5, 5)])
def test_waiting_ends_with_the_first_quiet_second(busy: list[float], rounds: int) -> None:
    """Rule: ranks wait until nothing else ran for a second, and for so long at most; all alike."""

    def body(world: InprocWorld) -> tuple[str, int]:
        def looks() -> Iterator[Look]:
            at = total = 0.0
            for one in busy:
                yield _look(at, total)
                at, total = at + 1, total + one / 2
                yield _look(at, total)

        shown, waited = looks(), list[float]()
        why = not_quiet(world, 5.0, lambda: next(shown), waited.append)
        return why, len(waited)

    for why, waited in run(2, body, deadline=30):
        assert waited == rounds and bool(why) == (busy[-1] > 0)
        assert not why or "not quiet after 5 s: other programs took" in why
