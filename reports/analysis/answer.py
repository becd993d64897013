"""The fastest algorithm for each range of sizes, in words and as entries of tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from math import inf
from operator import attrgetter
from statistics import geometric_mean, median
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from busbar.units import (
    format_count,
    format_duration,
    format_rate,
    format_seconds,
    format_size,
    format_size_range,
    is_open,
)
from reports.analysis.compare import CANNOT_TELL
from reports.analysis.disturbance import UNKNOWN, mostly_disturbed
from reports.analysis.steps import fastest_samples
from reports.analysis.textbook import VOLUMES, nodes_of, what_is_shared
from reports.analysis.winners import (
    LAUNCHES,
    Cells,
    Stretch,
    Winner,
    at_each_size,
    stretches,
    time_ratio,
    winners,
)
from reports.records.measurement import LIBRARY, Measurement, grouped, launch_of
from reports.records.metrics import metric_of
from reports.records.table import KEYS

Verdict = Literal["fastest", "may be no faster", "cannot tell", "no interval", "alone"]
_Ratio = tuple[Winner, float | None, float | None, float | None]
"""A winner, how many times as fast it is as another, and the ratio's interval."""
_ALONE = (
    "no answer: with one rank nothing crosses a link; --ranks N (or mpirun -n N) starts N ranks"
)
_NEAR = 1.1  # ratios that differ by less are near to each other
_NAMED = 3  # sizes, or algorithms, that a line names one by one
# An exchange that takes a smaller share of a step hardly changes the step.
_SMALL = 0.1
_WIDE = 16.0  # ratio of ends: see `_is_wide`
# The same of an interval around 1: a factor of two either way, as in a comparison of runs.
_VAGUE = 4.0
HEADS = ("sizes", "algorithm", "first, last", "next takes (95 %)", "library takes")
_BARE: Final = "no interval"


def answers(
    rows: Sequence[Measurement], launches: Sequence[Measurement] = (), *, each_size: bool = False
) -> dict[str, list[Stretch]]:
    """The algorithm to use in each range of sizes, for each setting and number of ranks.

    The keys name setting and ranks. ``each_size``: the fastest of each size by itself, instead of
    ranges of sizes. ``launches``: see `winners`. Left out are sizes with a single algorithm, as of
    a run that was interrupted, one rank, which sends nothing, and training steps, whose updates are
    compared per sample (`fastest_samples`).
    """
    stretches_of = {}
    divided = at_each_size if each_size else stretches
    of_collectives = [row for row in rows if row.step is None]
    for thing, cells in winners(of_collectives, launches or rows).items():
        compared = {at: winner for at, winner in cells.items() if winner.margin is not None}
        for ranks in counts(compared):
            if ranks != 1:
                stretches_of[f"{thing}, {format_count(ranks, 'rank')}"] = divided(compared, ranks)
    return stretches_of


def alone(rows: Sequence[Measurement]) -> str:
    """Why several algorithms on one rank have no answer; empty for other rows."""
    ranks, names = {r.ranks for r in rows}, {r.algorithm for r in rows}
    return _ALONE if ranks == {1} and len(names) > 1 else ""


def on_launches(
    rows: Sequence[Measurement], launches: Sequence[Measurement] = (), *, kept: bool = False
) -> str:
    """What the intervals of an answer do not cover: other launches, or later ones.

    Of one launch, how to measure several, and of several launches, in how short a time they were
    started. Empty where no interval tells anything, and for rows of other benchmarks and training
    steps. ``kept``: the rows are in a file that may be compared with another, which needs several
    launches; of one launch, this is said also without an answer. ``launches``: see `winners`.
    """
    ours = all(r.run.format.startswith("busbar") and r.step is None for r in rows)
    if not ours or any(r.launches_s for r in rows):
        return ""
    won = [w for ranges in answers(rows, launches).values() for one in ranges for w in one.won]
    tells = any(map(_telling, won))
    if any(launch_of(r.run) is not None for r in rows):
        return _close_together(rows) if tells else ""
    runs = grouped(rows, attrgetter(*KEYS)).values()
    if any(len({id(r.run) for r in same}) > 1 for same in runs):
        return ""
    outside = "others may lie outside these intervals"
    several = f"a comparison with another run needs several (--launches {LAUNCHES})"
    if not kept or not any(r.time_s for r in rows):
        return f"one launch: {outside}; --launches {LAUNCHES} shows how far" * tells
    return f"one launch: {f'{outside}, and ' * tells}{several}"


