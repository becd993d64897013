"""The page as a whole: head, order of parts, scripts and the Content-Security-Policy.

The policy allows the page's scripts by their hashes and nothing else: no network, no other script,
no frame, no form. Inline styles are allowed because plotly sets them. Plotly, a bundle of 5 MB, is
compressed to 2 MB in the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from busbar.errors import MissingLibrary, ReportError
from busbar.units import format_count, format_part
from reports.analysis.cautions import disturbed
from reports.analysis.machine import MachinePart
from reports.figures.series import run_names
from reports.page.answer_part import answer_part, doubt, heading, lead
from reports.page.machine_part import machine_part, matrix_data
from reports.page.markup import hash_of, json_script, packed, section, text
from reports.page.method import findings_part, method_part, tiles
from reports.page.payload import payload, reduced
from reports.page.steps_part import steps_part
from reports.records.cores import oversubscription
from reports.records.measurement import Measurement
from reports.records.metrics import BESIDE, Metric, is_measured, present

_SCRIPTS = ("format.js", "state.js", "filters.js", "traces.js", "plots.js", "table.js", "main.js")
_PLOTS = (
    ("busbw", "Bus bandwidth against size", "Band: 95 % interval of the time."),
    (
        "latency",
        "Time against size",
        "Both axes are logarithmic. Band: 95 % interval of the time.",
    ),
    ("iterations", "Distribution of the iterations", "Share of iterations at or below a time."),
    ("scaling", "Scaling with the number of ranks", "At one size, chosen above."),
)

_FOOTER = "<footer><p>Made by Busbar. This file needs no network and sends nothing.</p></footer>"
_LINKS = {
    "measurements": "Figures", "answer": "What to take", "summary": "Best", "findings": "Findings",
    "rows": "Table", "steps": "Training steps", "machine": "Machine", "method": "Method",
}  # fmt: skip


def page(
    rows: Sequence[Measurement],
    machine: MachinePart | None = None,
    limit: float | None = None,
    title: str = "",
    notes: Sequence[str] = (),
    steps: Sequence[Measurement] = (),
    folded: str = "",
) -> bytes:
    """The page of these rows as UTF-8. ``limit`` (bytes per second) bounds busbw.

    ``steps``: the records of training steps among them, which have their own section. ``folded``: a
    note on rows that were merged.
    Raises MissingLibrary without plotly, ReportError if no row has a time or a rate.
    """
    if not any(map(is_measured, rows)):
        raise ReportError("no row has a time or a rate to show")
    shown, note = reduced(rows)
    note = "; ".join(filter(None, (folded, note)))
    names = run_names(shown)
    title = title or heading(shown)
    answer = answer_part(shown)
    data = {"matrices": matrix_data(machine), **payload(shown, limit)}
    plotly, own = _plotly(), _own()
    scripts = f"{hash_of(plotly)} {hash_of(own)}"
    of_steps = steps_part(steps)
    there = {"answer": bool(answer), "steps": bool(of_steps), "machine": machine is not None}
    body = (
        _header(title, shown, note, there),
        '<main id="main">',
        _figures(present(shown, BESIDE)),
        answer,
        section("summary", "Best figures", doubt(shown), tiles(shown)),
        findings_part(shown, machine, notes),
        _table(),
        of_steps,
        machine_part(machine),
        method_part(shown, names, limit),
        "</main>",
        _FOOTER,
        json_script("data", data),
        packed("plotly", plotly),
        f"<script>{own}</script>",
    )
    return _document(title, body, scripts)


def still_page(title: str, summary: str, parts: Sequence[str]) -> bytes:
    """A page without scripts, as UTF-8: a heading, a line below it, and parts given as HTML."""
    header = f"<header><h1>{text(title)}</h1><p>{text(summary)}</p></header>"
    return _document(title, (header, '<main id="main">', *parts, "</main>", _FOOTER), "'none'")


def _document(title: str, body: Sequence[str], scripts: str) -> bytes:
    """A complete HTML document; ``scripts``: the script sources that its policy allows."""
    policy = (
        f"default-src 'none'; script-src {scripts}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    head = (
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{text(policy)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="referrer" content="no-referrer">',
        '<link rel="icon" href="data:,">',
        f"<title>{text(title)} - Busbar</title>",
        f"<style>{_asset('page.css')}</style>",
    )
    parts = ('<!DOCTYPE html>\n<html lang="en">\n<head>', *head, "</head>\n<body>", *body)
    return "\n".join((*parts, "</body>\n</html>\n")).encode()


def _header(title: str, rows: Sequence[Measurement], note: str, there: Mapping[str, bool]) -> str:
    runs = len({id(r.run) for r in rows})
    hosts = dict.fromkeys(h for r in rows for h in r.run.hosts)
    words = [f"{len(rows):,} rows", format_count(runs, "run")]
    words += [format_count(len(hosts), "node")] if hosts else []
    words += list(dict.fromkeys(r.run.library for r in rows if r.run.library))[:3]
    more = "".join(
        f'<li><a href="#{id}">{name}</a></li>' for id, name in _LINKS.items() if there.get(id, True)
    )
    return (
        '<a class="skip" href="#main">Skip to the content</a>\n'
        f"<header><h1>{text(title)}</h1>{lead(rows)}<p>{text(', '.join(words))}</p>"
        + (f'<p class="note">{text(note)}.</p>' if note else "")
        + _banner(rows)
        + f'<nav aria-label="Parts of this page"><ul>{more}</ul></nav></header>'
    )


def _banner(rows: Sequence[Measurement]) -> str:
    """The warnings at the top of a page: ranks shared cores, other programs ran."""
    warnings = [disturbed(rows)]
    if crowded := [r for r in rows if r.oversubscribed]:
        what = f"are {oversubscription(crowded)}"
        shared = format_part(len(crowded), len(rows), "row", what)
        warnings.insert(0, f"{shared}: times include waiting for a core")
    return "".join(f'<p class="note" role="note">{text(w)}.</p>' for w in warnings if w)


def _figures(metrics: Sequence[Metric]) -> str:
    """The filter and the figures: the standard ones, and one for each of ``metrics``."""
    more = ((m.column, f"{m.name.capitalize()} against size", "") for m in metrics)
    figures = "".join(
        f'<figure class="plot" id="{name}" hidden><h3>{title}</h3>'
        '<div class="canvas" role="group"></div><ul class="keys" aria-label="Lines"></ul>'
        f'<figcaption>{caption} <span class="said"></span>'
        "</figcaption><details><summary>Numbers</summary>"
        '<div class="scroll" tabindex="0" role="region"></div></details></figure>'
        for name, title, caption in (*_PLOTS, *more)
    )
    return section(
        "measurements",
        "Figures",
        "<noscript><p>Plots and the table need JavaScript; the same figures are printed by "
        "<code>busbar reports show</code>.</p></noscript>",
        '<details id="filter"><summary>Filter</summary>'
        '<form id="filters" aria-label="Filter"></form></details>',
        '<p id="count" role="status"></p>',
        f'<div class="plots">{figures}</div>',
    )


def _table() -> str:
    """The table of all rows. Narrow screens show the first columns and a button for all."""
    return section(
        "rows",
        "Table",
        '<p><button type="button" id="every">All columns</button></p>',
        '<div class="scroll" tabindex="0" role="region" aria-label="All rows">'
        '<table id="table"><caption>All rows that the filter keeps; a heading sorts</caption>'
        "<thead></thead><tbody></tbody></table></div>",
        '<p><button type="button" id="more" hidden>Show more rows</button></p>',
    )


@cache
def _asset(name: str) -> str:
    return files("reports.page").joinpath(name).read_text(encoding="utf-8")


@cache
def _own() -> str:
    """All scripts of this package joined into one, in a function scope."""
    return "(async () => {\n'use strict';\n" + "\n".join(map(_asset, _SCRIPTS)) + "\n})();"


def _plotly() -> str:
    """Plotly's script. Raises MissingLibrary if plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingLibrary("plotly") from None
    script: str = get_plotlyjs()
    return script
