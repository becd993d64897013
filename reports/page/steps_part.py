"""The page's section on training steps: bars of compute and exposed exchange, and a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from busbar.units import format_count, format_digits, format_seconds
from reports.analysis.steps import (
    StepFigures,
    beyond_compute,
    exposed_text,
    figures,
    hidden_text,
    share_text,
)
from reports.page.markup import section, table, text
from reports.records.measurement import Measurement, grouped
from reports.statistics.uncertain import Uncertain

_HEAD = (
    "update", "ranks", "step", "compute", "exposed", "hidden", "samples/s", "speed-up",
    "efficiency", "predicted", "measured over it", "messages",
)  # fmt: skip
_MOST = 200
_WIDE, _HIGH, _LEFT = 420.0, 22.0, 230.0


def steps_part(steps: Sequence[Measurement]) -> str:
    """The page's section on training steps as HTML; empty without records of steps."""
    known = [
        (one, known_figures) for one in steps[:_MOST] if (known_figures := figures(one)) is not None
    ]
    groups = grouped(known, lambda pair: pair[0].collective)
    if not groups:
        return ""
    parts = [
        _bars(name, group)
        + table(name, _HEAD, (_cells(one, known_figures) for one, known_figures in group))
        for name, group in groups.items()
    ]
    note = (
        "<p>Exposed is the step less the same compute without any exchange, both measured; hidden"
        " is the share of the exchange, as long as it takes alone, that is not exposed. In brackets"
        " stand 95 % intervals.</p>"
    )
    if noise := beyond_compute(figure for _, figure in known):
        note += f"<p>{text(noise)}.</p>"
    return section("steps", "Training steps", note, *parts)


def _cells(one: Measurement, known: StepFigures) -> list[str]:
    messages = None if one.step is None else one.step.messages
    return [
        one.algorithm,
        str(one.ranks),
        _with_ends(known.step, format_seconds),
        "-" if known.compute is None else format_seconds(known.compute),
        _with_ends(known.exposed, exposed_text),
        _with_ends(known.hidden, hidden_text),
        _with_ends(known.rate, format_digits),
        _with_ends(known.speedup, lambda x: f"{x:.2f}"),
        _with_ends(known.efficiency, share_text),
        "-" if known.predicted is None else format_seconds(known.predicted),
        _with_ends(known.over_predicted, lambda x: f"{x:.3f}"),
        "-" if messages is None else str(messages),
    ]


def _with_ends(value: Uncertain | None, shown: Callable[[float], str]) -> str:
    """A figure and its interval as text; ``-`` for None."""
    if value is None:
        return "-"
    ends = "" if value.ends is None else f" ({' to '.join(map(shown, value.ends))})"
    return shown(value.value) + ends


def _bars(name: str, group: Sequence[tuple[Measurement, StepFigures]]) -> str:
    """An SVG with a bar for each kind of exchange (all-reduce, parameter server, …) of one model.

    A bar is compute, then exposed exchange, on a common scale.
    """
    longest = max(known.step.value for _, known in group)
    lines = []
    for n, (one, known) in enumerate(group):
        y = n * _HIGH
        whole = known.step.value / longest * _WIDE
        inner = min(whole, (known.compute or 0.0) / longest * _WIDE)
        # If compute is not known, as for a parameter server, the bar is grey.
        whole_colour = "#777777" if known.compute is None else "#D55E00"
        label = f"{one.algorithm}, {format_count(one.ranks, 'rank')}"
        label = label if len(label) <= 34 else label[:33] + "…"
        lines.append(
            f"<g><title>{text(one.algorithm)}: {text(format_seconds(known.step.value))}</title>"
            f'<text class="label" x="{_LEFT - 8:.0f}" y="{y + 15:.0f}" text-anchor="end">'
            f"{text(label)}</text>"
            f'<rect class="exposed" x="{_LEFT:.0f}" y="{y + 3:.0f}" width="{whole:.1f}"'
            f' height="{_HIGH - 6:.0f}" fill="{whole_colour}"/>'
            f'<rect class="compute" x="{_LEFT:.0f}" y="{y + 3:.0f}" width="{inner:.1f}"'
            f' height="{_HIGH - 6:.0f}" fill="#0072B2"/>'
            f'<text class="label" x="{_LEFT + whole + 6:.0f}" y="{y + 15:.0f}">'
            f"{text(format_seconds(known.step.value))}</text></g>"
        )
    width, height = _LEFT + _WIDE + 80, len(group) * _HIGH
    return (
        f'<figure class="plot"><h3>{text(name)}</h3><svg role="img" viewBox="0 0 {width:.0f}'
        f' {height:.0f}" style="max-width: {width:.0f}px" font-size="12" fill="currentColor"'
        f' aria-label="Step times of {text(name)}">{"".join(lines)}</svg>'
        "<figcaption>Blue: compute; orange: exposed exchange; grey: a step as a"
        " whole.</figcaption></figure>"
    )
