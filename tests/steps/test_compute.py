"""Threads with prompt timers and on one core: what is set for them, and that it is undone."""

from __future__ import annotations

import ctypes
import os
from threading import Thread

import pytest

from bench.steps.compute import one_core, prompt_timers

_PR_GET_TIMERSLACK = 30


def test_what_is_set_for_a_thread_ends_with_it() -> None:
    """Rule: inside, timers are exact and a thread has one core, as do threads started there."""
    get, cores = ctypes.CDLL(None).prctl, os.sched_getaffinity(0)
    before, seen = get(_PR_GET_TIMERSLACK, 0, 0, 0, 0), list[tuple[int, set[int]]]()

    def look() -> None:
        seen.append((get(_PR_GET_TIMERSLACK, 0, 0, 0, 0), os.sched_getaffinity(0)))

    with pytest.raises(KeyError), prompt_timers(), one_core():
        look()
        other = Thread(target=look)
        other.start()
        other.join()
        raise KeyError
    look()
    assert seen == [(1, {max(cores)})] * 2 + [(before, cores)]
