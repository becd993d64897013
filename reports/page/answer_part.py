"""The answer section of a page: the best algorithm by size, and a map of sizes by ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from busbar.units import format_count, format_size
from reports.analysis.answer import (
    answers,
    cell,
    conclusions,
    counts,
    crossovers,
    map_head,
    sentences,
    server_and_ring,
    stretch_table,
)
from reports.analysis.cautions import too_disturbed, use_of
from reports.analysis.steps import fastest_samples
from reports.analysis.winners import (
    Cells,
    Stretch,
    Winner,
    decided,
    winners,
)
from reports.figures.series import Look, algorithm_of, looks
from reports.page.markup import details, grid, section, text
from reports.records.measurement import Measurement, grouped
from reports.records.metrics import PLACEMENT, setting

#: Further tables are folded.
_AT_ONCE = 4
_MOST = 60
_NAMED = 3


def heading(rows: Sequence[Measurement]) -> str:
    """The title of a page: collectives, numbers of ranks, and machine."""
    names = list(dict.fromkeys(r.collective or "unnamed" for r in rows))
    ranks = sorted({r.ranks for r in rows if r.ranks})
    machines = list(dict.fromkeys(name for r in rows for name in _machine(r)))
    words = ", ".join(names) if len(names) <= _NAMED else f"{len(names)} collectives"
    if ranks:
        words += f" on {', '.join(map(str, ranks[:-1]))}{' and ' * (len(ranks) > 1)}"
        words += format_count(ranks[-1], "rank")
    if machines:
        words += f", {', '.join(machines[:_NAMED])}{' and others' * (len(machines) > _NAMED)}"
    return words


def _machine(row: Measurement) -> Sequence[str]:
    """The devices of a row's ranks; if unknown, its hosts."""
    return [name for name in row.run.devices if name] or row.run.hosts


def lead(rows: Sequence[Measurement]) -> str:
    """The answer in one sentence as HTML, for the rows that figures show without any filter.

    If algorithms cannot be compared, the sentence gives the best figure.
    """
    timed = [r for r in rows if r.time_s and r.collective == rows[0].collective]
    own = [r for r in timed if not r.oversubscribed]
    ranks = Counter(r.ranks or 0 for r in own or timed)
    most = max(ranks, key=lambda n: (ranks[n], n), default=0)
    shown = [r for r in timed if (r.ranks or 0) == most and not r.worksharing]
    shown = [r for r in shown if r.placement == "out"] or shown
    words = too_disturbed(rows) or (conclusions(shown) or [""])[0]
    about = setting(shown[0]) if shown else ""
    files = {r.run.source for r in shown}
    if len(files) > 1:
        about += f"; {len(files)} files together, which busbar reports compare holds apart"
    what = f"<small>({text(about)})</small>" if about else ""
    return f'<p class="lead"><strong>{text(words)}</strong> {what}</p>' if words else ""


def doubt(rows: Sequence[Measurement]) -> str:
    """A paragraph that these rows cannot be compared, as HTML; mostly empty. `lead` says why."""
    why = f"Too disturbed to {use_of(rows)}; what to repeat stands at the top."
    return f"<p><strong>{why}</strong></p>" if too_disturbed(rows) else ""


def answer_part(rows: Sequence[Measurement]) -> str:
    """The page's section on which algorithm to use at which size, as HTML.

    It has a map (sizes by rank counts) and a table of ranges for each setting. Empty if no two
    algorithms can be compared.
    """
    won = sorted(winners(rows).items(), key=_placed)
    places = looks(rows)
    maps = [_map(thing, cells, places) for thing, cells in won if len(counts(cells)) > 1]
    disturbed = bool(too_disturbed(rows))
    found = sorted(answers(rows).items(), key=_placed)[:_MOST]
    blocks = [_stretches(what, one, disturbed) for what, one in found]
    steps = "".join(f"<p>{text(line)}.</p>" for line in fastest_samples(rows))
    if not blocks and not steps:
        return ""
    parts = [f"<div>{part}</div>" for part in (*maps, *blocks)]
    shown, more = ("".join(some) for some in (parts[:_AT_ONCE], parts[_AT_ONCE:]))
    count = f"{len(parts) - _AT_ONCE} more tables"
    folded = details(count, f'<div class="answers">{more}</div>') if more else ""
    law = "".join(f"<p>{text(line)}.</p>" for line in server_and_ring(rows))
    shown = f'<div class="answers">{shown}</div>' if parts else ""
    return section("answer", "What to take", doubt(rows), _means(rows), shown, folded, law, steps)


def _means(rows: Sequence[Measurement]) -> str:
    """A paragraph that figures are means over runs, as HTML; empty if no two measured the same."""
    runs = grouped((r for r in rows if r.time_s), lambda r: (setting(r), algorithm_of(r), r.size))
    if all(len({id(r.run) for r in same}) == 1 for same in runs.values()):
        return ""
    return (
        "<p>Where several runs measured the same, a figure here is that of the geometric mean of"
        " their median times; the table has the row of each run.</p>"
    )


def _placed(named: tuple[str, object]) -> tuple[bool, str]:
    """A sort key that puts out-of-place before in-place, as in the figures."""
    return PLACEMENT["in"] in named[0], named[0]


def _stretches(what: str, ranges: Sequence[Stretch], disturbed: bool) -> str:
    changes = crossovers(ranges)
    note = f"<p>Crossovers: {text(changes)}.</p>" if changes else ""
    note += "".join(f"<p>{text(one)}.</p>" for one in sentences(ranges, disturbed=disturbed))
    heads, lines = stretch_table(ranges)
    # Long names may be broken behind ``_``, for narrow screens.
    cells = ([text(word).replace("_", "_<wbr>") for word in line] for line in lines)
    return grid(f"The fastest of {what}, by size", heads, cells) + note


def _won(taken: str, winner: Winner, places: Mapping[str, Look]) -> str:
    name, figures = map(text, cell(taken, winner))
    look = places.get(taken.removeprefix("~"), places[algorithm_of(winner.row)])
    style = f"--swatch: var(--series-{look.place})"
    return f'<span class="winner" style="{style}">{name}</span><br><small>{figures}</small>'


def _map(thing: str, cells: Cells, places: Mapping[str, Look]) -> str:
    """A table of the winners of one setting, sizes by rank counts.

    ``places``: the colour of each algorithm in the figures.
    """
    ranks = counts(cells)
    crowded = sorted({n for (_, n), winner in cells.items() if winner.row.oversubscribed})
    lines, taken = [], decided(cells)
    for size in sorted({size for size, _ in cells}):
        won = [taken.get((size, n)) for n in ranks]
        lines.append(
            [
                text(format_size(size)),
                *("" if one is None else _won(*one, places) for one in won),
            ]
        )
    caption = f"The fastest of {thing}, by size and ranks, and {map_head(cells)}"
    caption += f"; {', '.join(map(str, crowded))} ranks share cores" if crowded else ""
    return grid(caption, ["size", *(format_count(n, "rank") for n in ranks)], lines)
