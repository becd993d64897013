"""The timers and the core of a thread that sleeps while it computes, so that it wakes soon."""

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
    """While this is open, this thread has one core: the same for all threads that may use the same.

    Threads of one interpreter take turns. The next is awake on the same core in a few us; on
    another one, which was idle, in some ten.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
