"""Runs any benchmark: from a command line to an exit status."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from bench.launch.control_socket import VARIABLE, ControlSocket
from bench.options.options import ALL, ALL_TITLE, BESIDE, PT2PT, TITLE, Options, make_parser, parse
from busbar.arguments import program, unknown
from busbar.commands import list_commands
from busbar.errors import BusbarError, Unavailable, Unsupported
from busbar.host import cores
from busbar.launchers import by_hand, launched, speaks
from busbar.process import serve
from busbar.terminal import print_note
from busbar.units import format_count
from collectives.schedule import catalogue
from collectives.schedule.catalogue import collectives, spec

# Sendrecv's other pattern is an option of sendrecv, not a benchmark of its own.
_HIDDEN = ("sendrecv_pairs",)


def names() -> list[str]:
    """The names of the benchmarks of collectives."""
    return [name for name in collectives() if name not in _HIDDEN]


def commands() -> list[str]:
    """All names that `command` accepts: the collectives, ``pt2pt``, and ``all``."""
    return [*names(), PT2PT, ALL]


def algorithms() -> dict[str, str]:
    """For each name of an algorithm the command that measures it; allreduce if that has it."""
    order = sorted(names(), key=lambda name: name != "allreduce")
    known = {name: (*catalogue.algorithms(name), *BESIDE) for name in order}
    measuring = {one: f"{name} -A {one}" for name in reversed(order) for one in known[name]}
    meant = catalogue.synonyms(known["allreduce"])
    return measuring | {word: measuring[one] for word, one in meant.items()}


def summaries() -> dict[str, str]:
    """What each benchmark measures, by its name."""
    return {**{name: spec(name).title for name in names()}, PT2PT: TITLE, ALL: ALL_TITLE}


def listing() -> list[str]:
    """A line for each benchmark, for ``--help``."""
    return [f"  {name:<16}{about}" for name, about in summaries().items()]


def command(argv: Sequence[str], line: ControlSocket | None = None) -> int:
    """Run the benchmark named by the first word, or list all. Returns the exit status.

    ``line``: the control socket to the process that started this rank.
    """
    if argv and not argv[0].startswith("-"):
        return main(argv[0], argv[1:], line)
    about = program("bench"), "NAME", listing(), [*names(), ALL], argv
    return serve("busbar", lambda: list_commands(*about))


def check(argv: Sequence[str]) -> None:
    """Check the options of the benchmark that the first word names. Raises Unsupported."""
    _check_roots(_wanted(argv[0], argv[1:])[0])


def main(collective: str, argv: Sequence[str], line: ControlSocket | None = None) -> int:
    """Run a benchmark, or ``all``. Returns the exit status. Only rank 0 prints.

    ``line``: the control socket to the process that started this rank.
    """
    return serve("busbar", lambda: _run(collective, argv, line or ControlSocket()))


def _run(collective: str, argv: Sequence[str], line: ControlSocket) -> int:
    sign = launched()
    wanted, refused = _wanted(collective, argv)
    if by_hand() and VARIABLE not in os.environ and wanted[0].names_no_ranks:
        wanted = _with_ranks(wanted)
    first = wanted[0]
    # A launch that another process has started leaves this to that process.
    if first.after is None and (sign is None or first.ranks is None) and speaks():
        from bench.run.recorder import added_to

        for text in [*refused, *added_to(first)]:
            print_note(text)
    keeps = first.out or first.nccl_json
    if sign is None and keeps and first.after is None and first.split is None:
        from bench.run.recorder import refuse_results

        refuse_results(first)
    if first.launch is None:
        _check_roots(wanted)
    if first.dry_run:
        return _dry(wanted)
    module = ["bench", ALL] if collective == ALL else [f"bench.{collective}"]
    if first.launch is None and (first.rank_counts or first.launches > 1):
        from bench.cli.several import several

        _announce(wanted)
        return several(module, first, details=first.details)
    from bench.cli import start

    if first.in_process:
        if sign is not None:
            what = (
                f"--transport {first.transport}" if first.threads is None else "--threads (-t x -g)"
            )
            raise Unsupported(
                f"{what} makes its own ranks; run it without mpirun, or give mpirun them all"
            )
        if first.threads and first.ranks and first.ranks != first.threads:
            raise Unsupported(_either(first.ranks, first.threads, given=first.ngpus is not None))
        return start.threads(first, partial(start.sweep, wanted))
    if first.ranks is not None and sign is None:
        from bench.cli.ranks import start as start_ranks
        from bench.cli.ranks import why_no_processes

        if first.transport == "auto" and not first.on_hosts and (why := why_no_processes()):
            print_note(f"ranks are threads of this process: {why}")
            return start.threads(first, partial(start.sweep, wanted))
        return start_ranks(module, first.ranks, first)
    return start.mpi(first, line, partial(start.sweep, wanted))


def _check_roots(wanted: Sequence[Options]) -> None:
    """Raise Unsupported for a root that is no rank, before ranks are started."""
    from bench.run.contenders import roots

    for nranks in filter(None, wanted[0].launch_counts):
        for one in wanted:
            if one.collective != PT2PT:
                roots(spec(one.collective), one, nranks)


def _with_ranks(wanted: list[Options]) -> list[Options]:
    """The options as if ``--ranks`` named the default number of ranks, if that is above one."""
    from bench.cli.ranks import default_ranks

    count, each = default_ranks(wanted[0])
    if count == 1:
        return wanted
    text = format_count(count, "rank")
    if not wanted[0].quiet:
        print_note(f"no launcher and no --ranks: {text}, one a {each}; --ranks N chooses")
    words = ("--ranks", str(count))
    return [one.replace(rank_list=(count,), argv=(*one.argv, *words)) for one in wanted]


def _announce(wanted: Sequence[Options]) -> None:
    """Print how long several launches may take in total, if that is long and -n is not given."""
    from bench.run.screen import LIMITS_ALL, LONG_S

    seconds, text = _launches_take(wanted)
    if seconds >= LONG_S:
        print_note(text + ("" if wanted[0].total else LIMITS_ALL))


def _launches_take(wanted: Sequence[Options]) -> tuple[float, str]:
    """The most seconds that several launches may take in total, also in words; 0 with -n.

    Rank counts that an algorithm does not support are left out here; their launch reports why.
    """
    from bench.run.contenders import RankSetup, build_jobs
    from bench.run.memory import pools
    from bench.run.pace import at_most, longest, waits

    first = wanted[0]
    if first.iterations:
        return 0.0, ""
    seconds = 0.0
    for nranks in filter(None, first.launch_counts):
        with suppress(BusbarError):
            jobs = build_jobs(wanted, RankSetup(nranks, first.transport))
            seconds += longest(jobs, nranks, [pools()] * nranks)
    seconds *= first.launches
    if first.total is not None:
        seconds = min(seconds, first.total)
    number = len(first.launch_counts) * first.launches
    seconds += number * waits(first)
    crowded = not first.on_hosts and max(first.launch_counts) > len(cores())
    what = [format_count(len(first.launch_counts), "rank count")] * bool(first.rank_counts)
    each = " each" * bool(first.rank_counts)
    what += [f"{format_count(first.launches, 'launch')}{each}"] * (first.launches > 1)
    return seconds, ", ".join((*what, at_most(seconds, crowded=crowded)))


def _either(ranks: int, threads: int, *, given: bool) -> str:
    """Why ``--ranks`` and threads exclude each other; ``given``: the threads come from ``-g``."""
    what = f"-g (times -t) makes {threads}" if given else f"--threads {threads} makes so many"
    each = "a process a GPU" if given else "processes"
    return (
        f"--ranks {ranks} starts {ranks} processes, and {what} threads of one process: give"
        f" --ranks {threads} alone for {each}, or {'-g' if given else '--threads'} alone"
    )


def _wanted(collective: str, argv: Sequence[str]) -> tuple[list[Options], list[str]]:
    """The options of each collective to run, and why others are left out.

    With ``all``, a collective that refuses the options is left out. Raises Unsupported if all
    refuse.
    """
    if collective not in commands():
        raise unknown("benchmark", collective, commands())
    if collective != ALL:
        return [parse(argv, collective)], []
    make_parser(ALL).parse_known_args(argv)  # --help, completion, and errors of shared options
    options: list[Options] = []
    refused: dict[str, Unsupported] = {}
    for name in names():
        try:
            options.append(parse(argv, name, ALL))
        except Unsupported as error:
            refused[name] = error
    if not options:
        raise next(iter(refused.values()))
    return options, [f"{name} is left out: {error}" for name, error in refused.items()]


def _note_missing_gpus() -> None:
    """Print that a run on GPUs would end at once, if this machine has none that can be used."""
    from collectives.execution.gpu import take

    try:
        take.visible()
    except Unavailable as error:
        print_note(f"without --dry-run this ends with status {error.exit_status}: {error}")


def _dry(wanted: Sequence[Options]) -> int:
    from bench.cli.dry import dry_run
    from bench.run.contenders import RankSetup, build_jobs
    from bench.run.memory import pools
    from bench.run.pace import at_most, longest, waits

    sign, first = launched(), wanted[0]
    if first.split is not None:
        raise Unsupported("--dry-run plans one group; leave out --split, and give its --ranks")
    if (first.asks_for_gpus or first.names_gpu_transport) and not first.on_hosts and speaks():
        _note_missing_gpus()
    counts = first.launch_counts if sign is None else (sign.size,)
    if sign is None and len(counts) * first.launches > 1 and speaks():
        seconds, text = _launches_take(wanted)
        if seconds:
            print(f"# {text}")
    for nranks in (count or 1 for count in counts):
        jobs = build_jobs(wanted, RankSetup(nranks, first.transport))
        if len(jobs) > 1 and speaks() and not first.iterations:
            seconds = longest(jobs, nranks, [pools()] * nranks) + waits(first)
            most = at_most(
                seconds, crowded=nranks > len(cores()), each=len(counts) * first.launches > 1
            )
            print(f"# {format_count(len(jobs), 'collective')}: {most}")
        for job in jobs:
            if speaks():
                for chosen in job.chosen:
                    chosen.prove()
                for line in dry_run(job, nranks):
                    print(line)
    return 0
