"""Figures of a run: busbw and latency against size, and the iterations' distributions.

Colours are Okabe and Ito's, which colour-blind readers tell apart; markers say the same again.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.errors import ReportError
from reports.readers.rows import Row
from reports.shown import seconds, size_text
from reports.statistics import alpha_beta

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FIGURES", "figures"]

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")
_MARKERS = "osD^vPX*"
Series = dict[str, list[Row]]
_PLACEMENT = {"out": "out-of-place", "in": "in-place"}


def figures(rows: Sequence[Row], form: str = "png", limit: float | None = None) -> dict[str, bytes]:
    """Name of a file to its content: one figure a kind and measured thing.

    ``limit`` (bytes per second) is drawn as the bound on busbw. Raises ReportError when matplotlib
    is not installed or there is nothing to draw.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ReportError("matplotlib is not installed; pip install 'busbar[reports]'") from None
    groups: dict[tuple[str, ...], list[Row]] = {}
    for r in rows:
        if r.time_s or r.busbw_bytes_per_s:
            ranks = f"{r.ranks} ranks" if r.ranks else ""
            key: tuple[str, ...] = (r.collective or "unnamed", r.dtype, r.op, ranks)
            groups.setdefault(key, []).append(r)
    made: dict[str, bytes] = {}
    for key, group in groups.items():
        words = [str(w) for w in key if w]
        placements = [p for p in ("out", "in") if any(r.placement == p for r in group)]
        series = _series(group)
        for kind, draw in FIGURES.items():
            figure = Figure(figsize=(6.4 * len(placements), 4.4), layout="constrained")
            panels = figure.subplots(1, len(placements), sharey=True, squeeze=False)[0]
            drawn = [
                draw(axes, _placed(series, p), limit)
                for axes, p in zip(panels, placements, strict=True)
            ]
            if not any(drawn):
                continue
            for axes, p in zip(panels, placements, strict=True):
                axes.set_title(_PLACEMENT[p], fontsize=10)
                axes.grid(alpha=0.25, linewidth=0.6)
                axes.label_outer()
            figure.suptitle(", ".join(words), fontsize=11)
            out = io.BytesIO()
            figure.savefig(out, format=form, dpi=130)
            made[re.sub(r"[^\w.-]+", "-", "-".join([*words, kind]))] = out.getvalue()
    if not made:
        raise ReportError("no row has a time or a rate to draw")
    return made


def _series(rows: Sequence[Row]) -> Series:
    """Rows by what one colour stands for, in order of size.

    Tables of one file are one series as long as no size comes twice, as in a script's sweep.
    """
    drawn = sorted((r for r in rows if r.size), key=lambda r: r.size or 0)
    points = [(_name(r), r.size, r.placement) for r in drawn]
    repeated = len(set(points)) < len(points)
    found: Series = {}
    for r in drawn:
        name = f"{_name(r)} (run {r.run.number})" if repeated else _name(r)
        found.setdefault(name, []).append(r)
    return found


def _name(row: Row) -> str:
    return " ".join(w for w in (row.algorithm, row.transport) if w) or row.run.library or "measured"


def _placed(series: Series, placement: str) -> Series:
    """One placement's rows; every name stays, so that it keeps its colour."""
    return {n: [r for r in rows if r.placement == placement] for n, rows in series.items()}


