"""Clocks, power and energy of the GPUs while rows run, sampled by a thread.

A transport on GPUs gives the identity of its GPU. If ranks share a GPU, the first of them samples
it. The thread samples ten times a second, and only while a row runs. A sample holds the interpreter
for about ten microseconds; for the rest of its time it waits inside NVML.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from math import ceil
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from busbar.errors import ProbeError
from collectives.execution.transport import Transport
from collectives.execution.world import World
from reports.records.measurement import GpuSample, Record

if TYPE_CHECKING:
    from topology.sources.nvml import Gauge, State

PERIOD = 0.1
#: Shortest window for energy, in seconds: the counter's steps of up to 0.1 s limit its precision.
LONG = 2.0
_FIGURES = ("clock_sm_hz", "clock_memory_hz", "power_w", "temperature_c")


class Sampler:
    """Samples one GPU while a window is open. With a ``period`` of None, only `take` samples."""

    def __init__(self, gpu: Gauge, period: float | None = PERIOD) -> None:
        self._gpu = gpu
        self._lock = threading.Lock()
        self._states: list[State] = []
        self._open, self._over = threading.Event(), threading.Event()
        self.idle_w: float | None = None
        self._thread: threading.Thread | None = None
        if period is not None:
            self._thread = threading.Thread(target=self._run, args=(period,), daemon=True)
            self._thread.start()

    def _run(self, period: float) -> None:
        while not self._over.is_set():
            self._open.wait()
            if not self._over.wait(period) and self._open.is_set():
                self.take()

    def take(self) -> None:
        """Read the GPU's clocks, power and temperature once, and keep the reading for `end`."""
        state = self._gpu.look()
        with self._lock:
            self._states.append(state)

    def begin(self) -> None:
        """Open a window: sample now, and periodically from here on."""
        with self._lock:
            self._states.clear()
        self.take()
        self._open.set()

    def end(self, operations: int) -> dict[str, Any]:
        """End the window, in which ``operations`` ran. Returns the fields of a `GpuSample`."""
        self._open.clear()
        self.take()
        with self._lock:
            states = sorted(self._states, key=lambda state: state.at)
        seconds = states[-1].at - states[0].at
        gpu = self._gpu
        sample: dict[str, Any] = {"busid": gpu.busid, "uuid": gpu.uuid, "name": gpu.name}
        sample |= {"samples": len(states), "seconds": seconds, "operations": operations}
        # The first sample precedes the work, when clocks may still be low, so it is left out.
        for name in _FIGURES:
            values = [v for s in states[1:] if (v := getattr(s, name)) is not None]
            if values:
                sample[name] = [min(values), median(values), max(values)]
        reasons = [word for s in states[1:] for word in s.throttle or ()]
        if any(s.throttle is not None for s in states):
            sample["throttle"] = list(dict.fromkeys(reasons))
        return sample | self._energy(states, operations)

    def _energy(self, states: Sequence[State], operations: int) -> dict[str, float]:
        """The energy fields of a `GpuSample`; empty if the window is too short for the counter."""
        first, last = states[0], states[-1]
        seconds = last.at - first.at
        if first.energy_j is None or last.energy_j is None or seconds < LONG:
            return {}
        energy = {"energy_j": last.energy_j - first.energy_j}
        if self.idle_w is not None and operations:
            energy["idle_w"] = self.idle_w
            energy["energy_per_op_j"] = (energy["energy_j"] - self.idle_w * seconds) / operations
        return energy

    def rest(self, wait: Callable[[float], object]) -> None:
        """Measure the idle power of the GPU; ``wait`` sleeps for a number of seconds."""
        self.begin()
        wait(1.05 * LONG)
        sample = self.end(0)
        if "energy_j" in sample:
            self.idle_w = sample["energy_j"] / sample["seconds"]

    def close(self) -> None:
        """Stop sampling and close the GPU's handle."""
        self._over.set()
        self._open.set()
        if self._thread is not None:
            self._thread.join(1)
        self._gpu.close()


def _by_nvml(busid: str | None, uuid: str | None) -> Gauge:
    from topology.sources.nvml import gauge  # only where there is a GPU

    return gauge(busid, uuid)


class Gauges:
    """All GPUs of a run, seen from one rank; every method is called by all ranks together.

    ``transport``: the one that carries the rows. ``energy``: extend rows until their energy can be
    measured. ``rest``: first measure the idle power of the GPUs, for 2 s; without it there is no
    energy per operation. Without GPUs the methods do nothing. ``why``: the reason if GPUs could not
    be sampled, or if ``energy`` is requested without a GPU.
    """

    def __init__(
        self,
        world: World,
        transport: Transport,
        *,
        energy: bool = False,
        rest: bool = True,
        watch: Callable[[str | None, str | None], Gauge] | None = None,
        wait: Callable[[float], object] = time.sleep,
        period: float | None = PERIOD,
    ) -> None:
        self._world, self._energy, self.why = world, energy, ""
        ids = transport.device_busid, transport.device_uuid
        self.active = bool(world.combine(np.array([float(any(ids))]), "max")[0])
        self._mine: Sampler | None = None
        if not self.active:
            self.why = "--energy: no GPU carries these rows, so no joules are told" * energy
            return
        everyone, problem = world.gather([world.nodes[world.rank], *ids]), ""
        if any(ids) and everyone.index(everyone[world.rank]) == world.rank:
            try:
                self._mine = Sampler((watch or _by_nvml)(*ids), period)
            except ProbeError as error:
                problem = str(error)
        reasons = [reason for reason in world.gather(problem) if reason]
        self.why = f"no clocks or energy of GPUs in the records: {reasons[0]}" if reasons else ""
        if reasons:
            self.active = False
            self.close()
            return
        if rest:  # all ranks are idle while the idle power is measured
            world.barrier()
            if self._mine is not None:
                self._mine.rest(wait)
            world.barrier()

    def begin(self) -> None:
        """Start sampling before the iterations of a row and placement."""
        if self._mine is not None:
            self._mine.begin()

    def more(self, timed: Record) -> int:
        """How many more iterations the energy counter needs; the same on all ranks."""
        if not (self._energy and self.active and timed.times_s):
            return 0
        each = max(median(timed.times_s), 1e-7)
        return max(0, ceil(1.1 * LONG / each) - (timed.iterations or 0))

    def end(self, operations: int) -> tuple[GpuSample, ...]:
        """Stop sampling for this row and placement. Returns a sample for each GPU."""
        if not self.active:
            return ()
        samples = self._world.gather(None if self._mine is None else self._mine.end(operations))
        return tuple(
            msgspec.convert({"rank": rank, **sample}, GpuSample)
            for rank, sample in enumerate(samples)
            if sample is not None
        )

    def close(self) -> None:
        """Stop sampling at the end of the run."""
        if self._mine is not None:
            self._mine.close()
            self._mine = None