def _close_together(rows: Sequence[Measurement]) -> str:
    """That several launches were started in a short time; empty if the times are not known."""
    numbers = {launch_of(r.run) for r in rows}
    texts = {str(r.run.environment.get("started")) for r in rows}
    try:
        times = [datetime.fromisoformat(text).timestamp() for text in texts]
    except ValueError:  # not known, or of another form
        return ""
    if len(numbers) < 2:
        return ""
    return (
        f"{len(numbers)} launches within {format_duration(max(times) - min(times))} do not"
        " show slower changes of the machine: repeat later"
    )


def without_rows(rows: Sequence[Measurement]) -> list[str]:
    """A sentence on each algorithm of which every row was skipped, with the first reason.

    None if no algorithm has a row: then there is no answer.
    """
    if all(r.skipped for r in rows):
        return []
    named = grouped(rows, attrgetter("collective", "algorithm"))
    reasons = {name: [r.skipped for r in mine] for (_, name), mine in named.items()}
    return [f"no {name} in the answer: {why[0]}" for name, why in reasons.items() if all(why)]


def stretch_table(ranges: Sequence[Stretch]) -> tuple[list[str], list[list[str]]]:
    """A table (heads, lines) with one line per range of sizes. Empty columns are left out.

    Ratios without an interval are marked so, in the head if no range has one.
    """
    heads = list(HEADS)
    if bare := all(are_bare(s.won) for s in ranges):
        heads[3] = f"next takes ({_BARE})"
    following = [f"{_next(s.won)}{f', {_BARE}' * (are_bare(s.won) and not bare)}" for s in ranges]
    lines = [
        (_sizes(s), _name(s), _figures(s.won), after, _library(s.won))
        for s, after in zip(ranges, following, strict=True)
    ]
    shown = [n for n in range(len(HEADS)) if any(line[n] for line in lines)]
    if all(len(s.won) == 1 for s in ranges):
        heads[2] = "figure"
    return [heads[n] for n in shown], [[line[n] for n in shown] for line in lines]


def unsure(ranges: Sequence[Stretch]) -> list[str]:
    """What the tilde before a name means: which other algorithm may be as fast, at which sizes.

    Nothing if no size has an interval: the `sentence` says so then.
    """
    if are_bare([w for one in ranges for w in one.won]):
        return []
    doubtful: dict[tuple[str, str], list[Winner]] = {}
    for one in ranges:
        for w in one.won:
            if not w.sure:
                near = w.against if w.low is None or w.low <= 1 else "another algorithm"
                doubtful.setdefault((one.name, near), []).append(w)
    return [
        f"~{name}: {other} may be as fast {_where(mine)}"
        for (name, other), mine in doubtful.items()
    ]


def crossovers(ranges: Sequence[Stretch]) -> str:
    """The sizes between which the fastest algorithm changes, in words; empty without a change.

    An algorithm that is not certain to be the fastest at its size beside the change has a tilde. A
    change between two such algorithms is left out: chance may have made it.
    """
    return ", ".join(
        f"{'' if a.won[-1].sure else '~'}{a.name} to {'' if b.won[0].sure else '~'}{b.name}"
        f" between {format_size(a.sizes[1])} and {format_size(b.sizes[0])}"
        for a, b in pairwise(ranges)
        if a.won[-1].sure or b.won[0].sure
    )


