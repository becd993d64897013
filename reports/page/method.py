"""The findings, the best figures, and the method section of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from busbar.units import format_ranks, format_rate, format_seconds, format_size
from reports.analysis.cautions import warnings_of
from reports.analysis.machine import MachinePart
from reports.analysis.quality import checklist
from reports.analysis.stragglers import Suspect, culprits
from reports.page.markup import details, items, section, table, text
from reports.records.cores import marked, oversubscription
from reports.records.measurement import Measurement, Run, flat, grouped
from reports.records.metrics import BANDWIDTH, MESSAGE_RATE, PLACEMENT, is_measured, present

_MOST_TILES = 8
_MOST_FINDINGS = 50
_LAUNCHES = (
    "The time of several launches of a command is the geometric mean of their medians; its "
    "interval is Student's t on the logarithms of these medians."
)
_METHOD = (
    "A time is the figure of the log: for Busbar's records the median of the iterations, each the "
    "slowest rank's unless the environment says otherwise; for nccl-tests, OSU and IMB their mean.",
    "Intervals hold the median with 95 % confidence, by order statistics (Le Boudec; Hoefler, "
    "Belli 2015); without raw times there is none.",
    "algbw is size / time; busbw is algbw times the collective's bus factor (nccl-tests' "
    "PERFORMANCE.md), so that it can be held against the rate of a link.",
    "A fitted line is time = alpha + beta x size (Hockney's model), in as many ranges of the "
    "size as Schwarz's criterion asks for, at most five, by least squares of the relative error.",
    "Oversubscribed rows are those with more than one rank per core: their times include ranks "
    "waiting for a core. An asterisk marks an algorithm whose work any rank may have carried out, "
    "so that the time need not be its own.",
    "A limit is the least time that the memory roofline measured in the run allows (docs/"
    "measuring-limit.md) or, where none was measured, the rate given with --limit.",
)


def tiles(rows: Sequence[Measurement]) -> str:
    """For each setting the best rate and the least time with their rows, as HTML.

    Bounds (shared work) are left out if algorithms were measured.
    """
    measured = [r for r in rows if is_measured(r)]
    algorithms = [r for r in measured if not r.worksharing]
    groups = grouped(algorithms or measured, lambda r: (r.collective, r.dtype, r.op, r.ranks))
    cells = []
    # Sorted by setting, not in the order of the files.
    ordered = sorted(groups, key=lambda thing: (*map(str, thing[:3]), thing[3] or 0))
    for thing in ordered[:_MOST_TILES]:
        (collective, dtype, op, ranks), group = thing, groups[thing]
        words = (collective or "unnamed collective", dtype, op, format_ranks(ranks))
        rated = [r for r in group if r.busbw_bytes_per_s]
        # Rows of 0 bytes measure an empty call, so they are left out, unless there are no
        # others (a barrier).
        sized = [r for r in group if r.size or r.message] or group
        timed = [r for r in sized if r.time_s]
        lines = []
        if rated:
            best = max(rated, key=lambda r: r.busbw_bytes_per_s or 0)
            lines.append((f"{format_rate(best.busbw_bytes_per_s)} GB/s", "highest busbw", best))
        for metric in present(group, (BANDWIDTH, MESSAGE_RATE)):
            most = max(group, key=lambda r: metric.of(r) or 0.0)
            lines.append((metric.words(metric.of(most)), f"highest {metric.name}", most))
        if timed:
            least = min(timed, key=lambda r: r.time_s or 0)
            lines.append((format_seconds(least.time_s), "least time", least))
        inner = "".join(
            f"<p><strong>{text(figure)}</strong> {what}<br><small>{text(_where(r))}</small></p>"
            for figure, what, r in lines
        )
        cells.append(
            f'<li class="tile"><h3>{text(", ".join(w for w in words if w))}</h3>{inner}</li>'
        )
    more = (
        f"<p>{len(groups) - _MOST_TILES} more are in the table.</p>"
        if len(groups) > _MOST_TILES
        else ""
    )
    return f'<ul class="tiles">{"".join(cells)}</ul>{more}'


def _where(r: Measurement) -> str:
    size = format_size(r.nbytes)
    words = (marked(r) or r.run.library, size, PLACEMENT[r.placement], oversubscription([r]))
    return ", ".join(w for w in words if w)


def findings_part(
    rows: Sequence[Measurement], machine: MachinePart | None, notes: Sequence[str]
) -> str:
    """The section of stragglers and warnings, and of notes on what could not be read."""
    entries = [_suspect(s) for s in culprits(rows, machine.matrices if machine else ()).suspects]
    entries += [text(w) for w in warnings_of(rows)]
    for f in machine.findings if machine else ():
        where = ", ".join(f.subjects)
        entries.append(
            f"<strong>{text(f.summary)}</strong> ({text(where)}): {text(f.evidence)}. "
            f"{text(f.remedy)}."
        )
    shown = items(entries[:_MOST_FINDINGS]) or "<p>Nothing stands out in the rows of this page.</p>"
    unread = items(text(n) for n in notes[:_MOST_FINDINGS])
    more = details(f"{len(notes)} notes of the readers", unread) if notes else ""
    return section("findings", "Findings", shown, more)


def _suspect(s: Suspect) -> str:
    head = "Slow" if s.sure else "Perhaps slow"
    return f"<strong>{head}: {text(s.name)}</strong>: {text('; '.join(s.evidence))}"


def method_part(rows: Sequence[Measurement], names: Mapping[int, str], limit: float | None) -> str:
    """The section on the method: environments of the runs, method, verdicts on the rules."""
    runs = {id(r.run): r.run for r in rows}
    listed = list(runs.items())[:_MOST_FINDINGS]
    facts = {names[key]: _facts(run) for key, run in listed}
    more = f"<p>{len(runs) - len(listed)} more, not shown.</p>" if len(runs) > len(listed) else ""
    several = [_LAUNCHES] * any(r.launches_s for r in rows)
    return section(
        "method",
        "How it was measured",
        *_environment(facts),
        more,
        items(text(line) for line in (*_METHOD, *several)),
        _rules(rows, limit),
    )


def _environment(facts: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Tables of the runs' environments: common values, then differences by run."""
    keys = list(dict.fromkeys(k for f in facts.values() for k in f))
    values = {key: [f.get(key, "") for f in facts.values()] for key in keys}
    if len(facts) == 1:
        return [table("Environment", ["", *facts], ([key, *values[key]] for key in keys))]
    same = [key for key in keys if len(set(values[key])) == 1]
    shared = table(f"Environment: the same in all {len(facts)} runs", ["", "all runs"],
                   ([key, values[key][0]] for key in same))  # fmt: skip
    # The file is left out if the headings of the columns already name it.
    other = ([key, *values[key]] for key in keys if key not in same and values[key] != [*facts])
    return [shared, table("Environment: what differs", ["", *facts], other)]


