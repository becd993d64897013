"""Write the answers of every predictor to fixed questions, or compare them with a file.

    python benchmarks/predictions.py --write FILE
    python benchmarks/predictions.py --compare FILE

A change that only moves or renames code must not change any prediction. ``--compare`` requires
equality to 1e-12 of each number (because additions may be reordered) and exits with 1 otherwise.
The machines are invented, so that every computer gives the same numbers. Takes a minute or two of
one core.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.links.measure import Measured, PairOptions, as_topology
from bench.steps.buckets import fill_buffers
from bench.steps.sync import time_buckets, time_cycles
from busbar.errors import Unsupported
from collectives.predict.compare import compare_algorithms, find_crossovers
from collectives.predict.fit import Fit, dump_fit, load_fit
from collectives.predict.interface import Operation
from collectives.predict.machine import Machine, Network
from collectives.predict.maps import assumed_machine, fit_map, network_from_map
from collectives.predict.named import build_network
from collectives.predict.nccl import NcclPredictor, machine_from_log
from collectives.predict.predictor import FitPredictor, choose_predictor
from collectives.predict.simulation import NetworkPredictor
from collectives.schedule.catalogue import algorithms, collectives, draft
from collectives.schedule.schedule import Schedule
from topology.model.measured import SWEPT, Estimate, RankPlace, sizes
from topology.model.topology import Topology

Answers = Iterator[tuple[str, Sequence[float | None]]]

RANKS = (2, 3, 4, 8, 16)
SIZES = (0, 8, 100, 1 << 10, 5000, 1 << 13, 1 << 16, 99999, 1 << 18, 1 << 20, 5 << 20, 1 << 26)
FEW_SIZES = (8, 5000, 1 << 20)
NETWORKS = (
    "ring",
    "full:overhead_us=0.7",
    "torus:4x4",
    "torus:4x2x2:latency_us=2",
    "dgx1",
    "nvswitch:gpus=8:nodes=2",
    "rail:gpus=4:nodes=4:taper=2",
    "rail:gpus=4:nodes=4:pxn=0:add_gbs=7",
    "fattree:4x4:taper=2",
    "fattree:16:buffer_kib=100",
    "fattree:8x2:gbs=1:buffer_kib=64:burst_kib=17.6",
    "dragonfly:p=2:a=4:h=2",
)
PIECES = (
    "Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/PIX, sameChannels 1",
    "Pattern 1, crossNic 0, nChannels 12, bw 24.0/22.0, type NVL/PIX, sameChannels 1",
    "Pattern 5, crossNic 0, nChannels 16, bw 20.0/20.0, type NVL/PXB, sameChannels 0",
)


def measured_map(ranks: int, cores: int, transport: str) -> Topology:
    """A map with a sweep: ``ranks`` in two sockets, whose messages slow down beyond a cache."""
    pairs = [(a, b) for a in range(ranks) for b in range(a + 1, ranks)]
    alpha = {"trip": 0.9, "swap": 1.2, "add": 1.4, "burst": 2.2, "still": 1.1, "sum": 1.25}
    beta = {"trip": 0.08, "swap": 0.13, "add": 0.19, "burst": 0.41, "still": 0.07, "sum": 0.11}
    samples = {
        (pair, quantity, nbytes): [
            1e-6 * (alpha.get(quantity, 9.0) + beta.get(quantity, 0.0) * 1e-3 * nbytes * cache)
            * (1 + 0.3 * ((pair[0] ^ pair[1]) > 1) + 0.01 * block)
            for block in range(3)
        ]
        for pair in pairs
        for quantity in SWEPT
        for nbytes in sizes(quantity, 4 << 20)
        for cache in [1.0 if nbytes < 1 << 17 else 1.7]
    }  # fmt: skip
    both = {way: Estimate(1e-6, 1e-6, 1e-6) for a, b in pairs for way in ((a, b), (b, a))}
    rates = {way: Estimate(1e10, 1e10, 1e10) for way in both}
    cells = {"latency": both, "bandwidth": rates, "bandwidth_both": rates}
    places = tuple(RankPlace("here", str(rank % cores), 0) for rank in range(ranks))
    found = Measured(places, False, cells, "an MPI")
    return as_topology(found, PairOptions(transport=transport), samples)


def schedules(collective: str, ranks: int) -> Iterator[tuple[str, Schedule]]:
    """All algorithms of a collective that support this number of ranks."""
    for name in algorithms(collective):
        try:
            yield name, draft(collective, name, ranks)
        except Unsupported:
            continue


def by_costs() -> Answers:
    """Predictions from link costs for every algorithm: over MPI, shm, and with shared cores."""
    maps = {"mpi": measured_map(4, 4, "mpi"), "shm": measured_map(4, 4, "shm")}
    maps["crowd"] = measured_map(4, 2, "shm")
    fits = {name: load_fit(dump_fit([fit_map(map_)])) for name, map_ in maps.items()}
    for collective in collectives():
        for ranks in RANKS:
            for name, schedule in schedules(collective, ranks):
                for fit_name, fit in fits.items():
                    host = fit_name != "mpi"
                    if host and ranks > (8 if fit_name == "shm" else 4):
                        continue
                    asked = SIZES[1::2] if host else SIZES
                    for in_place in (False, True) if host else (False,):
                        times = costs_seconds(collective, schedule, fit, asked, in_place)
                        yield f"{fit_name} {collective} {name} {ranks} {in_place}", times
            yield f"bound {collective} {ranks}", one_port_bound(collective, ranks, fits["mpi"])
    for ranks in (2, 8):
        yield f"crossovers {ranks}", winners("allreduce", ranks, fits["mpi"])
        times = assumed_seconds(draft("allreduce", "ring", ranks))
        yield f"assumed {ranks}", times


def by_network() -> Answers:
    """Predictions for every algorithm on named machines and on a measured map."""
    for text in (*NETWORKS, "map"):
        for ranks in (3, 8) if "buffer" in text else (2, 8, 16):
            try:
                network = (
                    network_from_map(measured_map(4, 4, "mpi"))
                    if text == "map"
                    else build_network(text, 16)
                )
            except Unsupported:
                continue
            if ranks > network.nranks:
                continue
            for collective in collectives():
                for name, schedule in schedules(collective, ranks):
                    times = network_numbers(collective, schedule, network)
                    yield f"{text} {collective} {name} {ranks}", times


def by_nccl() -> Answers:
    """Predictions of NCCL's own model on one node and on several."""
    log = "\n".join(PIECES)
    for sm, ranks, nodes in ((70, 8, 1), (80, 16, 2), (90, 8, 1), (90, 32, 4), (100, 16, 2)):
        for collective in ("allreduce", "reduce_scatter", "allgather", "broadcast", "reduce"):
            yield f"nccl {sm} {ranks} {collective}", nccl_seconds(log, sm, ranks, nodes, collective)


