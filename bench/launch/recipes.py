"""``busbar recipe``: files that start a command of Busbar elsewhere.

Texts that schedulers and builders of containers read: a Slurm job, an MPIJob, a container. A job
runs a command of Busbar on all of its ranks, or once where the command starts ranks itself.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import NamedTuple

from busbar.arguments import program, time_in, unknown, whole
from busbar.commands import Command, CommandTable
from busbar.errors import StoreError, Unavailable, Unsupported
from busbar.files import has_content, write
from busbar.launchers import RANK_STARTERS
from busbar.mpi import library_version, load_mpi
from busbar.options import CommandWords, OptionGroup, Self, option, switch
from busbar.process import load
from busbar.terminal import make_lines_printable, make_printable, print_note
from busbar.units import MOST_RANKS

#: Where a container has Busbar, and the image's name where nothing else is asked for.
PREFIX, IMAGE = "/opt/busbar", "busbar:latest"
#: Options with which any benchmark starts ranks itself.
_STARTING = ("--ranks", "--launches")
# Without this, Slurm ends a job when one of its nodes fails.
_NO_KILL = [
    "# A node that fails does not end the job: it is what qualify looks for.",
    "#SBATCH --no-kill",
]
# The folder of qualify's campaign, for bash.
_FOLDER = '-o "qualify-$SLURM_JOB_ID"'
_RESUMING = [
    "# To go on with a run whose job ended too early, start another job on the same nodes",
    "# (#SBATCH --nodelist) whose command is: qualify --resume qualify-NUMBER, of the first job.",
]
_DOCKER, _APPTAINER = f"docker build -t {IMAGE} -f FILE .", "apptainer build busbar.sif FILE"
_BASE = "debian:bookworm-slim"
_BUILD = "g++ python3-dev python3-venv"
_RUN = "openssh-client openssh-server python3"


class Job(NamedTuple):
    """A command of Busbar, such as ``allreduce -b 1M``, and the nodes on which it runs.

    ``gpus``: of each node; ``minutes``: the job's time limit.
    """

    command: Sequence[str]
    name: str
    nodes: int
    ranks_per_node: int
    gpus: int
    minutes: int

    @property
    def starts_ranks(self) -> bool:
        """True if the command starts its ranks itself."""
        words = {word.partition("=")[0] for word in self.command}
        return self.command[0] in RANK_STARTERS or not words.isdisjoint(_STARTING)

    def settles(self, *flags: str) -> bool:
        """True if the command has none of these options, so that the job may add one."""
        return {word.partition("=")[0] for word in self.command}.isdisjoint(flags)

    def qualifying(self) -> list[str]:
        """The command; to ``qualify`` the ranks of a node are added."""
        command = list(self.command)
        more = command[0] == "qualify" and self.settles("--ranks-per-host", "--resume")
        if more and self.ranks_per_node > 1:
            command.insert(1, f"--ranks-per-host={self.ranks_per_node}")
        return command


def slurm(job: Job, busbar: Sequence[str], mpi: str, written_by: str) -> str:
    """A script for ``sbatch``. ``busbar``: the words that start Busbar on a node.

    ``mpi``: Slurm's plugin that starts ranks. ``written_by``: the command line, for a comment.
    """
    command = job.qualifying()
    if command[0] == "qualify" and job.settles("--launcher", "--launcher-option", "--resume"):
        command.insert(1, f"--launcher-option=--mpi={mpi}")
    start = [] if job.starts_ranks else ["srun", f"--mpi={mpi}"]
    name, *words = command
    folder = name == "qualify" and job.settles("-o", "--out", "--resume")
    run = [shlex.join([name]), *([_FOLDER] if folder else []), *map(shlex.quote, words)]
    lines = [
        "#!/bin/bash",
        f"# {make_printable(written_by)}",
        "# Start it with sbatch. Change the following lines as your cluster needs.",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={job.nodes}",
        f"#SBATCH --ntasks-per-node={job.ranks_per_node}",
        *([f"#SBATCH --gpus-per-node={job.gpus}"] if job.gpus else []),
        f"#SBATCH --time={job.minutes}",
        f"#SBATCH --output={job.name}-%j.out",
        "# Nodes that nobody else uses: other work there would be measured, too.",
        "#SBATCH --exclusive",
        *(_NO_KILL if command[0] == "qualify" else []),
        "# Take one # away where your cluster asks for these; sinfo lists partitions.",
        "##SBATCH --partition=NAME",
        "##SBATCH --account=NAME",
        "set -eu",
        "",
        "# Busbar must be at this place on every node.",
        f"busbar=({shlex.join(busbar)})",
        f"# {mpi}: `srun --mpi=list` shows what there is. MPICH takes pmi2, Open MPI pmix.",
        # MPICH 5 and Slurm's pmi2 differ in the second version of the protocol.
        *(["export MPIR_CVAR_PMI_VERSION=1"] if mpi == "pmi2" else []),
        *(_RESUMING if folder else []),
        "",
        f'exec {shlex.join(start)}{" " if start else ""}"${{busbar[@]}}" {" ".join(run)}',
    ]
    return "\n".join(lines) + "\n"


def mpijob(job: Job, image: str, written_by: str) -> str:
    """An MPIJob (kubeflow.org/v2beta1) in YAML, for an image built from `dockerfile`."""
    start = [] if job.starts_ranks else ["mpirun", "-n", str(job.nodes * job.ranks_per_node)]
    lines = [
        f"# {make_printable(written_by)}",
        "# Start it with kubectl create -f. It needs Kubeflow's MPI operator (v2beta1).",
        "apiVersion: kubeflow.org/v2beta1",
        "kind: MPIJob",
        "metadata:",
        f"  name: {_yaml(job.name)}",
        "spec:",
        "  # Ranks of a worker.",
        f"  slotsPerWorker: {job.ranks_per_node}",
        "  # The image has MPICH. With Open MPI it is OpenMPI.",
        "  mpiImplementation: MPICH",
        "  # The launcher waits for workers that accept connections. Older operators lack this.",
        "  launcherCreationPolicy: WaitForWorkersReady",
        "  sshAuthMountPath: /root/.ssh",
        "  runPolicy:",
        "    # What was measured stays in the launcher's log; workers go.",
        "    cleanPodPolicy: Running",
        "    backoffLimit: 0",
        f"    activeDeadlineSeconds: {60 * job.minutes}",
        "  mpiReplicaSpecs:",
        "    Launcher:",
        "      replicas: 1",
        "      restartPolicy: Never",
        "      template:",
        "        spec:",
        "          containers:",
        "            - name: launcher",
        *_container(image, [*start, "busbar", *job.qualifying()]),
        "    Worker:",
        f"      replicas: {job.nodes}",
        "      restartPolicy: Never",
        "      template:",
        "        spec:",
        *_apart(job.name),
        "          containers:",
        "            - name: worker",
        *_container(image, ["sh", "-c", "ssh-keygen -A && exec /usr/sbin/sshd -De"]),
        "              readinessProbe:",
        "                tcpSocket:",
        "                  port: 22",
        *_resources(job.gpus),
    ]
    return "\n".join(lines) + "\n"


def _apart(name: str) -> Iterator[str]:
    """The lines that keep two workers off the same node."""
    yield "          # A worker a node: two on one would share its memory, and not use the network."
    yield "          affinity:"
    yield "            podAntiAffinity:"
    yield "              requiredDuringSchedulingIgnoredDuringExecution:"
    yield "                - topologyKey: kubernetes.io/hostname"
    yield "                  labelSelector:"
    yield "                    matchLabels:"
    yield f"                      training.kubeflow.org/job-name: {_yaml(name)}"
    yield "                      training.kubeflow.org/job-role: worker"


def _container(image: str, words: Sequence[str]) -> Iterator[str]:
    yield "              # Built from the recipe of `busbar recipe container`."
    yield f"              image: {_yaml(image)}"
    # Kubernetes replaces $(NAME), and $$ by $.
    escaped = (word.replace("$", "$$") for word in words)
    yield f"              command: [{', '.join(map(_yaml, escaped))}]"


def _resources(gpus: int) -> Iterator[str]:
    """The lines for a worker's shared memory and GPUs."""
    yield "              # Memory that ranks of a worker share; by default it has 64 MiB."
    yield "              volumeMounts:"
    yield "                - name: shm"
    yield "                  mountPath: /dev/shm"
    yield "              # Add your network's devices here, such as rdma/hca, and cpu and memory."
    if gpus:
        yield "              resources:"
        yield "                limits:"
        yield f"                  nvidia.com/gpu: {gpus}"
    yield "          volumes:"
    yield "            - name: shm"
    yield "              emptyDir:"
    yield "                medium: Memory"


