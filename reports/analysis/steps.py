"""Training steps: figures of each record, time per update of the weights, loss curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from busbar.counters import SHORTEST_S, taken
from busbar.statistics import interval, mean_interval
from busbar.units import format_count, format_digits, format_seconds
from reports.analysis.disturbance import mostly_disturbed, widened
from reports.records.measurement import Measurement, grouped
from reports.records.steps import LossCurve, Step
from reports.statistics.inference import launch_center, launch_interval
from reports.statistics.quantities import center
from reports.statistics.uncertain import Uncertain, mean_of, median_of

# How figures are shown that only noise explains, and the share from which one is.
_NEGATIVE, _EXCESS, _WHOLE = "< 0", ">100%", 1.005
_FEWEST_RUNS = 3  # that measured two updates, to take their ratio in each run

#: Protocols that equal another one: sync is k-sync with K = P, async is k-async with K = 1.
_SAME = {"sync": "k-sync", "async": "k-async"}


@dataclass(frozen=True)
class StepFigures:
    """The figures of a record of training steps, in seconds; None if a part was not measured.

    Each has a 95 % interval if there are enough iterations (`Uncertain`). ``step``: the median
    step; for back-to-back steps, which depend on each other, the mean over blocks of them. Its
    interval does not reach below the compute, unless a step did (`interval` of few steps that
    depend on each other reaches beyond all of them).
    ``rate``: samples/s of all ranks. ``compute``: the same steps without exchange. ``exposed``:
    median of T_step - T_compute. ``hidden``: the share of the exchange (its time when it runs
    alone) that is not exposed; below 0 if overlap costs more than it saves; only of exchanges that
    overlap compute, on several ranks. ``speedup``: samples/s over those that the compute of one
    rank alone would reach; ``efficiency``: speedup over all ranks, servers included. By noise
    ``exposed`` can be below 0, and ``hidden`` and ``efficiency`` above 1 (`beyond_compute`).
    ``predicted``: the step by the model or the formula; ``over_predicted``: the measured step over
    it.
    """

    step: Uncertain
    rate: Uncertain
    compute: float | None
    exposed: Uncertain | None
    hidden: Uncertain | None
    speedup: Uncertain | None
    efficiency: Uncertain | None
    predicted: float | None
    over_predicted: Uncertain | None


def figures(row: Measurement) -> StepFigures | None:
    """The figures of a measurement of steps; None if it has no time."""
    middle = center(row)
    if not middle:
        return None
    step = row.step or Step()
    gradients = step.gradients or 1.0
    own, exchange = step.compute_s, step.exchange_s
    between = (mean_interval if row.timing == "loop" else interval)(row.times_s) or ()
    if between and own:  # no step is shorter than its compute
        between = max(between[0], min(median(own), *row.times_s)), between[1]
    whole = Uncertain(middle, *between)
    exposed = _uncertain(step.exposed_s, step.exposed_interval_s) or _exposed(row.times_s, own)
    compute = median(own) if own else None if exposed is None else middle - exposed.value
    hidden = speedup = None
    if step.compute != "none":  # without compute, nothing can be hidden and one rank has no rate
        alone = _uncertain(step.one_rank_s, step.one_rank_interval_s)
        hides = is_overlapped(step) and row.ranks != 1  # one rank exchanges nothing
        if exposed is not None and hides and exchange and median(exchange) > 0:
            hidden = _hidden(exposed, median_of(exchange))
        if alone is not None and alone.value > 0:
            speedup = alone.over(whole).times(gradients)
    predicted = step.predicted_s or 0.0
    return StepFigures(
        whole,
        whole.under(gradients * (step.batch or 1.0)),
        compute,
        exposed,
        hidden,
        speedup,
        None if speedup is None else speedup.times(1 / (row.ranks or 1)),
        predicted if predicted > 0 else None,
        whole.times(1 / predicted) if predicted > 0 else None,
    )


def is_overlapped(step: Step) -> bool:
    """True if the exchange overlaps compute: a push to a server follows the whole gradient."""
    return step.learners is None and step.overlap is not False


def workload(row: Measurement) -> str:
    """The ``collective`` of a row of steps without the number of gradients in a step."""
    gradients = row.step.gradients if row.step is not None else 0.0
    return row.collective.removesuffix(f"/{gradients:g} gradients")


def roles(servers: Mapping[str, int], ranks: int) -> str:
    """What the ranks do in each update, and what the efficiency of all is divided by.

    ``servers``: ranks that only serve, 0 for an all-reduce, by the update's name. Empty if all
    updates are all-reduces without a server, or if there is one rank.
    """
    if ranks == 1 or (not any(servers.values()) and "ps" not in servers):
        return ""
    texts = []
    for count, names in grouped(servers, servers.__getitem__).items():
        if count:
            learn = format_count(ranks - count, "learner")
            does = f"{format_count(count, 'server')}, {learn}"
        else:
            does = f"all {ranks} ranks compute" + ", rank 0 of ps serves, too" * ("ps" in names)
        texts.append(f"{', '.join(names)}: {does}")
    return "; ".join([*texts, f"eff.: speed-up over all {ranks} ranks"])


def lowest_loss(rows: Sequence[Measurement]) -> str:
    """The update with the lowest loss at the end of its run, and the next; empty without two.

    A fast update may learn less from each gradient, so this is not the answer of `fastest`.
    """
    ends = [(one.loss.loss[-1], one) for one in summaries(rows) if one.loss is not None]
    if len({one.name for _, one in ends}) < 2:
        return ""
    texts = [
        f"{one.name} {loss:.4g} after {format_seconds(one.loss.seconds[-1])}"
        for loss, one in sorted(ends, key=lambda end: end[0])[:2]
        if one.loss is not None
    ]
    return f"lowest loss at the end: {'; next '.join(texts)}"


def fastest_samples(rows: Sequence[Measurement]) -> list[str]:
    """`answers` and `lowest_loss` for each workload and rank count.

    Steps of different numbers of gradients cannot be compared in time, but per sample they can.
    """
    return [
        text
        for group in _of_one_workload(rows)
        for text in (*answers(group, fusions=_are_swept(group)), lowest_loss(group))
        if text
    ]


def _are_swept(rows: Sequence[Measurement]) -> bool:
    """True if an update was measured with three fusions or more, as ``--sweep fusion`` does."""
    steps = grouped([row.step for row in rows if row.step is not None], attrgetter("update"))
    return any(len({step.fusion for step in alike}) > 2 for alike in steps.values())


def _of_one_workload(rows: Sequence[Measurement]) -> list[list[Measurement]]:
    """The rows of steps that have times, by workload and rank count."""
    steps = [row for row in rows if row.step is not None and row.time_s]
    return list(grouped(steps, lambda row: (workload(row), row.ranks)).values())


class _Ahead(NamedTuple):
    """The update that takes the least time for a sample, and the others, fastest first.

    ``sample``: its seconds for a sample. ``told``: the others of which the intervals show that they
    take longer; ``open``: those that may take no longer. ``runs``: launches that measured it.
    """

    name: str
    sample: Uncertain
    told: list[_Behind]
    open: list[_Behind]
    runs: int


class _Behind(NamedTuple):
    """An update that took longer than another one.

    ``ratio``: how many times as long, as measured. ``ends``: its 95 % interval, `widened` by what
    other programs can have done. ``others``: the greatest share of all cores that these took while
    either of the two was measured.
    """

    name: str
    ratio: Uncertain
    ends: tuple[float, float] | None
    others: float

    @property
    def takes(self) -> str:
        """How many times as long it takes in words: ``ps/ddp takes 3.7 times as long (3 to 4)``."""
        return f"{self.name} takes {self.times('long')}"

    def times(self, what: str, level: str = "") -> str:
        """The ratio and its interval in words: ``3.7 times as long (3 to 4)``.

        ``what``: long or fast. ``level``: words before the interval.
        """
        text = f"{format_digits(self.ratio.value)} times as {what}"
        if self.ends is None:
            return text
        load = f"other programs on up to {100 * self.others:.0f} % of all cores"
        beside = f", allowing for {load}" if self.ends != self.ratio.ends else ""
        return f"{text} ({level}{' to '.join(map(format_digits, self.ends))}{beside})"

    @property
    def why_open(self) -> str:
        """Why it may take no longer, as a clause."""
        if self.ends is None:
            return "no interval of their ratio: measure more steps (raise --budget or -n)"
        if self.ends == self.ratio.ends:
            return self.takes
        return (
            taken(self.others) or f"steps of less than {SHORTEST_S:g} s do not show other programs"
        )


def _ahead(rows: Sequence[Measurement]) -> _Ahead | None:
    """How the updates of one workload compare, and their fusions and compressions (`algorithm`).

    None with fewer than two that have times, and on one rank, which exchanges nothing. Of an update
    that several runs measured the rate is that of `_over_runs`.
    """
    timed = [(row, one) for row in rows if (one := figures(row)) is not None and row.ranks != 1]
    measured = grouped(timed, lambda pair: pair[0].algorithm)
    if len(measured) < 2:
        return None
    runs = {name: _by_run(mine) for name, mine in measured.items()}
    rates = {name: _over_runs(list(mine.values())) for name, mine in runs.items()}
    rows_of = {name: [row for row, _ in mine] for name, mine in measured.items()}
    first, *behind = sorted(rates, key=lambda each: -rates[each].value)
    unknown, told, may_be = mostly_disturbed(rows), list[_Behind](), list[_Behind]()
    for name in behind:
        ratio = _ratio(runs[first], runs[name])
        ends = widened(ratio.ends, rows_of[name], rows_of[first], unknown)
        shares = [row.others_share or 0.0 for row in (*rows_of[first], *rows_of[name])]
        other = _Behind(name, ratio, ends, max(shares))
        (told if ends is not None and ends[0] > 1 else may_be).append(other)
    return _Ahead(first, rates[first].under(1.0), told, may_be, len(runs[first]))


def _by_run(rows: Sequence[tuple[Measurement, StepFigures]]) -> dict[int, Uncertain]:
    """The rate of an update in each run, by the run's id; of rows of one run their mean."""
    runs = grouped(rows, lambda pair: id(pair[0].run))
    return {run: mean_of([one.rate for _, one in mine]) for run, mine in runs.items()}


