"""Compare two sets of runs row by row (faster, slower, indistinguishable), and how runs differ.

Launches are the statistical units. The iterations of one launch do not show what differs between
launches (placement, clocks, neighbours), so one launch per side gives no verdict. If the same
launches measured both sides, the sides are compared within each launch. No I/O.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, isnan
from statistics import mean, median
from typing import Any, Literal, get_args

from msgspec.structs import replace

from busbar.arguments import unknown
from busbar.errors import ReportError
from busbar.units import agreeing, format_count, format_part
from reports.analysis.disturbance import mostly_disturbed, moved_by_others
from reports.records.cores import crowding
from reports.records.measurement import LIBRARY, Measurement, flat, grouped, level_of
from reports.records.metrics import Metric, metric_of, setting
from reports.records.table import launch_name
from reports.statistics.inference import (
    Samples,
    between_runs,
    cliffs_delta,
    holm,
    launch_center,
    launch_scatter,
    launch_test,
    least_p,
    ratio_interval,
    separated,
    within_run,
)

Key = tuple[object, ...]
_SIGNIFICANT, _FEWEST_BLOCKS = 0.05, 3
_FACTOR = 2.0  # an interval that reaches it does not show that two times are alike
_NAMED = 3  # values of a setting that a message names
#: The words of a comparison; the last two are no verdicts.
Word = Literal["faster", "slower", "indistinguishable", "cannot tell", "untested"]
WORDS: tuple[Word, ...] = get_args(Word)
*VERDICTS, CANNOT_TELL, UNTESTED = WORDS
#: A setting of which two sides may have one value each and be compared all the same.
Ignored = Literal["algorithm", "transport"]
IGNORED: tuple[Ignored, ...] = get_args(Ignored)


@dataclass(frozen=True)
class Joined:
    """A row that both sides measured, with one sample for each launch."""

    base: Measurement
    new: Measurement
    base_runs: Samples
    new_runs: Samples
    #: The median core clock of either side in Hz; None if it is not known.
    clocks: tuple[float, float] | None = None
    #: Logarithm of new over base in each launch; empty unless every launch measured both sides.
    within: tuple[float, ...] = ()
    #: Wrong elements in the results of new, in all launches.
    wrong: int = 0
    #: True if all launches of one side are known to have started before those of the other.
    in_sequence: bool = False
    #: True if a side is one launch, which other programs may have moved (`moved_by_others`).
    moved: bool = False

    @property
    def algorithm(self) -> str:
        """The name of the algorithm, or of two that are compared: ``ring against tree``."""
        names = dict.fromkeys(filter(None, (self.base.algorithm, self.new.algorithm)))
        return " against ".join(names)

    @property
    def sides(self) -> tuple[Samples, Samples]:
        """The launches of base and of new."""
        return self.base_runs, self.new_runs

    @property
    def of_one_launch(self) -> bool:
        """True if the same single launch measured base and new, as two algorithms (``ignore``)."""
        return (
            list(map(len, self.sides)) == [1, 1]
            and launch_name(self.base.run) == launch_name(self.new.run)
            and self.base.algorithm != self.new.algorithm
        )

    @property
    def base_times(self) -> list[float]:
        """All values of base, of all launches."""
        return [t for run in self.base_runs for t in run]

    @property
    def new_times(self) -> list[float]:
        """All values of new, of all launches."""
        return [t for run in self.new_runs for t in run]

    @property
    def base_cost(self) -> float | None:
        """Cost of base, averaged over its launches."""
        return self._cost(self.base, self.base_runs)

    @property
    def new_cost(self) -> float | None:
        """Cost of new, averaged over its launches."""
        return self._cost(self.new, self.new_runs)

    def _cost(self, row: Measurement, runs: Samples) -> float | None:
        """The geometric mean over launches of their medians; of a single figure the figure."""
        raw = len(self.base_times) > 1 and len(self.new_times) > 1
        return launch_center(runs) if raw or len(runs) > 1 else cost(row)


@dataclass(frozen=True)
class Comparison:
    """Verdict on one row. ``ratio`` is new `cost` over base cost: above 1, new is slower.

    ``p`` is corrected for the number of rows.

    ``word``: one of `Word`. ``untested``: a side has single figures only; then ``low``, ``high``,
    ``p`` and ``effect`` are None. ``cannot tell``: a side has one launch; or no difference was
    found, and the interval reaches a factor of 2 either way, or the row is `apart`. With one launch
    per side ``p`` is None, and ``low`` and ``high`` come from the iterations of these launches
    alone.
    """

    row: Joined
    ratio: float
    low: float | None
    high: float | None
    p: float | None
    effect: float | None
    word: Word

    @property
    def metric(self) -> Metric:
        """The quantity that is compared: the time, or a rate if the rows have no time."""
        return metric_of(self.row.base)

    @property
    def base(self) -> float | None:
        """The metric of BASE, averaged over its launches."""
        return self.metric.of_cost(self.row.base_cost)

    @property
    def new(self) -> float | None:
        """The metric of NEW, averaged over its launches."""
        return self.metric.of_cost(self.row.new_cost)

    @property
    def change(self) -> float:
        """The metric of NEW divided by that of BASE."""
        return self.metric.of_cost(self.ratio) or 0.0

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The 95 % interval of the change; None if it is not known."""
        ends = [self.metric.of_cost(end) for end in (self.low, self.high)]
        known = sorted(end for end in ends if end is not None)
        return (known[0], known[1]) if len(known) == 2 else None

    @property
    def apart(self) -> bool:
        """True if the interval, which is not corrected for the number of rows, excludes 1.

        Of `few` launches also if all of one side took longer than all of the other.
        """
        if self.low is None or self.high is None:
            return False
        excludes = self.low > 1 or self.high < 1
        return excludes or (self.few and separated(*self.row.sides, self.row.within))

    @property
    def few(self) -> bool:
        """True if no test without assumptions could find a difference in so few launches.

        Then a p that is not significant is no evidence of equality, however many rows there are.
        One launch a side is not meant: its interval is that of its iterations.
        """
        base, new = (len(side) for side in self.row.sides)
        return base + new > 2 and least_p(base, new, len(self.row.within)) >= _SIGNIFICANT

    @property
    def may_be_slower(self) -> bool:
        """True if NEW is slower, or was not measured often enough to tell and looks slower.

        A single figure a side looks as it is; one launch a side looks slower if its interval is
        above 1, a few launches or a `Joined.moved` one if they are `apart`. Of more launches the
        test decides.
        """
        if self.word == CANNOT_TELL:
            one_launch_a_side = self.p is None and self.low is not None and self.low > 1
            untested = self.few or self.row.moved
            return one_launch_a_side or (untested and self.apart and self.ratio > 1)
        return self.word in ("slower", UNTESTED)

    @property
    def scatter(self) -> float | None:
        """The relative scatter among launches of a side; None if it is not known."""
        known = self.p is not None and not self.row.within
        return launch_scatter(self.row.base_runs, self.row.new_runs) if known else None


