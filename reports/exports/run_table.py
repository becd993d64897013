"""The rows of a run as text, in the exact layout of nccl-tests or as a compact table.

Layout of nccl-tests 2.19, which parsers of nccl-tests can read: comment lines start with ``#``; a
row is ``%12li  %12li  %8s  %6s  %6s`` and then, per placement, ``  %7s  %6s  %6s  %6g``. The
compact table is for narrow terminals, has one line per placement, and is not meant to be parsed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

import numpy as np

from reports.records.measurement import Measurement, Placements
from reports.statistics.quantities import (
    LATENCY_BOUND,
    bandwidths,
    center,
    limit_text,
    of_limit,
    relative_width,
)

_LIMIT = 6


@dataclass(frozen=True)
class Banner:
    """The contents of the lines above a table. ``devices`` are (rank, pid, host, name).

    ``slots``: each rank's device number and PCI address; empty without devices. ``group``: number
    of the ranks' group, if several groups run at once. ``above``: True if an earlier table of the
    run lists the devices, so that this one only refers to it. ``graph``: whether iterations are
    replayed from captured graphs. ``validation``: iterations that are checked after the timed ones.
    """

    program: str
    version: str
    minimum: int
    maximum: int
    step: int
    factor: bool
    warmup: int
    iterations: int | None
    validation: int
    devices: Sequence[tuple[int, int, str, str]]
    slots: Sequence[tuple[int, str]] = ()
    group: int = 0
    above: bool = False
    graph: bool = False


def number(value: float, width: int) -> str:
    """A number in ``width`` characters with up to two decimals, as nccl-tests prints it.

    Below 1 it has three significant digits if they fit: a link of 200 Mbit/s is 0.025 GB/s.
    """
    small = 2 - floor(log10(abs(value))) if 1e-99 < abs(value) < 1 else 2
    for decimals in range(min(small, width), -1, -1):
        text = f"{value:{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.{1 if width >= 7 else 0}e}"


def header(banner: Banner, per_iteration: bool = False, limit: bool = False) -> list[str]:
    """The lines above the rows. ``limit``: with the two further columns ``limit%`` at the end."""
    iterations = "auto" if banner.iterations is None else str(banner.iterations)
    lines = [
        f"# {banner.version}",
        f"# Collective test starting: {banner.program}",
        f"# nThread 1 nGpus 1 minBytes {banner.minimum} maxBytes {banner.maximum}"
        f" step: {banner.step}({'factor' if banner.factor else 'bytes'})"
        f" warmup iters: {banner.warmup} iters: {iterations} agg iters: 1"
        f" validation: {banner.validation} graph: {int(banner.graph)} unalign: 0",
        "#",
    ]
    return [*lines, *_devices(banner), "#", *columns(per_iteration, limit)]


def _devices(banner: Banner) -> list[str]:
    if banner.above:
        return [f"# Using devices as above: {len(banner.devices)} ranks, group {banner.group}"]
    slots = banner.slots or [(0, "0000:00:00.0")] * len(banner.devices)
    return [
        "# Using devices",
        # nccl-tests prints PCI addresses without the function.
        *(
            f"#  Rank {rank:2d} Group {banner.group:2d} Pid {pid:6d} on {host:>10}"
            f" device {index:2d} [{bus.partition('.')[0]}] {name}"
            for (rank, pid, host, name), (index, bus) in zip(banner.devices, slots, strict=True)
        ),
    ]


def columns(per_iteration: bool, limit: bool) -> list[str]:
    """The lines with names of the columns; the last one has the units and a row's width."""
    names = ["time", "algbw", "busbw", "#wrong"]
    units = ["(us)", "(GB/s)", "(GB/s)", ""]
    blank = f"# {'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}"
    if per_iteration:
        names += ["i_min", "i_max", "i_p99", "i_cv%"]
        units += ["(us)", "(us)", "(us)", "(%)"]
        banner = (
            blank
            + "              out-of-place (+ per-iteration)"
            + "                                in-place (+ per-iteration)"
        )
    else:
        banner = blank + "           out-of-place                       in-place          "

    def line(head: Sequence[str], cells: Sequence[str], ours: Sequence[str]) -> str:
        widths = [7, 6, 6, 6, 7, 7, 7, 7]
        half = "".join(f"  {cell:>{w}}" for cell, w in zip(cells, widths, strict=False))
        size, count, kind, op, root = head
        last = "".join(f"  {cell:>{_LIMIT}}" for cell in ours) if limit else ""
        return f"# {size:>10}  {count:>12}  {kind:>8}  {op:>6}  {root:>6}{half}{half}{last or ' '}"

    return [
        banner,
        line(("size", "count", "type", "redop", "root"), names, ("limit%", "limit%")),
        line(("(B)", "(elements)", "", "", ""), units, ("(out)", "(in)")),
    ]