def _ratio(first: Mapping[int, Uncertain], other: Mapping[int, Uncertain]) -> Uncertain:
    """The rate of one update over that of another.

    If three runs or more measured both, of the ratios in each run, as collectives have it.
    """
    both = [[one.value / other[run].value] for run, one in first.items() if run in other]
    if len(both) >= _FEWEST_RUNS:
        return Uncertain(launch_center(both), *(launch_interval(both) or ()))
    return _over_runs(list(first.values())).over(_over_runs(list(other.values())))


def _over_runs(rates: Sequence[Uncertain]) -> Uncertain:
    """The rate of an update over its runs: of one the rate itself, with its interval in that run.

    Of several the geometric mean, with the interval of `launch_interval`, as collectives have it.
    """
    if len(rates) == 1:
        return rates[0]
    runs = [[one.value] for one in rates]
    return Uncertain(launch_center(runs), *(launch_interval(runs) or ()))


def fastest(rows: Sequence[Measurement]) -> str:
    """The update that takes the least time for a sample, and the next, in one sentence.

    Its time is of a sample, too, as the updates are compared, with its 95 % interval. The sentence
    says "cannot tell" and why if the interval of its ratio to another update reaches 1 or is not
    known. Each ratio allows for what other programs can have done to its two updates (`widened`).
    Empty with fewer than two updates that have times.
    """
    ahead = _ahead(rows)
    if ahead is None:
        return ""
    took = f"{format_seconds(ahead.sample.value)} a sample"
    if ahead.sample.ends is not None:
        ends = " to ".join(map(format_seconds, ahead.sample.ends))
        over = "in this launch" if ahead.runs == 1 else f"over {ahead.runs} launches"
        took += f" (95 % {over}: {ends})"
    clauses = [one.takes for one in ahead.told[:1]]
    if not ahead.open:
        return "; ".join([f"{ahead.name} takes the least time: {took}", *clauses])
    near = ahead.open[0]
    doubt = f"cannot tell whether {ahead.name} or {near.name} takes less time"
    return "; ".join([f"{doubt}: {ahead.name} took {took}", near.why_open, *clauses])