def conclusions(rows: Sequence[Measurement], more: str = "") -> list[str]:
    """One sentence for each group of rows: which algorithm was fastest, and by how much.

    Each starts with what distinguishes the group from the others. Then, for each rank count with
    both, the parameter server against the ring. If nothing can be compared: the best figure, or
    for several algorithms on one rank only the reason. If most rows were disturbed
    (`too_disturbed`, with ``more``), this comes first, and where nothing can be told then, the
    sentences have the medians.
    """
    from reports.analysis.cautions import too_disturbed  # not before the first row

    disturbed = too_disturbed(rows, more)
    sentences = {
        what: _medians(ranges) if disturbed and are_untold(ranges) else sentence(ranges, brief=True)
        for what, ranges in answers(rows).items()
    }
    if not sentences:
        single = [disturbed, *(fastest_samples(rows) or [best_figure(rows)])]
        return list(filter(None, [reason] if (reason := alone(rows)) else single))
    parts = {what: what.split(", ") for what in sentences}
    shared = set.intersection(*map(set, parts.values()))
    names = {what: [part for part in mine if part not in shared] for what, mine in parts.items()}
    lines = [
        ": ".join(filter(None, (", ".join(names[w]), words))) for w, words in sentences.items()
    ]
    return [*filter(None, [disturbed]), *lines, *server_and_ring(rows)]


def are_bare(won: Sequence[Winner]) -> bool:
    """True if there are ratios, and none has an interval, as those of a printed table."""
    return all(w.low is None for w in won) and any(w.margin is not None for w in won)


def sentences(ranges: Sequence[Stretch], *, disturbed: bool = False) -> list[str]:
    """The sentences below a table of ranges: what its tildes mean, and who was the fastest.

    What the table has said, or with ``disturbed`` what `too_disturbed` has, is left out.
    """
    text = sentence(ranges)
    if text.startswith(CANNOT_TELL):
        return [] if disturbed or are_untold(ranges) else [text]
    return [text] if disturbed else [*unsure(ranges), text]


def are_untold(ranges: Sequence[Stretch]) -> bool:
    """True if no interval tells anything, which the table of the ranges then says of each."""
    return not any(_telling(w) for one in ranges for w in one.won)


def _medians(ranges: Sequence[Stretch]) -> str:
    """The least medians and the next ones, as figures without a verdict, of the longest ranges."""
    texts = []
    longest = sorted(ranges, key=lambda one: -len(one.won))[:_NAMED]
    for one in (one for one in ranges if one in longest):
        text = f"{one.name} {format_size_range(*one.sizes)} {_figures(one.won)}"
        following = [
            dataclasses.replace(w, row=w.next_row) for w in one.won if w.next_row is not None
        ]
        if len(following) == len(one.won) and len({w.against for w in one.won}) == 1:
            text += f" ({one.won[0].against} {_figures(following)})"
        texts.append(text)
    more = len(ranges) - len(longest)
    texts += [f"{format_count(more, 'range')} more"] * (more > 0)
    return f"medians alone: {'; '.join(texts)}"


def best_figure(rows: Sequence[Measurement]) -> str:
    """The highest busbw and its algorithm; without rates the least time, without times a rate.

    Empty if nothing was measured. Rows with wrong elements do not count.
    """
    right = [r for r in rows if r.time_s and not r.wrong]
    timed = [r for r in right if not r.worksharing] or right
    rated = [r for r in timed if r.busbw_bytes_per_s]
    if rated:
        best = max(rated, key=lambda r: r.busbw_bytes_per_s or 0)
        words = f"highest busbw {format_rate(best.busbw_bytes_per_s)} GB/s"
    elif timed:
        best = min(timed, key=lambda r: r.time_s or 0)
        words = f"least time {format_seconds(best.time_s)}"
    elif others := [r for r in rows if not r.wrong and metric_of(r).of(r)]:
        metric = metric_of(others[0])  # a rate, because no row has a time
        best = max(others, key=lambda r: metric.of(r) or 0)
        words = f"highest {metric.name} {metric.words(metric.of(best))}"
    else:
        return ""
    name = best.algorithm or best.run.library
    return f"{words}{name and f': {name}'} at {format_size(best.nbytes)}"


def _elsewhere(others: Sequence[Stretch]) -> str:
    """Which algorithm was the fastest in the ranges without a ratio, as a sentence's last clauses.

    Sizes at which that is not certain come last.
    """
    named = [
        f"{one.name} {format_size_range(*one.sizes) if one.sure else _where(sure)}"
        for one in others
        if (sure := [w for w in one.won if w.sure])
    ]
    if len(named) > _NAMED:
        sure = [w for one in others for w in one.won if w.sure]
        named = [f"{' or '.join(sorted({w.name for w in sure}))} {_where(sure)}"]
    doubtful = [w for one in others for w in one.won if not w.sure]
    clauses = f"; the fastest was {', '.join(named)}" if named else ""
    return clauses + (
        f"; {CANNOT_TELL} which was the fastest {_where(doubtful)}" if doubtful else ""
    )


