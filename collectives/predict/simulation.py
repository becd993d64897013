"""Simulate a schedule on a machine: the entry point of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from busbar.errors import Unsupported
from busbar.units import format_count
from collectives.predict.buffered import run_buffered
from collectives.predict.effort import counted, estimate, estimate_engine, extrapolate
from collectives.predict.engines import PARTS, Clocks, Problem, TimedStage, run_free, run_lockstep
from collectives.predict.flows import classes_of, flows_of, separate_classes, stages_of, traffic_of
from collectives.predict.interface import CollectivePredictor, Operation, schedule_refusal
from collectives.predict.machine import Amounts, Network
from collectives.predict.ports import chunk_bytes, part_bytes
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective

#: The slack that is used for at least MOST_EXACT messages and shared links on their routes; a
#: message counts as so many links.
SLACK, MOST_EXACT = 0.1, 1_000_000
_MESSAGE = 8
#: The relative error that tests allow for inexact times: twice the greatest observed.
ERROR = 0.1
# `run_lockstep` is exact, but may examine only so many links if a slack is possible.
_MOST_WORK = 4.5e7
# Buffered messages are simulated one by one, about 0.06 ms each here.
_MOST_BUFFERED = 100_000


@dataclass(frozen=True)
class SimulationResult:
    """The result of a simulation.

    ``seconds``: until the last rank completes. ``ranks``: when each rank completes. ``link_bytes``:
    bytes that each link of the machine carries. ``parts``: seconds along the chain of messages that
    the last rank waited for: ``posting`` messages, the ``latency`` of links, on the ``wire`` at the
    rate of the slowest link of the route, ``sharing`` (additional time because links were shared),
    ``adding``; their sum is ``seconds``. ``machine``: with the rates at this size (`Network.at`).
    ``slack``: 0 if all this is exact; see `Simulation.run`.
    """

    seconds: float
    ranks: Amounts
    link_bytes: Amounts
    parts: dict[str, float]
    machine: Network
    slack: float = 0.0


def buffer_bytes(spec: Collective, nranks: int, nbytes: float) -> float:
    """Half the bytes of ``in`` and ``out`` together, of the rank that has most."""
    most = max(
        len(spec.inputs(nranks, r, 0)) + len(spec.outputs(nranks, r, 0)) for r in range(nranks)
    )
    return max(1.0, most * part_bytes(spec, nranks, nbytes) / 2)


def check_effort(
    collective: str, name: str, nranks: int, parameters: Mapping[str, Any], machine: Network
) -> None:
    """Raise Unsupported for an algorithm that would take too much memory or work to simulate.

    Estimated from counts on a few ranks, before a schedule for ``nranks`` is built.
    """
    counts = extrapolate(collective, name, nranks, parameters)
    if counts is not None:
        estimate(counts, nranks, machine).check(f"{name} on {format_count(nranks, 'rank')}")


class Simulation:
    """A schedule on a network; everything independent of the size is computed once.

    Raises Unsupported if the machine has no place for a rank, or if the estimated memory or work
    exceeds the limits of `collectives.predict.effort`.
    """

    def __init__(self, schedule: Schedule, spec: Collective, machine: Network) -> None:
        if schedule.nranks > machine.nranks:
            raise Unsupported(_too_few_places(machine, schedule.nranks))
        self._schedule, self._spec, self._machine = schedule, spec, machine
        traffic = traffic_of(schedule, machine.weights)
        what = f"{schedule.name or 'a schedule'} on {format_count(schedule.nranks, 'rank')}"
        effort = estimate(counted(traffic), schedule.nranks, machine)
        effort.check(what)
        flows = flows_of(traffic, machine)
        # Bytes of one connection follow each other, so symmetric ranks cannot be merged.
        self.classes = (
            separate_classes(flows, traffic) if machine.buffer else classes_of(flows, traffic)
        )
        more = estimate_engine(flows, traffic, self.classes)
        effort._replace(nbytes=effort.nbytes + more).check(what)
        self._stages, self._rate = stages_of(flows, self.classes, traffic)
        self._steps, self._carried = traffic.steps, flows.carried

    def run(
        self, nbytes: float, *, steps_at_once: bool = True, slack: float | None = None
    ) -> SimulationResult:
        """Simulate one size, in bytes as nccl-tests counts it.

        ``steps_at_once`` False uses only the slower of the two engines. ``slack``: if every rank
        runs at its own pace, rates may be computed earlier or later than they change, by up to this
        fraction of a message's time in its step; 0 for exact times. None means 0 unless the
        simulation would take long (`MOST_EXACT`); in tests ``seconds`` is then within `ERROR` of
        the exact time. Raises Unsupported for 0 bytes.
        """
        if not nbytes > 0:
            raise Unsupported(f"{nbytes:g} bytes; a simulation needs more than 0")
        schedule, machine = self._schedule, self._machine
        if machine.rates_at is not None:
            network = machine.at(buffer_bytes(self._spec, schedule.nranks, nbytes))
            simulation = Simulation(schedule, self._spec, network)
            return simulation.run(nbytes, steps_at_once=steps_at_once, slack=slack)
        chunk = chunk_bytes(self._spec, schedule.nranks, schedule.nchunks, nbytes)
        stages = [TimedStage.of(s, chunk, machine.overhead, machine.gamma) for s in self._stages]
        nranks = int(self.classes.rank.max(initial=-1)) + 1
        problem = Problem(stages, self._steps, self._rate, nranks)
        first, clocks, used = 0, Clocks.begin(nranks), 0.0
        if machine.buffer:
            self._check_buffered()
            first, clocks = len(self._steps), run_buffered(problem, machine.buffer, machine.burst)
        elif steps_at_once:
            hurry = slack != 0.0 and self._slack(0) > 0
            first, clocks = run_lockstep(problem, _MOST_WORK if hurry else np.inf)
        if first < len(self._steps):
            used = self._slack(first) if slack is None else slack
            clocks = run_free(problem, first, clocks, used)
        last = int(clocks.now.argmax())
        seconds, carried = float(clocks.now[last]), self._carried * chunk
        parts = dict(zip(PARTS, clocks.parts[last].tolist(), strict=True))
        if used:
            # No link carries more than it can, even if messages begin early.
            late = max(0.0, float((carried / machine.links.rate).max(initial=0.0)) - seconds)
            # A slack leaves a remainder in "adding", even without additions: it counts as sharing.
            adding = parts["adding"] if machine.gamma else 0.0
            parts["sharing"] += late + parts["adding"] - adding
            seconds, parts["adding"] = seconds + late, adding
        ranks = clocks.now[self.classes.rank]
        return SimulationResult(seconds, ranks, carried, parts, machine, used)

    def _check_buffered(self) -> None:
        messages = int(np.array([len(s.src) for s in self._stages])[self._steps].sum())
        if messages > _MOST_BUFFERED:
            raise Unsupported(
                f"{messages} messages through buffers; at most {_MOST_BUFFERED} are simulated:"
                " leave buffer_kib out, or take fewer ranks"
            )

    def _slack(self, first: int) -> float:
        """The slack (`Fluid`) for the steps from ``first`` on; 0 unless exact times take long."""
        each = np.array([len(s.src) * (_MESSAGE + s.links.shape[1]) for s in self._stages])
        work = int(each[self._steps[first:]].sum())
        return SLACK if work >= MOST_EXACT else 0.0


class NetworkPredictor(CollectivePredictor):
    """Simulates schedules on the machine's network, where messages share links."""

    name = "network"

    def refusal(self, operation: Operation) -> str:
        """Why this operation cannot be predicted, or "" if it can.

        Too many messages through buffers are refused only when a size is predicted.
        """
        network = self.machine.network
        if network is None:
            return "the machine has no network"
        if operation.ranks > network.nranks:
            return _too_few_places(network, operation.ranks)
        return schedule_refusal(operation)

    def simulation(self, operation: Operation) -> Simulation:
        """The simulation of an operation, for times, loads of links and parts.

        Raises Unsupported with `refusal`.
        """
        reason = self.refusal(operation)
        if reason or self.machine.network is None:
            raise Unsupported(reason)
        return Simulation(operation.schedule, operation.spec, self.machine.network)

    def _seconds(self, operation: Operation, sizes: Sequence[int]) -> Amounts:
        simulation = self.simulation(operation)
        return np.array([simulation.run(size).seconds for size in sizes])


def _too_few_places(network: Network, ranks: int) -> str:
    return (
        f"{network.name} has places for {network.nranks} ranks, not for {ranks}; name a larger"
        " machine"
    )


class Busy(NamedTuple):
    """Links of one rate and load: the first, how many, bytes of each, and the busy fraction."""

    link: int
    links: int
    nbytes: float
    busy: float


def find_busiest(result: SimulationResult, most: int) -> list[Busy]:
    """Find the busiest groups of links, at most ``most`` of them."""
    machine = result.machine
    seconds = result.link_bytes / machine.links.rate
    key = np.round(seconds / max(result.seconds, np.finfo(float).tiny), 12)
    pairs = np.stack([key, machine.links.rate])
    groups, first, count = np.unique(pairs, axis=1, return_index=True, return_counts=True)
    order = np.lexsort((first, -groups[0]))[:most]
    return [
        Busy(int(first[i]), int(count[i]), float(result.link_bytes[first[i]]), float(groups[0, i]))
        for i in order
        if groups[0, i] > 0
    ]