def answers(rows: Sequence[Measurement], *, fusions: bool = False) -> list[str]:
    """What the steps of one workload tell, a sentence each, the answer first.

    That is which is the `fastest`, what overlap buys where an exchange was measured with it and
    without, and with ``fusions`` (of ``--sweep fusion``) the best of them. `fastest` is left out
    where the steps differ in overlap or fusion alone.
    """
    steps = [(row, row.step) for row in rows if row.step is not None]
    pairs = grouped(steps, lambda one: (one[1].update, one[1].compress, one[1].fusion))
    alike = grouped(steps, lambda one: (one[1].update, one[1].compress, one[1].overlap))
    overlaps = list(filter(None, map(_overlap_gain, pairs.values())))
    best = list(filter(None, map(_best_fusion, alike.values()))) if fusions else []
    if (overlaps and len(pairs) == 1) or (best and len(alike) == 1):
        return overlaps + best
    return list(filter(None, [fastest(rows), *overlaps, *best]))


def _overlap_gain(steps: Sequence[tuple[Measurement, Step]]) -> str:
    """How many times as fast overlap makes the steps of one exchange, decided as in `fastest`.

    Empty if they were not measured both with overlap and without.
    """
    names = {step.overlap: row.algorithm for row, step in steps}
    ahead = _ahead([row for row, step in steps if step.overlap is not None])
    if ahead is None or not {True, False} <= names.keys():
        return ""
    if ahead.open:
        why = ahead.open[0].why_open
        return f"cannot tell whether overlap makes a step of {names[True]} faster: {why}"
    other, level = ahead.told[0], "95 %: "
    faster = ahead.name == names[True]
    gain = other.times("fast", level) if faster else f"take {other.times('long', level)}"
    return f"overlap makes a step of {names[True]} {gain}"