def row_key(r: Measurement) -> Key:
    """The settings that a row measured, as a key. Rows with equal keys are compared."""
    what = (r.collective, r.algorithm, r.transport, r.ranks, r.nbytes, r.dtype, r.op, r.root)
    return (*what, r.placement, r.reading, metric_of(r))


def cost(r: Measurement) -> float | None:
    """Seconds; for a row with rates only, seconds per byte or message. None without figures."""
    metric = metric_of(r)
    return metric.of_cost(metric.of(r))


def by_key(
    rows: Sequence[Measurement], ignore: Sequence[Ignored] = ()
) -> dict[Key, list[Measurement]]:
    """The rows that have a time or a rate, grouped by `row_key` without ignored settings."""
    return grouped((r for r in rows if cost(r) is not None), lambda r: _key(r, ignore))


def _key(row: Measurement, ignore: Sequence[Ignored]) -> Key:
    return row_key(replace(row, **dict.fromkeys(ignore, "")) if ignore else row)


def samples(rows: Sequence[Measurement]) -> Samples:
    """One sample per launch: its raw iterations, or the rows' figures if any row has none.

    Rows are of one launch if they share a `Run`. What one launch measured several times (``-N``)
    is one sample.
    """
    raw = all(len(r.times_s) > 1 for r in rows)
    by_launch: dict[int, list[float]] = {}
    for r in rows:
        figure = cost(r)
        values = r.times_s if raw else () if figure is None else (figure,)
        by_launch.setdefault(id(r.run), []).extend(values)
    return list(by_launch.values())


