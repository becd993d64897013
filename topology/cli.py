"""The commands of ``busbar topology``: they parse options, call other modules and print."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from busbar.arguments import Parser, program, unknown, whole
from busbar.commands import Command
from busbar.errors import ProbeError, Unavailable, Unsupported
from busbar.files import write
from busbar.options import OptionGroup, Self, option, switch
from busbar.status import FOUND, GOOD
from busbar.terminal import make_printable, styled_stream
from busbar.units import format_count
from topology.commands import TABLE
from topology.exports import EXPORTS, export
from topology.model.topology import Topology, with_model
from topology.sources.gather import gather

if TYPE_CHECKING:
    from topology.placement.pick import Ranking


class FileOptions(OptionGroup):
    """The files that a map is read from instead of this machine."""

    files: tuple[str, ...] = option(
        "--from FILE  read these instead of this machine, most trusted first; - is standard input,"
        " the format is recognised",
        (),
        nargs="+",
        action="extend",
    )
    words: tuple[str, ...] = ()


class WordOptions(FileOptions):
    """The files of a map, which may also be given without ``--from``, as the last words."""

    words: tuple[str, ...] = option("FILE  as --from FILE", (), nargs="*")


def gather_map(options: FileOptions) -> Topology:
    """The map of this machine, or of the files that the options name. Prints notes to stderr."""
    return _gather(options)[0]


def _gather(options: FileOptions) -> tuple[Topology, tuple[str, ...]]:
    """As `gather_map`, with the reasons of this machine's sources that do not answer."""
    files = [*options.files, *options.words]
    commands = [name for name in files if name in TABLE.entries and not Path(name).exists()]
    if commands:
        raise ProbeError("--from", f"{commands[0]} is a command: it comes first, before files")
    topology, notes = gather(files)
    for note in notes:
        sys.stderr.write(f"note: {make_printable(note)}\n")
    for gap in topology.lost:
        sys.stderr.write(f"note: {make_printable(f'{gap.source}, {gap.subject}: {gap.reason}')}\n")
    if topology.disturbance:
        sys.stderr.write(f"note: {topology.disturbance}\n")
    if topology.gaps:
        where, gap = "in the files" if files else "here", topology.gaps[0]
        sys.stderr.write(
            f"note: {format_count(len(topology.gaps), 'question')} without an answer {where}"
            f" ({make_printable(f'{gap.subject}, {gap.call}: {gap.reason}')}); --json lists them\n"
        )
    return topology, notes


def _check_gpus(topology: Topology, options: FileOptions, purpose: str) -> None:
    """Raise Unavailable if this machine, and no file, was read and has no GPU."""
    if not (topology.gpus or options.files or options.words):
        raise Unavailable(f"this machine has no GPU {purpose}; --from FILE reads a map")


class ShowCommand(WordOptions, Command):
    """Map a machine: the matrix of nvidia-smi topo -m."""

    EPILOG = "\n".join(["also:", *(f"  %(prog)s {name} --help" for name in TABLE.entries)])

    json: bool = switch("--json  the whole map, with the source of each fact", alternatives="form")
    csv: bool = switch("--csv  the matrix as CSV", alternatives="form")
    tree: bool = switch("--tree  the tree from host to device", alternatives="form")
    svg: str | None = option("--svg FILE  draw the link graph")
    html: str | None = option("--html FILE  draw it on an HTML page")

    @classmethod
    def parse(cls, argv: Sequence[str], parser: Parser, **more: object) -> Self:
        """The options. Raises Unsupported if the first word is neither a command nor a file.

        Also for the words of ``nvidia-smi topo -m``, with the command that prints its matrix.
        """
        word = argv[0] if argv else ""
        if "-m" in argv or (word == "topo" and not Path(word).exists()):
            what = "-m is nvidia-smi's" if "-m" in argv else "topo is nvidia-smi's"
            raise Unsupported(f"{what}; {program('topology')} alone prints the matrix of topo -m")
        if word and not word.startswith("-") and not Path(word).exists():
            if word == "show":
                right = " ".join([program("topology"), *argv[1:]])
                raise Unsupported(f"no command 'show'; {right} shows the map")
            wrong = unknown("command or file", word, TABLE.entries)
            raise Unsupported(f"{wrong}; {program('topology')} FILE shows a file's map")
        return super().parse(argv, parser, **more)

    def run(self) -> int:
        """Print the map, or draw it."""
        topology = gather_map(self)
        if self.svg or self.html:
            from topology.views import picture

            for name, draw in ((self.svg, picture.svg), (self.html, picture.page)):
                if name:
                    write_text(name, draw(topology))
        if self.json or self.csv or self.tree or not (self.svg or self.html):
            _print_map(topology, self)
        return GOOD


