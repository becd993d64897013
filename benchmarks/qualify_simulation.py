"""Error rates of `busbar qualify`: its decisions in thousands of campaigns on simulated clusters.

    python benchmarks/qualify_simulation.py run -n 250 --hosts 1024 --law measured --seed 1 >> DATA
    python benchmarks/qualify_simulation.py methods -n 50 --hosts 16,64 >> DATA
    python benchmarks/qualify_simulation.py table DATA…
    python benchmarks/qualify_simulation.py plot DATA… -o docs/qualify-batches.svg
    python benchmarks/qualify_simulation.py noise RUN… > benchmarks/results/qualify-noise.txt

`run` draws faults and noise from the seed, runs each campaign and writes a line of JSON for it.
`methods` does the same with methods of others. `table` and `plot` summarise all lines. `noise`
reads the launches of pairs in healthy campaigns on the emulated cluster (run directories of `busbar
qualify`) and writes log(measured rate / usual rate), a line for each launch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from simulated_cluster import PORT, Fault, Noise, SimulatedCluster, run_campaign

from bench.qualify.model import Cluster, Ending, Launch, Limits, Observation, Stage, State, Verdict
from bench.qualify.pairing import round_of_pairs, rounds
from bench.qualify.together import predicted

MEASURED = Path(__file__).parent / "results" / "qualify-noise.txt"
#: Healthy hosts' rates differ by so much (standard deviation).
SPREAD = 0.005
_STATES = (
    State.SLOW,
    State.SLOW,
    State.SLOW,
    State.HANGS,
    State.CRASHES,
    State.WRONG,
    State.UNREACHABLE,
    State.DIFFERENT,
)


# ------------------------------------------------------------------- laws of noise


def measured_noise() -> Noise:
    """Noise drawn from measured launches; all directions of a launch are drawn together."""
    rows = np.loadtxt(MEASURED)

    def draw(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        noise = np.zeros(shape)
        noise[:, 1:4] = rows[random.integers(0, len(rows), shape[0])]
        return noise

    return draw


def heavy_noise() -> Noise:
    """Measured noise, and each launch slower by half the absolute value of Student's t (2), in %.

    One launch in 17 loses more than 2 %, one in 101 more than 5 %, one in 401 more than 10 %.
    """
    base = measured_noise()

    def draw(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        noise = base(random, shape)
        noise[:, 0] = -np.minimum(0.005 * np.abs(random.standard_t(2, shape[0])), 3.0)
        return noise

    return draw


def normal_noise() -> Noise:
    """Normal noise: a standard deviation of 1.5 % for launches, and the same for each direction."""

    def draw(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return random.normal(0, 0.015, shape)

    return draw


LAWS: Mapping[str, Callable[[], Noise]] = {
    "measured": measured_noise,
    "heavy": heavy_noise,
    "normal": normal_noise,
}


# ------------------------------------------------------------------- campaigns


def hosts_of(nhosts: int) -> tuple[str, ...]:
    """The names of ``nhosts`` hosts."""
    return tuple(f"host{n}" for n in range(nhosts))


def draw_faults(nhosts: int, random: np.random.Generator) -> list[Fault]:
    """Faults of 0 to 1 % of the hosts; 0 to 3 faults if there are up to 128 hosts.

    A slow port has 0.5 to 0.9 of the rate, in both directions or in one.
    """
    most = max(3, nhosts // 100) if nhosts <= 128 else nhosts // 100
    names = hosts_of(nhosts)
    bad = random.permutation(nhosts)[: random.integers(0, most + 1)].tolist()
    faults = []
    for host in bad:
        state = _STATES[int(random.integers(len(_STATES)))]
        ratio = float(random.uniform(0.5, 0.9)) if state is State.SLOW else 1.0
        out, into = [(True, True), (True, False), (False, True)][int(random.integers(3))]
        since = int(random.integers(1, 4)) if state in (State.HANGS, State.CRASHES) else 0
        faults.append(Fault("host", (names[host],), state, ratio, out, into, since))
    return faults


def draw_all(nhosts: int, random: np.random.Generator) -> tuple[list[Fault], dict[str, str]]:
    """Faults of hosts, and in one of four campaigns a slow pair or uplink; also the racks."""
    faults, names = draw_faults(nhosts, random), hosts_of(nhosts)
    size = max(4, nhosts // 32)
    racks = {name: f"rack{n // size}" for n, name in enumerate(names)}
    bad = {host for fault in faults for host in fault.hosts}
    good = [name for name in names if name not in bad]
    kind = int(random.integers(8))
    if kind == 0:
        faults.append(Fault("uplink", (good[0],), State.SLOW, 1 / 3))
    elif kind == 1 and nhosts <= Limits().all_pairs:
        pair = (good[1], good[-1])
        faults.append(Fault("link", pair, State.SLOW, float(random.uniform(0.3, 0.8))))
    return faults, racks


def fault_subject(fault: Fault, racks: Mapping[str, str]) -> frozenset[str]:
    """The hosts that a correct verdict names."""
    if fault.kind != "uplink":
        return frozenset(fault.hosts)
    return frozenset(host for host, rack in racks.items() if rack == racks[fault.hosts[0]])


def judged(
    faults: Sequence[Fault], racks: Mapping[str, str], verdicts: Sequence[Verdict]
) -> tuple[list[Any], list[Any], int]:
    """The verdict on each fault, the false accusations, and the number of unsure verdicts.

    A rack's uplink is named by the hosts of its rack, without those that have faults of their own.
    """
    own = {host for fault in faults if fault.kind == "host" for host in fault.hosts}
    outcomes, named = [], set[Verdict]()
    for fault in faults:
        subject = fault_subject(fault, racks)
        least = subject - own if fault.kind == "uplink" else subject
        matching = [
            v for v in verdicts if v.kind == fault.kind and least <= set(v.subject) <= subject
        ]
        named.update(matching)
        said = matching[0].state.value if matching else "nothing"
        outcomes.append([fault.kind, fault.state.value, round(fault.ratio, 3), said])
    others = [v for v in verdicts if v not in named and v.state is not State.GOOD]
    false = [v for v in others if v.state is not State.CANNOT_TELL]
    texts = [[v.kind, v.subject[:4], v.state.value, v.ratio] for v in false]
    return outcomes, texts, len(others) - len(false)


def one_campaign(nhosts: int, law: str, seed: int, healthy: bool, known_racks: bool) -> Any:
    """Run one campaign. Returns its line: faults, verdicts and cost."""
    random = np.random.default_rng([seed, nhosts])
    faults, racks = ([], {}) if healthy else draw_all(nhosts, random)
    names = hosts_of(nhosts)
    simulated = SimulatedCluster(names, faults, LAWS[law](), seed, SPREAD, racks)
    cluster = Cluster(names, racks if known_racks else {})
    start = time.process_time()
    campaign = run_campaign(cluster, Limits(seed=seed), simulated)
    seconds = time.process_time() - start
    outcomes, false, unsure = judged(faults, racks, campaign.decision.verdicts)
    stages = Counter(o.launch.stage.value for o in campaign.observations)
    return {
        "what": "healthy" if healthy else "campaign",
        "hosts": nhosts,
        "law": law,
        "seed": seed,
        "faults": outcomes,
        "false": false,
        "unsure": unsure,
        "batches": campaign.batches(),
        "launches": len(campaign.observations),
        "stages": stages,
        "seconds": round(seconds, 3),
    }


# ------------------------------------------------------------------- others' methods

Observe = Callable[[Sequence[Launch]], Sequence[Observation]]


class Runner:
    """Runs launches for other methods, one by one or together; counts rounds and launches.

    `observe` runs launches at the same time. `port` is the rate of a good host in bytes per second.
    A launch is bad below the share `slow` of the expected rate; a launch of more than two hosts is
    bad below `together`.
    """

    def __init__(self, observe: Observe, port: float, slow: float, together: float | None = None):
        self.observe, self.port, self.slow = observe, port, slow
        self.together = slow if together is None else together
        self.launches = self.rounds = 0

    def bad(self, groups: Iterable[Sequence[str]]) -> list[bool]:
        """For each of these launches, which run together: True if it fails or falls short."""
        launches = []
        for group in groups:
            launches.append(Launch(self.launches, self.rounds, Stage.PAIRS, tuple(group)))
            self.launches += 1
        self.rounds += 1
        seen = {one.launch.number: one for one in self.observe(launches)}
        return [self._is_bad(seen[launch.number]) for launch in launches]

    def _is_bad(self, one: Observation) -> bool:
        if any(r.ending != Ending.FINISHED or r.wrong for r in one.reports):
            return True
        size = len(one.launch.hosts)
        least = self.slow * self.port if size <= 2 else self.together * predicted(self.port, size)
        return any(median(values) < least for values in one.rates.values())


def bisection(run: Runner, hosts: Sequence[str]) -> set[str]:
    """Launch all hosts, then halves of bad sets; at last pair single hosts with good ones."""
    if not run.bad([hosts])[0]:
        return set()
    suspects, good, accused = [tuple(hosts)], list[str](), set[str]()
    while suspects:
        halves = [
            half
            for group in suspects
            for half in (group[: len(group) // 2], group[len(group) // 2 :])
            if half
        ]
        singles = [half[0] for half in halves if len(half) == 1]
        groups = [half for half in halves if len(half) > 1]
        verdicts = run.bad(groups) if groups else []
        good += [h for group, bad in zip(groups, verdicts, strict=True) if not bad for h in group]
        suspects = [group for group, bad in zip(groups, verdicts, strict=True) if bad]
        # Each single host has a good partner of its own, as far as there are any.
        fresh = iter(h for h in good if h not in singles)
        pairs = [(single, next(fresh, None)) for single in singles]
        accused |= {single for single, partner in pairs if partner is None}
        tried = [(single, partner) for single, partner in pairs if partner is not None]
        bad_pairs = run.bad(tried) if tried else []
        accused |= {pair[0] for pair, bad in zip(tried, bad_pairs, strict=True) if bad}
        good += [pair[0] for pair, bad in zip(tried, bad_pairs, strict=True) if not bad]
    return accused


def one_reference(run: Runner, hosts: Sequence[str]) -> set[str]:
    """Launch each host with the first one, one after the other."""
    first, *others = hosts
    return {other for other in others if run.bad([(first, other)])[0]}


def growing_ring(run: Runner, hosts: Sequence[str]) -> set[str]:
    """Launch each host with the first; then add one host at a time to a growing ring."""
    accused = one_reference(run, hosts)
    ring = [hosts[0]]
    for host in hosts[1:]:
        if host in accused:
            continue
        if run.bad([(*ring, host)])[0]:
            accused.add(host)
        else:
            ring.append(host)
    return accused


def all_pairs(run: Runner, hosts: Sequence[str]) -> set[str]:
    """Launch every pair once, in rounds. Accuses hosts that are bad in most of their pairs."""
    times: Counter[str] = Counter()
    for number in range(rounds(len(hosts))):
        pairs = [(hosts[a], hosts[b]) for a, b in round_of_pairs(len(hosts), number, 1)]
        for pair, bad in zip(pairs, run.bad(pairs), strict=True):
            times.update(pair if bad else ())
    return {host for host in hosts if 2 * times[host] > len(hosts) - 1}


METHODS: Mapping[str, Callable[[Runner, Sequence[str]], set[str]]] = {
    "bisection": bisection,
    "one reference": one_reference,
    "growing ring": growing_ring,
    "all pairs": all_pairs,
}


def one_method(method: str, nhosts: int, law: str, seed: int, slow: float) -> Any:
    """Run another method on the host faults of one campaign. Returns its line."""
    random = np.random.default_rng([seed, nhosts])
    faults, names = draw_faults(nhosts, random), hosts_of(nhosts)
    simulated = SimulatedCluster(names, faults, LAWS[law](), seed, SPREAD)
    run = Runner(simulated.observe, PORT, slow)
    accused = METHODS[method](run, names)
    # Only `busbar qualify` checks software, so hosts that only differ do not count here.
    bad = {f.hosts[0]: f for f in faults if f.state is not State.DIFFERENT}
    outcomes = [
        ["host", f.state.value, round(f.ratio, 3), "bad" if h in accused else "good"]
        for h, f in bad.items()
    ]
    return {
        "what": method,
        "hosts": nhosts,
        "law": law,
        "seed": seed,
        "faults": outcomes,
        "false": [["host", [h], "bad", None] for h in sorted(accused - bad.keys())],
        "unsure": 0,
        "batches": run.rounds,
        "launches": run.launches,
        "seconds": 0.0,
    }


# ------------------------------------------------------------------- tables and plot


def _lines(files: Iterable[str]) -> list[Any]:
    lines = [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]
    unique = {(o["what"], o["hosts"], o["law"], o["seed"], o.get("racks")): o for o in lines}
    return list(unique.values())


def _spread(values: Sequence[float]) -> str:
    low, middle, high = min(values), median(values), max(values)
    return f"{middle:g}" if low == high else f"{middle:g} ({low:g} to {high:g})"


def _found(outcomes: Iterable[Sequence[Any]]) -> tuple[int, int, int]:
    """The numbers of faults named with the right state, left open, and missed."""
    right = unsure = missed = 0
    for _, state, _, said in outcomes:
        if said in (state, "bad"):
            right += 1
        elif said == State.CANNOT_TELL.value:
            unsure += 1
        else:
            missed += 1
    return right, unsure, missed


_BANDS: tuple[tuple[str, Callable[[Sequence[Any]], bool]], ...] = (
    ("hosts at 0.5 to 0.85", lambda o: o[0] == "host" and o[1] == "slow" and o[2] <= 0.85),
    ("hosts at 0.85 to 0.9", lambda o: o[0] == "host" and o[1] == "slow" and o[2] > 0.85),
    ("fail or wrong", lambda o: o[0] == "host" and o[1] not in ("slow", "different")),
    ("other software", lambda o: o[1] == "different"),
    ("uplinks", lambda o: o[0] == "uplink"),
    ("pairs", lambda o: o[0] == "link"),
)


def table(files: Sequence[str]) -> None:
    """Print the totals of all campaigns, in Markdown."""
    groups: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for line in _lines(files):
        groups[line["hosts"], line["law"], line["what"]].append(line)
    print("| hosts | noise | | campaigns | healthy called bad | cannot tell | batches | launches |")
    print("|--:|---|---|--:|--:|--:|--:|--:|")
    for (hosts, law, what), lines in sorted(groups.items()):
        false = sum(bool(line["false"]) for line in lines)
        unsure = sum(line["unsure"] for line in lines)
        batches, launches = (_spread([o[k] for o in lines]) for k in ("batches", "launches"))
        cells = (hosts, law, what, len(lines), false, unsure, batches, launches)
        print("|", " | ".join(map(str, cells)), "|")
    print()
    print("| hosts | noise | | " + " | ".join(name for name, _ in _BANDS) + " |")
    print("|--:|---|---|" + "---|" * len(_BANDS))
    for (hosts, law, what), lines in sorted(groups.items()):
        outcomes = [o for line in lines for o in line["faults"]]
        if not outcomes:
            continue
        cells = []
        for _, belongs in _BANDS:
            right, unsure, missed = _found(o for o in outcomes if belongs(o))
            total = right + unsure + missed
            more = f", {unsure} open" if unsure else ""
            cells.append(f"{right} of {total}{more}" if total else "")
        print("|", " | ".join(map(str, (hosts, law, what, *cells))), "|")


def plot(files: Sequence[str], out: str) -> None:
    """Plot batches over hosts, medians with their range, and bisection's rounds for comparison."""
    from busbar.canvas import LEGEND, canvas, faint_grid, ranks_axis, saved

    groups: dict[tuple[str, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for line in _lines(files):
        if line["what"] in ("campaign", "bisection"):
            groups[line["what"], line["law"]][line["hosts"]].append(line["batches"])
    figure = canvas(6.0, 3.2)
    axes = figure.subplots()
    for (what, law), by_hosts in sorted(groups.items()):
        hosts = sorted(by_hosts)
        middle = [median(by_hosts[n]) for n in hosts]
        low = [m - min(by_hosts[n]) for n, m in zip(hosts, middle, strict=True)]
        high = [max(by_hosts[n]) - m for n, m in zip(hosts, middle, strict=True)]
        name = "busbar qualify" if what == "campaign" else what
        style = "-" if what == "campaign" else "--"
        label = f"{name}, {law} noise"
        axes.errorbar(hosts, middle, [low, high], ls=style, marker="o", capsize=3, label=label)
    faint_grid(axes)
    ranks_axis(axes, (n for by_hosts in groups.values() for n in by_hosts), "hosts")
    axes.set_ylabel("batches of launches")
    axes.set_ylim(bottom=0)
    axes.legend(**LEGEND)
    Path(out).write_bytes(saved(figure, Path(out).suffix[1:]))


def noise(runs: Sequence[str]) -> None:
    """Print log(measured rate / usual rate) of the pairs of healthy campaigns."""
    from bench.qualify.store import load

    for folder in runs:
        rows = []
        for one in load(Path(folder)).observations:
            if len(one.launch.hosts) == 2 and one.rates:
                rows.append([np.log(median(one.rates[k])) for k in ("forward", "backward", "both")])
        values = np.array(rows)
        values -= np.median(values, axis=0)
        np.savetxt(sys.stdout, values, fmt="%.5f")


def main() -> None:
    """Run the command that the command line names; see the docstring above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "methods", "table", "plot", "noise"))
    parser.add_argument("files", nargs="*")
    parser.add_argument("-n", type=int, default=100, help="campaigns")
    parser.add_argument("--hosts", default="1024")
    parser.add_argument("--law", default="measured", choices=LAWS)
    parser.add_argument("--seed", type=int, default=0, help="the first campaign's")
    parser.add_argument("--healthy", action="store_true", help="no faults")
    parser.add_argument("--racks", action="store_true", help="the decisions know the racks")
    parser.add_argument("--slow", type=float, default=0.95, help="limit of others' methods")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("-o", default="qualify-batches.svg")
    options = parser.parse_args()
    if options.what in ("table", "plot", "noise"):
        _ = {"table": table, "noise": noise, "plot": lambda f: plot(f, options.o)}
        _[options.what](options.files)
        return
    for nhosts in map(int, options.hosts.split(",")):
        for seed in range(options.seed, options.seed + options.n):
            if options.what == "run":
                lines = [one_campaign(nhosts, options.law, seed, options.healthy, options.racks)]
            else:
                lines = [
                    one_method(method, nhosts, options.law, seed, options.slow)
                    for method in options.methods.split(",")
                ]
            for line in lines:
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
