"""Flags of nccl-tests and of launchers that Busbar does not have, with what to use instead.

A value that asks for Busbar's default behaviour is accepted silently, so that command lines that
spell out nccl-tests' defaults run. Any other value is refused, with the remedy, and never ignored.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Flag(NamedTuple):
    """Letter, long name, values without effect, and the remedy for other values."""

    letter: str
    name: str
    idle: tuple[str, ...]
    remedy: str


# Names, values without effect, and the remedy for other values. nccl-tests 2.19;
# https://github.com/NVIDIA/nccl-tests, "Arguments".
_LINES = """
-m --agg_iters 1: operations are not grouped; --timing loop has them back to back (OSU's -m\
 MIN:MAX is -b MIN -e MAX)
-p --parallel_init 0 1: write 0 or 1; ranks always begin side by side
-z --blocking 0: use --timing each (the default: a barrier before every iteration, outside the\
 clock) or --timing loop (back to back)
-y --stream_null 0: every rank has a stream of its own; there is no null stream
-C --report_cputime 0: times are those of the operation; --graph compare shows what launching it\
 takes
-S --report_timestamps 0: rows bear no time of day; pipe them through ts, or see when a run\
 started in --out's records
-R --local_register 0: buffers are not registered one by one; of a captured graph (--graph on)\
 NCCL registers them itself
-x --cta_policy: set NCCL_CTA_POLICY in the environment (OSU's -x N, warm-up iterations, is -w N)
-D --device_implementation 0: --transport ipc runs kernels of our own over peer memory
-V --device_cta_count 16: --transport ipc sizes its grid itself
-M --memory 0: --dry-run prints the memory of every row
-u --unalign 0: buffers are aligned; nothing here moves them
-K --per_iter_skip 0: -w N begins with N iterations that are not timed
"""


def _flag(line: str) -> Flag:
    names, _, remedy = line.partition(": ")
    letter, name, *idle = names.split()
    return Flag(letter[1:], name[2:], tuple(idle), remedy)


FLAGS = tuple(map(_flag, _LINES.strip().splitlines()))

# Options of launchers and of other Busbar commands that a newcomer may try.
OTHERS: Mapping[tuple[str, ...], str] = {
    ("-np", "--np", "--nproc", "--processes"): "--ranks N starts N ranks, and so does mpirun -n N"
    " before python",
    ("--backend", "--device"): "--transport names what carries the bytes, such as mpi, shm or nccl",
    ("--runs", "--min-runs", "--max-runs"): "-n N sets the iterations of each row; without it a row"
    " ends when its median is precise, or after --budget SECONDS",
    ("--json", "--output", "--export-json"): "--out FILE.jsonl keeps records, -J FILE is"
    " nccl-tests' JSON",
    ("--csv", "--export-csv"): "--out FILE.csv keeps records",
    (
        "--html",
    ): "--out FILE.jsonl keeps records, and busbar reports html FILE.jsonl makes the page",
    ("--md", "--markdown", "--export-markdown"): "--out FILE.jsonl keeps records, and busbar"
    " reports md FILE.jsonl prints them as Markdown",
    (
        "--plot",
    ): "--out FILE.jsonl keeps records, and busbar reports plot FILE.jsonl --out DIR draws them",
    ("--ranks-per-host", "--ppn", "-ppn"): "--ranks N is the ranks of all hosts, and --host A,B"
    " starts as many on each",
    ("--expect", "--fail-slower"): "--out FILE.jsonl keeps records; busbar reports show FILE.jsonl"
    " --expect RULE judges them, and busbar reports compare has --fail-slower",
    ("-v", "--verbose"): "every row is printed; -I adds columns, and --details the tables of each"
    " launch of several",
}

# Variables that nccl-tests reads, and the options with the same effect.
SET: Mapping[str, str] = {
    "NCCL_TESTS_SPLIT": "--split, such as div:8",
    "NCCL_TESTS_SPLIT_MASK": "--split and:MASK",
    "NCCL_TESTS_DEVICE": "--gpus",
    "NCCL_TESTS_MIN_BW": "busbar reports show RUN --expect 'busbw >= 100GB/s'",
}


def only(idle: Sequence[str], remedy: str) -> Callable[[str], str]:
    """A converter that returns the ``idle`` values, and refuses others with the remedy."""

    def convert(text: str) -> str:
        if text not in idle:
            value = f"{text}: " if text else ""
            raise argparse.ArgumentTypeError(f"{value}not here: {remedy}")
        return text

    return convert


def add_flags(add: Callable[..., object]) -> None:
    """Add all these flags to a parser; ``--help`` does not list them."""
    hidden = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
    for flag in FLAGS:
        add(f"-{flag.letter}", f"--{flag.name}", type=only(flag.idle, flag.remedy), **hidden)
    for names, remedy in OTHERS.items():
        add(*names, nargs="?", const="", type=only((), remedy), **hidden)


def unread(env: Mapping[str, str]) -> list[str]:
    """A note for each variable of nccl-tests that is set, because Busbar does not read it."""
    return [f"{name} is set but not read; use {use}" for name, use in SET.items() if name in env]