def _print_map(topology: Topology, options: ShowCommand) -> None:
    from topology.sources import own_json
    from topology.views import terminal

    if options.json:
        sys.stdout.write(own_json.dump(topology))
    elif options.csv:
        sys.stdout.write(terminal.matrix_csv(topology))
    elif options.tree or not topology.gpus:
        # Without a GPU the tree shows the CPUs.
        sys.stdout.write(terminal.tree_text(topology, shutil.get_terminal_size().columns))
    else:
        out, shown = (
            styled_stream(sys.stdout),
            terminal.matrix_text(topology, underline=sys.stdout.isatty()),
        )
        if not any(cell not in "X?" for row in topology.matrix() for cell in row):
            # No source states what connects the GPUs, so what else is known is shown.
            from topology.views import measured

            rates = (measured.text(topology), measured.host_rates(topology))
            facts = measured.links_and_peers(topology)
            if facts:
                shown = f"no source states what connects these GPUs\n\n{facts}"
            shown = "\n".join(filter(None, (shown, *rates)))
        out.write(shown)


def write_text(name: str, text: str) -> None:
    """Write text to a file, or to standard output if the name is ``-``."""
    if name == "-":
        sys.stdout.write(text)
        return
    write(Path(name), text.encode())
    sys.stderr.write(f"wrote {name}\n")


class CheckCommand(WordOptions, Command):
    """State what costs performance, worst first. Exit status 1 if there are findings."""

    json: bool = switch("--json  findings as JSON")
    gpus: int | None = option(
        "--gpus N  expected number of GPUs; another number is a finding",
        parse=whole(0, "GPUs", 1 << 20),
    )
    nics: int | None = option(
        "--nics N  expected number of NICs; another number is a finding",
        parse=whole(0, "NICs", 1 << 20),
    )
    baseline: Path | None = option(
        "--baseline FILE  leave out the findings that an earlier check --json wrote to FILE, while"
        " their evidence is the same"
    )
    like: str | None = option(
        "--like FILE  also find what is unlike another machine of this model; FILE is its map"
        " (busbar topology --json > FILE) or its nvidia-smi topo -m"
    )

    def run(self) -> int:
        """Print the findings."""
        from topology.diagnostics import (
            check,
            differences,
            driver_down,
            miscounted,
            read_baseline,
        )

        known = read_baseline(self.baseline) if self.baseline is not None else []
        topology, notes = _gather(self)
        from topology.views import terminal

        more = miscounted(topology, self.gpus, self.nics)
        if self.like is not None:
            more += differences(topology, gather([self.like])[0])
        if not (self.files or self.words):
            more += driver_down(topology, [*Path("/dev").glob("nvidia*")], notes)
        every = check(topology, more)
        findings = [one for one in every if one.key not in known]
        for code, subjects, _ in sorted({*known} - {one.key for one in every}):
            gone = make_printable(f"{self.baseline}: {code} ({', '.join(subjects)})")
            sys.stderr.write(f"note: {gone} has changed, or is no longer found\n")
        if self.json:
            sys.stdout.write(json.dumps([vars(finding) for finding in findings], indent=1) + "\n")
        else:
            sys.stdout.write(
                terminal.findings_text(
                    topology,
                    findings,
                    shutil.get_terminal_size().columns,
                    len(every) - len(findings),
                )
            )
        return FOUND if findings else GOOD


