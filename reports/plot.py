"""Figures of a run: busbw and latency against size, and the iterations' distributions.

Colours are Okabe and Ito's, which colour-blind readers tell apart; markers say the same again.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reports.errors import ReportError
from reports.readers.rows import Row
from reports.shown import seconds, size_text
from reports.statistics import alpha_beta

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FIGURES", "figures"]

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")
_MARKERS = "osD^vPX*"
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
    groups: dict[tuple[object, ...], list[Row]] = {}
    for r in rows:
        if r.time_s or r.busbw_bytes_per_s:
            key = (r.collective or "unnamed", r.dtype, r.op, f"{r.ranks} ranks" if r.ranks else "")
            groups.setdefault(key, []).append(r)
    made: dict[str, bytes] = {}
    for key, group in groups.items():
        words = [str(w) for w in key if w]
        for kind, draw in FIGURES.items():
            placements = [p for p in ("out", "in") if any(r.placement == p for r in group)]
            figure = Figure(figsize=(6.4 * len(placements), 4.4), layout="constrained")
            panels = figure.subplots(1, len(placements), sharey=True, squeeze=False)[0]
            drawn = [
                draw(axes, [r for r in group if r.placement == p], limit)
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
            made["-".join([*words, kind]).replace(" ", "-")] = out.getvalue()
    if not made:
        raise ReportError("no row has a time or a rate to draw")
    return made


def _series(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by what one colour stands for, in order of size."""
    found: dict[str, list[Row]] = {}
    runs = {(r.run.source, r.run.number): f"run {r.run.number}" for r in rows}
    for r in sorted(rows, key=lambda r: r.size or 0):
        name = " ".join(w for w in (r.algorithm, r.transport) if w) or r.run.library or "measured"
        if len(runs) > 1:
            name += f" ({runs[(r.run.source, r.run.number)]})"
        if r.size:
            found.setdefault(name, []).append(r)
    return found


def _style(n: int) -> dict[str, Any]:
    return {"color": _COLOURS[n % len(_COLOURS)], "marker": _MARKERS[n % len(_MARKERS)],
            "markersize": 4, "linewidth": 1.4, "linestyle": ("-", "--", ":")[n // 8 % 3]}  # fmt: skip


def _sizes_axis(axes: Axes, rows: Sequence[Row]) -> None:
    axes.set_xscale("log", base=2)
    sizes = sorted({r.size for r in rows if r.size})
    step = max(1, len(sizes) // 8)
    axes.set_xticks(sizes[::step], [size_text(s) for s in sizes[::step]], minor=False)
    axes.minorticks_off()
    axes.set_xlabel("size (bytes)")


def _busbw(axes: Axes, rows: Sequence[Row], limit: float | None) -> bool:
    for n, (name, series) in enumerate(_series(rows).items()):
        kept = [r for r in series if r.busbw_bytes_per_s is not None]
        if not kept:
            continue
        sizes = [r.size or 0 for r in kept]
        rates = [(r.busbw_bytes_per_s or 0) / 1e9 for r in kept]
        axes.plot(sizes, rates, label=name, **_style(n))
        bands = [(r.size or 0, *_rates(r)) for r in kept if r.low_s and r.high_s]
        if bands:
            axes.fill_between(*zip(*bands, strict=True), color=_style(n)["color"], alpha=0.2, lw=0)
    if not axes.lines:
        return False
    if limit:
        axes.axhline(limit / 1e9, color="#555555", linestyle="-.", linewidth=1.2)
        axes.annotate(f"limit {limit / 1e9:g} GB/s", (0.01, limit / 1e9), fontsize=8, va="bottom",
                      xycoords=("axes fraction", "data"), color="#555555")  # fmt: skip
    _sizes_axis(axes, rows)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("busbw (GB/s)")
    axes.legend(fontsize=8, frameon=False)
    return True


def _rates(r: Row) -> tuple[float, float]:
    """The interval of the time as one of the rate, in GB/s."""
    middle = (r.busbw_bytes_per_s or 0) * (r.time_s or 0) / 1e9
    return middle / (r.high_s or 1), middle / (r.low_s or 1)


def _latency(axes: Axes, rows: Sequence[Row], limit: float | None) -> bool:
    for n, (name, series) in enumerate(_series(rows).items()):
        kept = [r for r in series if r.time_s]
        if not kept:
            continue
        sizes, times = [r.size or 0 for r in kept], [r.time_s or 0.0 for r in kept]
        style = _style(n)
        fit = alpha_beta(sizes, times)
        if fit is not None:
            alpha, beta = fit
            rate = f", {1 / beta / 1e9:.3g} GB/s" if beta else ""
            name += f": {seconds(alpha)}{rate}"
            axes.plot(sizes, [(alpha + beta * s) * 1e6 for s in sizes], color=style["color"],
                      linewidth=0.8, alpha=0.6)  # fmt: skip
        axes.plot(sizes, [t * 1e6 for t in times], label=name, **{**style, "linestyle": "none"})
        bands = [(r.size or 0, r.low_s * 1e6, r.high_s * 1e6) for r in kept if r.low_s and r.high_s]
        if bands:
            axes.fill_between(*zip(*bands, strict=True), color=style["color"], alpha=0.2, lw=0)
    if not axes.lines:
        return False
    _sizes_axis(axes, rows)
    axes.set_yscale("log")
    axes.set_ylabel("time (us); line: alpha + beta x size")
    axes.legend(fontsize=8, frameon=False)
    return True


def _ecdf(axes: Axes, rows: Sequence[Row], limit: float | None) -> bool:
    """The iterations of the largest size that most algorithms have, each against its own share."""
    raw = [r for r in rows if len(r.times_s) > 1 and r.size]
    if not raw:
        return False
    sizes = [r.size or 0 for r in raw]
    size = max(set(sizes), key=lambda s: (sizes.count(s), s))
    for n, (name, series) in enumerate(_series([r for r in raw if r.size == size]).items()):
        times = sorted(t * 1e6 for r in series for t in r.times_s)
        shares = [(i + 1) / len(times) for i in range(len(times))]
        axes.step(times, shares, where="post", label=f"{name}, n = {len(times)}",
                  **{**_style(n), "marker": ""})  # fmt: skip
    axes.set_xlabel(f"time of an iteration at {size_text(size)} (us)")
    axes.set_ylabel("share of iterations")
    axes.legend(fontsize=8, frameon=False)
    return True


FIGURES: Mapping[str, Callable[[Axes, Sequence[Row], float | None], bool]] = {
    "busbw": _busbw,
    "latency": _latency,
    "ecdf": _ecdf,
}
