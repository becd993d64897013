"""How iterations begin and how they are timed: one meaning, in Python and in C++."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.execution.transport import Counted, Start
from tests.once import once

HOME = Path(__file__).resolve().parents[2]
Timed = tuple[list[float], list[float], str]
"""Begins, ends, and the barriers and iterations in their order."""


class Ticking(Counted):
    """An action on a clock that every reading moves on by a tick, an iteration by 99."""

    def __init__(self) -> None:
        super().__init__(0, 0)
        self.now, self.events = 0.0, ""

    def clock(self) -> float:
        """Read the clock."""
        self.now += 1
        return self.now

    def barrier(self) -> None:
        """Take ten ticks."""
        self.now += 10
        self.events += "b"

    def __call__(self) -> None:
        """Run once."""
        self._runs += 1
        self.now += 99
        self.events += "r"

    def close(self) -> None:
        """Do nothing; no resources are held."""


def in_python(n: int, at: Sequence[float], loop: bool, slower: float) -> Timed:
    """Time the stand-in from Python."""
    action = Ticking()
    start = Start(action.barrier, at, loop, slower=slower, clock=action.clock)
    spans = action.spans(n, start)
    assert spans.absolute and action.begun() == n
    return spans.begins.tolist(), spans.ends.tolist(), action.events


@cache
def _library() -> ctypes.CDLL:
    if shutil.which("g++") is None:
        pytest.skip("no g++ to build timed.cpp for a stand-in clock with")

    def build(folder: Path) -> None:
        sources = HOME / "tests" / "native" / "spans.cpp", HOME / "native" / "src" / "timed.cpp"
        where = [f"-I{HOME / 'native' / 'src'}", "-o", str(folder / "spans.so")]
        command = ["g++", "-std=c++20", "-Og", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        subprocess.run([*command, *map(str, sources), *where], check=True)

    library = ctypes.CDLL(str(once("spans", build) / "spans.so"))
    library.spans.restype = ctypes.c_char_p
    return library


def in_cpp(n: int, at: Sequence[float], loop: bool, slower: float) -> Timed:
    """Time the stand-in from `Timed::spans`."""
    begins, ends = (np.zeros(1 if loop else n) for _ in range(2))
    times = (ctypes.c_double * len(at))(*at)
    pointers = [one.ctypes.data_as(ctypes.c_void_p) for one in (begins, ends)]
    events = _library().spans(n, times, len(at), loop, ctypes.c_double(slower), *pointers)
    return begins.tolist(), ends.tolist(), events.decode()


@given(
    st.integers(1, 70),
    st.booleans(),
    st.floats(0, 3),
    st.none() | st.lists(st.floats(0, 20_000), min_size=70, max_size=70),
)
def test_the_extension_times_as_python_does(
    n: int, loop: bool, slower: float, at: list[float] | None
) -> None:
    """Rule: each, loop, at and slower mean the same in both, reading by reading of the clock."""
    times = [] if at is None else at[: 1 if loop else n]
    assert in_cpp(n, times, loop, slower) == in_python(n, times, loop, slower)


def test_what_is_timed_is_an_iteration_and_nothing_else() -> None:
    """Rule: an iteration has a barrier, a reading, the action, a reading; a loop one barrier."""
    assert in_python(2, (), False, 0.0) == ([11, 122], [111, 222], "brbr")
    assert in_python(2, (), True, 0.0) == ([11], [210], "brr")
    begins, ends, events = in_python(2, (50, 400), False, 0.0)
    assert begins == [51, 401] and np.subtract(ends, begins).tolist() == [100, 100]
    assert events == "rr", "an iteration that begins at a time has no barrier"


@pytest.mark.parametrize(("share", "ticks"), [(0.0, 100), (0.05, 105), (0.5, 150)])
def test_slower_lengthens_what_is_timed_by_its_share(share: float, ticks: int) -> None:
    """Rule: 100 ticks become 100 (1 + share), as soon as the clock shows it."""
    begins, ends, _ = in_python(3, (), False, share)
    assert np.subtract(ends, begins).tolist() == [ticks] * 3


def test_only_the_first_iteration_needs_a_barrier_where_messages_keep_step() -> None:
    """Rule: without ``every`` iterations that Python times follow each other behind one barrier."""
    action = Ticking()
    arrived = list[int]()
    action.spans(3, Start(action.barrier, every=False, arrived=arrived.append))
    assert action.events == "brrr" and arrived == [0, 1, 2]
