"""Error of the ranks' common clock, with clocks that are wrong by a known amount.

    mpirun -n 2 python benchmarks/clock_error.py --seconds 20
    python -m bench.cluster --hosts 2 -- python benchmarks/clock_error.py --seconds 20

Every rank counts as a host of its own. It reads a clock that is seconds off and runs up to 100 ppm
too fast or too slow. All these clocks are made from this machine's clock, so the true error is
known at any time. Prints a line for each second: elapsed time, the largest error of any rank, the
residual, and the number of new fits. The last line has the median and the largest error.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

from bench.timing.clock import CommonClock, Skew
from collectives.execution.mpi.world import MpiWorld


def main() -> None:
    """Fit the clock, then check it and compare it with the truth once a second."""
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
