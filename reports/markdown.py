"""A run as Markdown tables, for a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from reports.cautions import warnings_of
from reports.quality import checklist, in_one_line
from reports.readers.rows import Row
from reports.show import grouped, heading
from reports.shown import interval_text, rate, seconds, size_text

__all__ = ["markdown"]


def _cell(text: str) -> str:
    """A text that cannot end its cell or become markup."""
    for mark in ("\\", "|", "`", "*", "_", "<", "[", "!"):
        text = text.replace(mark, "\\" + mark)
    return text.replace("\n", " ")


def markdown(rows: Sequence[Row]) -> str:
    """A table a measured thing, algorithms side by side where there are several.

    Then warnings, and the twelve rules of `reports.quality`, folded away.
    """
    parts = [_table(group) for group in grouped(rows).values()]
    warnings = [f"- {_cell(w)}" for w in warnings_of(rows)]
    rules = checklist(rows)
    folded = [
        "",
        f"<details><summary>{_cell(in_one_line(rules))}</summary>",
        "",
        *(f"{r.number}. {_cell(r.title)}: *{r.state}*: {_cell(r.why)}" for r in rules),
        "",
        "</details>",
    ]
    return "\n".join([*parts, *warnings, *folded]).rstrip() + "\n"


def _table(rows: Sequence[Row]) -> str:
    lines = [
        f"**{_cell(heading(rows[0]))}**",
        "",
        "| size | algorithm | time | 95 % | busbw | n | wrong |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for r in rows:
        size = size_text(r.size if r.size is not None else r.message)
        wrong = "" if r.wrong is None else str(r.wrong)
        cells = (size, r.algorithm, seconds(r.time_s), interval_text(r.low_s, r.high_s, r.time_s),
                 rate(r.busbw_bytes_per_s), str(r.iterations or ""), wrong)  # fmt: skip
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    reasons = dict.fromkeys(r.skipped for r in rows if r.skipped)
    return "\n".join([*lines, *(f"\nN/A: {_cell(reason)}" for reason in reasons), ""])