def within_launches(base: Sequence[Measurement], new: Sequence[Measurement]) -> tuple[float, ...]:
    """The logarithm of new / base in each launch that measured both; see `within_run`.

    Empty if some launch did not measure both, or for fewer than three launches: pairing would then
    cost too many degrees of freedom. With ``-N`` a launch measures a row several times, in turn
    with the others.
    """
    left, right = _visits(base), _visits(new)
    if left.keys() != right.keys() or len(left) < _FEWEST_BLOCKS:
        return ()
    scatters = tuple(within_run(visits, right[launch]) for launch, visits in left.items())
    return () if any(map(isnan, scatters)) else scatters


def _visits(rows: Sequence[Measurement]) -> dict[Hashable, list[Sequence[float]]]:
    """The times of each launch, one list for each turn in which it measured the row (``-N``)."""
    visits: dict[Hashable, list[Sequence[float]]] = {}
    for r in rows:
        if r.launches_s:
            for number, medians in r.visits_s:
                visits.setdefault((r.run.source, number), []).extend([t] for t in medians)
        else:
            visits.setdefault(id(r.run), []).append(r.times_s or [cost(r) or 0.0])
    return visits


def _clocks(base: Sequence[Measurement], new: Sequence[Measurement]) -> tuple[float, float] | None:
    sides = [[r.clock_core_hz for r in rows if r.clock_core_hz] for rows in (base, new)]
    return (median(sides[0]), median(sides[1])) if all(sides) else None


def _in_sequence(base: Sequence[Measurement], new: Sequence[Measurement]) -> bool:
    """True if all launches of one side started before those of the other; False if not known."""
    sides = [[str(r.run.environment.get("started") or "") for r in rows] for rows in (base, new)]
    # ISO 8601 in UTC: the order of the texts is that of the times.
    return all(map(all, sides)) and (max(sides[0]) < min(sides[1]) or max(sides[1]) < min(sides[0]))


def _moved(rows: Sequence[Measurement], unknown: bool) -> bool:
    """True if one launch measured the rows, and other programs may have moved its times."""
    return len({id(r.run) for r in rows}) == 1 and moved_by_others(rows, unknown)


def join(
    base: Sequence[Measurement], new: Sequence[Measurement], ignore: Sequence[Ignored] = ()
) -> tuple[list[Joined], list[Measurement], list[Measurement]]:
    """Rows of both sides, of base only, of new only. Raises ReportError if both share no row.

    A row of a log that names no algorithm is joined with a library's row of the other side.
    ``ignore``: settings that may differ.
    """
    left, right = by_key(base, ignore), by_key(new, ignore)
    moved = [mostly_disturbed(side) for side in (base, new)]
    keys = {key: key for key in left if key in right}
    keys |= _with_library(left, right, keys)
    both = [
        Joined(
            left[key][0],
            right[other][0],
            samples(left[key]),
            samples(right[other]),
            _clocks(left[key], right[other]),
            within_launches(left[key], right[other]),
            sum(r.wrong or 0 for r in right[other]),
            _in_sequence(left[key], right[other]),
            _moved(left[key], moved[0]) or _moved(right[other], moved[1]),
        )
        for key, other in keys.items()
    ]
    if not both:
        apart = _apart(base, new)
        words = "; ".join(f"{name}: {' against '.join(map(_few, s))}" for name, s in apart.items())
        raise ReportError(
            f"no row of BASE measured what a row of NEW did{f' ({words})' if words else ''}"
            f"{_how_to_compare(apart)}"
        )
    lost = [rows[0] for key, rows in left.items() if key not in keys]
    joined = set(keys.values())
    return both, lost, [rows[0] for key, rows in right.items() if key not in joined]


