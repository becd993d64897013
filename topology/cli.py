"""The command line: map, check, pick, export, measure. Parses, calls, prints; decides nothing."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from busbar.arguments import Parser, program, unknown
from busbar.completion import completing
from busbar.errors import ProbeError, Unsupported
from busbar.files import write
from busbar.process import serve
from busbar.status import FOUND, GOOD
from busbar.terminal import make_printable, styled_stream
from topology.model.topology import Topology
from topology.sources.gather import gather

if TYPE_CHECKING:
    from topology.placement.pick import Ranking


def main(argv: Sequence[str]) -> int:
    """Run one command; gives its exit status: see `busbar.status`."""

    def run() -> int:
        word = argv[0] if argv else ""
        if word in _COMMANDS:
            return _COMMANDS[word](argv[1:])
        if word and not word.startswith("-") and not Path(word).exists():
            wrong = unknown("command or file", word, filter(None, _COMMANDS))
            raise Unsupported(f"{wrong}; {program('topology')} FILE shows a file's map")
        return _show(argv)

    return serve("topology", run)


def _parser(command: str, about: str, epilog: str = "") -> Parser:
    parser = Parser(
        prog=f"{program('topology')} {command}".strip(),
        description=about,
        epilog=epilog or None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--from",
        dest="files",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="read these instead of this machine, most trusted first; - is standard input, the "
        "format is recognised",
    )
    parser.set_defaults(given=[])
    return parser


def _files(parser: Parser) -> None:
    """Take files also without ``--from``, behind the command's own words."""
    parser.add_argument("given", nargs="*", metavar="FILE", help="as --from FILE")


def _gathered(args: argparse.Namespace) -> Topology:
    files = [*args.files, *args.given]
    commands = [name for name in files if name in _COMMANDS and not Path(name).exists()]
    if commands:
        raise ProbeError("--from", f"{commands[0]} is a command: it comes first, before files")
    topology, notes = gather(files)
    for note in notes:
        sys.stderr.write(f"note: {make_printable(note)}\n")
    for gap in topology.lost:
        sys.stderr.write(f"note: {make_printable(f'{gap.source}, {gap.subject}: {gap.reason}')}\n")
    if topology.gaps:
        where, gap = "in the files" if files else "here", topology.gaps[0]
        sys.stderr.write(
            f"note: {len(topology.gaps)} question(s) without an answer {where}"
            f" ({make_printable(f'{gap.subject}, {gap.call}: {gap.reason}')}); --json lists them\n"
        )
    return topology


def _show(argv: Sequence[str]) -> int:
    commands = "\n".join(f"  {program('topology')} {name} --help" for name in _COMMANDS if name)
    parser = _parser("", "Map a machine: the matrix of nvidia-smi topo -m.", f"also:\n{commands}")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="the whole map, with the source of each fact"
    )
    form.add_argument("--csv", action="store_true", help="the matrix as CSV")
    form.add_argument("--tree", action="store_true", help="the tree from host to device")
    parser.add_argument("--svg", metavar="FILE", help="draw the link graph")
    parser.add_argument("--html", metavar="FILE", help="draw it on an HTML page")
    _files(parser)
    completing(parser, argv, filter(None, _COMMANDS))
    args = parser.parse_args(argv)
    topology = _gathered(args)
    if args.svg or args.html:
        from topology.views import picture

        for name, draw in ((args.svg, picture.svg), (args.html, picture.page)):
            if name:
                _write(name, draw(topology))
    if args.json or args.csv or args.tree or not (args.svg or args.html):
        _print_map(topology, args)
    return GOOD


def _print_map(topology: Topology, args: argparse.Namespace) -> None:
    from topology.sources import own_json
    from topology.views import matrix, tree

    if args.json:
        sys.stdout.write(own_json.dump(topology))
    elif args.csv:
        sys.stdout.write(matrix.as_csv(topology))
    elif args.tree or not topology.gpus:
        # Without a GPU the CPUs are what there is to see.
        sys.stdout.write(tree.text(topology, shutil.get_terminal_size().columns))
    else:
        out, shown = styled_stream(sys.stdout), matrix.text(topology, underline=sys.stdout.isatty())
        if not any(cell not in "X?" for row in topology.matrix() for cell in row):
            # No source says what connects the GPUs: rates are all that there is to see.
            from topology.views import measured

            rates = (measured.text(topology), measured.host_rates(topology))
            shown = "\n".join(filter(None, (shown, *rates)))
        out.write(shown)


