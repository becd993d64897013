"""How far the ranks' common clock is off, where the truth is known: clocks are made to be wrong.

    mpirun -n 2 python benchmarks/clock_error.py --seconds 20
    python -m bench.cluster --hosts 2 -- python benchmarks/clock_error.py --seconds 20

Every rank is held for a host of its own and reads a clock that is seconds off and goes up to 100
ppm wrong; all of them are this machine's, so the true error can be told at any time. A line a
second: after how long, the largest error of any rank, the residual, how often lines were fitted
again. The last line has the median and the largest of all.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

from bench.timing.clock import CommonClock, Skew
from collectives.execution.mpi.world import MpiWorld


def main() -> None:
    """Fit, then check and compare once a second."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=int, default=20)
    seconds: int = parser.parse_args().seconds
    world = MpiWorld()
    share = (-1) ** world.rank * world.rank / max(1, world.size - 1)
    since = world.broadcast(time.perf_counter())
    own = Skew(3.0 * share, -1e-4 * share, since)
    clock = CommonClock(world, own.clock(), range(world.size))
    found = []
    for second in range(seconds):
        clock.check()
        true = world.broadcast(time.perf_counter())
        everyone = world.gather(clock.line.other(own.of(true)))
        found.append(max(abs(one - everyone[0]) for one in everyone))
        if world.rank == 0:
            residual = max(one.residual for one in clock.lines)
            print(
                f"{second:4} s: {found[-1] * 1e6:7.3f} us, residual {residual * 1e6:.3f} us,"
                f" fitted again {clock.refits} times",
                flush=True,
            )
        time.sleep(1.0)
    if world.rank == 0:
        print(f"median {median(found) * 1e6:.3f} us, at most {max(found) * 1e6:.3f} us")


if __name__ == "__main__":
    main()