def _best_fusion(steps: Sequence[tuple[Measurement, Step]]) -> str:
    """The fusion with the shortest steps, those that may be as short, and the worst.

    The steps are of one update. Decided as in `fastest`. Empty with fewer than two fusions.
    """
    ahead = _ahead([row for row, _ in steps])
    if ahead is None:
        return ""
    fusions = {row.algorithm: step.fusion for row, step in steps}
    of = ahead.name.replace(f"/{fusions[ahead.name]}", "", 1)
    head = f"best fusion of {of}: {fusions[ahead.name]}, {format_seconds(ahead.sample.value)}"
    clauses = [f"{head if ahead.told else f'cannot tell the {head}'} a sample"]
    if ahead.open:
        near = ", ".join(fusions[one.name] for one in ahead.open)
        clauses.append(f"not told from {near}: {ahead.open[0].why_open}")
    clauses += [f"worst: {one.takes}" for one in ahead.told[-1:]]
    return "; ".join(clauses)


def is_fastest_told(rows: Sequence[Measurement]) -> bool:
    """True for steps of which `fastest` names the update with the least time, in each workload."""
    known = [_ahead(group) for group in _of_one_workload(rows)]
    return bool(known) and all(one is not None and not one.open for one in known)


def share_text(value: float) -> str:
    """A share in per cent, with one decimal below 100 %; ``>100%`` where only noise brings it."""
    if abs(value) < 1:
        return f"{100 * value:.1f}%"
    return "100%" if value < _WHOLE else _EXCESS


def exposed_text(seconds: float) -> str:
    """The exposed time of an exchange; ``< 0`` where the step took less time than its compute."""
    return _NEGATIVE if seconds < 0 else format_seconds(seconds)


def hidden_text(value: float) -> str:
    """The hidden share of an exchange in per cent; ``none`` below 0, where overlap only costs."""
    return "none" if value < 0 else share_text(value)