def by_bucket() -> Answers:
    """Predictions of synchronous steps whose exchanges overlap the backward pass."""
    for number in range(20):
        ready = [0.001 * (i + 1) * (1 + number % 3) for i in range(12)]
        yield f"bucket {number}", bucket_seconds(ready, number)


# How the questions are put: the only part that changes with the predictors' interfaces.


def costs_seconds(
    collective: str, schedule: Schedule, fit: Fit, asked: Sequence[int], in_place: bool
) -> list[float]:
    """Seconds at each size, predicted by a fit."""
    operation = Operation.of(schedule, collective, in_place=in_place)
    return FitPredictor(fit).on(schedule.nranks).seconds(operation, asked).tolist()


def assumed_seconds(schedule: Schedule) -> list[float]:
    """Seconds on a machine without measured parameters."""
    predictor = choose_predictor(assumed_machine())
    return predictor.seconds(Operation.of(schedule, "allreduce"), SIZES).tolist()


def one_port_bound(collective: str, ranks: int, fit: Fit) -> list[float | None]:
    """The one-port bound at each size, or None."""
    found = FitPredictor(fit).on(ranks).one_port_bound(collective, ranks, SIZES[1:])
    return [None] if found is None else found.tolist()


def winners(collective: str, ranks: int, fit: Fit) -> list[float]:
    """The sizes at which the best algorithm changes."""
    predictor, names = FitPredictor(fit).on(ranks), algorithms(collective)
    found = compare_algorithms(collective, names, ranks, predictor=predictor, sizes=SIZES[1:])[0]
    return [float(one.size) for one in find_crossovers(collective, found, predictor, SIZES[1:])]


