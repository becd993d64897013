"""Expected times of the protocols, and the report that compares them with a run. In seconds.

Expected times come from formulas and simulation, and are split by cause. Formulas are those of
Dutta, Joshi, Ghosh, Dube, Nagpurkar: Slow and Stale Gradients Can Win the Race (2018), lemmas 1 to
5; Gupta, Zhang, Wang: Model Accuracy and Runtime Tradeoff (2016).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from heapq import heappop, heappush
from math import ceil, inf
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.steps.compute import Compute
from bench.steps.server.loops import BLOCKS, ServerLog
from bench.steps.server.protocol import Core, UpdateProtocol
from busbar.statistics import mean_interval
from busbar.units import agreeing, format_bytes, format_count, format_seconds
from reports.statistics.uncertain import Uncertain

# Learners that do not wait may be faster than the server: its queue grows, and each gradient is too
# late when it is processed. A simulation ends after this many dropped gradients per needed one.
_MOST_DROPPED = 20


class ExpectedPace(NamedTuple):
    """Expected seconds per update of the weights. ``bound``: True if this is only an upper bound.

    The bound holds if a computation that has run for a while is expected to end before a new one.
    """

    seconds: float
    bound: bool = False


def per_update(protocol: UpdateProtocol, law: Compute) -> ExpectedPace | None:
    """The expected time per update of the weights by a formula for this protocol.

    ``law``: the distribution of compute times. None if there is no formula, so that the time must
    be simulated.
    """
    p, k = protocol.learners, protocol.needed
    if protocol.cancels and protocol.repeats:
        if law.memoryless:
            return ExpectedPace(k * law.mean / p)
        if law.constant:
            return ExpectedPace(ceil(k / p) * law.mean)
        return ExpectedPace(law.smallest(1, p)) if k == 1 else None
    if _takes_turns(protocol):
        return ExpectedPace(law.smallest(k, p))
    if protocol.repeats or k == 1:  # all learners always compute: P renewal processes
        return ExpectedPace(k * law.mean / p)
    return ExpectedPace(law.smallest(k, p), bound=not law.memoryless)


def mean_staleness(protocol: UpdateProtocol) -> float:
    """The expected mean staleness: how many updates the weights change during a gradient.

    Every update takes K gradients. In k-async each of the P learners is part of every (P/K)-th
    update on average, so P/K − 1 updates are between. In k-batch-async P − 1 other gradients come
    between two of a learner, which are (P − 1)/K updates.
    """
    p, k = protocol.learners, protocol.needed
    if protocol.cancels:
        return 0.0
    return (p - 1) / k if protocol.repeats else p / k - 1


def port_seconds(protocol: UpdateProtocol, nbytes: float, rate: float) -> float:
    """Seconds that an update's gradients and weights take through the server's port.

    ``nbytes``: of a gradient's part for one server, and of its weights. ``rate``: bytes/s of the
    port, each way. If learners wait for each other, the weights of all leave after the gradients
    have come; otherwise both directions are used at once (docs/parameter-servers.md).
    """
    messages = protocol.needed + protocol.learners * _takes_turns(protocol)
    return messages * nbytes / rate


def with_port(protocol: UpdateProtocol, computing: float, port_s: float) -> float:
    """The expected seconds of an update with the time of its bytes, for asynchronous ones at least.

    ``computing``: without communication; ``port_s``: see `port_seconds`.
    """
    if _takes_turns(protocol):
        return computing + port_s
    return max(port_s, computing + _own_messages(protocol, port_s))


def _own_messages(protocol: UpdateProtocol, port_s: float) -> float:
    """Seconds of an update in which a learner sends its gradient and waits for weights, at least.

    Both messages of a learner are those of one of its rounds, which has L/K updates.
    """
    return 2 * port_s / protocol.learners


def _prediction(protocol: UpdateProtocol, computing: float, port_s: float) -> str:
    """How `with_port` comes about, in words."""
    port, own = f"the server's port {format_seconds(port_s)}", format_seconds(computing)
    if _takes_turns(protocol):
        return f"predicted: computing {own}, then {port}"
    messages = format_seconds(_own_messages(protocol, port_s))
    return (
        f"predicted, at least: the greater of {port}, or computing {own} and a learner's own"
        f" messages {messages}"
    )


def _takes_turns(protocol: UpdateProtocol) -> bool:
    """True if computing, gradients and weights of an update come one after the other."""
    return protocol.cancels or (protocol.needed == protocol.learners and not protocol.repeats)


def sync_over_async(learners: int, law: Compute) -> float:
    """E[T_sync]/E[T_async]: the synchronous protocol's time per update over the asynchronous one's.

    It is P·E[X_{P:P}]/E[X] for P learners with compute time X; P·H_P for the exponential. ``law``:
    the distribution of X.
    """
    return learners * law.smallest(learners, learners) / law.mean


class ServiceTimes(NamedTuple):
    """Seconds of a server's operations, which it does one at a time, and of a learner's round.

    ``receive``, ``gradient``, ``update``, ``weights``: to receive a gradient, to apply it, to
    update the weights, to send them to a learner. ``round``: what a learner loses in a round (from
    the begin of one computation to the begin of the next) by timers that fire late, and by
    messages.
    """

    receive: float = 0.0
    gradient: float = 0.0
    update: float = 0.0
    weights: float = 0.0
    round: float = 0.0


class SimulatedRun:
    """An event-driven simulation of one server and its learners.

    ``updates``: when each update of the weights was made. ``staleness``: gradients by their
    staleness. ``dropped``: gradients that came after their update. ``busy``: seconds in which the
    server worked. ``endless``: True if the simulation was stopped because the server's queue grows
    for ever.
    """

    def __init__(
        self,
        protocol: UpdateProtocol,
        draw: Callable[[int, int], float],
        updates: int,
        costs: ServiceTimes = ServiceTimes(),  # noqa: B008  (immutable)
    ) -> None:
        """Simulate ``updates`` updates, or fewer if the server cannot keep up.

        The server processes messages in the order of arrival. ``draw``: seconds of a learner's n-th
        computation, counted from 0, including cancelled ones.
        """
        self.updates, self.staleness = list[float](), Counter[int]()
        self.dropped, self.busy, self.endless = 0, 0.0, False
        self._draw, self._costs = draw, costs
        self._core = Core(protocol, range(protocol.learners))
        self._free = 0.0  # when the server has processed all messages that have arrived
        # Events: time, a running number, the learner, its epoch, the version of new weights (None:
        # its computation ends). New weights begin a learner's next epoch.
        self._events: list[tuple[float, int, int, int, int | None]] = []
        self._count = 0
        self._epochs, self._versions, self._computed = ([0] * protocol.learners for _ in range(3))
        most = 1000 + _MOST_DROPPED * (protocol.needed + protocol.learners) * updates
        self._send(self._core.start().send)
        while len(self.updates) < updates and not self.endless:
            now, _, learner, epoch, version = heappop(self._events)
            if version is not None:
                self._epochs[learner] += 1
                self._versions[learner] = version
                self._begin(learner, now)
            elif epoch == self._epochs[learner]:  # else the computation was cancelled meanwhile
                self._push(learner, now)
            self.endless = self.dropped > most

    def per_update(self, warmup: int = 0) -> float:
        """The mean time per update of the weights after ``warmup`` ones; infinite if `endless`."""
        if self.endless:
            return inf
        first = self.updates[warmup - 1] if warmup else 0.0
        return (self.updates[-1] - first) / (len(self.updates) - warmup)

    def _push(self, learner: int, now: float) -> None:
        self._free = max(now, self._free)
        actions = self._core.gradient(learner, self._versions[learner])
        self._serve(self._costs.receive + self._costs.gradient)
        if actions.staleness is None:
            self.dropped += 1
        else:
            self.staleness[actions.staleness] += 1
        if actions.update:
            self._serve(self._costs.update)
            self.updates.append(self._free)
        self._send(actions.send)
        if self._core.protocol.goes_on:
            self._begin(learner, now)

    def _send(self, learners: tuple[int, ...]) -> None:
        for learner in learners:
            self._serve(self._costs.weights)
            self._add_event(self._free, learner, self._core.version)

    def _begin(self, learner: int, now: float) -> None:
        seconds = self._draw(learner, self._computed[learner])
        self._computed[learner] += 1
        self._add_event(now + self._costs.round + seconds, learner, None)

    def _serve(self, seconds: float) -> None:
        self._free += seconds
        self.busy += seconds

    def _add_event(self, when: float, learner: int, version: int | None) -> None:
        self._count += 1  # simultaneous events happen in the order in which they were added
        heappush(self._events, (when, self._count, learner, self._epochs[learner], version))


class RoundCosts(NamedTuple):
    """Mean seconds of a learner's round in addition to its computing and the server's work.

    A round is from the begin of one computation to the begin of the next. ``travel``: from the
    sending of weights until a learner has received them, without ``noticing``: how long they had
    arrived before the learner looked, at most. ``waking``: by how much computations end after their
    time, because timers fire late. ``pushing``: to servers other than this one.
    """

    travel: float
    noticing: float
    waking: float
    pushing: float


def measured_costs(log: ServerLog, servers: int) -> tuple[ServiceTimes, RoundCosts]:
    """Mean times of a server's operations and of a learner's round, without computing.

    ``log``: of one of the servers; a learner's round includes pushes to the other servers.
    """
    pushed = max(1, sum(worker["pushed"] for worker in log.workers))
    answered = max(1, sum(worker["answers"] for worker in log.workers))
    travel, unnoticed = (
        sum(worker[name] for worker in log.workers) / answered for name in ("travel", "unnoticed")
    )
    weights = log.answer_s / max(1, log.answers)
    # Work that is not timed separately, such as sending the rest of a message.
    timed = log.receive_s + log.gradient_s + log.update_s + log.answer_s
    rest = max(0.0, log.wall - log.idle - timed) / max(1, log.gradients)
    together = log.answers / max(1, log.batches)
    round_costs = RoundCosts(
        # ``travel`` includes the time in which the server sent weights to other learners before.
        max(0.0, travel - unnoticed - weights * (together + 1) / 2),
        unnoticed,
        sum(worker["late"] for worker in log.workers) / pushed,
        sum(worker["pushing"] for worker in log.workers) / pushed * (servers - 1) / servers,
    )
    service_times = ServiceTimes(
        receive=log.receive_s / max(1, log.gradients),
        gradient=log.gradient_s / max(1, log.gradients) + rest,
        update=log.update_s / max(1, len(log.updates)),
        weights=weights,
        round=sum(round_costs),
    )
    return service_times, round_costs


#: The parts of an update's time in which gradients and weights move between learners and server.
RECEIVED, TRAVEL = "gradients received by the server", "weights on their way to the learners"
#: The part of an update's time that no cost of the simulation explains.
UNEXPLAINED = "unexplained"


def attribute_time(
    simulated: Callable[[ServiceTimes], float],
    service_times: ServiceTimes,
    round_costs: RoundCosts,
    predicted: float,
    mean: float,
) -> dict[str, float]:
    """Split a measured time per update by cause, in seconds; the sum is ``mean``.

    The protocol is simulated with one more cost at a time; a cause's part is the time that its cost
    adds. ``simulated``: returns the time per update with given costs, infinite if the server cannot
    keep up; this cost and later ones are then "unexplained". This part is negative if parts
    overlapped that the simulation has one after the other. ``predicted``: the formula's time.
    """
    none = ServiceTimes()
    receiving = none._replace(receive=service_times.receive)
    answering = service_times._replace(round=0.0)
    travelling = answering._replace(round=round_costs.travel)
    late = travelling._replace(round=round_costs.travel + round_costs.noticing)
    costs_so_far = {
        "chance in the times drawn": none,
        RECEIVED: receiving,
        "gradients applied by the server": answering._replace(weights=0.0),
        "weights sent to one after the other": answering,
        TRAVEL: travelling,
        "learners that notice weights late": late,
        "gradients that end late": service_times,
    }
    parts, before = {"computing": predicted}, predicted
    for name, costs in costs_so_far.items():
        after = simulated(costs)
        if after == inf:
            break
        parts[name], before = after - before, after
    return parts | {UNEXPLAINED: mean - before}


# Measured and expected times count as equal if their ratio differs from 1 by less than this.
_EQUAL = 0.05
# The width of lines below a row.
_WIDTH = 79
# Staleness below this is shown by value.
_EXACT = 8
_OVERLOADED = "a server that takes so long could not keep up with such learners"
# A space before a unit, or before the share of a histogram's class.
_GLUE, _UNIT = "\N{NO-BREAK SPACE}", re.compile(r"(?<=[0-9]) (?=[a-zA-Z%])|(?<=[0-9]:) (?=[0-9])")
# The most gradients that are simulated, so that a report does not take too long.
_MOST_GRADIENTS = 50_000
# The same for each of the simulations that split a time by cause.
_MOST_SPLIT = 10_000


def equal_blocks(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Successive times as rows of equally many: `BLOCKS` rows or more, fewer than twice as many.

    One row if rows had less than two times. Means of rows are nearly independent, and their mean is
    the mean of all times. The first times are left out if they fill no row, at most a twentieth.
    """
    size = len(times) // BLOCKS
    size = size if size > 1 else len(times)
    return times[len(times) % size :].reshape(-1, size)


