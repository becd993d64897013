"""The report of a run of servers: pace, staleness, queue, and the formulas beside them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from math import inf, sqrt
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np

from bench.steps.compute import Compute
from bench.steps.server.costs import costs, split
from bench.steps.server.formulas import ExpectedPace, mean_staleness, per_update, sync_over_async
from bench.steps.server.learning import BLOCKS, in_blocks
from bench.steps.server.protocol import UpdateProtocol
from bench.steps.server.serving import Served
from bench.steps.server.simulating import play
from busbar.units import format_seconds

# Measured over formula is called equal within so much.
_EQUAL = 0.05
# Columns of a line that gives reasons, without its margin.
_WIDTH = 74
_OVERLOADED = "a server that takes so long could not keep up with such learners"
_GLUE = "\N{NO-BREAK SPACE}"
# Student's t for so many blocks, for the interval of their mean.
_T = 2.093
# A simulation of more gradients takes longer than a reader waits.
_MOST_GRADIENTS = 50_000
# The same for each of the simulations by which a time is split into its causes.
_MOST_SPLIT = 10_000


def mean_interval(times: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of a mean by blocks, for times that hang together; None below 40."""
    return _between(float(np.mean(times)), in_blocks(times))


def _between(mean: float, blocks: Sequence[float]) -> tuple[float, float] | None:
    """The interval of a mean from its blocks; None of fewer than `BLOCKS`."""
    if len(blocks) < BLOCKS:
        return None
    half = _T * float(np.std(blocks, ddof=1)) / sqrt(BLOCKS)
    return mean - half, mean + half


def _over_learners(series: Sequence[Sequence[float]]) -> list[float]:
    """The mean over learners, block by block; one mean where a learner has fewer blocks.

    Learners that had no round after the warm-up are left out.
    """
    series = [one for one in series if one]
    if series and min(map(len, series)) < BLOCKS:
        return [float(np.mean([np.mean(one) for one in series]))]
    return [float(block) for block in np.mean(series, axis=0)] if series else []


def learners_figures(
    learned: Sequence[Mapping[str, Any]], mean: float, slow: Container[int] = ()
) -> dict[str, Any]:
    """Exposed communication in an update, and how long one learner alone takes for a gradient.

    ``mean``: seconds of an update. A learner's share of exposed communication in its rounds
    (`bench.steps.server.learning`) is its share of an update; the mean over learners stands for
    all. One learner alone would take the times that were drawn, also for what was cancelled, and
    be as late as these were measured to be; of ``slow`` learners, the stragglers, it is none.
    Empty where learners do not know.
    """
    both = ((one["exposed"], one["rounds"]) for one in learned if one["exposed"])
    shares = _over_learners([np.divide(part, whole).tolist() for part, whole in both])
    drawn = _over_learners([one["drawn"] for one in learned if one.get("number") not in slow])
    found: dict[str, Any] = {}
    if shares:
        exposed = [mean * share for share in shares]
        found["exposed_s"] = float(np.mean(exposed))
        found["exposed_interval_s"] = _between(found["exposed_s"], exposed)
    if drawn:
        pushed = max(1, sum(one["pushed"] for one in learned))
        late = sum(one["late"] for one in learned) / pushed
        found["one_rank_s"] = late + float(np.mean(drawn))
        found["one_rank_interval_s"] = _between(found["one_rank_s"], [late + x for x in drawn])
    return found


class Paced(NamedTuple):
    """The figures of a run, as JSON values; ``lines`` show them below its row.

    ``times``: means over blocks of ``block`` updates (the first may have one more); single ones are
    in the facts.
    """

    times: tuple[float, ...]
    block: int
    predicted: float | None
    model: str
    facts: Mapping[str, Any]
    lines: tuple[str, ...]