def _style(n: int) -> dict[str, Any]:
    return {"color": _COLOURS[n % len(_COLOURS)], "marker": _MARKERS[n % len(_MARKERS)],
            "markersize": 4, "linewidth": 1.4, "linestyle": ("-", "--", ":")[n // 8 % 3]}  # fmt: skip


def _sizes_axis(axes: Axes, series: Series) -> None:
    axes.set_xscale("log", base=2)
    sizes = sorted({r.size for rows in series.values() for r in rows if r.size})
    step = max(1, len(sizes) // 8)
    axes.set_xticks(sizes[::step], [size_text(s) for s in sizes[::step]], minor=False)
    axes.minorticks_off()
    axes.set_xlabel("size (bytes)")


def _band(axes: Axes, bands: Sequence[tuple[Row, float, float]], n: int) -> None:
    """Intervals as a band in the colour of their line."""
    sizes = [float(r.size or 0) for r, _, _ in bands]
    low, high = [low for _, low, _ in bands], [high for _, _, high in bands]
    axes.fill_between(sizes, low, high, color=_style(n)["color"], alpha=0.2, linewidth=0)


def _busbw(axes: Axes, series: Series, limit: float | None) -> bool:
    for n, (name, rows) in enumerate(series.items()):
        kept = [r for r in rows if r.busbw_bytes_per_s is not None]
        if not kept:
            continue
        rates = [(r.busbw_bytes_per_s or 0) / 1e9 for r in kept]
        axes.plot([r.size or 0 for r in kept], rates, label=name, **_style(n))
        _band(axes, [(r, *_rates(r)) for r in kept if r.low_s and r.high_s], n)
    if not axes.lines:
        return False
    if limit:
        axes.axhline(limit / 1e9, color="#555555", linestyle="-.", linewidth=1.2)
        axes.annotate(f"limit {limit / 1e9:g} GB/s", (0.01, limit / 1e9), fontsize=8, va="bottom",
                      xycoords=("axes fraction", "data"), color="#555555")  # fmt: skip
    _sizes_axis(axes, series)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("busbw (GB/s)")
    axes.legend(fontsize=8, frameon=False)
    return True


def _rates(r: Row) -> tuple[float, float]:
    """The interval of the time as one of the rate, in GB/s."""
    middle = (r.busbw_bytes_per_s or 0) * (r.time_s or 0) / 1e9
    return middle / (r.high_s or 1), middle / (r.low_s or 1)


def _latency(axes: Axes, series: Series, limit: float | None) -> bool:
    for n, (name, rows) in enumerate(series.items()):
        kept = [r for r in rows if r.time_s]
        if not kept:
            continue
        sizes, times = [r.size or 0 for r in kept], [r.time_s or 0.0 for r in kept]
        style, label = _style(n), name
        fit = alpha_beta(sizes, times)
        if fit is not None:
            alpha, beta = fit
            label += f": {seconds(alpha)}" + (f", {1 / beta / 1e9:.3g} GB/s" if beta else "")
            grid = np.geomspace(min(sizes), max(sizes), 100)
            line = (alpha + beta * grid) * 1e6
            axes.plot(grid, line, color=style["color"], linewidth=0.8, alpha=0.6)
        axes.plot(sizes, [t * 1e6 for t in times], label=label, **{**style, "linestyle": "none"})
        known = [(r, r.low_s, r.high_s) for r in kept if r.low_s and r.high_s]
        below = [((r.time_s or 0.0) - low) * 1e6 for r, low, _ in known]
        above = [(high - (r.time_s or 0.0)) * 1e6 for r, _, high in known]
        middle = [(r.time_s or 0.0) * 1e6 for r, _, _ in known]
        axes.errorbar([r.size or 0 for r, _, _ in known], middle, yerr=[below, above], fmt="none",
                      ecolor=style["color"], capsize=2, linewidth=1)  # fmt: skip
    if not axes.lines:
        return False
    _sizes_axis(axes, series)
    axes.set_yscale("log")
    axes.set_ylabel("time (us); line: alpha + beta x size")
    axes.legend(fontsize=8, frameon=False)
    return True


def _ecdf(axes: Axes, series: Series, limit: float | None) -> bool:
    """The iterations of the largest size that most algorithms have, each against its own share."""
    sizes = [r.size or 0 for rows in series.values() for r in rows if len(r.times_s) > 1]
    if not sizes:
        return False
    size = max(set(sizes), key=lambda s: (sizes.count(s), s))
    for n, (name, rows) in enumerate(series.items()):
        times = sorted(t * 1e6 for r in rows if r.size == size for t in r.times_s)
        if not times:
            continue
        shares = [(i + 1) / len(times) for i in range(len(times))]
        axes.step(times, shares, where="post", label=f"{name}, n = {len(times)}",
                  **{**_style(n), "marker": ""})  # fmt: skip
    axes.set_xlabel(f"time of an iteration at {size_text(size)} (us)")
    axes.set_ylabel("share of iterations")
    axes.legend(fontsize=8, frameon=False)
    return True


FIGURES: Mapping[str, Callable[[Axes, Series, float | None], bool]] = {
    "busbw": _busbw,
    "latency": _latency,
    "ecdf": _ecdf,
}