def sentence(ranges: Sequence[Stretch], brief: bool = False) -> str:
    """The fastest algorithm of all sizes in words, with its ratio where it wins the most sizes.

    The ratio is to the library, or to the next algorithm. If no single other algorithm was measured
    at all of these sizes, there is none. Clauses for the other ranges follow. ``brief``: no table
    stands above, so that the next algorithm is named if the ratio is to the library.
    """
    won = [w for one in ranges for w in one.won]
    names = dict.fromkeys(name for w in won for name in (w.name, w.against or w.name))
    if len(names) == 2 and all(w.low is not None and _telling(w) is None for w in won):
        one, other = names
        return f"{CANNOT_TELL} whether {one} is faster than {other} {_where(won)}"
    if are_bare(won):
        return _bare(sorted(ranges, key=lambda one: -len(one.won)), "" if brief else " (~)")
    best = max(ranges, key=lambda one: len(one.won))
    first, apart = _ratio(best)
    if brief and all(w.library is not None and w.against != LIBRARY for w in best.won):
        first += _over_next(best.won, first.startswith(f"{best.name} was "))
    return first + apart + _elsewhere([one for one in ranges if one is not best])


def _was_fastest(one: Stretch) -> str:
    """At which sizes an algorithm was the fastest, and at which it may be, in words."""
    sure, others = ([w for w in one.won if w.sure is is_sure] for is_sure in (True, False))
    if not sure or not others:
        return (
            f"{one.name} {'was' if sure else 'may be'} the fastest {format_size_range(*one.sizes)}"
        )
    return f"{one.name} was the fastest {_where(sure)}, and may be {_where(others)}"


def _over_next(won: Sequence[Winner], is_first: bool) -> str:
    """A clause on how an algorithm compares with the next ones; empty if no interval tells it.

    ``is_first``: the clause before says how many times as fast the algorithm was as the library.
    """
    known = [w for w in won if _telling(w) is not None]
    if not known:
        return ""
    ends = [end for w in known for end in _telling(w) or ()]
    if min(ends) <= 1 or not is_first:
        return f"; next takes {_next(won)}"
    part = "" if len(known) == len(won) else f" {_where(known)}"
    return f", and {_times(ends)} times as fast as {_names(known)}{part}"


def _bare(ranges: Sequence[Stretch], mark: str = "") -> str:
    """What figures without an interval show, a clause for each of the first ranges, and the reason.

    ``mark``: behind the reason, which is the meaning of the tilde where a table has one.
    """
    clauses = []
    for one in ranges[:_NAMED]:
        at = format_size_range(*one.sizes)
        if len(one.won) > _NAMED:
            at = f"at all {len(one.won)} sizes {at}"
        names = {w.against for w in one.won}
        ratios = [w.library for w in one.won]
        other, known = LIBRARY, [ratio for ratio in ratios if ratio is not None]
        if len(known) < len(ratios):
            other, known = max(names), [w.margin for w in one.won if w.margin is not None]
        if other != LIBRARY and len(names) > 1:
            clauses.append(f"{one.name} took the least time {at}")
        else:
            clauses.append(f"{other} took {_times(known)} times as long as {one.name} {at}")
    won = [w for one in ranges for w in one.won]
    others = sorted((w for one in ranges[_NAMED:] for w in one.won), key=lambda w: w.row.size or 0)
    if others:
        fastest = " or ".join(sorted({one.name for one in ranges[_NAMED:]}))
        clauses.append(f"{fastest} took the least time {_where(others)}")
    return f"{'; '.join(clauses)}; {_why_bare(won)}, so chance is not excluded{mark}"


def _why_bare(won: Sequence[Winner]) -> str:
    """Why ratios have no interval: a printed row has one figure, or there were few iterations."""
    few = any(w.row.times_s for w in won)
    return "too few iterations for an interval" if few else "the rows have no intervals"