def _write(name: str, text: str) -> None:
    """Write to a file, or to standard output for ``-``."""
    if name == "-":
        sys.stdout.write(text)
        return
    write(Path(name), text.encode())
    sys.stderr.write(f"wrote {name}\n")


def _check(argv: Sequence[str]) -> int:
    parser = _parser(
        "check",
        "State what costs performance, worst first. Exit status 1 if there are findings.",
    )
    parser.add_argument("--json", action="store_true", help="findings as JSON")
    _files(parser)
    args = parser.parse_args(argv)
    topology = _gathered(args)
    from topology.diagnostics.checks import check
    from topology.views import findings as view

    found = check(topology)
    if args.json:
        sys.stdout.write(json.dumps([vars(finding) for finding in found], indent=1) + "\n")
    else:
        sys.stdout.write(view.text(topology, found, shutil.get_terminal_size().columns))
    return FOUND if found else GOOD


def _choice(parser: argparse.ArgumentParser, required: bool) -> None:
    """The options that say which GPUs are wanted, and for what."""
    parser.add_argument(
        "-k", type=int, required=required, metavar="K", help="how many GPUs the job gets"
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="GPU[,GPU]",
        help="leave out these GPUs, by index, id, UUID or bus id; may be repeated",
    )
    parser.add_argument("--busy", action="store_true", help="leave out GPUs that are in use")
    parser.add_argument(
        "--objective",
        choices=("ring", "pairs", "all-to-all"),
        default="ring",
        help="the job's communication pattern (default: %(default)s)",
    )


def _pick(argv: Sequence[str]) -> int:
    parser = _parser("pick", "Rank the sets of K GPUs, with ring order, bottleneck and reasons.")
    _choice(parser, required=True)
    parser.add_argument(
        "-n", "--alternatives", type=int, default=5, metavar="N", help="sets to list (default: 5)"
    )
    parser.add_argument("--json", action="store_true", help="the ranking as JSON")
    _files(parser)
    args = parser.parse_args(argv)
    if args.alternatives < 1:
        parser.error(f"-n {args.alternatives}: at least 1 set is listed")
    ranking = _ranked(_gathered(args), args, args.alternatives)
    from topology.placement import text

    if args.json:
        sys.stdout.write(text.as_json(ranking))
    else:
        sys.stdout.write(text.text(ranking, shutil.get_terminal_size().columns))
    return GOOD


def _ranked(topology: Topology, args: argparse.Namespace, most: int) -> Ranking:
    """The picks of `_choice`'s options; all GPUs that are left, where ``-k`` is not given."""
    from topology.placement.pick import Objective, available, pick

    exclude = [word for text in args.exclude for word in text.split(",") if word]
    pool = available(topology, exclude, args.busy)
    k = len(pool) if args.k is None else args.k
    return pick(topology, k, Objective(args.objective), pool, most)


def _export(argv: Sequence[str]) -> int:
    from topology.exports import EXPORTS, export

    width = max(map(len, EXPORTS))
    formats = "\n".join(f"  {name:{width}}  {entry.about}" for name, entry in EXPORTS.items())
    parser = _parser("export", "Write for another program.", f"formats:\n{formats}")
    parser.add_argument("format", choices=tuple(EXPORTS), metavar="FORMAT", help="see below")
    _choice(parser, required=False)
    args = parser.parse_args(argv)
    entry = EXPORTS[args.format]
    chosen = args.k is not None or args.exclude or args.busy or args.objective != "ring"
    if chosen and not entry.ordered:
        parser.error(f"{args.format} describes the whole machine; it takes no choice of GPUs")
    topology = _gathered(args)
    order = _ranked(topology, args, 1).picks[0].order if entry.ordered else ()
    sys.stdout.write(export(args.format, topology, order))
    return GOOD


def _measure(argv: Sequence[str]) -> int:
    # A door: ranks are timed in a room above this one, found by its name.
    measure_cli = import_module("bench.links.cli")

    parser = _parser(
        "measure",
        "Measure latency and bandwidth between all ranks: mpirun -n P python -m topology measure.\n"
        "Without mpirun, --from shows matrices that were measured before.",
    )
    measure_cli.options(parser)
    args = parser.parse_args(argv)
    status: int = measure_cli.run(args, lambda: _gathered(args), _write)
    return status


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "": _show,
    "check": _check,
    "pick": _pick,
    "export": _export,
    "measure": _measure,
}