# Fields that a log may lack, and the values that stand for "not known" or "none" in it.
_MAY_LACK = ("transport", "dtype", "op", "root")
_UNKNOWN = ("", "none", None, -1)


def _with_library(
    left: Mapping[Key, list[Measurement]],
    right: Mapping[Key, list[Measurement]],
    known: Mapping[Key, Key],
) -> dict[Key, Key]:
    """Further keys of both sides that match: one side has no algorithm, the other the library's.

    Fields that a log lacks match any value. A key with several matches has none.
    """
    alike: dict[Key, list[Key]] = {}
    for key, rows in right.items():
        if key not in known and rows[0].algorithm in ("", LIBRARY):
            alike.setdefault(_certain(rows[0]), []).append(key)
    matches: dict[Key, Key] = {}
    for key, rows in left.items():
        if key in known or rows[0].algorithm not in ("", LIBRARY):
            continue
        others = [
            other
            for other in alike.get(_certain(rows[0]), ())
            if {rows[0].algorithm, right[other][0].algorithm} == {"", LIBRARY}
            and _agree(rows[0], right[other][0])
        ]
        if len(others) == 1:
            matches[key] = others[0]
            alike[_certain(rows[0])].remove(others[0])
    return matches


def _certain(r: Measurement) -> Key:
    """The settings that every log states."""
    return (r.collective, r.ranks, r.nbytes, r.placement, r.reading, metric_of(r))


def _agree(a: Measurement, b: Measurement) -> bool:
    pairs = ((getattr(a, name), getattr(b, name)) for name in _MAY_LACK)
    return all(x == y or x in _UNKNOWN or y in _UNKNOWN for x, y in pairs)


def _apart(
    base: Sequence[Measurement], new: Sequence[Measurement]
) -> dict[str, list[list[object]]]:
    """The settings (ranks, size, …) of which BASE and NEW share no value, with the values."""
    apart = {}
    for name in ("collective", "ranks", "algorithm", "size", *_MAY_LACK, "placement"):
        sides = [list(dict.fromkeys(getattr(r, name) for r in rows)) for rows in (base, new)]
        matches_any = name in _MAY_LACK and not all(set(side) - {*_UNKNOWN} for side in sides)
        if not matches_any and not set(sides[0]) & set(sides[1]):
            apart[name] = sides
    return apart


def _few(values: Sequence[object]) -> str:
    """The first values, in words."""
    shown = ["none" if one in ("", None) else str(one) for one in values[:_NAMED]]
    return ", ".join(shown) + ", …" * (len(values) > _NAMED)


def _how_to_compare(apart: Mapping[str, Sequence[Sequence[object]]]) -> str:
    """The remedy if sides differ in `IGNORED` settings alone; else empty."""
    if not apart or not set(apart) <= set(IGNORED):
        return ""
    several = [name for name, sides in apart.items() if any(len(side) > 1 for side in sides)]
    first = f"choose one {' and one '.join(several)} a side, then " if several else ""
    return f"; {first}--ignore {','.join(apart)} compares them"


def parse_ignored(text: str) -> tuple[Ignored, ...]:
    """The settings of ``--ignore``, with commas between. Raises Unsupported for another one."""
    for word in text.split(","):
        if word not in IGNORED:
            raise unknown("setting to ignore", word, IGNORED, "--ignore")
    return tuple(name for name in IGNORED if name in text.split(","))


def _check_ignored(
    base: Sequence[Measurement], new: Sequence[Measurement], ignore: Sequence[Ignored]
) -> str:
    """What is compared, such as ``algorithm ring against tree``.

    Raises ReportError if a side has several values of an ignored setting.
    """
    words = []
    for name in ignore:
        sides = [
            list(dict.fromkeys(getattr(r, name) for r in rows if cost(r) is not None))
            for rows in (base, new)
        ]
        for side, values in zip(("BASE", "NEW"), sides, strict=True):
            if len(values) > 1:
                raise ReportError(
                    f"--ignore {name}: {side} has {_few(values)}; choose one {name} a side"
                )
        if sides[0] != sides[1]:
            words.append(f"{name} {' against '.join(map(_few, sides))}")
    return ", ".join(words)