def _half(one: Measurement | None, statistic: str, per_iteration: bool) -> str:
    seconds = None if one is None else center(one, statistic)
    if one is None or seconds is None:
        cells = "".join(f"  {'N/A':>{w}}" for w in (7, 6, 6, 6))
        return cells + (f"  {'N/A':>7}" * 4 if per_iteration else "")
    algbw, busbw = bandwidths(one, seconds)
    wrong = "   N/A" if one.wrong is None else f"{one.wrong:6g}"
    text = (
        f"  {number(seconds * 1e6, 7)}  {number(algbw / 1e9, 6)}  {number(busbw / 1e9, 6)}  {wrong}"
    )
    if per_iteration:
        times = np.sort(np.asarray(one.times_s)) * 1e6
        p99 = times[min(len(times) - 1, ceil(len(times) * 0.99) - 1)]
        spread = 100 * times.std() / times.mean() if times.mean() > 0 else 0.0
        text += "".join(f"  {number(x, 7)}" for x in (times[0], times[-1], p99, spread))
    return text


def row(
    pair: Placements, statistic: str = "median", per_iteration: bool = False, limit: bool = False
) -> str:
    """One row. A placement that was not measured shows ``N/A``."""
    first = pair.every[0]
    last = "  ".join(f"{_of_limit(one, statistic):>{_LIMIT}}" for one in pair)
    return (
        f"{first.size:12d}  {first.count:12d}  {first.dtype:>8}  {first.op:>6}  {first.root:6d}"
        + "".join(_half(one, statistic, per_iteration) for one in pair)
        + (f"  {last}" if limit else "")
    )


def _of_limit(one: Measurement | None, statistic: str) -> str:
    """The share of the measured memory roofline in per cent; ``N/A`` if not known."""
    seconds = None if one is None else center(one, statistic)
    if one is None or one.limit_s is None or not seconds:
        return "N/A"
    return limit_text(of_limit(seconds, one.limit_s), ".0f").removesuffix("%")


def footer(rows: Sequence[Measurement], program: str, statistic: str = "median") -> list[str]:
    """The lines below the rows: wrong values, and the mean busbw over rows and placements.

    The mean is ``N/A`` if no row was measured.
    """
    timed = [one for one in rows if one.times_s]
    wrong = sum(one.wrong or 0 for one in timed)
    rates = [bandwidths(one, center(one, statistic) or 0.0)[1] / 1e9 for one in timed]
    mean = f"{sum(rates) / len(rates):g}" if rates else "N/A"
    return [
        f"# {'Out of bounds values':<20} : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# {'Avg bus bandwidth':<20} : {mean} ",
        "#",
        f"# Collective test concluded: {program}",
    ]


_WIDTHS = (10, 5, 8, 7, 7, 6, 6)
_HEADS = (
    ("size", "place", "time", "busbw", "limit", "±", "#wrong"),
    ("(B)", "", "(us)", "(GB/s)", "(%)", "(%)", ""),
)
_MOST_KINDS = 4


def compact_header(banner: Banner, setting: str) -> list[str]:
    """The lines above the rows. ``setting``: the type and other settings that all rows share."""
    checked = "" if banner.validation else ", unchecked"
    lines = [f"# {banner.program}: {setting}, {len(banner.devices)} ranks{checked}"]
    if not banner.above:
        kinds = Counter((host, name) for _, _, host, name in banner.devices).most_common()
        lines[:0] = [f"# {banner.version}"]
        lines += [f"# {n} on {host}: {name}" for (host, name), n in kinds[:_MOST_KINDS]]
        left = sum(n for _, n in kinds[_MOST_KINDS:])
        lines += [f"# {left} elsewhere; --layout nccl lists all"] if left else []
    return ["#", *lines, *(f"#{_compact_line(heads)[1:]}" for heads in _HEADS)]


def compact_rows(pair: Placements, statistic: str = "median", setting: str = "") -> list[str]:
    """A line for each placement that was run; ``setting`` is appended to the first line."""
    lines = [
        _compact_line(
            (str(one.size) if at == 0 else "", one.placement, *_compact_figures(one, statistic))
        )
        for at, one in enumerate(pair.every)
    ]
    return [f"{lines[0]}  {setting}".rstrip(), *lines[1:]] if lines else []


def _compact_line(cells: Sequence[str]) -> str:
    return "  ".join(f"{c:>{w}}" for c, w in zip(cells, _WIDTHS, strict=True)).rstrip()


def _compact_figures(one: Measurement, statistic: str) -> tuple[str, ...]:
    seconds = center(one, statistic)
    if seconds is None:
        return ("N/A",) * 5
    # Below this size a call takes its latency, so a rate has no meaning.
    rated = (one.size or 0) >= LATENCY_BOUND
    busbw = number(bandwidths(one, seconds)[1] / 1e9, 7).strip() if rated else "-"
    share = of_limit(seconds, one.limit_s) if one.limit_s and seconds else None
    limit = limit_text(share, ".0f").removesuffix("%") or "-"
    width = relative_width(one.times_s)
    either = f"{100 * width:.1f}" if width < 10 else "-"
    wrong = "N/A" if one.wrong is None else f"{one.wrong:g}"
    return (number(seconds * 1e6, 8).strip(), busbw, limit, either, wrong)
