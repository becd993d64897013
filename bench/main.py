"""The door of every benchmark: from a command line to an exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from bench import launch
from bench.options import Options, parse
from collectives.catalogue import collectives, spec
from collectives.errors import BusbarError, Unsupported
from collectives.process import serve

__all__ = ["ALL", "door", "listing", "main"]

ALL = "all"
# Sendrecv's other pattern is an option of sendrecv, not a benchmark of its own.
_HIDDEN = ("sendrecv_pairs",)


def door(collective: str) -> NoReturn:
    """Run the benchmark of a collective with this process's arguments, and leave."""
    sys.exit(serve("busbar", lambda: main(collective, sys.argv[1:])))


def names() -> list[str]:
    """The benchmarks that there are."""
    return [name for name in collectives() if name not in _HIDDEN]


def listing() -> list[str]:
    """A line a benchmark."""
    lines = [f"  {name:<16}{spec(name).title}" for name in names()]
    return [
        "usage: python -m bench NAME [options]   (python -m bench NAME --help)",
        "",
        *lines,
        f"  {ALL:<16}all of these, one after the other, in one launch",
    ]


def main(collective: str, argv: Sequence[str]) -> int:
    """Run a benchmark, or ``all``; gives the exit status.

    Only rank 0 prints; an error is one line.
    """
    sign = launch.launched()
    speaks = sign is None or sign.rank == 0
    try:
        wanted = _wanted(collective, argv)
        first = wanted[0]
        if first.dry_run:
            return _dry(wanted, speaks)
        from bench import start

        if first.transport == "inproc" or first.threads is not None:
            if sign is not None:
                what = "--transport inproc" if first.threads is None else "--threads (-t x -g)"
                raise Unsupported(
                    f"{what} makes its own ranks; run it without mpirun, or give mpirun them all"
                )
            if first.threads is not None and first.ranks not in (None, first.threads):
                raise Unsupported("--ranks and --threads exclude each other; give one of them")
            return start.threads(wanted)
        if first.ranks is not None and sign is None:
            module = ["bench", ALL] if collective == ALL else [f"bench.{collective}"]
            return launch.start(module, argv, first.ranks)
        return start.mpi(wanted)
    except BusbarError as error:
        return launch.said(error)


def _wanted(collective: str, argv: Sequence[str]) -> list[Options]:
    """The options of each collective to run; names that only some collectives know are theirs."""
    if collective != ALL:
        return [parse(argv, collective)]
    found: list[Options] = []
    refused: Unsupported | None = None
    for name in names():
        try:
            found.append(parse(argv, name))
        except Unsupported as error:
            refused = refused or error
    if not found and refused is not None:
        raise refused
    return found


def _dry(wanted: Sequence[Options], speaks: bool) -> int:
    from bench.catalogue import jobs
    from bench.dry import dry_run

    sign = launch.launched()
    nranks = sign.size if sign is not None else wanted[0].threads or wanted[0].ranks or 1
    for job in jobs(wanted, nranks, wanted[0].transport):
        if speaks:
            for line in dry_run(job, nranks):
                print(line)
    return 0
