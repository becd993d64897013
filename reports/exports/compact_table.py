"""A compact table for narrow terminals: one line for each placement.

Comment lines start with ``#``, as in `reports.exports.nccl_table`; nothing is parsed from here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from reports.exports.nccl_table import Banner, number
from reports.records.measurement import Measurement, Placements
from reports.statistics.quantities import (
    LATENCY_BOUND,
    bandwidths,
    center,
    of_limit,
    relative_width,
)

_WIDTHS = (10, 5, 8, 7, 7, 6, 6)
_HEADS = (
    ("size", "place", "time", "busbw", "limit", "±", "#wrong"),
    ("(B)", "", "(us)", "(GB/s)", "(%)", "(%)", ""),
)
_MOST_KINDS = 4


def header(banner: Banner, setting: str) -> list[str]:
    """The lines above the rows. ``setting``: the type and whatever else all rows share."""
    checked = "" if banner.validation else ", unchecked"
    lines = [f"# {banner.program}: {setting}, {len(banner.devices)} ranks{checked}"]
    if not banner.above:
        kinds = Counter((host, name) for _, _, host, name in banner.devices).most_common()
        lines[:0] = [f"# {banner.version}"]
        lines += [f"# {n} on {host}: {name}" for (host, name), n in kinds[:_MOST_KINDS]]
        left = sum(n for _, n in kinds[_MOST_KINDS:])
        lines += [f"# {left} elsewhere; --layout nccl lists all"] if left else []
    return ["#", *lines, *(f"#{_line(heads)[1:]}" for heads in _HEADS)]


def rows(pair: Placements, statistic: str = "median", setting: str = "") -> list[str]:
    """A line for each placement that was asked for; ``setting`` stands behind the first."""
    lines = [
        _line((str(one.size) if at == 0 else "", one.placement, *_figures(one, statistic)))
        for at, one in enumerate(pair.every)
    ]
    return [f"{lines[0]}  {setting}".rstrip(), *lines[1:]] if lines else []


def _line(cells: Sequence[str]) -> str:
    return "  ".join(f"{c:>{w}}" for c, w in zip(cells, _WIDTHS, strict=True)).rstrip()


def _figures(one: Measurement, statistic: str) -> tuple[str, ...]:
    seconds = center(one, statistic)
    if seconds is None:
        return ("N/A",) * 5
    # Below this a call takes its latency, whatever it moves.
    rated = (one.size or 0) >= LATENCY_BOUND
    busbw = number(bandwidths(one, seconds)[1] / 1e9, 7).strip() if rated else "-"
    share = of_limit(seconds, one.limit_s) if one.limit_s and seconds else None
    limit = "-" if share is None else f"{100 * share:.0f}" if share < 1e4 else f"{100 * share:.0e}"
    width = relative_width(one.times_s)
    either = f"{100 * width:.1f}" if width < 100 else "-"
    wrong = "N/A" if one.wrong is None else f"{one.wrong:g}"
    return (number(seconds * 1e6, 8).strip(), busbw, limit, either, wrong)
