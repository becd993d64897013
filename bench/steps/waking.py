"""Timers and a core for threads that sleep in place of computing, so that they wake on time."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# linux/prctl.h.
_PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK = 29, 30


@contextmanager
def prompt_timers() -> Iterator[None]:
    """While this is open, this thread's sleeps end at their time.

    Linux lets a timer of SCHED_OTHER fire up to 50 us late (prctl(2), PR_SET_TIMERSLACK); here it
    is 1 ns. Threads and processes that are started meanwhile inherit it.
    """
    if sys.platform != "linux":
        yield
        return
    prctl = ctypes.CDLL(None).prctl
    before = prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0)
    prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_TIMERSLACK, before, 0, 0, 0)


@contextmanager
def one_core() -> Iterator[None]:
    """While this is open, this thread runs on one core, as do others with the same affinity.

    Threads of one interpreter take turns. The next one wakes within a few us on the same core, and
    within some tens of us on another core that was idle.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
