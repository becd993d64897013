"""Warnings about the rows of a run, in a few lines. No I/O."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import TypeVar

from busbar.arguments import command as command_words
from busbar.counters import MUCH, SHORTEST_S, taken
from busbar.units import (
    agreeing,
    format_count,
    format_part,
    format_seconds,
    format_size,
    three_digits,
)
from reports.analysis.disturbance import is_disturbed, mostly_disturbed, tells_others
from reports.analysis.outliers import far_launches
from reports.analysis.steps import is_fastest_told
from reports.analysis.winners import LAUNCHES, is_winner_told
from reports.records.cores import crowding, marked
from reports.records.measurement import Measurement, is_emulated, launch_of
from reports.records.metrics import TESTS, named
from reports.statistics.quantities import BEYOND_LIMIT, limit_text, of_limit
from reports.statistics.stability import FEWEST, MOST_CV, Kind, Unstable, unstable

_One = TypeVar("_One")

#: Share of the limit; a row above it has a reason other than the spread of two medians.
ABOVE_LIMIT = 1.05
#: Why a row may be above its limit, by the letter that is printed behind its share.
WHY_ABOVE = {
    "s": "ranks share cores, and a probe ends with the last of them",
    "o": "other programs had cores; the probes may have met more of them than the row",
    "c": "caches hold more of the row's memory than of the probes'",
}

#: The same in short, for the legend of a figure.
ABOVE_IN_SHORT = {
    "s": "ranks share cores",
    "o": "other programs had cores",
    "c": "caches hold the memory",
}

# Options as a record has them: it may come from anywhere, and its command is meant for a shell.
_OPTIONS = re.compile(r"-[\w ,.:=+%-]{1,1000}", re.ASCII)
_MOST = 1000  # rows that are tested: enough to judge a run, and half a second of work
_NAMED = 3  # launches that a line names one by one
_ORDER = ("--order", "--launches", "--seed")
_FEW = f"have fewer than {FEWEST} iterations: no interval is known"
_VARY = f"vary by more than {100 * MOST_CV:.0f} % (cv) from iteration to iteration"
_MATTERS = 0.05  # of a median: above the 2 % that measuring aims at, and above day-to-day changes
_MOVED = f"may be off by more than {100 * _MATTERS:.0f} %"
_IN_BRIEF = (_FEW, _MOVED)
# Causes first: drift causes autocorrelation; drift, autocorrelation and two modes widen intervals.
_SHORT: Mapping[Kind, str] = {
    "warm-up": "warm-up not over",
    "drift": "drift",
    "modes": "two modes",
    "alike": "autocorrelation",
    "spread": "spread",
}


def _looked_at(items: Sequence[_One]) -> Sequence[_One]:
    return items if len(items) <= _MOST else [items[i * len(items) // _MOST] for i in range(_MOST)]


def warnings_of(rows: Sequence[Measurement]) -> list[str]:
    """Warnings about the rows of a run, a line for each cause, wrong elements first.

    What the iterations show is said in the sentences of `in_brief`, which end a run.
    """
    timed = [r for r in rows if r.time_s is not None]
    # Not for other benchmarks' tables: they never have raw times.
    ours = [r for r in timed if r.run.format.startswith("busbar")]
    silent = sum(not r.times_s and r.low_s is None for r in ours)
    texts = list(filter(None, [wrong_elements(rows), far_off(timed), causes(timed)]))
    shared = sum(marked(r) != r.algorithm for r in timed)
    if shared:
        texts.append(
            format_part(shared, len(timed), "row", "are of work that any rank may have carried")
            + " out (*): measure them again to time the algorithm"
        )
    above = Counter(why_above(r, share_of_limit(r) or 0.0) for r in timed)
    for letter, why in WHY_ABOVE.items():
        if above[letter]:
            texts.append(
                format_part(above[letter], len(timed), "row", f"are above {ABOVE_LIMIT:.0%}")
                + f" of the limit ({letter}): {why}"
            )
    shares = [share for r in timed if (share := share_of_limit(r)) and not why_above(r, share)]
    if beyond := sum(share > BEYOND_LIMIT for share in shares):
        texts.append(
            format_part(beyond, len(timed), "row", f"are above {BEYOND_LIMIT:.0%} of the limit,")
            + " which does not hold there"
        )
    if silent:
        texts.append(
            format_part(silent, len(timed), "row", "have no raw times: no interval is known")
            + " (--out FILE.jsonl keeps them)"
        )
    texts += in_brief(timed)
    # Logs may state a cv without raw times, as those of nccl-tests -I do.
    stated = [(r.cv, r) for r in timed if not r.times_s and r.cv is not None]
    vary = [one for one in stated if one[0] > MOST_CV]
    if vary:
        cv, worst = max(vary, key=itemgetter(0))
        how = f"; worst: {named(worst)}, cv {100 * cv:.3g} %"
        texts.append(format_part(len(vary), len(stated), "row", _VARY) + how)
    return texts


def wrong_elements(rows: Sequence[Measurement]) -> str:
    """How many rows have wrong elements; empty if none has."""
    wrong = sum(bool(r.wrong) for r in rows)
    rows_have = f"{format_count(wrong, 'row')} {agreeing(wrong, 'have')}"
    return f"{rows_have} wrong elements" if wrong else ""


def far_off(rows: Sequence[Measurement]) -> str:
    """Which launches are far from all others (`far_launches`), in a clause; empty if none is."""
    found = far_launches(rows)
    texts = []
    for one in found[:_NAMED]:
        far = f"{three_digits(max(one.ratio, 1 / one.ratio))} times as"
        where = f" in {one.rows} of {one.of} rows" * (one.rows > 1)
        times = " against ".join(map(format_seconds, (one.ratio * one.others_s, one.others_s)))
        others = f"the others{where} ({named(one.row)}: {times})"
        far = f"{'up to ' * (one.rows > 1)}{far}"
        if one.ratio > 1:
            texts.append(f"{one.name} took {far} long as {others}")
        else:
            texts.append(f"{one.name} was {far} fast as {others}, which may have been slowed")
    if (more := len(found) - _NAMED) > 0:
        texts.append(f"{format_count(more, 'launch')} more")
    return "; ".join(texts)


def disturbed(rows: Sequence[Measurement], which: str = "") -> str:
    """How many rows ran while other programs used cores, and the worst row; empty if none did.

    ``which``: a word before the rows, such as ``these``.
    """
    beside = [r for r in rows if is_disturbed(r)]
    if not beside:
        return ""
    worst = max(beside, key=lambda r: r.others_share or 0.0)
    shares = [r.others_share or 0.0 for r in beside]
    part = ran_beside(shares, f"{which} {_long_enough(rows)}".lstrip())
    return f"{part} ({named(worst)})"


def ran_beside(shares: Sequence[float], of: str) -> str:
    """A sentence on disturbed rows: ``6 of 8 rows ran beside other programs, which took …``.

    ``shares``: of all cores, what other programs took during each; ``of``: all rows, as text.
    """
    most = f"up to {100 * max(shares):.0f} % of all cores"
    return f"{len(shares)} of {of} ran beside other programs, which took {most}"


def long_enough(number: int, of: int) -> str:
    """The rows that show what other programs used: ``8 rows``, ``2 rows of 0.1 s or longer``."""
    return format_count(number, "row") + ("" if number == of else f" of {SHORTEST_S:g} s or longer")


def _long_enough(rows: Sequence[Measurement]) -> str:
    return long_enough(sum(map(tells_others, rows)), len(rows))


def too_disturbed(rows: Sequence[Measurement], more: str = "") -> str:
    """Why to repeat a run before its figures are used; empty if it is well.

    It is to be repeated if other programs used much of the cores during more than half of the rows,
    but not where rows differ by more than these programs can have changed (`is_fastest_told` of
    training steps, `is_winner_told` of collectives). The command to do so follows a line break.
    ``more``: words of it that no record has, such as ``--quiet``.
    """
    timed = [r for r in rows if r.time_s is not None]
    if not mostly_disturbed(timed) or is_fastest_told(timed) or is_winner_told(timed):
        return ""
    shares = [r.others_share or 0.0 for r in timed if is_disturbed(r, MUCH)]
    command = _again(timed, more)
    how = f":\n{command}" if command else _WAIT
    if command and _launches_tell(timed) and not _waited(timed):
        how += f"\nif they stay: --launches {LAUNCHES} instead, whose intervals cover them"
    return (
        f"too disturbed to {use_of(timed)}: {taken(max(shares))} in {len(shares)} of"
        f" {_long_enough(timed)}, which may have moved all iterations of a row, so the"
        f" interval of one launch does not show it; repeat the run{how}"
    )


_TO_COMPARE = "compare algorithms"
# The remedy where no command can be given, as of emulated hosts.
_WAIT = " (try --wait-quiet 10m)"


def _again(timed: Sequence[Measurement], unrecorded: str) -> str:
    """The command that repeats a disturbed run once other programs have ended; see `command_of`.

    Where such a wait was in vain and algorithms are compared, in several launches, whose interval
    covers what other programs do. Training steps have no launches.
    """
    if _waited(timed) and _launches_tell(timed):
        command, more = command_of(timed, without=_ORDER), f" --launches {LAUNCHES}"
    else:
        command, more = command_of(timed, without=("--wait-quiet",)), " --wait-quiet 10m"
    return command and " ".join(filter(None, (command + more, unrecorded)))


def _launches_tell(timed: Sequence[Measurement]) -> bool:
    """True if several launches are a remedy for other programs that do not end."""
    return use_of(timed) == _TO_COMPARE


def _waited(timed: Sequence[Measurement]) -> bool:
    return any(" --wait-quiet " in f" {r.run.environment.get('options', '')} " for r in timed)


def use_of(rows: Sequence[Measurement]) -> str:
    """What a run is measured for: to compare algorithms, or training steps, or to rely on figures.

    The latter of a single algorithm, and of tests between pairs, whose figures are read by
    themselves. A step is one over all transports: a single rank has one of its own.
    """
    steps = {r.algorithm for r in rows if r.step is not None}
    collectives = [r for r in rows if r.step is None and r.collective not in TESTS]
    compared = {(r.algorithm, r.transport) for r in collectives}
    if len(compared) > 1:
        return _TO_COMPARE
    return "compare steps" if len(steps) > 1 else "rely on these figures"


def command_of(rows: Sequence[Measurement], without: Sequence[str] = ()) -> str:
    """The command that measures the first row's collective again; empty if `busbar` did not.

    It has the options that the run recorded. Without those, or where rows of several commands are
    together, it has what the rows say: algorithms, sizes and types, or of training steps model,
    compute and updates. ``without``: recorded options to leave out, with their values. Empty for
    hosts that were emulated, whose command is another one.
    """
    first = rows[0]
    if not first.run.format.startswith("busbar") or is_emulated(first.run.environment):
        return ""
    recorded = {str(r.run.environment.get("options", "")) for r in rows}
    if len(recorded) == 1 and _OPTIONS.fullmatch(options := recorded.pop()):
        name = "step" if first.step else _benchmark(first)
        ranks = ",".join(map(str, sorted({r.ranks for r in rows if r.ranks})))
        counted = {"--threads", "--learners"} & set(options.split())  # these say how many ranks
        command = f"{command_words(name)} {'' if counted else f'--ranks {ranks} '}{options}"
        return re.sub(rf" ({'|'.join(without)}) [^ ]+", "", command) if without else command
    if (step := first.step) is not None:
        updates = ",".join(dict.fromkeys(r.step.update for r in rows if r.step is not None))
        about = f"--model {step.model} --compute {step.compute} --update {updates}"
        return f"{command_words('step')} --ranks {first.ranks} {about}"
    mine = [r for r in rows if r.collective == first.collective]
    names = ",".join(dict.fromkeys(r.algorithm for r in mine))
    ranks = ",".join(map(str, sorted({r.ranks for r in mine if r.ranks})))
    words = [command_words(_benchmark(first))]
    words += [f"--ranks {ranks} -A {names}", *_sizes_of(mine)]
    types, ops, places = ({getattr(r, n) for r in mine} for n in ("dtype", "op", "placement"))
    if first.collective not in TESTS:
        words += [] if types <= {"float", ""} else [f"-d {','.join(sorted(types))}"]
        words += [] if ops <= {"sum", "", "none"} else [f"-o {','.join(sorted(ops))}"]
        words += [f"--placement {first.placement}"] if len(places) == 1 else []
    return " ".join(words)


def _benchmark(row: Measurement) -> str:
    return "pt2pt" if row.collective in TESTS else row.collective


def _sizes_of(rows: Sequence[Measurement]) -> list[str]:
    """The options of the sizes: ends and factor, or each if they are no sweep."""
    sizes = sorted({r.nbytes for r in rows if r.nbytes})
    shown = list(map(format_size, sizes))
    factors = {b / a for a, b in pairwise(sizes)} or {2.0}
    if not sizes:
        return []
    if len(factors) > 1:
        return [f"--sizes {','.join(shown)}"]
    factor = factors.pop()
    return [f"-b {shown[0]} -e {shown[-1]}", *([] if factor == 2 else [f"-f {factor:.4g}"])]


def disturbance(rows: Sequence[Measurement]) -> str:
    """What a run noticed that may have changed its times, in one clause for its closing answer.

    Ranks that shared cores, and other programs on the cores unless `too_disturbed` says so; empty
    if there was neither.
    """
    return causes(rows, programs=not too_disturbed(rows))


def launch_disturbance(rows: Sequence[Measurement], launches: Sequence[Measurement]) -> str:
    """What other programs did in the launches of rows that do not show it themselves, in a clause.

    ``launches``: all rows of these launches. Rows may be too short to show it, and others are not.
    Empty if one of ``rows`` shows other programs, which `disturbance` says, or if none does.
    """
    if any(map(is_disturbed, rows)):
        return ""
    cause = _programs([r for r in launches if r.time_s is not None])
    return f"times may be disturbed: in the same launch {cause}" if cause else ""


def causes(rows: Sequence[Measurement], programs: bool = True) -> str:
    """What may have changed the times of rows, in one clause; ``programs``: also other programs."""
    timed = [r for r in rows if r.time_s is not None]
    crowded = crowding(timed)
    known = [f"ranks share cores ({crowded})"] * bool(crowded)
    known += filter(None, [_programs(timed) if programs else ""])
    return f"times may be disturbed: {'; '.join(known)}" if known else ""


def _programs(timed: Sequence[Measurement]) -> str:
    """How much other programs took of the cores during rows, with the remedy; empty for little."""
    shares = [r.others_share or 0.0 for r in timed if is_disturbed(r)]
    if not shares:
        return ""
    remedy = "" if _waited(timed) else _WAIT
    return f"{taken(max(shares))} in {len(shares)} of {_long_enough(timed)}{remedy}"


def in_brief(rows: Sequence[Measurement]) -> list[str]:
    """What the iterations of a run show that matters for its medians: at most two lines.

    A row counts if its median may be off by more than 5 % (`Unstable.shift`), or if that is unknown
    (fewer than 6 iterations). A run prints these lines at its end; `warnings_of` has them too. Left
    out are back-to-back rows (``loop``), which have one mean, and rows of several launches, whose
    interval is that of their launches' medians. A run that is `too_disturbed` is to be repeated
    anyway, with the remedy that stands there.
    """
    if too_disturbed(rows):
        return []
    timed = [
        r
        for r in rows
        if r.times_s and r.timing != "loop" and not r.launches_s and launch_of(r.run) is None
    ]
    looked_at = _looked_at(timed)
    judged = [(row, unstable(row.times_s)) for row in looked_at]
    few = [row for row, reasons in judged if any(one.kind == "few" for one in reasons)]
    moved = [(row, chief) for row, reasons in judged if (chief := _chief(reasons)) is not None]
    every = len(looked_at), len(timed)
    lines = [f"{_of_judged(len(few), *every, _FEW)} (raise {limiting(few)})"] if few else []
    if moved:
        kinds = Counter(one.kind for _, one in moved)
        causes = ", ".join(f"{_SHORT[kind]} {n}" for kind, n in kinds.most_common())
        row, worst = max(moved, key=lambda pair: pair[1].shift)
        head = f"{_of_judged(len(moved), *every, _MOVED)}; raise {limiting([r for r, _ in moved])}"
        lines.append(f"{head} ({causes}; worst: {named(row)}, {worst.text})")
    return lines


def limiting(rows: Sequence[Measurement]) -> str:
    """The options that limited the iterations of rows, such as ``--budget`` or ``--budget or -n``.

    A run has ``-n``, or a budget and perhaps a total. Where that is not known, each may be meant.
    A launch of ``busbar qualify`` has ``--repeats``.
    """
    limits = {option for row in rows for option in _limits(row)}
    return " or ".join(sorted(limits, reverse=True))


def _limits(row: Measurement) -> Sequence[str]:
    if "qualify" in row.run.environment:
        return ["--repeats"]
    if row.stopped == "iterations":
        return ["-n"]
    if row.stopped not in ("budget", "precise"):
        return ["-n", "--budget"]
    total = "--total" in str(row.run.environment.get("options", "")).split()
    return ["--budget", "--total"] if total else ["--budget"]


def is_in_brief(text: str) -> bool:
    """True for a line of `in_brief`, among the messages of a run."""
    # The verb may be of one row.
    return any(words.partition(" ")[2] in text for words in _IN_BRIEF)


def _chief(reasons: Sequence[Unstable]) -> Unstable | None:
    """The likely cause of an instability that may move a row's median; None if there is none."""
    by_kind = {one.kind: one for one in reasons if one.shift > _MATTERS}
    return next((by_kind[kind] for kind in _SHORT if kind in by_kind), None)


def _of_judged(part: int, looked_at: int, every: int, words: str) -> str:
    if looked_at == every:
        return format_part(part, every, "row", words)
    return f"{part} of the {looked_at} rows looked at {agreeing(part, words)}"


def share_of_limit(row: Measurement) -> float | None:
    """The share of the run's memory roofline that was reached: limit / time."""
    return of_limit(row.time_s, row.limit_s) if row.limit_s and row.time_s else None


def limit_cell(row: Measurement) -> str:
    """The share of the limit as text, with the letter of `why_above`."""
    share = share_of_limit(row)
    return f"{limit_text(share)}{why_above(row, share or 0.0)}"


def why_above(row: Measurement, share: float) -> str:
    """The letter in `WHY_ABOVE` for a share of the limit; empty if it is not above, or unknown."""
    if share <= ABOVE_LIMIT:
        return ""
    if row.oversubscribed:
        return "s"
    if is_disturbed(row):
        return "o"
    return "c" if share <= BEYOND_LIMIT else ""  # no cache explains more