def single_word(ratio: float, low: float, high: float, p: float, noise: float) -> Word:
    """The verdict on a row alone: slower, faster or indistinguishable.

    Test (``p``), interval (``low``, ``high``) and the least relative change that counts (``noise``)
    must agree on slower or faster.
    """
    if p < _SIGNIFICANT and low > 1 and ratio > 1 + noise:
        return "slower"
    if p < _SIGNIFICANT and high < 1 and ratio < 1 / (1 + noise):
        return "faster"
    return "indistinguishable"


def compare(joined: Sequence[Joined], noise: float = 0.01) -> list[Comparison]:
    """The verdict on every row, with p corrected (Holm) for the number of rows that can be tested.

    ``noise`` is the least relative difference that counts.
    """
    by_place = ((n, launch_test(j.base_runs, j.new_runs, j.within)) for n, j in enumerate(joined))
    tests = {n: p for n, p in by_place if p is not None}
    corrected = dict(zip(tests, holm(list(tests.values())), strict=True))
    return [_compared(j, corrected.get(n), noise) for n, j in enumerate(joined)]


def _compared(j: Joined, p: float | None, noise: float) -> Comparison:
    ratio = _ratio(j)
    bounds = None if j.within else ratio_interval(j.base_runs, j.new_runs)
    bounds = bounds or between_runs(j.base_runs, j.new_runs, j.within)
    one_launch_a_side = all(len(side) == 1 for side in j.sides)
    if bounds is None or (p is None and not one_launch_a_side):
        return Comparison(j, ratio, None, None, None, None, UNTESTED)
    word: Word = CANNOT_TELL if p is None else single_word(ratio, *bounds, p, noise)
    wide = bounds[0] < 1 / _FACTOR or bounds[1] > _FACTOR
    result = Comparison(j, ratio, *bounds, p, cliffs_delta(j.base_times, j.new_times), word)
    differs = result.apart and not 1 / (1 + noise) <= ratio <= 1 + noise
    # A single launch may be of another mode than the launches of the other side.
    if 1 in map(len, j.sides) or (word == "indistinguishable" and (wide or differs)):
        return dataclasses.replace(result, word=CANNOT_TELL)
    return result


def _ratio(j: Joined) -> float:
    if j.within:
        return exp(mean(j.within))
    return (j.new_cost or 0.0) / (j.base_cost or 1.0)


_KINDS = {
    "machine": ("cpu", "gpu", "gpus", "devices", "topology", "fingerprint", "nodes"),
    "mapping": ("cpus", "ranks_per_node", "mapping", "binding", "order"),
    "hosts": ("hosts",),
}
#: For rows over MPI only: an MPI library may choose other algorithms at another thread level.
_LEVEL = "MPI thread level"
_RANKS = "ranks"
_OF_RANKS = ("ranks_per_node", "mapping")
# Left out: facts that differ in every run, and the thread level, which `_levels` compares by row.
_OF_ONE_RUN = ("SLURM_JOB_ID", "started", "launch", "mpi_threads", "options")


@dataclass(frozen=True)
class Difference:
    """A fact that two runs do not share: machine, mapping, hosts, versions, cores, work, timing.

    A fact that is unknown on one side (logs of other benchmarks, records of an older format) is
    listed, but does not forbid a comparison.
    """

    kind: str
    name: str
    base: str
    new: str

    @property
    def forbids(self) -> bool:
        """True if a ratio would compare two machines instead of two states of one machine."""
        return self.kind in ("machine", "mapping", _RANKS, _LEVEL) and bool(self.base and self.new)

    def __str__(self) -> str:
        """The difference in one line."""
        if self.kind == _RANKS:
            return f"{self.base} against {self.new}"
        return f"{self.kind}: {self.name} {_short(self.base)} -> {_short(self.new)}"


def _short(text: str) -> str:
    """At most sixty characters of a fact; ``unknown`` if it is empty."""
    return (text if len(text) <= 60 else text[:57] + "...") or "unknown"


