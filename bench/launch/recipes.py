"""Texts for schedulers and container builders: a Slurm job, an MPIJob, a container. Pure.

A job runs a command of Busbar on all of its ranks, or once if the command starts ranks itself.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from busbar.terminal import make_printable

#: Where a container has Busbar, and the default name of the image.
PREFIX, IMAGE = "/opt/busbar", "busbar:latest"
#: Commands that start ranks themselves, and options with which any benchmark does so.
_STARTERS, _STARTING = ("qualify", "tune"), ("--ranks", "--launches")
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
        return self.command[0] in _STARTERS or not words.isdisjoint(_STARTING)


def slurm(job: Job, busbar: Sequence[str], mpi: str, written_by: str) -> str:
    """A script for ``sbatch``. ``busbar``: the words that start Busbar on a node.

    ``mpi``: Slurm's plugin that starts ranks. ``written_by``: the command line, for a comment.
    """
    command = list(job.command)
    if command[0] == "qualify":
        command.insert(1, f"--launcher-option=--mpi={mpi}")
    start = [] if job.starts_ranks else ["srun", f"--mpi={mpi}"]
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
        "",
        f'exec {shlex.join(start)}{" " if start else ""}"${{busbar[@]}}" {shlex.join(command)}',
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
        *_container(image, [*start, "busbar", *job.command]),
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
            f"# Build it in a checkout of Busbar: docker build -t {IMAGE} -f FILE .",
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
            "#   apptainer build busbar.sif FILE",
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