def network_numbers(collective: str, schedule: Schedule, network: Network) -> list[float]:
    """The seconds at each size, their parts, and the sum of the bytes on all links."""
    predictor = NetworkPredictor(Machine(network=network))
    simulation = predictor.simulation(Operation.of(schedule, collective))
    numbers = []
    for size in FEW_SIZES:
        found = simulation.run(size)
        numbers += [found.seconds, *found.parts.values(), float(found.link_bytes.sum())]
    return numbers


def nccl_seconds(log: str, sm: int, ranks: int, nodes: int, collective: str) -> list[float | None]:
    """Seconds at each size by NCCL's model."""
    predictor = NcclPredictor(machine_from_log(log, sm, ranks, nodes))
    operation = Operation(collective, "library", ranks)
    if predictor.refusal(operation):
        return [None] * len(SIZES[1:])
    return predictor.seconds(operation, SIZES[1:]).tolist()


def bucket_seconds(ready: Sequence[float], number: int) -> list[float]:
    """The end of the last exchange, with fixed buckets and with cycles."""
    import numpy as np

    times, tensors = np.array(ready), [1000 * (1 + i % 4) for i in range(len(ready))]
    exchange = lambda span: 1e-4 + 1e-7 * (10 + number) * sum(tensors[span[0] : span[1]])  # noqa: E731
    spans = list(fill_buffers(tensors, 0, len(tensors), 4000))
    return [
        time_buckets(times, spans, exchange),
        float(time_cycles(times, tensors, 4000, 0.0005 * (1 + number), exchange)),
    ]


def answers() -> dict[str, Sequence[float | None]]:
    """All questions with their answers. Prints on stderr how long each part took."""
    found: dict[str, Sequence[float | None]] = {}
    for part in (by_costs, by_network, by_nccl, by_bucket):
        begin, before = time.process_time(), len(found)
        found.update(part())
        taken = time.process_time() - begin
        print(f"{part.__name__}: {len(found) - before} questions, {taken:.0f} s", file=sys.stderr)
    return found


def differences(
    now: dict[str, Sequence[float | None]], frozen: dict[str, Sequence[float | None]]
) -> list[str]:
    """A line for each question whose answers differ by more than a factor of 1e-12."""
    lines = [f"only in one: {name}" for name in now.keys() ^ frozen.keys()]
    for name in now.keys() & frozen.keys():
        a, b = now[name], frozen[name]
        same = len(a) == len(b) and all(
            x == y or (x is not None and y is not None and math.isclose(x, y, rel_tol=1e-12))
            for x, y in zip(a, b, strict=True)
        )
        if not same:
            lines.append(f"{name}: {list(a)[:4]} … but {list(b)[:4]} …")
    return sorted(lines)


def main() -> int:
    """Write or compare, as the options say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the answers")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare with these answers")
    options = parser.parse_args()
    found = answers()
    if options.write is not None:
        options.write.write_text(json.dumps(found), encoding="utf-8")
    if options.compare is None:
        return 0
    lines = differences(found, json.loads(options.compare.read_text(encoding="utf-8")))
    print("\n".join([*lines[:20], f"{len(found)} questions, {len(lines)} answered otherwise"]))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