def differences(
    base: Sequence[Measurement], new: Sequence[Measurement], ignore: Sequence[Ignored] = ()
) -> list[Difference]:
    """Differences between the runs in machine, mapping and versions.

    Also, for rows that both measured: whether on one side only ranks shared cores or each other's
    work, and whether times were taken in another way. ``ignore``: see `join`.
    """
    left, right = _facts(base), _facts(new)
    unlike = []
    for name in dict.fromkeys([*left, *right]):
        if left.get(name, "") != right.get(name, ""):
            unlike.append(Difference(_kind(name), name, left.get(name, ""), right.get(name, "")))
    counts = [sorted({r.ranks for r in side if r.ranks}) for side in (base, new)]
    placed = [d for d in unlike if d.name.split(" ")[0] in _OF_RANKS and d.forbids]
    if counts[0] != counts[1] and placed:  # that ranks are elsewhere follows from their number
        unlike = [d for d in unlike if d not in placed]
        unlike.append(Difference(_RANKS, _RANKS, *map(_rank_counts, counts)))
    shared = _shared(by_key(base, ignore), by_key(new, ignore))
    return unlike + _levels(base, new, ignore) + shared


def _rank_counts(counts: Sequence[int]) -> str:
    """``2 ranks``, ``2 and 4 ranks`` or ``2, 4 and 8 ranks``."""
    *others, last = counts
    before = f"{', '.join(map(str, others))} and " if others else ""
    return before + format_count(last, "rank")


def compare_runs(
    base: Sequence[Measurement],
    new: Sequence[Measurement],
    noise: float,
    anyway: str,
    note: Callable[[str], object],
    ignore: Sequence[Ignored] = (),
) -> tuple[list[Comparison], list[Difference], int]:
    """Compare two runs: verdicts on shared rows, differences of the runs, number of rows NEW lacks.

    Rows are in the order of tables: those of a setting and metric together, by algorithm in order
    of appearance, and by size. Launches of one command (``--launches``) measure in random order.

    ``noise``: the least relative change that counts. ``anyway``: the option that allows runs on
    different machines or mappings, for the message; empty if the user gave it. ``note`` is called
    with a line on each difference, and on what is not compared. ``ignore``: settings that may
    differ, if each side has one value.

    Raises ReportError if machine or mapping differ and ``anyway`` is not empty, if no row is
    shared, or if a side has several values of an ignored setting.
    """
    if not (base and new):
        raise ReportError(f"{'NEW' if base else 'BASE'} has no rows")
    if against := _check_ignored(base, new, ignore):
        note(f"compared: {against}")
    both = {launch_name(r.run) for r in base} & {launch_name(r.run) for r in new}
    if both:
        note(f"BASE and NEW have {format_count(len(both), 'launch')} in common")
    unlike = differences(base, new, ignore)
    bare = [not any(r.run.environment for r in side) for side in (base, new)]
    if bare[0] != bare[1]:
        unlike = [d for d in unlike if d.base and d.new]
        side = "BASE" if bare[0] else "NEW"
        note(f"{side} is a log without environment: facts that it lacks are not compared")
    forbidding = "; ".join(str(d) for d in unlike if d.forbids)
    if forbidding and anyway:
        raise ReportError(
            f"BASE and NEW are not the same setting: {forbidding} ({anyway} compares them)"
        )
    joined, lost, added = join(base, new, ignore)
    for difference in unlike:
        note(f"differs: {difference}")
    for name, other in (("base", "new"), ("new", "base")):
        nameless = [one for one in joined if not getattr(one, name).algorithm]
        if count := sum(bool(getattr(one, other).algorithm) for one in nameless):
            note(
                f"{name.upper()} names no algorithm in {format_count(count, 'row')}: compared as"
                " the library's"
            )
    for rows, name in ((lost, "BASE"), (added, "NEW")):
        if rows:
            note(f"{format_count(len(rows), 'row')} {agreeing(len(rows), 'are')} only in {name}")
    return _by_algorithm(compare(joined, noise)), unlike, len(lost)


