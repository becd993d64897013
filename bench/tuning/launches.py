"""The measuring runs: one launch for each rank count, transport and forced algorithm."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.launch.launch import run_of_its_own, succeeded
from bench.options.launching import LaunchTurn
from bench.tuning import nccl, openmpi
from busbar.errors import Unsupported
from collectives.schedule import catalogue

SEGMENTS = (4, 16)


@dataclass(frozen=True)
class Launch:
    """One run with its options and additional environment variables; ``name`` names its records."""

    name: str
    collective: str
    ranks: int
    argv: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


def algorithms(collective: str, ranks: int, segments: Sequence[int] = SEGMENTS) -> list[str]:
    """All our algorithms for ``ranks`` ranks; those with segments in several segment counts."""
    names: list[str] = []
    for name in catalogue.algorithms(collective):
        known = catalogue.parameters(collective, name)
        try:
            catalogue.draft(collective, name, ranks)
        except Unsupported:
            continue
        names += [name, *(f"{name}:segments={n}" for n in segments if "segments" in known)]
    return names


def plan(
    collectives: Sequence[str],
    ranks: Sequence[int],
    transports: Sequence[str],
    wanted: str | None,
    own: str,
    rest: Sequence[str],
) -> Iterator[Launch]:
    """The launches of a tuning run.

    ``wanted``: algorithms as for ``-A``, None for all that support the ranks. ``own``: the library
    whose own algorithms are forced one after the other, ``openmpi``, ``nccl`` or empty. ``rest``:
    options for every run.
    """
    for collective in collectives:
        for n in ranks:
            names = wanted or ",".join(algorithms(collective, n))
            for i, transport in enumerate(transports):
                # The library is measured once, with the first transport, and first there, because
                # all others are compared with it.
                chosen = names if wanted or i else f"library,{names}"
                argv = ("-A", chosen, "--transport", transport, *rest)
                yield Launch(f"{collective}-{n}-{transport}", collective, n, argv)
            yield from _forced(collective, n, own, rest)


def _forced(collective: str, n: int, own: str, rest: Sequence[str]) -> Iterator[Launch]:
    if not own:
        return
    forcing = openmpi.forcing(collective, n) if own == "openmpi" else nccl.forcing(collective)
    transport = "mpi" if own == "openmpi" else "nccl"
    for name, variables in forcing.items():
        argv = ("-A", "library", "--transport", transport, *rest)
        label = f"{collective}-{n}-{own}-{name.replace('/', '-')}"
        yield Launch(label, collective, n, argv, variables)


def run(
    launch: Launch,
    records: Path,
    launcher: str | None,
    which: LaunchTurn | None = None,
    *,
    heard: Callable[[str], object] = lambda line: None,
    within: float | None = None,
) -> Path:
    """Run a launch; returns the file of its records, which has complete rows even if the run fails.

    ``which``: number of this launch of several, whose records are appended. ``launcher``: a command
    line with ``{ranks}`` in it, None for this host's mpirun. ``heard`` is called with each line of
    its standard error. ``within``: seconds after which the run is ended; its rows are kept. Raises
    LaunchFailed with the run's last message, and Interrupted if a signal asked this process to end.
    """
    began = time.monotonic()
    path = records / f"{launch.name}.jsonl"
    more = which.words if which is not None else []
    if which is not None and which.number > 1:
        more += ["--after", str(path)]
    if which is None or which.number == 1:
        path.unlink(missing_ok=True)  # the file then has only this run's records
    ended = run_of_its_own(
        [f"bench.{launch.collective}"],
        launch.ranks,
        [*launch.argv, "--out", str(path), *more],
        command=launcher,
        variables=launch.variables,
        on_line=heard,
        within=within,
        stdout=subprocess.DEVNULL,
    )
    late = within is not None and time.monotonic() - began >= within and path.exists()
    if ended.interrupted or not late:
        remedy = f"; what was measured is kept: --from {records} decides on it"
        succeeded(launch.name, ended, remedy)
    return path
