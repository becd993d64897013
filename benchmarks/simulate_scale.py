"""Time of simulations: every algorithm at 1,024 ranks, rings and tori at 65,536.

    python benchmarks/simulate_scale.py [MACHINE …]
    python benchmarks/simulate_scale.py million [ALGORITHM …]   # 1,024 to 1,048,576 ranks
    python benchmarks/simulate_scale.py plot TABLE FILE.svg     # the output of `million`

Each case runs in a process of its own, on one core. Its processor time is that of everything after
the imports: building the machine and the schedule, and simulating 64 MiB. A case is ended after a
minute. Prints a table in Markdown; the default machines are those of docs/simulation.md. ``large``
instead of a machine prints only the table of 65,536 ranks.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from busbar.errors import Unsupported
from collectives.predict.compare import compare_algorithms
from collectives.predict.named import build_network
from collectives.predict.simulation import Simulation, check_effort
from collectives.schedule.catalogue import algorithms, collectives, draft, spec

RANKS, LARGE, SIZE, LIMIT = 1024, 65536, 64 << 20, 60
MILLION_LIMIT = 200
MACHINES = (
    "ring",
    "full",
    "nvswitch:gpus=8:nodes=128",
    "rail:gpus=8:nodes=128:taper=2",
    "rail:gpus=8:nodes=128:pxn=0",
    "torus:32x32",
    "torus:16x8x8",
    "fattree:32x32:taper=2",
    "fattree:16x8x8:taper=2",
    "dragonfly:p=4:a=8:h=4",
    "dragonfly:p=4:a=8:h=4:g=32:taper=2",
)
LARGE_CASES = (
    ("ring", "ring"),
    ("ring", "torus:256x256"),
    ("ring", "fattree:64x32x32:taper=2"),
    ("torus", "torus:256x256"),
    ("torus", "fattree:64x32x32:taper=2"),
)


BITS = (10, 12, 14, 16, 18, 20)
MILLION_SIZE = 1 << 20
# Of a message between leaf switches and its bytes, on `fattree`.
_ALPHA, _BETA = 4 * 0.5e-6, 1 / 25e9


def _rings(n: int) -> float:
    """2(P-1)(α + nβ/P): Patarasuk, Yuan 2009."""
    return 2 * (n - 1) * (_ALPHA + MILLION_SIZE * _BETA / n)


def _grid(n: int) -> float:
    """Two rings of √P ranks, the second with a √P-th of the vector: Mikami et al. 2018."""
    side = 1 << (n.bit_length() - 1) // 2
    inner = 2 * (side - 1) * (_ALPHA + MILLION_SIZE * _BETA / side)
    return inner + 2 * (side - 1) * (_ALPHA + MILLION_SIZE * _BETA / n)


def _halving(n: int) -> float:
    """2 lg P α + 2(P-1)/P nβ: Rabenseifner 2004."""
    return 2 * (n.bit_length() - 1) * _ALPHA + 2 * (n - 1) / n * MILLION_SIZE * _BETA


def _tree(n: int) -> float:
    """2 lg P (α + nβ)."""
    return 2 * (n.bit_length() - 1) * (_ALPHA + MILLION_SIZE * _BETA)


def _double_tree(n: int) -> float:
    """2 lg P + 7 steps, each with a sixteenth of the vector to each of two children."""
    return (2 * (n.bit_length() - 1) + 7) * (_ALPHA + 2 * MILLION_SIZE / 16 * _BETA)


TEXTBOOK = {
    "ring": _rings,
    "torus": _grid,
    "hierarchical": _grid,
    "halving_doubling": _halving,
    "tree": _tree,
    "double_tree": _double_tree,
}


class Taken(NamedTuple):
    """Processor seconds and peak memory in bytes of one case, and its result.

    ``simulated``: seconds that the collective takes, off by up to ``slack`` of it.
    """

    seconds: float
    peak: int
    simulated: float
    slack: float


Work = Callable[[], tuple[float, float]]
"""Gives the seconds that are simulated, and their slack."""


def _case(send: Connection, work: Work, limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    start = time.process_time()
    try:
        simulated, slack = work()
    except Unsupported as error:
        send.send(str(error))
        return
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    send.send(Taken(seconds, peak, simulated, slack))


def simulated(collective: str, name: str, text: str, nranks: int, size: int) -> Work:
    """The work of `collectives simulate`."""

    def work() -> tuple[float, float]:
        network = build_network(text, nranks)
        check_effort(collective, name, nranks, {}, network)
        schedule = draft(collective, name, nranks)
        found = Simulation(schedule, spec(collective), network).run(size)
        return found.seconds, found.slack

    return work


def costed(collective: str, name: str, nranks: int) -> Work:
    """The work of `collectives cost`."""

    def work() -> tuple[float, float]:
        compare_algorithms(collective, [name], nranks, strict=True)
        return 0.0, 0.0

    return work


def case(work: Work, limit: int = LIMIT) -> Taken | str:
    """Run one case in a process of its own. Returns a text if it has no time."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_case, args=(there, work, limit))
    process.start()
    there.close()
    try:
        found: Taken | str = here.recv()
    except EOFError:
        found = f"ended after {limit} s"
    process.join()
    return found