class ChoiceOptions(FileOptions):
    """The options that choose GPUs for a job and its communication pattern."""

    k: int | None = option("-k K  how many GPUs the job gets")
    exclude: tuple[str, ...] = option(
        "--exclude GPU[,GPU]  leave out these GPUs, by index, id, UUID or bus id; may be repeated",
        (),
        action="append",
    )
    busy: bool = switch("--busy  leave out GPUs that are in use")
    objective: str = option(
        "--objective  the job's communication pattern (default: ring)",
        "ring",
        choices=("ring", "pairs", "all-to-all"),
    )

    model: str | None = option(
        "--model NAME  the model of GPUs of which no source states one, as in nvidia-smi topo -m:"
        " B200, H100 SXM, …"
    )

    def gather(self) -> Topology:
        """As `gather_map`, with the model that ``--model`` names."""
        topology = gather_map(self)
        return topology if self.model is None else with_model(topology, self.model)

    def rank(self, topology: Topology, most: int) -> Ranking:
        """The best sets of K GPUs; without ``-k`` the set of all GPUs that are not excluded."""
        from topology.placement.pick import Objective, available, pick

        exclude = [word for text in self.exclude for word in text.split(",") if word]
        pool = available(topology, exclude, self.busy)
        k = len(pool) if self.k is None else self.k
        return pick(topology, k, Objective(self.objective), pool, most)


class PickCommand(WordOptions, ChoiceOptions, Command):
    """Rank the sets of K GPUs, with ring order, bottleneck and reasons."""

    k: int | None = option("-k K  how many GPUs the job gets", required=True)
    alternatives: int = option(
        "-n --alternatives N  sets to list (default: 5)", 5, whole(1, "sets", 1 << 20)
    )
    json: bool = switch("--json  the ranking as JSON")

    @classmethod
    def parse(cls, argv: Sequence[str], parser: Parser, **more: object) -> Self:
        """Parse the options. Raises Unsupported for ``pick 2`` without ``-k``."""
        if argv and argv[0].isdecimal() and not Path(argv[0]).exists():
            raise Unsupported(f"the number of GPUs follows -k: {parser.prog} -k {argv[0]}")
        return super().parse(argv, parser, **more)

    def run(self) -> int:
        """Print the ranking. Raises Unavailable if this machine has no GPU."""
        topology = self.gather()
        _check_gpus(topology, self, "to pick")
        ranking = self.rank(topology, self.alternatives)
        from topology.placement import text

        if self.json:
            sys.stdout.write(text.as_json(ranking))
        else:
            sys.stdout.write(text.text(ranking, shutil.get_terminal_size().columns))
        return GOOD


class ExportCommand(ChoiceOptions, Command):
    """Write the map in the format of another program."""

    EPILOG = "\n".join(["formats:", *(f"  {name:14}{one.about}" for name, one in EXPORTS.items())])

    format: str = option("FORMAT  see below", choices=tuple(EXPORTS))
    # Not `words`, whose place is before FORMAT.
    last: tuple[str, ...] = option("FILE  as --from FILE", (), nargs="*")

    @classmethod
    def parse(cls, argv: Sequence[str], parser: Parser, **more: object) -> Self:
        """Parse the options. Files may also follow an option."""
        parsed = parser.parse_mixed(argv, "last")
        parsed.files = [*getattr(parsed, "files", ()), *parsed.last]
        return cls.of(parsed, argv, **more)

    def checked(self) -> Self:
        """These options. Raises Unsupported if GPUs are chosen for a format that describes all."""
        if self.given - {"format", "files", "last", "model"} and not EXPORTS[self.format].ordered:
            raise Unsupported(
                f"{self.format} describes the whole machine; it takes no choice of GPUs; see"
                f" {program('topology')} export --help"
            )
        return self

    def run(self) -> int:
        """Print the map in the format. Raises Unavailable if this machine lacks the GPU for it."""
        topology = self.gather()
        ordered = EXPORTS[self.format].ordered
        if EXPORTS[self.format].gpus:
            _check_gpus(topology, self, f"for {self.format}")
        order = self.rank(topology, 1).picks[0].order if ordered else ()
        sys.stdout.write(export(self.format, topology, order))
        return GOOD