def _ratio(best: Stretch) -> tuple[str, str]:
    """How many times as fast as the library, or as the next algorithm, an algorithm was, in words.

    Sizes at which it may be no faster are told from those at which it surely is faster, in clauses
    of their own, the second text. Without a ratio if no single other algorithm was measured at all
    of these sizes.
    """
    if are_bare(best.won):
        return _bare([best]), ""
    at, apart = format_size_range(*best.sizes), ""
    if all(w.library is not None for w in best.won):
        other = LIBRARY
        ratios = [(w, w.library, w.library_low, w.library_high) for w in best.won]
    else:
        other = best.won[0].against
        ratios = [(w, w.margin, w.low, w.high) for w in best.won if w.against == other]
    if len(ratios) < len(best.won):
        return _was_fastest(best), ""
    faster = [one for one in ratios if one[2] is not None and one[2] > 1]
    if faster and len(faster) < len(ratios):
        others = [one for one in ratios if one[2] is None or one[2] <= 1]
        apart = _undecided(others)
        if len(faster) < len(others) or len(faster) <= _NAMED:
            at = f"at {', '.join(format_size(w.row.size) for w, *_ in faster)}"
        else:
            at = f"at {len(faster)} of {len(ratios)} sizes {at}"
        ratios = faster
    middles = [middle for _, middle, _, _ in ratios if middle is not None]
    lows, highs = _ends(ratios)
    if len(lows) < len(ratios):  # of some sizes no interval is known
        return f"{best.name} may be no faster than {other} {at}", ""
    times, within = _factor(geometric_mean(middles)), _interval(min(lows), max(highs))
    if _tells_nothing(min(lows), max(highs)):
        return f"{CANNOT_TELL} whether {best.name} is faster than {other} {at}", ""
    if min(lows) <= 1:
        return (
            f"{best.name} may be no faster than {other} {at}:"
            f" {times} times as fast, but the interval is {within}",
            "",
        )
    if any(map(_is_wide, lows, highs)):  # so the middle says little
        least = f"at least {_factor(min(lows))} times"
        return f"{best.name} was {least} as fast as {other} {at} (95 %)", apart
    return f"{best.name} was {times} times as fast as {other} {at} ({within})", apart


def _undecided(some: Sequence[_Ratio]) -> str:
    """Clauses on the sizes at which an algorithm is not surely faster, with the reason."""
    clauses = []
    for why, mine in grouped(some, lambda one: _doubt(one[0], *one[2:])).items():
        where = _where([winner for winner, *_ in mine])
        lows, highs = _ends(mine)
        within = f" ({_interval(min(lows), max(highs))})" if lows else ""
        clauses.append(why.format(where=where, within=within))
    return "".join(f"; {clause}" for clause in clauses)


def _ends(ratios: Sequence[_Ratio]) -> tuple[list[float], list[float]]:
    """The lower and the upper ends of the intervals that are known."""
    ends = [(low, high) for _, _, low, high in ratios if low is not None and high is not None]
    return [low for low, _ in ends], [high for _, high in ends]


def _doubt(winner: Winner, low: float | None, high: float | None) -> str:
    """Why an interval of a ratio does not show that an algorithm is faster."""
    if low is None or high is None:
        return f"{CANNOT_TELL} {{where}}: {_why_bare([winner])}"
    if (low, high) == UNKNOWN:
        return f"{CANNOT_TELL} {{where}}: other programs took cores"
    if _tells_nothing(low, high):
        return f"{CANNOT_TELL} {{where}}: the interval is too wide"
    return "{where} it may be no faster{within}"


