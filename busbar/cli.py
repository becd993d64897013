"""The command ``busbar``: ``busbar allreduce``, ``busbar topology pick``, ``busbar reports show``.

Of this package only this module names commands of other packages, as text: a command is loaded when
it is run. ``python -m PACKAGE`` runs the same commands.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from busbar.completion import words as words_asked
from busbar.errors import Unsupported
from busbar.process import load, serve

# Words that are no commands, and what to type instead: guesses of newcomers, and names of OSU's and
# Intel's tests. `_elsewhere` adds names of nccl-tests, of algorithms and of commands in `ROOMS`.
_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("bench", "run", "test", "demo", "start"), "allreduce --ranks 2"),
    **dict.fromkeys(("latency", "osu_latency", "osu_multi_lat"), "pt2pt --tests latency"),
    **dict.fromkeys(("bandwidth", "osu_bw", "osu_mbw_mr"), "pt2pt --tests bandwidth"),
    "osu_bibw": "pt2pt --tests bidirectional_bandwidth",
    **{f"osu_{how}_latency": f"pt2pt --tests latency -A {how}" for how in ("put", "get")},
    **{f"osu_{how}_bw": f"pt2pt --tests bandwidth -A {how}" for how in ("put", "get")},
    "osu_put_bibw": "pt2pt --tests bidirectional_bandwidth -A put",
    "algorithms": "collectives list",
    "diff": "reports compare",
    "law": "cluster law",
    "map": "topology",
    "trace": "step --trace FILE.json",
}
# Words that are no commands, and the page that explains them.
_PAGES: Mapping[str, str] = {
    **dict.fromkeys(("glossary", "ranks"), "docs/glossary.md"),
    "tutorial": "docs/tutorial.md",
    **dict.fromkeys(("algbw", "busbw"), "docs/measuring-answer.md (algbw and busbw)"),
    "limit": "docs/measuring-limit.md",
}
#: Packages that have several commands; errors of these begin with the package's name.
ROOMS = ("topology", "collectives", "reports")
#: All commands except the benchmarks: a summary, and where the command is defined.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "topology": ("map a machine, check it, pick GPUs", "topology.commands:TABLE"),
    "collectives": ("see, prove, cost and simulate schedules", "collectives.commands:TABLE"),
    "reports": ("show, compare and draw what was measured", "reports.commands:TABLE"),
    "cluster": ("run a command on emulated hosts and links", "bench.cluster.main:TABLE"),
    "qualify": (
        "say which hosts, links and racks of a cluster are good",
        "bench.qualify.main:QualifyCommand",
    ),
    "step": ("measure training steps of a model", "bench.steps.main:StepCommand"),
    "ab": ("interleave two benchmarks: is one slower, row by row?", "bench.trials.ab:AbCommand"),
    "selfcheck": (
        "check that comparisons and intervals are right",
        "bench.trials.selfcheck:SelfcheckCommand",
    ),
    "tune": ("find the best algorithm for each size", "bench.tuning.cli:TuneCommand"),
    "recipe": (
        "write a Slurm job, an MPIJob or a container",
        "bench.launch.recipes:TABLE",
    ),
    "doctor": ("what is installed, what is missing, what to do", "bench.cli.doctor:DoctorCommand"),
}

# The commands under each heading of ``--help``; the heading without names has all others.
_HEADINGS: Mapping[str, tuple[str, ...]] = {
    "Set up": ("doctor", "recipe"),
    "Measure a collective": (),
    "Measure more": ("pt2pt", "step", "tune", "ab", "selfcheck"),
    "Read results": ("reports",),
    "Machines and clusters": ("topology", "qualify", "cluster"),
    "Algorithms": ("collectives",),
}


def main(argv: Sequence[str]) -> int:
    """Run the command that the first word names and return its exit status."""
    typed = words_asked()
    words = list(argv) if typed is None else typed
    if words[:1] in (["help"], ["--help"], ["-h"]):
        rest = [word for word in words[1:] if word != "help"]
        words = rest if typed is not None else [*rest, "--help"]
    if words in (["version"], ["-V"]):
        words = ["--version"]
    name = words[0] if words else ""
    return serve(name if name in ROOMS else "busbar", lambda: _run(name, words))


def _run(name: str, words: Sequence[str]) -> int:
    if not name or name.startswith("-"):
        return _about(words)
    if name not in COMMANDS:
        return _benchmark(words)
    if name == "step":  # its ranks open their sockets before they load anything
        return int(load("bench.launch.control_socket:step")(words[1:]))
    target = load(COMMANDS[name][1])
    return int(target.start(name if name in ROOMS else f"bench.{name}", words[1:]))


def check(words: Sequence[str]) -> None:
    """Check the command and its options, and run nothing. Raises Unsupported."""
    name = words[0] if words else ""
    if name in COMMANDS:
        target = load(COMMANDS[name][1])
        target.read(name if name in ROOMS else f"bench.{name}", words[1:])
    elif name and not name.startswith("-"):
        _check_benchmark(words)
        load("bench.cli.main:check")(words)


def _benchmark(words: Sequence[str]) -> int:
    _check_benchmark(words)
    status: int = load("bench.launch.control_socket:command")(words)
    return status


def _check_benchmark(words: Sequence[str]) -> None:
    """Raise Unsupported if the first word is no benchmark, with what to type instead."""
    names: list[str] = load("bench.cli.main:commands")()
    if words[0] in names:
        return
    from busbar.commands import no_command

    if words[0].lower() in _PAGES:
        page = _PAGES[words[0].lower()]
        raise Unsupported(
            f"no command {words[0]!r}; it is explained in {page} of the documentation"
        )
    if len(words) > 1 and (name := words[0].lower().removesuffix("_perf")) != words[0].lower():
        # A program of nccl-tests, whose options are the same.
        known = {one.replace("_", ""): one for one in names}
        if one := known.get(name.replace("_", "")):
            command = shlex.join(["busbar", one, *words[1:]])
            raise Unsupported(f"no command {words[0]!r}; the same here: {command}")
    elsewhere = _elsewhere(words[0], names)
    if len(words) > 1 and words[0].startswith("osu_") and words[0] in elsewhere:
        raise Unsupported(_of_osu(elsewhere[words[0]], words))
    raise no_command(words[0], (*COMMANDS, *names), "busbar reports show", elsewhere)


def _of_osu(command: str, words: Sequence[str]) -> str:
    """The error for a test of OSU with options: the same as words of ``command``."""
    pairs = command.startswith("busbar pt2pt ")
    transport = "--transport mpi" if pairs else "-A library --transport mpi"
    options, left = load("bench.options.osu_flags:translated")(words[1:], 1 if pairs else 4)
    notes = [f"no option for {shlex.join(left)}"] if left else []
    if "-e" in options and load("reports.readers.names:whole")(command.split()[1], 1, 2) == 2:
        notes.append("OSU's sizes are a rank's part, these all ranks' together")
    same = " ".join(filter(None, (command, transport, shlex.join(options))))
    return f"no command {words[0]!r}; the same here: {same}" + f" ({'; '.join(notes)})" * bool(
        notes
    )


def _elsewhere(word: str, benchmarks: Sequence[str]) -> dict[str, str]:
    """The commands to suggest for words that are no commands."""
    suggested: dict[str, str] = load("bench.cli.main:algorithms")()
    for room in ROOMS:
        suggested |= {one: f"{room} {one}" for one in load(COMMANDS[room][1]).entries}
    # all_reduce_perf of nccl-tests, osu_iallreduce, MPI_Allreduce, ncclAllReduce
    plain = re.sub("^(osu_i?|mpi_i?|nccl)|_perf$|[-_]", "", word.lower())
    hidden = " --nonblocking" if re.match("(osu|mpi)_i", word.lower()) else ""
    same = {name.replace("_", ""): name for name in benchmarks} | {"bcast": "broadcast"}
    if plain in same:
        suggested[word] = same[plain] + hidden
    if re.fullmatch("[0-9]+[KMGT]?i?B?", word, re.IGNORECASE):
        suggested[word] = f"allreduce -b {word} -e {word}"
    suggested |= _ELSEWHERE
    return {one: f"busbar {command}" for one, command in suggested.items()}


def _about(words: Sequence[str]) -> int:
    from busbar.commands import list_commands

    abouts: dict[str, str] = load("bench.cli.main:summaries")()
    abouts |= {name: about for name, (about, _) in COMMANDS.items()}
    grouped = {name for names in _HEADINGS.values() for name in names}
    lines = ["Begin with busbar doctor, then busbar allreduce."]
    for heading, names in _HEADINGS.items():
        listed = names or [name for name in abouts if name not in grouped]
        lines += ["", f"{heading}:", *(f"  {name:<16}{abouts[name]}" for name in listed)]
    return list_commands("busbar", "COMMAND", lines, list(abouts), words)
