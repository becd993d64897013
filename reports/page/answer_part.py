"""The answer in a page: the best algorithm by size, and a map of sizes by ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from busbar.units import format_size
from reports.analysis.answer import (
    UNSURE,
    answers,
    cell,
    counts,
    crossovers,
    head,
    sentence,
    server_and_ring,
    stretch_table,
)
from reports.analysis.winners import Cells, Stretch, Winner, decided, winners
from reports.figures.series import Look, algorithm_of, looks
from reports.page.markup import details, grid, section, table, text
from reports.records.measurement import Measurement

#: More than these are folded away.
_AT_ONCE = 4
_MOST = 60


def answer_part(rows: Sequence[Measurement]) -> str:
    """The section; nothing where no algorithm has a competitor."""
    won = sorted(winners(rows).items())
    places = looks(rows)
    maps = [_map(thing, cells, places) for thing, cells in won if len(counts(cells)) > 1]
    blocks = [_stretches(what, one) for what, one in sorted(answers(rows).items())][:_MOST]
    if not blocks:
        return ""
    parts = [f"<div>{part}</div>" for part in (*maps, *blocks)]
    shown, more = ("".join(some) for some in (parts[:_AT_ONCE], parts[_AT_ONCE:]))
    count = f"{len(parts) - _AT_ONCE} more tables"
    folded = details(count, f'<div class="answers">{more}</div>') if more else ""
    key = f"<p>{text(UNSURE)}.</p>" if any("~" in part for part in parts) else ""
    law = "".join(f"<p>{text(line)}.</p>" for line in server_and_ring(rows))
    return section(
        "answer", "What to take", f'<div class="answers">{shown}</div>', folded, key, law
    )


def _stretches(what: str, ranges: Sequence[Stretch]) -> str:
    changes = crossovers(ranges)
    note = f"<p>Crossovers: {text(changes)}.</p>" if changes else ""
    note += f"<p>{text(words)}.</p>" if (words := sentence(ranges)) else ""
    return table(f"The fastest of {what}, by size", *stretch_table(ranges)) + note


def _won(taken: str, winner: Winner, places: Mapping[str, Look]) -> str:
    name, figures = map(text, cell(taken, winner))
    look = places.get(taken.removeprefix("~"), places[algorithm_of(winner.row)])
    style = f"--swatch: var(--series-{look.place})"
    return f'<span class="winner" style="{style}">{name}</span><br><small>{figures}</small>'


def _map(thing: str, cells: Cells, places: Mapping[str, Look]) -> str:
    """Sizes down, rank counts across; a colour a winner, that of the figures."""
    ranks = counts(cells)
    crowded = {n for (_, n), winner in cells.items() if winner.row.oversubscribed}
    lines, taken = [], decided(cells)
    for size in sorted({size for size, _ in cells}):
        won = [taken.get((size, n)) for n in ranks]
        lines.append(
            [
                text(format_size(size)),
                *("" if one is None else _won(*one, places) for one in won),
            ]
        )
    caption = f"The fastest of {thing}, by size and ranks, and what the next takes (95 %)"
    caption += "; *: ranks share cores" if crowded else ""
    return grid(caption, ["size", *(head(n, n in crowded) for n in ranks)], lines)