def _yaml(text: str) -> str:
    """A text as a double-quoted YAML scalar, which has JSON's escapes of single characters."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else _escaped(c) for c in quoted)


def _escaped(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 1 << 16 else f"\\U{number:08x}"


def dockerfile(extra: str, written_by: str) -> str:
    """A Dockerfile for a checkout of Busbar. ``extra``: extras of its package, such as mpi."""
    gpu = ["ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
    return "\n".join(
        [
            f"# {make_printable(written_by)}",
            f"# Build it in a checkout of Busbar: {_DOCKER}",
            f"# Try it: docker run --rm --shm-size=1g{' --gpus all' * ('cuda' in extra)} {IMAGE}"
            " busbar allreduce --ranks 2",
            f"FROM {_BASE} AS build",
            f"RUN {_installing(_BUILD)}",
            "COPY . /src",
            f"RUN {_busbar(extra)}",
            "",
            f"FROM {_BASE}",
            "# openssh: MPI's launcher reaches other containers by it. Leave it out for one host.",
            f"RUN {_installing(_RUN)} && rm -rf /var/lib/apt/lists/*",
            f"COPY --from=build {PREFIX} {PREFIX}",
            f"RUN {_ssh()}",
            f"ENV PATH={PREFIX}/bin:$PATH",
            *(gpu if "cuda" in extra else []),
            'CMD ["busbar", "doctor"]',
            "",
        ]
    )


def apptainer(extra: str, written_by: str) -> str:
    """An Apptainer definition for a checkout of Busbar; ``extra`` as for `dockerfile`."""
    return "\n".join(
        [
            f"# {make_printable(written_by)}",
            "# Build it in a fresh checkout of Busbar (all of it is copied):",
            f"#   {_APPTAINER}",
            f"# Try it: apptainer run{' --nv' * ('cuda' in extra)} busbar.sif allreduce --ranks 2",
            "Bootstrap: docker",
            f"From: {_BASE}",
            "",
            "%files",
            "    . /src",
            "",
            "%post",
            f"    {_installing(_BUILD)}",
            f"    {_busbar(extra)}",
            "    rm -rf /src /var/lib/apt/lists/*",
            "",
            "%environment",
            f"    export PATH={PREFIX}/bin:$PATH",
            "",
            "%runscript",
            '    exec busbar "$@"',
            "",
        ]
    )


def _installing(packages: str) -> str:
    return f"apt-get update && apt-get install -y --no-install-recommends {packages}"


def _busbar(extra: str) -> str:
    pip = f"{PREFIX}/bin/pip install --no-cache-dir '/src[{extra}]'"
    return f"python3 -m venv {PREFIX} && {pip}"


def _ssh() -> str:
    """Commands that let containers connect by ssh with the operator's key, under changing names.

    Programs started over ssh lack the image's environment, so it is set here. Host keys from the
    package would be the same in every container; each container makes its own.
    """
    client = (
        "Host *\\n  StrictHostKeyChecking no\\n  UserKnownHostsFile /dev/null\\n  LogLevel ERROR"
    )
    path = f"{PREFIX}/bin:/usr/local/bin:/usr/bin:/bin"
    server = f"StrictModes no\\nPermitRootLogin prohibit-password\\nSetEnv PATH={path}"
    return (
        "rm -f /etc/ssh/ssh_host_* && mkdir -p /run/sshd"
        f" && printf '{client}\\n' > /etc/ssh/ssh_config.d/busbar.conf"
        f" && printf '{server}\\n' > /etc/ssh/sshd_config.d/busbar.conf"
    )


_LEAST_MINUTES = 30
_MOST_NODES, _MOST_MINUTES = 1 << 16, 60 * 24 * 365
# A name of Kubernetes, whose pods have up to 13 characters more in a label of 63.
_NAME = re.compile("[a-z0-9](?:[-a-z0-9]{0,48}[a-z0-9])?")
# Commands beside the benchmarks that ranks run, or that start ranks.
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

    def finish(self, text: str, use: str) -> int:
        """Write or print the recipe; gives the exit status. Raises StoreError.

        ``use``: the command that takes a file of it, with ``FILE`` in place of its name.
        A file with content is not replaced: the user may have changed an earlier recipe.
        Raises Unsupported for a text with control characters, unless it goes to a file.
        """
        if self.out is not None:
            if has_content(self.out):
                raise StoreError(f"{self.out}: exists already; remove it, or name another file")
            write(self.out, text.encode())
            print_note(f"next: {use.replace('FILE', shlex.quote(str(self.out)))}")
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
        parse=whole(1, "ranks", MOST_RANKS),
    )
    gpus: int = option("--gpus G  GPUs of a node", 0, whole(0, "GPUs", 64))
    time: int | None = option(
        "--time MINUTES|2h  time limit (default: 30, or twice the most that qualify --dry-run says"
        " with a core a rank)",
        parse=lambda text: ceil(time_in("m", 1, _MOST_MINUTES)(text)),
    )
    name: str | None = option("--name NAME  name of the job (default: busbar-COMMAND)", parse=_name)

    def checked(self) -> Self:
        """These options, with ``-g 1`` added to the benchmark if nodes have GPUs and it names none.

        Raises Unsupported without a command, or for a command that is not Busbar's.
        """
        if not self.command:
            raise Unsupported("no command; write it after --, as -- allreduce -b 1M")
        name, *words = self.command
        benchmarks = load("bench.cli.main:commands")()
        if name not in (*benchmarks, *_MORE):
            raise unknown("command", name, [*benchmarks, *_MORE])
        if name in benchmarks and name != load("bench.cli.main:ALL") and "--help" not in words:
            options = load("bench.options.options:parse")(words, name)
            if options.asks_for_gpus and not self.gpus:
                raise Unsupported(f"{name} uses GPUs; say how many a node has: --gpus G")
            if self.gpus and not options.asks_for_gpus and options.transport == "auto":
                # Without it a job whose nodes lack CuPy would measure the hosts.
                return replace(self, command=(name, "-g", "1", *words))
        return self

    @property
    def job(self) -> Job:
        """The job that these options describe."""
        name = self.name or f"busbar-{self.command[0]}".replace("_", "-")
        ranks = self.ranks_per_node or max(1, self.gpus)
        minutes = self.time or _minutes(self.command, self.nodes, ranks)
        return Job(self.command, name, self.nodes, ranks, self.gpus, minutes)


def _minutes(command: Sequence[str], nodes: int, ranks_per_node: int) -> int:
    """The default time limit: of ``qualify`` twice the most that it takes without faults.

    The node that launches is taken to have a core for each of its ranks. The cores of the machine
    that writes the recipe do not count.
    """
    name, *words = command
    seconds = 0.0
    if name == "qualify" and "--resume" not in words and "--help" not in words:
        with suppress(Unsupported):  # the job says what is wrong with its command
            seconds = load("bench.qualify.main:most_seconds")(words, nodes, ranks_per_node)
    return min(_MOST_MINUTES, max(_LEAST_MINUTES, ceil(2 * seconds / 60)))


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
            if self.command[0] == "qualify":
                raise Unsupported(
                    "--apptainer: qualify starts srun, which no image has; install Busbar on the"
                    " nodes, or start it inside the image with mpirun"
                )
            gpu = ["--nv"] if self.gpus else []
            busbar = ["apptainer", "exec", *gpu, self.apptainer, "busbar"]
        mpi = self.mpi or _plugin()
        text = slurm(self.job, busbar, mpi, _written_by("slurm", self.argv))
        return self.finish(text, "sbatch FILE")


class MpijobCommand(_JobOptions, Command):
    """Write an MPIJob of Kubeflow's MPI operator that runs a command of Busbar."""

    USAGE = "%(prog)s [options] -- COMMAND …"
    EPILOG = "COMMAND is such as allreduce -b 1M, or qualify. See docs/launching.md."

    image: str = option(
        "--image IMAGE  the container image, in a registry that the nodes reach",
        IMAGE,
        _image,
    )

    def run(self) -> int:
        """Write the MPIJob."""
        text = mpijob(self.job, self.image, _written_by("mpijob", self.argv))
        return self.finish(text, "kubectl create -f FILE")


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
        recipe, use = (apptainer, _APPTAINER) if self.apptainer else (dockerfile, _DOCKER)
        return self.finish(recipe(extra, _written_by("container", self.argv)), use)


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
    "bench.launch.recipes:",
    {"slurm": "SlurmCommand", "mpijob": "MpijobCommand", "container": "ContainerCommand"},
)