def server_and_ring(rows: Sequence[Measurement], launches: Sequence[Measurement] = ()) -> list[str]:
    """How many times as long a parameter server took as a ring, a sentence for each rank count.

    For all-reduce at the largest size that both have, with the ratio of the bytes through their
    busiest ports by the textbook, which the times of one host need not follow: it has no ports.
    Ranks that share cores are named if the two ratios disagree, and on one host.
    Without a ring, the sharded parameter server is compared instead. Rows whose work ranks shared
    are left out: their times need not follow the bytes of the algorithm. So is what cannot be told
    because of other programs, as `too_disturbed` says. ``launches``: see `winners`.
    """
    usable = [
        r
        for r in rows
        if r.collective == "allreduce" and r.algorithm in VOLUMES and r.time_s and not r.wrong
        if r.size and (r.ranks or 0) > 1 and not r.worksharing
    ]
    lines, unknown = [], mostly_disturbed(launches or rows)
    kinds = grouped(usable, lambda r: (r.ranks or 0, r.dtype, r.op, r.transport))
    several = [len(set(values)) > 1 for values in zip(*kinds, strict=True)]
    for (ranks, *others), kind in sorted(kinds.items()):
        words = [value for value, differs in zip(others, several[1:], strict=True) if differs]
        out_of_place = [r for r in kind if r.placement == "out"]
        by_name = grouped(out_of_place or kind, lambda r: r.algorithm)
        ring = next((name for name in ("ring", "sharded_ps") if name in by_name), "")
        if "ps" in by_name and ring:
            where = ", ".join((format_count(ranks, "rank"), *words))
            if len({r.placement for r in kind}) > 1:
                where += ", out-of-place"
            lines += _port_sentence(where, ring, by_name["ps"], by_name[ring], unknown)
    return lines


def _port_sentence(
    where: str,
    ring: str,
    servers: Sequence[Measurement],
    rings: Sequence[Measurement],
    unknown: bool,
) -> list[str]:
    """The sentence of one setting, ``where``; none if both have no size in common.

    None as well if it cannot be told and the run was disturbed. ``unknown``: see `time_ratio`.
    """
    sizes = {r.size or 0 for r in servers} & {r.size or 0 for r in rings}
    if not sizes:
        return []
    size = max(sizes)
    server, other = ([r for r in side if r.size == size] for side in (servers, rings))
    at = f" at {format_size(size)} on {where}"
    law = _by_the_bytes(ring, server, other, unknown, at, "busbar cluster law")
    return [law.text] if law.told or not unknown else []


class _ByTheBytes(NamedTuple):
    """How times of a parameter server and of a ring follow the bytes of their busiest ports.

    ``text``: the sentence. ``told``: False if it is that the ratio of the times cannot be told.
    ``less``: this ratio is less than that of the bytes, by its interval.
    """

    text: str
    told: bool
    less: bool
    on_one_host: bool


def _by_the_bytes(
    ring: str,
    servers: Sequence[Measurement],
    rings: Sequence[Measurement],
    unknown: bool,
    at: str,
    emulate: str,
) -> _ByTheBytes:
    """How many times as long ``servers`` took as ``rings``, or that it cannot be told, and the law.

    ``at``: where, as the words behind it. ``unknown``: see `time_ratio`. ``emulate``: the command
    that emulates hosts with ports.
    """
    ratio, low, high = time_ratio(servers, rings, unknown)
    ranks = servers[0].ranks or 0
    by_port = VOLUMES["ps"](ranks) / VOLUMES[ring](ranks)
    interval = "" if low is None or high is None else f" ({_interval(low, high)})"
    if low is not None and high is not None and low < 1 < high:
        interval = f"{interval[:-1]}: perhaps no {'longer' if ratio > 1 else 'shorter'})"
    either = low is not None and high is not None and _may_be_either(low, high)
    if either:
        took = f"{CANNOT_TELL} whether ps takes longer than {ring}"
    else:
        took = f"ps took {_factor(ratio)} times as long as {ring}{interval}"
    both = (*servers, *rings)
    on_one_host = all(nodes_of(r) == 1 for r in both)
    port = "by the bytes through the busiest port"
    if on_one_host:
        port = f"between {ranks} hosts with ports"
    elif any(r.ranks and r.ranks > nodes_of(r) for r in both):
        port += ", if each rank had its own,"
    first, last = (ratio / _NEAR, ratio * _NEAR) if low is None or high is None else (low, high)
    agree = first <= by_port <= last and not either
    law = f"{port} it should take {by_port:.3g} times as long{f' ({emulate})' * on_one_host}"
    tells = any(r.oversubscribed for r in both) and (on_one_host or not agree)
    crowded = f"; {what_is_shared(both)[0]}" if tells else ""
    less = last < by_port and not either
    return _ByTheBytes(f"{took}{at}; {law}{crowded}", not either, less, on_one_host)


