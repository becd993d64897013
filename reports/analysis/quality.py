"""Whether rows keep Hoefler and Belli's twelve rules: kept, not kept, does not apply.

T. Hoefler, R. Belli, "Scientific Benchmarking of Parallel Computing Systems: Twelve ways to tell
the masses when reporting performance results", SC'15, https://doi.org/10.1145/2807591.2807644.
Every verdict is computed from the rows; none is fixed. The rules' titles are in Busbar's words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from busbar.units import agreeing, format_count, is_open
from reports.analysis.answer import answers
from reports.analysis.compare import CANNOT_TELL, UNTESTED, VERDICTS
from reports.records.measurement import LIBRARY, Measurement, Run, grouped, is_emulated, listed
from reports.records.metrics import is_measured
from reports.statistics.stability import FEWEST

State = Literal["kept", "not kept", "does not apply"]
Verdict = tuple[State, str]

_KEPT: State = "kept"
_BROKEN: State = "not kept"
_NONE: State = "does not apply"


@dataclass(frozen=True)
class Rule:
    """One rule, 1 to 12: ``title`` is what it demands, ``why`` is the reason for the verdict."""

    number: int
    title: str
    state: State
    why: str

    def __str__(self) -> str:
        """The rule and its verdict in one line."""
        return f"{self.number}. {self.title}: {self.state}: {self.why}"


def checklist(
    rows: Sequence[Measurement], *, limit: float | None = None, words: Sequence[str] = ()
) -> tuple[Rule, ...]:
    """The verdicts on the twelve rules, in order, for a report that shows these rows.

    ``limit``: a bound in bytes per second that the report shows, in addition to bounds in the
    rows. ``words``: the verdicts of ``reports.analysis.compare`` if the report is a comparison.
    Without timed rows no rule applies.
    """
    facts = _Facts(rows, limit, words)
    return tuple(
        Rule(number, title, *(check(facts) if facts.timed else (_NONE, "nothing was timed")))
        for number, (title, check) in enumerate(_RULES, 1)
    )


def in_one_line(rules: Iterable[Rule]) -> str:
    """One line: how many of the rules that apply are kept, and which are not.

    The rules are those of Hoefler and Belli (SC'15).
    """
    rules = [rule for rule in rules if rule.state != _NONE]
    broken = [rule for rule in rules if rule.state == _BROKEN]
    text = (
        "How this is reported, by the rules of Hoefler and Belli (SC'15):"
        f" {len(rules) - len(broken)} of {len(rules)} kept"
    )
    names = ", ".join(f"{rule.title} ({rule.number})" for rule in broken)
    return f"{text}; not kept: {names}" if broken else text


class _Facts:
    """The facts about rows that the rules use."""

    def __init__(
        self, rows: Sequence[Measurement], limit: float | None, words: Sequence[str]
    ) -> None:
        self.rows, self.limit, self.words = rows, limit, words
        self.timed = [r for r in rows if is_measured(r)]
        self.runs: list[Run] = list({id(r.run): r.run for r in rows}.values())

    def settings(self, *left_out: str) -> list[list[Measurement]]:
        """Timed rows grouped by all settings except the fields in ``left_out``."""
        names = ("collective", "algorithm", "transport", "ranks", "size", "dtype", "op", "root")
        names_shown = [n for n in (*names, "placement") if n not in left_out]
        return list(grouped(self.timed, attrgetter(*names_shown)).values())

    def against_library(self) -> list[list[Measurement]]:
        """Groups that have both an algorithm and the library's own collective."""
        groups = self.settings("algorithm", "transport")
        return [g for g in groups if {r.algorithm for r in g} > {LIBRARY}]

    def scaled(self) -> list[list[Measurement]]:
        """Groups that were measured on several numbers of ranks."""
        groups = self.settings("ranks")
        return [g for g in groups if len({r.ranks for r in g if r.ranks}) > 1]


def _count(n: int, of: int, what: str) -> str:
    rows = format_count(of, "row")
    return f"{what} of all {rows}" if n == of else f"{what} of {n} of {rows}"


def _held(bare: int, of: int, what: str, reason: str) -> Verdict:
    """Not kept if any row lacks what the rule demands (``bare``: how many of ``of`` do)."""
    return (_BROKEN, _count(bare, of, what)) if bare else (_KEPT, reason)


def _base(f: _Facts) -> Verdict:
    scaled, library = f.scaled(), f.against_library()
    of_steps = any(r.step is not None and r.step.one_rank_s for r in f.rows)
    if not scaled and not library and not of_steps:
        return _NONE, "no speed-up is shown: one number of ranks, and no library beside algorithms"
    texts, state = [], _KEPT
    if of_steps:
        texts.append("one rank that only computes is the base of a step's speed-up")
    if library:
        texts.append("the library's own collective is the base, with its times")
    if scaled:
        least = max(min(r.ranks for r in g if r.ranks) for g in scaled)
        if least > 1:
            state = _BROKEN
            texts.append(f"several numbers of ranks, but none of 1: the base would be {least}")
        else:
            texts.append("1 rank of the same algorithm is the base, with its times")
    return state, "; ".join(texts)


def _left_out(f: _Facts) -> Verdict:
    silent = [r for r in f.rows if not r.skipped and not is_measured(r)]
    if silent:
        return _BROKEN, _count(len(silent), len(f.rows), "no figure and no reason")
    unused = list(dict.fromkeys(filter(None, map(_unused, f.runs))))
    if unused:
        return _BROKEN, "; ".join(unused)
    skipped = sum(bool(r.skipped) for r in f.rows)
    rows = f"{format_count(skipped, 'row')} {agreeing(skipped, 'were')}"
    text = f"{rows} skipped, each with its reason" if skipped else "no row was skipped"
    if any(is_emulated(run.environment) for run in f.runs):
        return _KEPT, f"{text}; emulated hosts share the CPUs of one machine"
    return _KEPT, f"{text}; every CPU had a rank"


def _unused(run: Run) -> str:
    """Which part of the machine a run left idle without a recorded reason; empty if none."""
    environment = run.environment
    if is_emulated(environment):
        return ""  # each host sees all CPUs of the machine
    ranks, cpus = listed(environment.get("ranks_per_node")), environment.get("cpus")
    mapping = environment.get("mapping")
    if isinstance(mapping, dict) and any(listed(mapping.get("gpu"))):
        return "the record does not say how many GPUs a node has beside those used"
    if not ranks or not all(isinstance(n, int) for n in (*ranks, cpus)):
        return "the log does not say what there was to use"
    if min(ranks) < cpus:
        each = format_count(min(ranks), "rank")
        return f"{each} on {cpus} CPUs of a node, and no reason is recorded"
    return ""


def _means(f: _Facts) -> Verdict:
    bare = [r for r in f.timed if not r.time_s]
    if bare:
        return _BROKEN, _count(len(bare), len(f.timed), "only rates, averaged in an unknown way,")
    kinds = Counter(r.statistic for r in f.timed)
    text = ", ".join(f"{kind} in {format_count(n, 'row')}" for kind, n in kinds.items())
    return _KEPT, f"times are summarised ({text}); rates follow from that time and are not averaged"


def _ratios(f: _Facts) -> Verdict:
    groups = [*f.scaled(), *f.against_library()]
    ranges = [one for some in answers(f.rows).values() for one in some]
    shown = groups or f.words or ranges or any(r.step is not None for r in f.rows)
    if not shown:
        return _NONE, "no ratio is shown"
    bare = sum(not r.time_s for g in groups for r in g)
    if bare:
        return _BROKEN, f"{format_count(bare, 'row')} of ratios without a time to trace them to"
    text = "ratios stand row by row beside their times"
    if any(len(one.won) > 1 for one in ranges):
        return _BROKEN, f"{text}; over a range of sizes the answer has their geometric mean"
    return _KEPT, f"{text}; none is averaged"


def _intervals(f: _Facts) -> Verdict:
    bare = [r for r in f.timed if r.low_s is None or r.high_s is None]
    if not bare:
        wide = sum(is_open(r.low_s or 0.0, r.high_s or 0.0) for r in f.timed)
        but = f"; in {wide} too wide to be shown" if wide else ""
        return _KEPT, f"95 % interval of the time in all {format_count(len(f.timed), 'row')}{but}"
    counts = {
        "have no raw times": sum(not r.times_s for r in bare),
        "have the mean of a loop": sum(r.timing == "loop" and bool(r.times_s) for r in bare),
        f"have fewer than {FEWEST} iterations": sum(
            r.timing != "loop" and 0 < len(r.times_s) < FEWEST for r in bare
        ),
    }
    counts["are means of their log, without an interval"] = len(bare) - sum(counts.values())
    reasons = [f"{number} {what}" for what, number in counts.items() if number]
    return _BROKEN, f"{_count(len(bare), len(f.timed), 'no interval')}: {', '.join(reasons)}"


def _normality(f: _Facts) -> Verdict:
    ranked = [r for r in f.timed if r.low_s is not None]
    means = [r for r in f.timed if r.statistic == "mean"]
    several = sum(bool(r.launches_s) for r in f.timed)
    if several or any(w in VERDICTS for w in f.words):
        text = "Student's t holds the logarithms of launches' medians to be normal"
        return _BROKEN, text if f.words else _count(several, len(f.timed), f"{text}, in intervals")
    if means:
        text = "a mean, which stands for a symmetric distribution,"
        return _BROKEN, _count(len(means), len(f.timed), text)
    if not ranked:
        return _NONE, "nothing is inferred: no interval is known"
    return _KEPT, "medians and intervals by order statistics, which assume no distribution"


def _tested(f: _Facts) -> Verdict:
    if f.words:
        bare = sum(w in (UNTESTED, CANNOT_TELL) for w in f.words)
        text = "launch by launch, corrected for the number of rows"
        return _held(bare, len(f.words), "no test", text)
    groups = f.settings("algorithm", "transport")
    rows = [r for g in groups if len({(r.algorithm, r.transport) for r in g}) > 1 for r in g]
    if not rows:
        return _NONE, "nothing stands beside what it could be compared with"
    bare = sum(r.low_s is None for r in rows)
    text = "algorithms stand side by side with the intervals of their medians"
    return _held(bare, len(rows), "no interval to compare algorithms by", text)


def _centre(f: _Facts) -> Verdict:
    bare = sum(r.p99_s is None and r.max_s is None for r in f.timed)
    few = sum(r.p99_s is not None and (r.iterations or 0) < 100 for r in f.timed)
    note = (
        f"; p99 is the maximum in {format_count(few, 'row')} of fewer than 100 iterations"
        if few
        else ""
    )
    text = f"least and greatest time or p99 of every row{note}"
    return _held(bare, len(f.timed), "one figure and no extremes", text)


_SETUP: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("processor or GPU", ("cpu", "devices", "gpu", "gpus")),
    ("nodes", ("hosts",)),
    ("kernel or driver", ("kernel", "driver")),
    ("revision of the benchmark", ("revision",)),
    ("where ranks ran", ("mapping", "ranks_per_node")),
    ("variables of the libraries", ("variables",)),
)