def _mean_over_learners(series: Sequence[Sequence[float]]) -> list[float]:
    """The mean over learners, block by block; one mean if a learner has fewer blocks.

    Learners that had no round after the warm-up are left out.
    """
    series = [blocks for blocks in series if blocks]
    if series and min(map(len, series)) < BLOCKS:
        return [float(np.mean([np.mean(blocks) for blocks in series]))]
    return [float(mean) for mean in np.mean(series, axis=0)] if series else []


def learners_figures(
    workers: Sequence[Mapping[str, Any]], mean: float, slow: Container[int] = ()
) -> dict[str, Any]:
    """Exposed communication in an update, and the time of a gradient if a learner were alone.

    ``workers``: learners' logs (`bench.steps.server.loops.WorkerLog`). ``mean``: seconds of an
    update. Its exposed share is the mean over learners of the exposed share of their rounds. One
    learner alone takes the drawn times, including those of cancelled computations, and the measured
    delay of timers. ``slow`` learners (stragglers) are left out of the latter. The result is empty
    without times of learners.
    """
    shares = _mean_over_learners(
        [
            np.divide(worker["exposed"], worker["rounds"]).tolist()
            for worker in workers
            if worker["exposed"]
        ]
    )
    drawn = _mean_over_learners(
        [worker["drawn"] for worker in workers if worker.get("number") not in slow]
    )
    figures: dict[str, Any] = {}
    if shares:
        exposed = [mean * share for share in shares]
        figures["exposed_s"] = float(np.mean(exposed))
        figures["exposed_interval_s"] = mean_interval(exposed)
    if drawn:
        pushed = max(1, sum(worker["pushed"] for worker in workers))
        late = sum(worker["late"] for worker in workers) / pushed
        figures["one_rank_s"] = late + float(np.mean(drawn))
        figures["one_rank_interval_s"] = mean_interval([late + block for block in drawn])
    return figures


