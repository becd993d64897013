"""The options that define the time of a row."""

from __future__ import annotations

import argparse

from bench.options.argument_types import duration
from bench.options.arrival import arrivals
from busbar.arguments import Add
from busbar.errors import Unsupported

LIMITS = ("table", "column", "none")


def timing_options(add: Add) -> None:
    """Add the options of that group."""
    add(
        "--timing",
        "time each iteration, or N back to back as nccl-tests does (default each)",
        choices=("each", "loop"),
        default="each",
    )
    add(
        "--sync",
        "how iterations begin: behind a barrier (default), or at agreed times of one clock"
        " (window); with window the time is from the earliest start to the latest end",
        choices=("barrier", "window"),
    )
    add(
        "--arrival PATTERN",
        "let ranks enter late, in microseconds: zero, ramp:US, late:RANK:US, random:US, a"
        " file (one line per iteration, one number per rank), or all[:US] for a table of the"
        " fastest algorithm by pattern; the time counts from the last arrival; implies --sync"
        " window",
        type=arrivals,
    )
    add(
        "--wait-quiet TIME",
        "before the first row, wait until nothing else uses the cores, at most this long,"
        " such as 30s",
        type=duration,
    )
    add(
        "--statistic",
        "a row's time is this statistic of its iterations (default median)",
        choices=("median", "mean"),
        default="median",
    )
    add(
        "-a --average",
        "time of an iteration over ranks: 0 rank 0's, 1 average, 2 minimum, 3 maximum (default 3)",
        type=int,
        choices=(0, 1, 2, 3),
        default=3,
    )
    add(
        "--limit",
        "%% of the memory roofline (shm): in the table at the end (default), also in a last"
        " column, or none, without measuring the roofline",
        choices=LIMITS,
        default="table",
    )
    add(
        "--energy",
        "on GPUs: extend each row to 2 s, untimed, so that its energy can be measured",
        action="store_true",
    )


def sync(given: argparse.Namespace) -> str:
    """How iterations begin, as was asked for. Raises Unsupported for what does not go together."""
    if given.sync == "barrier" or (given.sync is None and given.arrival is None):
        if given.arrival is not None:
            raise Unsupported("--arrival needs --sync window: a barrier makes ranks arrive at once")
        return "barrier"
    if given.timing == "loop":
        raise Unsupported("--sync window times each iteration; leave out --timing loop")
    if given.average != 3:
        raise Unsupported(
            "-a combines ranks' own times; with --sync window a time is from the earliest start to"
            " the latest end"
        )
    if given.launches > 1 and any(one.seconds is None for one in given.arrival or ()):
        raise Unsupported("--launches draws the order of rows; write --arrival all:US, not all")
    return "window"