def _by_algorithm(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The order of `compare_runs`."""
    tables = list(dict.fromkeys(map(_table, comparisons)))
    algorithms = list(dict.fromkeys(c.row.base.algorithm for c in comparisons))
    return sorted(
        comparisons,
        key=lambda c: (
            tables.index(_table(c)),
            algorithms.index(c.row.base.algorithm),
            c.row.base.nbytes or 0,
        ),
    )


def _table(c: Comparison) -> tuple[str, Metric]:
    """What the rows of a table share."""
    return setting(c.row.base), c.metric


def _levels(
    base: Sequence[Measurement], new: Sequence[Measurement], ignore: Sequence[Ignored]
) -> list[Difference]:
    """A difference if rows over MPI that both sides measured had different MPI thread levels."""
    over = [{_key(r, ignore): level_of(r) for r in rows if level_of(r)} for rows in (base, new)]
    shared = [key for key in over[0] if key in over[1]]
    left, right = (", ".join(sorted({side[key] for key in shared})) for side in over)
    what = f"{format_count(len(shared), 'row')} over MPI,"
    return [Difference(_LEVEL, what, left, right)] if left != right else []


def _shared(
    base: Mapping[Key, Sequence[Measurement]], new: Mapping[Key, Sequence[Measurement]]
) -> list[Difference]:
    """Differences of rows that both sides have: in ranks per core, work sharing and timing.

    Unknown facts make no difference.
    """
    pairs = [(rows[0], new[key][0]) for key, rows in base.items() if key in new]
    differing = []
    crowded = [(a, b) for a, b in pairs if None not in (a.ranks_per_core, b.ranks_per_core)]
    crowded = [(a, b) for a, b in crowded if a.oversubscribed != b.oversubscribed]
    if crowded:
        sides = (crowding(side) for side in zip(*crowded, strict=True))
        what = format_part(len(crowded), len(pairs), "row", "are oversubscribed on one side only:")
        differing.append(Difference("cores", what, *(text or "a core a rank" for text in sides)))
    worked = [(a, b) for a, b in pairs if a.worksharing != b.worksharing]
    if worked:
        what = f"{len(worked)} of {format_count(len(pairs), 'row')}: a rank's work was"
        sides = (
            "shared" if any(r.worksharing for r in side) else "its own"
            for side in zip(*worked, strict=True)
        )
        differing.append(Difference("work", what, *sides))
    timed = [(_timed(a), _timed(b)) for a, b in pairs]
    unlike = [(a, b) for a, b in timed if a and b and a != b]
    if unlike:
        what = format_part(len(unlike), len(pairs), "row", "were timed otherwise:")
        sides = (" and ".join(dict.fromkeys(side)) for side in zip(*unlike, strict=True))
        differing.append(Difference("timing", what, *sides))
    return differing


def _timed(row: Measurement) -> str:
    """How the times of a row were taken; empty if its log does not say."""
    if not (row.timing and row.across):
        return ""
    # Because refilling the buffers before each iteration leaves them in the caches.
    checked = ", --check timed" if row.checked == "timed" else ""
    return f"--timing {row.timing}, {row.across} over ranks{checked}"


def _facts(rows: Sequence[Measurement]) -> dict[str, str]:
    facts: dict[str, dict[str, None]] = {}
    for run in {id(r.run): r.run for r in rows}.values():
        known: dict[str, Any] = {"library": run.library, "version": run.version}
        known |= {"hosts": run.hosts, "nodes": len(run.hosts) or ""}
        known |= _flat(run.environment)
        if "cpu" not in known:
            known["devices"] = run.devices
        for name, value in known.items():
            facts.setdefault(name, {})[_text(value)] = None
    return {name: ", ".join(v for v in values if v) for name, values in facts.items()}


def _flat(environment: Mapping[str, Any]) -> dict[str, Any]:
    """An environment as flat names and values, without the facts that belong to one run only."""
    remaining = {name: one for name, one in environment.items() if name not in _OF_ONE_RUN}
    facts = {name.removeprefix("variables "): one for name, one in flat(remaining, " ").items()}
    return {name: one for name, one in facts.items() if name not in _OF_ONE_RUN}


def _text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(v) for v in value if v is not None)
    return "" if value is None else str(value)


def _kind(name: str) -> str:
    for kind, names in _KINDS.items():
        if name.split(" ")[0] in names:
            return kind
    return "versions"