def _rules(rows: Sequence[Measurement], limit: float | None) -> str:
    rules = checklist(rows, limit=limit)
    lines = ([f"{r.number}. {r.title}", r.state, r.why] for r in rules)
    passed = sum(r.state == "kept" for r in rules)
    broken = sum(r.state == "not kept" for r in rules)
    caption = (
        f"Hoefler and Belli's twelve rules for reporting performance (SC'15): {passed} kept, "
        f"{broken} not kept"
    )
    return table(caption, ["rule", "state", "why"], lines)


def _facts(run: Run) -> dict[str, str]:
    known: dict[str, Any] = {"file": run.source, "format": run.format, "program": run.program}
    known |= {"version": run.version, "library": run.library, "hosts": run.hosts}
    known |= {"devices": run.devices, **flat(run.environment, ": ")}
    if "busbar" in known:  # the environment already has Busbar's version
        del known["version"]
    if _words(known.get("cpu")) == _words(run.devices):
        del known["devices"]
    return {name: shown for name, value in known.items() if (shown := _words(value))}


def _words(value: object) -> str:
    if isinstance(value, (list, tuple)):
        words = list(map(str, value)) if any(value) else []
        return ", ".join(words[:16]) + (f" and {len(words) - 16} more" if len(words) > 16 else "")
    return "" if value is None else str(value)