class ServerReport(NamedTuple):
    """The figures of a run as JSON values. ``lines``: printed below its row.

    ``times``: means over equal blocks of ``updates`` updates in all (`equal_blocks`). The times of
    single updates are in ``facts``.
    """

    times: tuple[float, ...]
    updates: int
    predicted: float | None
    model: str
    facts: Mapping[str, Any]
    lines: tuple[str, ...]


def build_report(
    protocol: UpdateProtocol,
    servers: Sequence[ServerLog],
    compute: Compute,
    draw: Callable[[int, int], float],
    warmup: int,
    slow: Container[int] = (),
    *,
    hosts: int = 1,
    port_s: float | None = None,
) -> ServerReport:
    """The figures of a run, by server 0's pace.

    ``draw``: seconds of a learner's n-th gradient. ``slow``: learners that are stragglers.
    ``hosts``: how many hosts the ranks are on. ``port_s``: see `port_seconds`; None if the rate of
    ports is not known.
    """
    first = servers[0]
    every = np.diff(np.asarray([0.0, *first.updates])[warmup:])
    blocks = equal_blocks(every)
    warmup += len(every) - blocks.size  # the first updates, which fill no block
    times, means = blocks.ravel(), tuple(blocks.mean(axis=1).tolist())
    # Formulas hold if learners do not differ and do compute.
    law = None if compute.slow or not compute.mean else compute
    formula = None if law is None else per_update(protocol, law)
    count = min(len(first.updates), max(1, _MOST_GRADIENTS // protocol.needed))
    service_times, round_costs = measured_costs(first, len(servers))
    # Without computing all wait for each other, so costs cannot be separated.
    drawn_s = with_server_s = None
    if compute.mean:
        skipped = min(warmup, count - 1)
        drawn_s = SimulatedRun(protocol, draw, count).per_update(skipped)
        with_server_s = SimulatedRun(protocol, draw, count, service_times).per_update(skipped)
    mean = float(times.mean())
    pace = Uncertain(mean, *(mean_interval(means) or ()))
    counts = sum((server.staleness for server in servers), Counter[int]())
    waits = np.concatenate([np.asarray(server.waits) for server in servers])
    facts = {
        "learners": protocol.learners,
        "servers": len(servers),
        "needed": protocol.needed,
        "update_s": np.round(times, 9).tolist(),
        "formula_s": None if formula is None else formula.seconds,
        "formula_is_bound": None if formula is None else formula.bound,
        "drawn_s": drawn_s,
        "with_server_s": None if with_server_s == inf else with_server_s,
        "sync_over_async": law and sync_over_async(protocol.learners, law),
        "updates_per_s": 1 / mean,
        "staleness": {str(value): counts[value] for value in sorted(counts)},
        "mean_staleness_formula": mean_staleness(protocol),
        "dropped": sum(server.dropped for server in servers),
        "cancelled": sum(worker["cancelled"] for worker in first.workers),
        "utilisation": [round(server.utilisation, 6) for server in servers],
        "queue_wait_s": None
        if not len(waits)
        else {
            "mean": float(waits.mean()),
            "median": float(np.median(waits)),
            "p95": float(np.quantile(waits, 0.95)),
        },
        "costs_s": service_times._asdict(),
        **learners_figures(first.workers, mean, slow),
        "lost": [list(loss) for loss in first.lost],
        "joined": [list(join) for join in first.joined],
    }
    # A bound is no prediction: the expected time is then that of simulating the drawn times.
    computing, model = drawn_s, "simulated"
    if formula is not None and not formula.bound:
        computing, model = formula.seconds, "formula"
    if computing is not None and not _within(mean, computing):
        few = min(count, max(1, _MOST_SPLIT // protocol.needed))
        early = min(warmup, few - 1)
        facts["split_s"] = attribute_time(
            lambda costs: SimulatedRun(protocol, draw, few, costs).per_update(early),
            service_times, round_costs, computing, mean,
        )  # fmt: skip
    predicted = computing
    if port_s is not None:
        predicted = with_port(protocol, computing or 0.0, port_s)
        model = f"{model}+port" if computing else "port"
    moved = _bytes_moved(first, hosts)
    texts = [*_lines(protocol, pace, facts, formula), *_reasons(pace, facts, computing, moved)]
    if port_s is not None and computing:
        texts.insert(0, _prediction(protocol, computing, port_s))
    model, lines = model if predicted else "", [line for text in texts for line in _wrapped(text)]
    return ServerReport(means, len(times), predicted, model, facts, tuple(lines))


def _wrapped(text: str) -> list[str]:
    """Text below a row, as lines with a margin. None is broken before a unit."""
    lines = wrap(_UNIT.sub(_GLUE, text), _WIDTH, initial_indent=4 * " ", subsequent_indent=6 * " ")
    return [line.replace(_GLUE, " ") for line in lines]


def _lines(
    protocol: UpdateProtocol,
    pace: Uncertain,
    facts: Mapping[str, Any],
    formula: ExpectedPace | None,
) -> list[str]:
    mean, ratios = pace.value, []
    if formula is not None:
        kind = "the formula's bound" if formula.bound else "the formula"
        ratios.append(f"{kind} {mean / formula.seconds:.3f}")
    if facts["drawn_s"]:
        ratios.append(f"the drawn times {mean / facts['drawn_s']:.3f}")
    server = facts["with_server_s"]
    costs = f"; over these with the server's costs {mean / server:.3f}" if server else ""
    total = sum(facts["staleness"].values())
    stale = sum(int(value) * n for value, n in facts["staleness"].items()) / total
    wait, queue = facts["queue_wait_s"], "not known over several hosts"
    if wait is not None:
        queue = f"{format_seconds(wait['median'])}, 95 % up to {format_seconds(wait['p95'])}"
    half = "" if pace.half is None else f" ±{100 * pace.half / mean:.2g} %"
    lines = [f"measured over computing alone: {', '.join(ratios)}{costs}"] if ratios else []
    lines += [
        f"{facts['updates_per_s']:.4g} updates/s{half};"
        f" server busy {100 * max(facts['utilisation']):.3g} %; queue wait {queue}",
        f"mean staleness {stale:.3g} (formula {facts['mean_staleness_formula']:.3g});"
        f" gradients by staleness {histogram(facts['staleness'])}",
    ]
    if facts["cancelled"] or facts["dropped"]:
        lines.append(
            f"{format_count(facts['cancelled'], 'computation')}"
            f" {agreeing(facts['cancelled'], 'were')} cancelled,"
            f" {format_count(facts['dropped'], 'gradient')} came too late"
        )
    everyone = protocol.cancels and protocol.needed == protocol.learners
    if everyone and facts["sync_over_async"]:
        lines.append(
            f"by the formulas an update takes as long as {facts['sync_over_async']:.3g}"
            " asynchronous ones"
        )
    return lines


def histogram(counts: Mapping[str, int]) -> str:
    """The share of gradients by staleness: ``0: 5 %, 2: 9 %, 8-15: 86 %``.

    Values below 8 are exact; greater ones are in classes of doubling width.
    """
    total = sum(counts.values())
    classes: dict[tuple[int, int], int] = {}
    for value, n in ((int(text), n) for text, n in counts.items()):
        width = value.bit_length()
        ends = (value, value) if value < _EXACT else (1 << width >> 1, (1 << width) - 1)
        classes[ends] = classes.get(ends, 0) + n
    return ", ".join(
        f"{low}{f'-{high}' if high > low else ''}: {100 * n / total:.3g} %"
        for (low, high), n in sorted(classes.items())
    )


def _within(mean: float, predicted: float) -> bool:
    return abs(mean / predicted - 1) <= _EQUAL


def _bytes_moved(log: ServerLog, hosts: int) -> str:
    """What moves between learners and a server for an update, as the subject of a sentence."""
    received, sent = (
        format_bytes(round(n / len(log.updates))) for n in (log.bytes_in, log.bytes_out)
    )
    through = "through the server's port" if hosts > 1 else "of the server, on one host,"
    return f"{received} of gradients in and {sent} of weights out {through} in each update"


def _reasons(
    pace: Uncertain, facts: Mapping[str, Any], computing: float | None, moved: str
) -> list[str]:
    """Lines that explain the difference of the measured and the expected pace, if there is one.

    ``computing``: the expected seconds of an update, without communication. The causes come first,
    then whether it may be chance. ``moved``: see `_bytes_moved`.
    """
    mean, interval = pace.value, pace.ends
    if computing is None or _within(mean, computing):
        return []
    reasons, split = [], facts["split_s"]
    changes = [
        f"{format_count(len(facts[what]), 'learner')} {agreeing(len(facts[what]), verb)}"
        for what, verb in (("lost", "were lost"), ("joined", "came"))
        if facts[what]
    ]
    if changes:
        learners = format_count(facts["learners"], "learner")
        reasons.append(f"{' and '.join(changes)}, and the prediction is of {learners} all the time")
    messages = sum(split.get(name, 0.0) for name in (RECEIVED, TRAVEL))
    busy = max(facts["utilisation"])
    if messages > (mean - computing) / 2 > 0:
        reasons.append(f"most of the difference is the time of {moved}")
    elif facts["with_server_s"] is None:
        reasons.append(_OVERLOADED)
    elif busy > 0.3:
        reasons.append(f"the server is busy {100 * busy:.3g} % of the time, and learners queue")
    elif causes := [name for name in split if name != "computing"]:
        greatest = max(causes, key=lambda name: split[name] * (mean - computing))
        named = "not explained" if greatest == UNEXPLAINED else greatest
        if greatest != UNEXPLAINED or not changes:
            reasons.append(f"the greatest part of the difference is {named}")
    if interval is None:
        reasons.append(f"{2 * BLOCKS} updates are needed for an interval, so measure longer")
    elif interval[0] <= computing <= interval[1]:
        reasons.append("its 95 % interval includes the prediction, so measure longer")
    head = f"more than {100 * _EQUAL:.0f} % from the {format_seconds(computing)} of computing alone"
    parts = _sum_of_parts(mean, split, few=interval is None)
    return [": ".join(filter(None, (head, "; ".join(reasons)))), parts]


def _sum_of_parts(mean: float, split: Mapping[str, float], *, few: bool) -> str:
    """The time of an update as a sum of its parts of half a per cent or more.

    ``few``: there are too few updates for an interval. The first rounds, in which a port carries
    messages in one direction at a time, then have a part in the mean that is not explained.
    """
    parts = {name: part for name, part in split.items() if abs(part) > mean / 200}
    rest = parts.pop(UNEXPLAINED, 0.0)
    causes = ", ".join(f"{name} {format_seconds(part)}" for name, part in parts.items())
    whole = f"{format_seconds(mean)} an update"
    if rest > 0:
        known = f"{100 * (1 - rest / mean):.0f} % ({format_seconds(mean - rest)})"
        why = " (few updates: measure longer)" if few else ""
        return (
            f"of {whole} {known} are explained: {causes}; unexplained {format_seconds(rest)}{why}"
        )
    less = f"; less {format_seconds(-rest)} in which these overlap" if rest else ""
    return f"{whole}, all explained: {causes}{less}"
