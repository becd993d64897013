"""The command ``busbar``: ``busbar allreduce``, ``busbar topology pick``, ``busbar reports show``.

This is the only module of the package that knows the rooms, and it knows them by name only: a door
is loaded when it is opened. ``python -m`` goes to the same doors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from busbar.completion import completing
from busbar.completion import words as words_asked
from busbar.process import load, serve

#: Names that OSU's users know, and the benchmark that answers them here.
_ELSEWHERE = dict.fromkeys(("latency", "bandwidth", "osu_latency", "osu_bw", "osu_bibw"), "pt2pt")


class Door(NamedTuple):
    """A command: the prefix of its errors, its function as ``module:function``, and its summary."""

    name: str
    target: str
    about: str


#: All commands but the benchmarks, which are found by their names.
DOORS: Mapping[str, Door] = {
    "topology": Door("topology", "topology.cli:main", "map a machine, check it, pick GPUs"),
    "collectives": Door("collectives", "collectives.cli:main", "see, prove, cost and simulate"),
    "reports": Door("reports", "reports.cli:main", "show, compare and draw what was measured"),
    "cluster": Door(
        "busbar", "bench.cluster.main:main", "run a command on emulated hosts and links"
    ),
    "step": Door("busbar", "bench.launch.rank:step", "measure training steps of a model"),
    "ab": Door("busbar", "bench.trials.ab:main", "interleave two commands: is one slower?"),
    "selfcheck": Door(
        "busbar", "bench.trials.selfcheck:main", "check that comparisons and intervals are right"
    ),
    "tune": Door("busbar", "bench.tuning.cli:main", "find the best algorithm for each size"),
    "doctor": Door(
        "busbar", "bench.cli.doctor:main", "what is installed, what is missing, what to do"
    ),
}


def main(argv: Sequence[str]) -> int:
    """Run the command that the first word names and return its exit status."""
    asked = words_asked()
    words = list(argv) if asked is None else asked
    if words and words[0] in DOORS:
        door = DOORS[words[0]]
        return serve(door.name, lambda: load(door.target)(words[1:]))
    if not words or words[0].startswith("-"):
        return serve("busbar", lambda: _about(words))
    return serve("busbar", lambda: _benchmark(words))


def _benchmark(words: Sequence[str]) -> int:
    names: list[str] = load("bench.cli.main:commands")()
    if words[0] not in names:
        from busbar.arguments import unknown

        raise unknown("command", words[0], (*DOORS, *names), elsewhere=_ELSEWHERE)
    status: int = load("bench.launch.rank:command")(words)
    return status


def _about(words: Sequence[str]) -> int:
    from argparse import RawDescriptionHelpFormatter

    from busbar.arguments import Parser

    doors = [f"  {name:<16}{door.about}" for name, door in DOORS.items()]
    parser = Parser(
        prog="busbar",
        usage="busbar COMMAND [options]   (busbar COMMAND --help)",
        epilog="\n".join([*doors, *load("bench.cli.main:listing")()]),
        formatter_class=RawDescriptionHelpFormatter,
    )
    completing(parser, words, [*DOORS, *load("bench.cli.main:commands")()])
    parser.parse_args(words or ["--help"])
    return 0
