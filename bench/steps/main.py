"""``busbar step``: from its options to an exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import field
from itertools import product
from typing import TYPE_CHECKING, ClassVar

from bench.launch.control_socket import ControlSocket
from bench.run.memory import SHARE, free_memory
from bench.steps.buckets import GradientLayout
from bench.steps.job import ASYNCHRONOUS, UPDATES, update
from bench.steps.options import StepOptions
from bench.steps.step_table import scaling_lines
from bench.steps.workloads import MODELS, model
from busbar.commands import Command
from busbar.errors import Unsupported
from busbar.launchers import launched, speaks
from busbar.mpi import NEEDED
from busbar.process import load, serve
from busbar.terminal import print_note
from busbar.units import format_bytes

if TYPE_CHECKING:
    from bench.run.environment import RunContext

_MODULE = ("bench.step",)
_LOST = (
    "here MPI ends the run with it; with --learners, or under mpirun --with-ft ulfm of Open MPI,"
    " the others go on"
)


class StepCommand(StepOptions, Command):
    """Measure training steps: a model's gradients exchanged as training exchanges them, beside the formulas."""  # noqa: E501

    EPILOG = (
        "Run under mpirun, or with --ranks N to have the launcher started for you. See"
        " docs/steps.md."
    )
    ELSEWHERE: ClassVar = dict.fromkeys(("runs", "min-runs", "max-runs"), "-n")
    line: ControlSocket = field(default_factory=ControlSocket, compare=False)

    def run(self) -> int:
        """Measure, list, join a run or start the ranks; returns the exit status."""
        if self.listing:
            return _list(self.listing)
        if self.join:
            return int(load("bench.steps.server.socket_channel:join")(self.join))
        sign = launched()
        for nranks in self.rank_counts or (_ranks(self),):
            check(self, nranks)
        if sign is None and self.out and self.after is None:
            from bench.run.recorder import refuse_results

            refuse_results(self)
        if self.out and self.after is None and (sign is None or self.ranks is None) and speaks():
            from bench.run.recorder import added_to

            for text in added_to(self):
                print_note(text)
        if self.rank_counts:
            from bench.cli.several import several

            closing = scaling_lines if self.sweep == "ranks" else None
            return several(_MODULE, self, closing)
        from bench.cli import start

        def measure(opened: RunContext) -> int:
            return int(load("bench.steps.session:measure")(self, opened))

        if self.in_process:
            if sign is not None:
                raise Unsupported("--threads makes its own ranks; run it without mpirun")
            return start.threads(self, measure)
        if self.ranks is not None and sign is None:
            from bench.cli.ranks import start as start_ranks

            alone = any(choice.name in ASYNCHRONOUS for choice in self.updates)
            return start_ranks(_MODULE, self.ranks, self, _LOST if alone else "")
        # While the first thread computes, a second one exchanges; only one calls MPI at a time.
        needed = "serialized" if self.overlap else NEEDED
        return start.mpi(self, self.line, measure, needed)


def main(argv: Sequence[str], line: ControlSocket) -> int:
    """Run ``busbar step``; returns the exit status.

    ``line``: the control socket to the process that started this rank.
    """
    return serve("busbar", lambda: StepCommand.start("bench.step", argv, line=line))


def _ranks(options: StepOptions) -> int:
    """The number of ranks, as far as it is known before ranks start; 1 if it is not."""
    if options.learners:
        return options.servers + options.learners
    sign = launched()
    return sign.size if sign is not None else options.threads or options.ranks or 1


def check(options: StepOptions, nranks: int) -> None:
    """Raise Unsupported, before ranks start, if the options do not fit ``nranks`` ranks."""
    fusing = {"buckets": "--fusion", "cycle": "--cycle"}
    given = [flag for name, flag in fusing.items() if name in options.given]
    given += ["--sweep fusion"] * (options.sweep == "fusion")
    given += ["--overlap on,off"] * (options.overlapping == "on,off")
    if given and not any(update(choice.name).fused for choice in options.updates):
        raise Unsupported(
            f"{given[0]}: --update {options.update} pushes whole gradients to a server and has no"
            f" buckets; leave {given[0]} out, or add an all-reduce such as ring"
        )
    for rank in options.compute.slow:
        if rank >= nranks:
            raise Unsupported(f"--straggler {rank}: there are {nranks} ranks, 0 to {nranks - 1}")
    if launched() is None:
        _check_memory(options, nranks)
    if options.fit is not None or options.topology:
        from collectives.predict.maps import load_machine

        # A file that cannot be read is reported before ranks start.
        load_machine(options.topology or None, options.fit, nranks)
    for choice, case in product(options.updates, options.cases):
        load(f"{update(choice.name).module}:check")(choice, nranks, case)


def _check_memory(options: StepOptions, nranks: int) -> None:
    """Raise Unsupported if this machine lacks memory for the gradients of ``nranks`` ranks."""
    types = {case.dtype for case in options.cases}
    need = nranks * max(GradientLayout.of(options.workload, one).nbytes for one in types)
    free = int(free_memory() * SHARE)
    if need > free:
        scale = -(-2 * need // max(1, free))
        raise Unsupported(
            f"{nranks} ranks' gradients of {options.workload.name} are {format_bytes(need)}, and"
            f" there are {format_bytes(free)} to give; --scale {scale} makes them smaller"
        )


def _list(what: str) -> int:
    if speaks():
        if what == "models":
            lines = [f"{name:<14}{model(name).elements:>14,} parameters" for name in MODELS]
        else:
            lines = [f"{name:<22}{one.about}" for name, one in UPDATES.items()]
            lines += [f"{'NAME':<22}{update('').about}"]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0