def _all(text: str) -> None:
    taken: dict[str, Taken] = {}
    for collective in collectives():
        for name in algorithms(collective):
            found = case(simulated(collective, name, text, RANKS, SIZE))
            if isinstance(found, Taken):
                taken[f"{collective} `{name}`"] = found
            else:
                print(f"{collective} {name} on {text}: {found}", file=sys.stderr)
    slow = sorted(taken, key=lambda name: -taken[name].seconds)
    above = [f"{name} {taken[name].seconds:.1f} s" for name in slow if taken[name].seconds >= 5]
    slack = [name for name, found in taken.items() if found.slack]
    print(
        f"| `{text}` | {len(taken)} | {statistics.median(t.seconds for t in taken.values()):.2f} s"
        f" | {taken[slow[0]].seconds:.1f} s ({slow[0]}) | {', '.join(above) or 'none'}"
        f" | {max(t.peak for t in taken.values()) / 2**20:.0f} MiB | "
        f"{', '.join(slack) or 'none'} |",
        flush=True,
    )


def _large() -> None:
    print("\n| all-reduce, 65,536 ranks | machine | time | peak memory | says |")
    print("|---|---|---|---|---|", flush=True)
    for name, text in LARGE_CASES:
        found = case(simulated("allreduce", name, text, LARGE, SIZE))
        if isinstance(found, str):
            print(f"{name} on {text}: {found}", file=sys.stderr)
            continue
        print(
            f"| `{name}` | `{text}` | {found.seconds:.1f} s | {found.peak / 2**20:.0f} MiB"
            f" | {found.simulated * 1e3:.4g} ms |",
            flush=True,
        )


def _million(names: Sequence[str]) -> None:
    """Print time, memory and simulated time by ranks, with the time of a textbook formula."""
    print(
        "| all-reduce, 1 MiB | ranks | simulate | memory | cost | memory | simulated | textbook |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for name in names:
        for bits in BITS:
            n = 1 << bits
            works = (
                simulated("allreduce", name, "fattree", n, MILLION_SIZE),
                costed("allreduce", name, n),
            )
            both = [case(work, MILLION_LIMIT) for work in works]
            taken = [one for one in both if isinstance(one, Taken)]
            if len(taken) < len(both):
                print(f"{name} on {n}: {both}", file=sys.stderr)
                continue
            cells = [f"{one.seconds:.1f} s | {one.peak / 2**20:.0f} MiB" for one in taken]
            cells += [f"{taken[0].simulated * 1e3:.4g} ms", f"{TEXTBOOK[name](n) * 1e3:.4g} ms"]
            print(f"| `{name}` | {n:,} | {' | '.join(cells)} |", flush=True)


def _plot(table: str, svg: str) -> None:
    """Plot processor time and peak memory of `simulate` over ranks."""
    from matplotlib import pyplot

    rows = [
        [cell.strip(" `").replace(",", "") for cell in line.split("|")[1:-1]]
        for line in Path(table).read_text().splitlines()
        if line.startswith("| `")
    ]
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    labels = {2: "processor time (s)", 3: "peak memory (MiB)"}
    for axis, (column, label) in zip(axes, labels.items(), strict=True):
        for name in dict.fromkeys(row[0] for row in rows):
            points = [(int(r[1]), float(r[column].split()[0])) for r in rows if r[0] == name]
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
        axis.set(xscale="log", yscale="log", xlabel="ranks", ylabel=label)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8, frameon=False)
    figure.savefig(svg, metadata={"Date": None})


def main() -> None:
    """Print the tables."""
    if sys.argv[1:2] == ["million"]:
        _million(sys.argv[2:] or list(TEXTBOOK))
        return
    if sys.argv[1:2] == ["plot"]:
        _plot(*sys.argv[2:])
        return
    texts = sys.argv[1:] or [*MACHINES, "large"]
    if texts != ["large"]:
        head = "machine, 1,024 ranks", "algorithms", "median", "slowest", "above 5 s", "peak memory"
        print(f"| {' | '.join(head)} | not exact |")
        print("|---|---|---|---|---|---|---|", flush=True)
    for text in texts:
        if text == "large":
            _large()
        else:
            _all(text)


if __name__ == "__main__":
    main()