def exchanges_alone(rows: Sequence[Measurement]) -> str:
    """How the exchanges of ``ps`` and ``ring`` in training steps compare, measured alone.

    The sentence of `server_and_ring` on their times, and whether they matter beside a step. Of the
    first fusion and compression that have both; empty if there is none, or the exchange was not
    measured.
    """
    pairs: dict[tuple[str, str], dict[str, Measurement]] = {}
    for row in rows:
        if (step := row.step) is not None and step.update in ("ps", "ring") and step.exchange_s:
            pairs.setdefault((step.fusion, step.compress), {})[step.update] = row
    both = next((pair for pair in pairs.values() if len(pair) == 2), {})
    alone = {name: _exchange_of(row) for name, row in both.items()}
    steps = {name: row.time_s for name, row in both.items()}
    if not both or not all((*steps.values(), *(row.time_s for row in alone.values()))):
        return ""
    ranks = both["ps"].ranks or 0
    if ranks < 2:
        return ""
    emulate = f"busbar cluster --hosts {ranks} -- busbar step --transport mpi …"
    unknown = mostly_disturbed(rows)
    law = _by_the_bytes("ring", [alone["ps"]], [alone["ring"]], unknown, "", emulate)
    buckets = max((row.step.buckets or 0 for row in both.values() if row.step), default=0)
    texts = [f"exchanges alone: {law.text}"]
    if law.less and buckets > 1 and not law.on_one_host:
        texts.append("buckets overlap at the server; --fusion all sends one")
    share = max((alone[name].time_s or 0) / (time or 1) for name, time in steps.items())
    if share < _SMALL:
        texts.append(f"the exchange is at most {100 * share:.2g} % of a step: compute decides")
    return "; ".join(texts)


def _exchange_of(row: Measurement) -> Measurement:
    """A row of steps with the times of its exchange alone instead of those of its steps."""
    times = row.step.exchange_s if row.step is not None else ()
    return replace(row, times_s=times, time_s=median(times), timing="each")


def _sizes(one: Stretch) -> str:
    first, last = map(format_size, one.sizes)
    return first if first == last else f"{first} - {last}"


def _name(one: Stretch) -> str:
    return f"{'' if one.sure else '~'}{one.name}"


def _figures(won: Sequence[Winner]) -> str:
    """The time (if latency-bound) or busbw of the first and of the last size, as one text."""
    ends = [_figure_of(w) for w in (won[0], won[-1])]
    if ends[0] == ends[1]:
        return ends[0]
    return f"{ends[0].removesuffix(ends[1][ends[1].rindex(' ') :])}, {ends[1]}"


def _figure_of(winner: Winner) -> str:
    if winner.latency_bound:
        return format_seconds(winner.row.time_s)
    return f"{format_rate(winner.row.busbw_bytes_per_s)} GB/s"


def _next(won: Sequence[Winner]) -> str:
    """Time of the next over the winner's, with the names of those that come next.

    Sizes without an interval, or whose interval tells nothing, are left out, and the text says so.
    If no size has an interval, these are the ratios of the figures.
    """
    known = [w for w in won if w.margin is not None]
    told = [w for w in known if _telling(w) is not None]
    if are_bare(won):
        return f"{_span([w.margin for w in known if w.margin is not None])} {_names(known)}"
    if known and not told:
        return f"{CANNOT_TELL} from {_names(known)}"
    every = [end for w in told for end in _telling(w) or ()]
    part = "" if len(told) == len(known) else f" {_where(told)}"
    return f"{_span(every)} {_names(told)}{part}" if told else ""


def _names(won: Sequence[Winner]) -> str:
    """The names of those that come next, or their number."""
    names = {w.against for w in won}
    return " or ".join(sorted(names)) if len(names) <= _NAMED else f"one of {len(names)}"


def _telling(winner: Winner) -> tuple[float, float] | None:
    """The interval of the margin; None if there is none, or if it tells nothing."""
    if winner.low is None or winner.high is None or _tells_nothing(winner.low, winner.high):
        return None
    return winner.low, winner.high