def beyond_compute(known: Iterable[StepFigures]) -> str:
    """Why figures have values that only noise explains; empty without such figures."""
    rows = list(known)
    texts = {
        f"exposed {_NEGATIVE}": [exposed_text(one.exposed.value) for one in rows if one.exposed],
        f"hidden {_EXCESS}": [hidden_text(one.hidden.value) for one in rows if one.hidden],
        f"eff. {_EXCESS}": [share_text(f.efficiency.value) for f in rows if f.efficiency],
    }
    signs = [sign for sign, shown in texts.items() if {_NEGATIVE, _EXCESS} & set(shown)]
    if not signs:
        return ""
    return (
        f"{', '.join(signs)}: the step took less time than its computation alone, as measured;"
        " that is noise of the measurement"
    )


def _uncertain(value: float | None, ends: tuple[float, float] | None) -> Uncertain | None:
    """A figure of the record with its interval; None if the record lacks the figure."""
    return None if value is None else Uncertain(value, *(ends or ()))


def _hidden(exposed: Uncertain, exchange: Uncertain) -> Uncertain:
    """The share of the exchange that is not exposed: 1 - exposed / exchange."""
    share = exposed.over(exchange)
    if share.low is None or share.high is None:
        return Uncertain(1 - share.value)
    return Uncertain(1 - share.value, 1 - share.high, 1 - share.low)


def _exposed(steps: Sequence[float], compute: Sequence[float]) -> Uncertain | None:
    """The median of the exposed seconds.

    If there are as many computes as steps, each step is paired with the compute of the same draw.
    """
    if not compute:
        return None
    if len(steps) != len(compute):
        return Uncertain(median(steps) - median(compute))
    return median_of([step - own for step, own in zip(steps, compute, strict=True)])


@dataclass(frozen=True)
class StepSummary:
    """Time per update of the weights in one run of training steps.

    ``name``: the kind of exchange as requested, and its compression, or the row's name if another
    row would have the same; ``title``: the problem and the ranks. ``family``: the parameter
    server's protocol, None for an all-reduce and for compressed gradients; ``k``: gradients in each
    update (all ranks' for an all-reduce). ``step``: the time per update of `StepFigures`;
    ``predicted``: the expected time.
    """

    name: str
    title: str
    family: str | None
    k: int
    step: Uncertain
    predicted: float | None
    loss: LossCurve | None


def summaries(rows: Sequence[Measurement]) -> list[StepSummary]:
    """A summary of each row that measured training steps and has times."""
    known = [(row, figures(row)) for row in rows if row.times_s]
    steps = [(row, row.step, one.step) for row, one in known if row.step and one]
    named = grouped(steps, lambda one: _name(*one[:2]))
    alike = {name for name, mine in named.items() if len({row.algorithm for row, *_ in mine}) > 1}
    return [_summary(*one, alike) for one in steps]


def _name(row: Measurement, step: Step) -> str:
    return "/".join(filter(None, (step.update or row.algorithm, step.compress)))


def _summary(row: Measurement, step: Step, time: Uncertain, alike: Set[str]) -> StepSummary:
    """``alike``: names that rows share which differ."""
    kind, _, rest = (step.update or row.algorithm).partition(":")
    name = _name(row, step)
    learners = step.learners or row.ranks or 1
    family, k = _family(kind, rest, learners)
    law = "" if step.compute in ("", "none") else f", compute {step.compute}"
    return StepSummary(
        row.algorithm if name in alike else name,
        f"{step.problem or step.model}, {format_count(row.ranks or learners, 'rank')}{law}",
        None if step.compress else family,
        k,
        time,
        step.predicted_s,
        step.curve if step.curve is not None and step.curve.is_whole else None,
    )


def _family(kind: str, rest: str, learners: int) -> tuple[str | None, int]:
    if kind in _SAME:
        return _SAME[kind], 1 if kind == "async" else learners
    if kind.startswith("k-") and rest.isdecimal():
        return kind, int(rest)
    return None, learners
