"""The command lines that start the ranks of a launch. No input or output."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench.launch.launch import AS_ROOT, HOST_VARIABLES
from busbar.errors import Unavailable, Unsupported
from busbar.launchers import find_mpirun
from busbar.mpi import library_version, load_mpi

SRUN, MPIRUN, SSH = "srun", "mpirun", "ssh"
KINDS = (SRUN, MPIRUN, SSH)
#: Variables that name a file of hosts for MPI's launchers, and for a batch system's job.
HOST_FILES = (*HOST_VARIABLES, "PBS_NODEFILE")


#: Most hosts of a launch: each rank holds the schedule of all, which grows with their square.
MOST_JOINED = 4096
# Most bytes of a word of a command line, with its end (Linux: 32 pages of 4 KiB).
_MOST_WORD = 1 << 17


class Launcher(NamedTuple):
    """A program that starts ranks. ``kind``: one of `KINDS`; ``program``: its path or name.

    ``open_mpi``: True for Open MPI's mpirun. ``more``: extra words after the program. ``cpus``: the
    fewest CPUs that a Slurm job has on a node; 0 if not known.
    """

    kind: str
    program: str
    open_mpi: bool = False
    more: tuple[str, ...] = ()
    cpus: int = 0

    @property
    def can_join(self) -> bool:
        """True if ranks on several hosts can exchange messages."""
        return self.kind != SSH

    def can_start(self, hosts: Sequence[str], ranks: int) -> bool:
        """True if this launcher can start ranks on these hosts together."""
        if len(hosts) == 1:
            return True
        longest = max(len(word) for word in self.words(hosts, ranks, ()))
        return self.can_join and len(hosts) <= MOST_JOINED and longest < _MOST_WORD

    def words(self, hosts: Sequence[str], ranks: int, worker: Sequence[str]) -> list[str]:
        """The command line that starts ``ranks`` worker ranks on each host, in host order."""
        total, names = len(hosts) * ranks, ",".join(hosts)
        if self.kind == SRUN:
            own = [f"--nodes={len(hosts)}", f"--ntasks={total}", f"--nodelist={names}"]
            own += [f"--ntasks-per-node={ranks}", "--distribution=block"]
            own += ["--overlap", "--kill-on-bad-exit=1"]
            # srun refuses more ranks than CPUs, and a job may have one CPU on each node.
            own += ["--overcommit"] if 0 < self.cpus < ranks else []
        elif self.kind == SSH:
            own = ["-oBatchMode=yes", hosts[0]]
            # Without exec, a shell would remain as the worker's parent.
            return [self.program, *self.more, *own, f"exec {shlex.join(worker)}"]
        elif self.open_mpi:
            slots = ",".join(f"{host}:{ranks}" for host in hosts)
            own = ["--host", slots, "--map-by", "slot:oversubscribe", "-n", str(total)]
        else:
            own = ["-hosts", names, "-ppn", str(ranks), "-n", str(total)]
        return [self.program, *own, *self.more, *worker]

    def environment(self, env: Mapping[str, str], run_as_root: bool) -> dict[str, str]:
        """The environment variables of a launch."""
        # A launch has hosts of its own: a launcher must not take them from the environment as well.
        kept = {name: value for name, value in env.items() if name not in HOST_VARIABLES}
        # The worker's arrays are small: starting threads would take longer than computing.
        kept.setdefault("OPENBLAS_NUM_THREADS", "1")
        if self.open_mpi and run_as_root:
            kept |= AS_ROOT
        return kept


def choose(kind: str | None, more: Sequence[str], ssh: str, env: Mapping[str, str]) -> Launcher:
    """The requested launcher; by default srun in a Slurm job, else mpirun.

    Raises Unavailable if it is not installed on this machine.
    """
    if kind is None:
        kind = SRUN if env.get("SLURM_JOB_ID") and shutil.which(SRUN) else MPIRUN
    if kind == SRUN:
        if not env.get("SLURM_JOB_ID"):
            raise Unsupported("--launcher srun: this is no Slurm job; start it in salloc or sbatch")
        # The job's CPUs on each node, such as 72(x2),36.
        cpus = re.findall(r"(?:^|,)(\d{1,6})", env.get("SLURM_JOB_CPUS_PER_NODE", ""))
        fewest = min(map(int, cpus), default=0)
        return Launcher(SRUN, _on_path(SRUN), more=tuple(more), cpus=fewest)
    if kind == SSH:
        return Launcher(SSH, _on_path(ssh), more=tuple(more))
    library = library_version(load_mpi())
    return Launcher(MPIRUN, find_mpirun(), "Open MPI" in library, tuple(more))


def _on_path(program: str) -> str:
    if shutil.which(program) is None:
        raise Unavailable(f"{program}: not found on PATH")
    return program