def paced(
    protocol: UpdateProtocol,
    servers: Sequence[Served],
    compute: Compute,
    draw: Callable[[int, int], float],
    warmup: int,
    slow: Container[int] = (),
) -> Paced:
    """The figures of a run, by server 0's pace.

    ``draw``: seconds of a learner's n-th gradient. ``slow``: learners that are stragglers.
    """
    first = servers[0]
    moments = np.asarray([0.0, *first.updates])[warmup:]
    times = np.diff(moments)
    # Formulas are of learners that do not differ, and of compute.
    law = None if compute.slow or not compute.mean else compute
    formula = None if law is None else per_update(protocol, law)
    count = min(len(first.updates), max(1, _MOST_GRADIENTS // protocol.needed))
    free = play(protocol, draw, count).per_update(min(warmup, count - 1)) if compute.mean else None
    spent, beside = costs(first, len(servers))
    # With nothing to compute all is waiting for each other: no cost can be told from another.
    with_server = None
    if compute.mean:
        with_server = play(protocol, draw, count, spent).per_update(min(warmup, count - 1))
    mean = float(times.mean())
    counts = sum((one.staleness for one in servers), Counter[int]())
    waits = np.concatenate([np.asarray(one.waits) for one in servers])
    facts = {
        "learners": protocol.learners,
        "servers": len(servers),
        "needed": protocol.needed,
        "update_s": np.round(times, 9).tolist(),
        "mean_s": mean,
        "interval_s": mean_interval(times.tolist()),
        "formula_s": None if formula is None else formula.seconds,
        "formula_is_bound": None if formula is None else formula.bound,
        "drawn_s": free,
        "with_server_s": None if with_server == inf else with_server,
        "sync_over_async": law and sync_over_async(protocol.learners, law),
        "updates_per_s": 1 / mean,
        "staleness": {str(value): counts[value] for value in sorted(counts)},
        "mean_staleness_formula": mean_staleness(protocol),
        "dropped": sum(one.dropped for one in servers),
        "cancelled": sum(one["cancelled"] for one in first.learned),
        "utilisation": [round(one.utilisation, 6) for one in servers],
        "queue_wait_s": None
        if not len(waits)
        else {
            "mean": float(waits.mean()),
            "median": float(np.median(waits)),
            "p95": float(np.quantile(waits, 0.95)),
        },
        "costs_s": spent._asdict(),
        **learners_figures(first.learned, mean, slow),
        "lost": [[when, learner, why] for when, learner, why in first.lost],
        "joined": [list(one) for one in first.joined],
    }
    # A bound is no prediction: what is expected is then what the drawn times give.
    exact = formula is not None and not formula.bound
    predicted, model = (formula.seconds, "formula") if formula and exact else (free, "simulated")
    if predicted is not None and not _within(mean, predicted):
        few = min(count, max(1, _MOST_SPLIT // protocol.needed))
        facts["split_s"] = split(
            lambda some: play(protocol, draw, few, some).per_update(min(warmup, few - 1)),
            spent, beside, predicted, mean,
        )  # fmt: skip
    lines = _lines(protocol, facts, formula)
    lines += tuple(f"    {why}" for why in _why(facts, predicted))
    blocks = np.array_split(times, min(BLOCKS, len(times)))
    means = tuple(float(block.mean()) for block in blocks)
    return Paced(means, len(blocks[-1]), predicted, model if predicted else "", facts, lines)


def _lines(
    protocol: UpdateProtocol, facts: Mapping[str, Any], formula: ExpectedPace | None
) -> tuple[str, ...]:
    mean, beside = facts["mean_s"], []
    if formula is not None:
        kind = "the formula's bound" if formula.bound else "the formula"
        beside.append(f"{kind} {mean / formula.seconds:.3f}")
    if facts["drawn_s"]:
        beside.append(f"the drawn times {mean / facts['drawn_s']:.3f}")
    if facts["with_server_s"]:
        beside.append(f"these and the server's {mean / facts['with_server_s']:.3f}")
    total = sum(facts["staleness"].values())
    stale = sum(int(value) * n for value, n in facts["staleness"].items()) / total
    wait, busy = facts["queue_wait_s"], max(facts["utilisation"])
    queue = "not known over several hosts"
    if wait is not None:
        queue = f"{format_seconds(wait['median'])}, 95 % up to {format_seconds(wait['p95'])}"
    return (
        *([f"    measured over {', '.join(beside)}"] if beside else []),
        f"    {facts['updates_per_s']:.4g} updates/s{_plus(facts)}; server busy {100 * busy:.3g} %;"
        f" queue wait {queue}",
        f"    staleness {stale:.3g} (formula {facts['mean_staleness_formula']:.3g}):"
        f" {histogram(facts['staleness'])}",
        *_waste(facts),
        *_against_async(protocol, facts),
    )


def _against_async(protocol: UpdateProtocol, facts: Mapping[str, Any]) -> Iterator[str]:
    """A line with a synchronous update's time in asynchronous ones, by the formulas."""
    if protocol.cancels and protocol.needed == protocol.learners and facts["sync_over_async"]:
        yield f"    by the formulas as long as {facts['sync_over_async']:.3g} asynchronous updates"


def _waste(facts: Mapping[str, Any]) -> Iterator[str]:
    """A line about gradients that were computed in vain, if there were any."""
    if facts["cancelled"] or facts["dropped"]:
        yield (
            f"    {facts['cancelled']} computations were cancelled, {facts['dropped']} gradients"
            " came too late"
        )


def histogram(counts: Mapping[str, int]) -> str:
    """The share of gradients by staleness, in classes that double: ``0 5 %, 1 9 %``."""
    total = sum(counts.values())
    classes: dict[int, int] = {}
    for value, n in counts.items():
        width = int(value).bit_length()
        classes[width] = classes.get(width, 0) + n
    return ", ".join(
        f"{_class(width)} {100 * n / total:.3g} %" for width, n in sorted(classes.items())
    )


def _class(width: int) -> str:
    low, high = (1 << width) >> 1, max(0, (1 << width) - 1)
    return f"{low}" if low == high else f"{low}-{high}"


def _within(mean: float, predicted: float) -> bool:
    return abs(mean / predicted - 1) <= _EQUAL


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else ''}{format_seconds(abs(value))}"


def _kept(figure: str) -> str:
    """A figure that is not broken from its unit."""
    return figure.replace(" ", _GLUE)


def _plus(facts: Mapping[str, Any]) -> str:
    found = facts["interval_s"]
    return "" if found is None else f" ±{50 * (found[1] - found[0]) / facts['mean_s']:.2g} %"


def _why(facts: Mapping[str, Any], predicted: float | None) -> list[str]:
    """Lines on the difference of measured and predicted pace, if there is one."""
    if predicted is None or _within(facts["mean_s"], predicted):
        return []
    mean, found = facts["mean_s"], facts["interval_s"]
    reasons = []
    if facts["lost"] or facts["joined"]:
        reasons.append(f"{len(facts['lost'])} learners were lost and {len(facts['joined'])} came")
    if found is None:
        reasons.append(f"{2 * BLOCKS} updates are needed for an interval, so measure longer")
    elif found[0] <= predicted <= found[1]:
        reasons.append("the mean's interval holds it, so measure longer")
    busy = max(facts["utilisation"])
    if facts["with_server_s"] is None:
        reasons.append(_OVERLOADED)
    if busy > 0.3:
        reasons.append(f"the server is busy {100 * busy:.3g} % of the time, and learners queue")
    head = "not within 5 % of it: "
    lines = [(" " * len(head) if n else head) + reason for n, reason in enumerate(reasons)]
    # Parts of half a per cent or more.
    parts = {name: part for name, part in facts["split_s"].items() if abs(part) > mean / 200}
    said = ", ".join(f"{name} {_kept(_signed(part))}" for name, part in parts.items())
    lines += wrap(f"{'' if reasons else head}{_kept(format_seconds(mean))} are: {said}", _WIDTH)
    return [line.replace(_GLUE, " ") for line in lines]