def _part(some: Sequence[object], every: Sequence[object]) -> str:
    """The words ``at 3 of 8 sizes`` for a figure of ``some`` sizes; empty if these are all."""
    return f" at {len(some)} of {len(every)} sizes" if len(some) < len(every) else ""


def _where(some: Sequence[Winner]) -> str:
    """The sizes in words: each if they are few, else how many from the first to the last."""
    sizes = [format_size(w.row.size) for w in some]
    if len(sizes) <= _NAMED:
        return f"at {', '.join(sizes)}"
    return f"at {len(sizes)} sizes from {sizes[0]} to {sizes[-1]}"


def _library(won: Sequence[Winner]) -> str:
    """The library's time over the winner's; empty if it is first or next at all sizes."""
    certain = all(w.against == w.library_name or w.library is None for w in won)
    ratios = [
        w.library
        for w in won
        if w.library is not None
        if w.library_low is None or not _tells_nothing(w.library_low, w.library_high or inf)
    ]
    return "" if certain or not ratios else f"{_span(ratios)}{_part(ratios, won)}"


def _span(values: Sequence[float], to: str = "-", unit: str = "x") -> str:
    """The least and the greatest of some ratios: ``1.1-1.3x``; without an end ``at least 1.1x``."""
    low, high = _factor(min(values)), _factor(max(values))
    if is_open(min(values), max(values)):
        return f"at least {low}{unit}"
    return f"{low}{unit}" if low == high else f"{low}{to}{high}{unit}"


def _times(values: Sequence[float]) -> str:
    """As `_span`, in words before ``times``: ``1.1 to 1.3``."""
    return _span(values, " to ", "")


def _interval(low: float, high: float) -> str:
    """An interval of a ratio in words: ``1.1 to 1.3``; without an upper end ``1.1 or more``."""
    if is_open(low, high):
        return f"{_factor(low)} or more"
    return f"{_factor(low)} to {_factor(high)}"


def _is_wide(low: float, high: float) -> bool:
    """True if the ends of a ratio's interval are so far apart that its middle says little."""
    return high >= _WIDE * low


def _tells_nothing(low: float, high: float) -> bool:
    """True if an interval of a ratio includes 1 and is too wide to say anything."""
    return low < 1 < high and high >= _VAGUE * low


def _may_be_either(low: float, high: float) -> bool:
    """True if the interval of a ratio is too wide, or allows either side to take 10 % longer."""
    return _tells_nothing(low, high) or (low < 1 / _NEAR and high > _NEAR)


def verdict(winner: Winner) -> Verdict:
    """How sure a winner is, in the words of `sentence`; ``alone`` without a competitor."""
    if winner.margin is None:
        return "alone"
    if are_bare([winner]):
        return _BARE
    if winner.low is not None and winner.high is not None:
        if _tells_nothing(winner.low, winner.high):
            return "cannot tell"
        if winner.sure:
            return "fastest"
    return "may be no faster"


def cell(name: str, winner: Winner) -> tuple[str, str]:
    """Algorithm and figures for a map of winners, such as (``ring``, ``9.1 1.2``).

    ``name``: the algorithm to use (`decided`). The figures are its busbw or time, and how many
    times as long the next algorithm takes, in parentheses without an interval (`map_head`).
    """
    if winner.margin is None:
        margin = "alone"
    elif are_bare([winner]):
        margin = f"({_factor(winner.margin)})"
    else:
        ends = _telling(winner)
        margin = CANNOT_TELL if ends is None else _span(ends, unit="")
    return name, f"{_figure_of(winner).removesuffix(' GB/s')} {margin}"


def _factor(value: float) -> str:
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def map_head(cells: Cells) -> str:
    """The meaning of the ratios in a map of winners (`cell`)."""
    bare = any(are_bare([w]) for w in cells.values())
    return f"how many times as long the next takes (95 %{f'; in parentheses: {_BARE}' * bare})"


def counts(cells: Cells) -> list[int]:
    """The rank counts that were measured."""
    return sorted({ranks for _, ranks in cells})
