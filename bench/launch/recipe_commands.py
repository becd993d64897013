"""``busbar recipe``: files that start a command of Busbar elsewhere."""

from __future__ import annotations

import re
import shlex
import sys
from argparse import ArgumentTypeError
from pathlib import Path

from bench.launch import recipes
from busbar.arguments import program, unknown, whole
from busbar.commands import Command, CommandTable
from busbar.errors import Unavailable, Unsupported
from busbar.files import write
from busbar.mpi import library_version, load_mpi
from busbar.options import CommandWords, OptionGroup, Self, option, switch
from busbar.process import load
from busbar.terminal import make_lines_printable

_MOST_NODES, _MOST_RANKS, _MOST_MINUTES = 1 << 16, 1024, 60 * 24 * 365
# A Kubernetes name; pods add up to 13 characters, and a label has at most 63.
_NAME = re.compile("[a-z0-9](?:[-a-z0-9]{0,48}[a-z0-9])?")
# Commands other than benchmarks that ranks run, or that start ranks.
_MORE = ("step", "qualify", "topology", "tune")


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ArgumentTypeError(
            f"{text[:60]!r}: a name has small letters, digits and dashes, at most 50"
        )
    return text


def _image(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}", text):
        raise ArgumentTypeError(f"{text[:60]!r} is no name of an image, such as registry/busbar:1")
    return text


class _OutputOptions(OptionGroup):
    """The option for a recipe's output file."""

    out: Path | None = option("-o --out FILE  write it there (default: print it)")

    def finish(self, text: str) -> int:
        """Write or print the recipe; returns the exit status. Raises StoreError.

        Raises Unsupported for text that cannot be printed safely.
        """
        if self.out is not None:
            write(self.out, text.encode())
        elif text == make_lines_printable(text):
            print(text, end="")
        else:
            raise Unsupported("the command has control characters; write it to a file with -o")
        return 0


class _JobOptions(CommandWords, _OutputOptions):
    """Options of a job's nodes, and the command after ``--``."""

    nodes: int = option("-N --nodes N  nodes", 2, whole(1, "nodes", _MOST_NODES))
    ranks_per_node: int | None = option(
        "--ranks-per-node R  ranks of a node (default: its GPUs, or 1)",
        parse=whole(1, "ranks", _MOST_RANKS),
    )
    gpus: int = option("--gpus G  GPUs of a node", 0, whole(0, "GPUs", 64))
    time: int = option("--time MINUTES  time limit", 30, whole(1, "minutes", _MOST_MINUTES))
    name: str | None = option("--name NAME  the job's (default: busbar-COMMAND)", parse=_name)

    def checked(self) -> Self:
        """Check these options. Raises Unsupported without a command, or for a foreign command."""
        if not self.command:
            raise Unsupported("no command; write it after --, as -- allreduce -b 1M")
        names = [*load("bench.cli.main:commands")(), *_MORE]
        if self.command[0] not in names:
            raise unknown("command", self.command[0], names)
        return self

    @property
    def job(self) -> recipes.Job:
        """The job that these options describe."""
        name = self.name or f"busbar-{self.command[0]}".replace("_", "-")
        ranks = self.ranks_per_node or max(1, self.gpus)
        return recipes.Job(self.command, name, self.nodes, ranks, self.gpus, self.time)


class SlurmCommand(_JobOptions, Command):
    """Write a script for sbatch that runs a command of Busbar."""

    USAGE = "%(prog)s [options] -- COMMAND …"
    EPILOG = "COMMAND is such as allreduce -b 1M, or qualify. See docs/launching.md."

    mpi: str | None = option(
        "--mpi PLUGIN  Slurm's plugin that starts ranks: pmi2 or pmix (default: that of this"
        " Python's MPI)",
        choices=("pmi2", "pmix"),
    )
    apptainer: str | None = option(
        "--apptainer FILE  run in this Apptainer image on every node (default: in this Python's"
        " environment)"
    )

    def run(self) -> int:
        """Write the script."""
        busbar = [str(Path(sys.prefix) / "bin" / "busbar")]
        if self.apptainer is not None:
            gpu = ["--nv"] if self.gpus else []
            busbar = ["apptainer", "exec", *gpu, self.apptainer, "busbar"]
        mpi = self.mpi or _plugin()
        return self.finish(recipes.slurm(self.job, busbar, mpi, _written_by("slurm", self.argv)))


class MpijobCommand(_JobOptions, Command):
    """Write an MPIJob of Kubeflow's MPI operator that runs a command of Busbar."""

    USAGE = "%(prog)s [options] -- COMMAND …"
    EPILOG = "COMMAND is such as allreduce -b 1M, or qualify. See docs/launching.md."

    image: str = option(
        "--image IMAGE  the container image, in a registry that the nodes reach",
        recipes.IMAGE,
        _image,
    )

    def run(self) -> int:
        """Write the MPIJob."""
        return self.finish(recipes.mpijob(self.job, self.image, _written_by("mpijob", self.argv)))


class ContainerCommand(_OutputOptions, Command):
    """Write a recipe of a container with Busbar and MPICH, to build in a checkout."""

    EPILOG = "See docs/launching.md."

    apptainer: bool = switch("--apptainer  an Apptainer definition (default: a Dockerfile)")
    cuda: str | None = option(
        "--cuda VERSION  with CuPy and NCCL for this version of CUDA", choices=("12", "13")
    )

    def run(self) -> int:
        """Write the recipe."""
        extra = f"mpi,cuda{self.cuda}" if self.cuda else "mpi"
        recipe = recipes.apptainer if self.apptainer else recipes.dockerfile
        return self.finish(recipe(extra, _written_by("container", self.argv)))


def _written_by(name: str, argv: tuple[str, ...]) -> str:
    return f"Written by: {program('bench.recipe')} {shlex.join([name, *argv])}"


def _plugin() -> str:
    """Slurm's plugin for this Python's MPI, or MPICH's if there is no MPI."""
    try:
        return "pmix" if "Open MPI" in library_version(load_mpi()) else "pmi2"
    except Unavailable:
        return "pmi2"


TABLE = CommandTable(
    "Write files that start Busbar under Slurm, in Kubernetes and in a container.",
    "bench.launch.recipe_commands:",
    {"slurm": "SlurmCommand", "mpijob": "MpijobCommand", "container": "ContainerCommand"},
)
