"""How soon after a signal a wait in the extension ends.

    mpirun -n 1 python benchmarks/interrupt_time.py

A rank waits for a message that nobody sends, and for the time at which an iteration begins. A timer
sends it a signal at a random moment. For each kind of wait the script prints the median and the
greatest time between the timer's end and the exception.
"""

from __future__ import annotations

import argparse
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np

from collectives.execution.mpi.calls import BoundMessage, bind_calls, requests
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.transport import Start


def main() -> None:
    """Interrupt each kind of wait as often as asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--times", type=int, default=200)
    times: int = parser.parse_args().times
    world = MpiWorld()
    endless = bind_calls(world, [world.comm.Barrier])
    begin = [time.perf_counter() + 3600]
    kinds: dict[str, Callable[[], Callable[[], object]]] = {
        "a message": partial(_receive, world),
        "a time": lambda: partial(endless.spans, 1, Start(world.barrier, begin)),
    }
    signal.signal(signal.SIGALRM, _interrupt)
    for name, make in kinds.items():
        late = [_lateness(make()) for _ in range(times)]
        print(f"{name}: median {median(late):.4f} s, at most {max(late):.4f} s, {times} times")


def _receive(world: MpiWorld) -> Callable[[], object]:
    """A wait for a message from the rank itself, which sends none."""
    values = np.zeros(4, np.int32)
    request = world.comm.Recv_init([values, world.mpi.INT32_T], world.rank, 7)
    message = [BoundMessage(request, "from", world.rank, values.nbytes)]
    return bind_calls(
        world,
        [call for waits in (False, True) for call in requests(world.mpi, message, waits=waits)],
    )


def _lateness(run: Callable[[], object]) -> float:
    """Seconds from a signal to the end of what it interrupts."""
    delay = random.uniform(0.02, 0.25)
    due = time.perf_counter() + delay
    signal.setitimer(signal.ITIMER_REAL, delay)
    try:
        run()
    except KeyboardInterrupt:
        return time.perf_counter() - due
    raise AssertionError("the wait ended by itself")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
