"""A run, or a comparison, as Markdown for a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from busbar.tables import Column, render_markdown
from busbar.units import format_change, format_count, format_interval, format_size
from reports.analysis.answer import (
    answers,
    crossovers,
    sentences,
    server_and_ring,
    stretch_table,
)
from reports.analysis.cautions import limit_cell, too_disturbed, warnings_of
from reports.analysis.compare import Comparison, Difference
from reports.analysis.quality import Rule, checklist, in_one_line
from reports.analysis.steps import fastest_samples
from reports.analysis.winners import Stretch
from reports.records.cores import SHARED, marked
from reports.records.measurement import Measurement
from reports.records.metrics import BESIDE, ERROR, TIME, present, setting
from reports.tables.comparison import (
    asides,
    beside,
    bounds_text,
    counts_of,
    unjudged,
)
from reports.tables.show import (
    busbw_texts,
    by_table,
    figures_of,
    heading,
    launch_columns,
    time_texts,
)

#: A comment on GitHub holds 65536 characters; a row has about 100.
MOST_ROWS = 500
MOST_ANSWERS = 40


# An empty comment behind ``@``, ``#`` and ``:``, so that they start no mention, reference or link;
# none where a blank follows, which ends all of these.
_MARKS = re.compile(r"[\\|`*_<>\[\]!~&]|[@#:](?=\S)")


def _cell(text: str) -> str:
    """Escape a text: it cannot end its cell or become markup, a mention, a reference or a link."""
    return " ".join(_MARKS.sub(_escaped, text).split())


def _escaped(mark: re.Match[str]) -> str:
    return f"{mark[0]}<!-- -->" if mark[0] in "@#:" else f"\\{mark[0]}"


def _paragraphs(text: str) -> list[str]:
    """The lines of a text, each a paragraph; one below a line that ends with a colon is code."""
    before, *others = text.split("\n")
    parts = [_cell(before)]
    for line in others:
        parts.append(f"    {line}" if before.endswith(":") else _cell(line))
        before = line
    return [part for one in parts for part in (one, "")]


def _table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table with escaped cells. Heads are not escaped."""
    return render_markdown(columns, (list(map(_cell, cells)) for cells in rows))


def markdown(rows: Sequence[Measurement]) -> str:
    """A run as Markdown: the fastest by size, a table per setting, warnings, and the rules.

    At most ``MOST_ROWS`` rows, because a comment's length is limited; rows left out are counted.
    """
    parts, left = [], MOST_ROWS
    for group in by_table(rows):
        if left > 0:
            parts.append(_run_table(group[:left]))
        left -= len(group)
    if left < 0:
        parts.append(f"{format_count(-left, 'row')} more.\n")
    why = too_disturbed(rows)
    best = [_answer(what, ranges, bool(why)) for what, ranges in answers(rows).items()]
    best = [*(_paragraphs(why) if why else []), *best]
    notes = (*server_and_ring(rows), *fastest_samples(rows), *warnings_of(rows))
    warnings = [f"- {_cell(note)}" for note in notes]
    return (
        "\n".join([*best[:MOST_ANSWERS], *parts, *warnings, *_rules(checklist(rows))]).rstrip()
        + "\n"
    )


def _answer(what: str, ranges: Sequence[Stretch], disturbed: bool) -> str:
    """A table of the fastest algorithm for each range of sizes, with crossovers and sentences."""
    heads, rows = stretch_table(ranges)
    columns = [(head, "left" if n else "right") for n, head in enumerate(heads)]
    changes = crossovers(ranges)
    notes = [f"\nCrossovers: {_cell(changes)}"] if changes else []
    notes += [f"\n{_cell(text)}" for text in sentences(ranges, disturbed=disturbed)]
    table = _table(columns, rows)
    return "\n".join([f"**The fastest of {_cell(what)}, by size**", "", *table, *notes, ""])


def _rules(rules: Sequence[Rule]) -> list[str]:
    """The rules of `reports.analysis.quality`, folded. The summary is HTML, so escaped as HTML."""
    return [
        "",
        f"<details><summary>{escape(in_one_line(rules))}</summary>",
        "",
        *(f"{r.number}. {_cell(r.title)}: *{r.state}*: {_cell(r.why)}" for r in rules),
        "",
        "</details>",
    ]