def _setup(f: _Facts) -> Verdict:
    missing = Counter(name for run in f.runs for name in _missing(run))
    if not missing:
        return _KEPT, "processor, nodes, versions, mapping and variables are in the record"
    where = "" if len(f.runs) == 1 else f" (of {len(f.runs)} runs)"
    return _BROKEN, f"not recorded{where}: {', '.join(missing)}"


def _missing(run: Run) -> list[str]:
    known: dict[str, Any] = {"hosts": run.hosts, "devices": run.devices, **run.environment}
    missing = [
        title
        for title, names in _SETUP
        if not any(known.get(n) or (n == "variables" and n in known) for n in names)
    ]
    return missing + ["version of the library"] * (not run.library)


_TIMING = {"each": "each iteration behind a barrier", "loop": "back to back, one mean"}


def _timing(f: _Facts) -> Verdict:
    silent = [r for r in f.timed if r.timing not in _TIMING or not r.across]
    if silent:
        where = ", ".join(dict.fromkeys(r.run.format for r in silent))
        text = f"nothing on barriers and on how ranks were combined ({where})"
        return _BROKEN, _count(len(silent), len(f.timed), text)
    how = dict.fromkeys(
        f"each iteration in a window of a common clock: {r.reading}"
        if r.reading
        else f"{_TIMING[r.timing]}, {r.across} over ranks"
        for r in f.timed
    )
    return _KEPT, "; ".join(how)