def _run_table(rows: Sequence[Measurement]) -> str:
    columns: list[Column] = [
        *launch_columns(rows),
        ("size", "right", [format_size(r.nbytes) for r in rows]),
        ("algorithm", "left", [marked(r) for r in rows]),
        ("time", "right", time_texts(rows)),
        ("95 %", "right", [format_interval(r.low_s, r.high_s, r.time_s) for r in rows]),
        ("busbw", "right", busbw_texts(rows)),
        *((m.name, "right", figures_of(rows, m)) for m in present(rows, BESIDE)),
        ("of limit", "right", list(map(limit_cell, rows))),
        ("n", "right", [str(r.iterations or "") for r in rows]),
        ("wrong", "right", ["" if r.wrong is None else str(r.wrong) for r in rows]),
        *((m.name, "right", figures_of(rows, m)) for m in present(rows, (ERROR,))),
    ]
    # For a bandwidth test, these columns would be empty.
    bare = ("time", "95 %", "busbw", "of limit") if not any(time_texts(rows)) else ()
    columns = [column for column in columns if column[0] not in bare or any(column[2])]
    cells = zip(*(texts for _, _, texts in columns), strict=True)
    table = _table([(head, side) for head, side, _ in columns], cells)
    reasons = dict.fromkeys(r.skipped for r in rows if r.skipped)
    notes = [f"\nN/A: {_cell(reason)}" for reason in reasons]
    notes += [f"\n{_cell(SHARED)}"] * any(marked(r) != r.algorithm for r in rows)
    return "\n".join([f"**{_cell(heading(rows))}**", "", *table, *notes, ""])


def comparison_markdown(
    comparisons: Sequence[Comparison],
    differing: Sequence[Difference] = (),
    rules: Sequence[Rule] = (),
) -> str:
    """A comparison as Markdown: counts of verdicts, changed rows, and all others in a folded table.

    The change is NEW against BASE, of the time or of a rate. Largest changes come first. Rows with
    wrong results count as changed.
    """
    changed = [c for c in comparisons if c.word in ("slower", "faster")]
    changed += [c for c in comparisons if c.word not in ("slower", "faster") and c.row.wrong]
    rest = [c for c in comparisons if c not in changed]
    lines = [f"**{counts_of(comparisons)}** (NEW against BASE)", ""]
    for text in filter(None, (unjudged(comparisons), *asides(comparisons))):
        lines += _paragraphs(text)
    lines += [f"- differs: {_cell(str(d))}" for d in differing]
    lines += [""] if differing else []
    if changed:
        changed.sort(key=lambda c: -max(c.ratio, 1 / c.ratio if c.ratio > 0 else 0))
        lines += [*_compared(changed[:MOST_ROWS]), ""]
    room = MOST_ROWS - len(changed)
    if rest and room > 0:
        title = format_count(len(rest), "row") + " that did not change" * bool(changed)
        lines += ["<details>", f"<summary>{title}</summary>", "", *_compared(rest[:room]), ""]
        lines += ["</details>", ""]
    if len(comparisons) > MOST_ROWS:
        lines.append(f"{format_count(len(comparisons) - MOST_ROWS, 'row')} more.")
    lines += _rules(rules) if rules else []
    return "\n".join(lines).rstrip() + "\n"


def _compared(comparisons: Sequence[Comparison]) -> list[str]:
    others = {name: texts for name, _, texts in beside(comparisons)}
    cells = [
        (
            setting(c.row.base) + (f", {c.metric.name}" if c.metric is not TIME else ""),
            format_size(c.row.base.nbytes),
            c.row.algorithm,
            c.metric.words(c.base),
            c.metric.words(c.new),
            format_change(c.change),
            bounds_text(c),
            *(texts[n] for texts in others.values()),
            c.word + (f", {c.row.wrong} wrong" if c.row.wrong else ""),
        )
        for n, c in enumerate(comparisons)
    ]
    numbers = ("base", "new", "change", "95 %", *others)
    columns = [("measured", "left"), ("size", "right"), ("algorithm", "left")]
    return _table([*columns, *((name, "right") for name in numbers), ("", "left")], cells)