def _bounds(f: _Facts) -> Verdict:
    if f.limit is not None:
        return _KEPT, f"held against {f.limit / 1e9:g} GB/s"
    moved = [r for r in f.timed if r.size]
    if not moved:
        return _NONE, "nothing is moved"
    bare = sum(r.limit_s is None for r in moved)
    what = "no bound, such as --limit or a measured roofline,"
    return _held(bare, len(moved), what, "the measured memory roofline bounds every row")


def _drawn(f: _Facts) -> Verdict:
    bare = sum(len(r.times_s) < 2 for r in f.timed)
    text = "the distribution of every row is drawn; lines in plots join sizes of one series"
    return _held(bare, len(f.timed), "no distribution", text)


_RULES: tuple[tuple[str, Callable[[_Facts], Verdict]], ...] = (
    ("the base case of a speed-up is stated", _base),
    ("what was left out, of tests and of the machine, has a reason", _left_out),
    ("costs are averaged arithmetically, rates harmonically", _means),
    ("ratios are not averaged", _ratios),
    ("what varies has an interval", _intervals),
    ("no normal distribution is taken for granted", _normality),
    ("differences are tested", _tested),
    ("more than the centre is shown", _centre),
    ("setup and factors are recorded", _setup),
    ("timing, synchronisation and the summary across processes are named", _timing),
    ("upper bounds are shown", _bounds),
    ("the spread is drawn, and lines only along trends", _drawn),
)
