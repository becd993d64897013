"""The table and the plot of a law."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from statistics import median

from bench.cluster.law.growth import LIBRARY, Compared, LawPoint, Ports, exponent
from bench.cluster.law.measuring import STEADY
from busbar.figures import checked, save
from busbar.tables import render_markdown
from busbar.units import format_link_rate, format_size_argument

# Sizes with a smaller relative difference were requested as one size.
_LESS = 0.02
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


def _order(rows: Sequence[Compared]) -> tuple[list[str], list[int], list[int]]:
    """(algorithms with the library last, host counts, sizes)."""
    names = sorted(dict.fromkeys(r.point.algorithm for r in rows), key=lambda name: name == LIBRARY)
    return names, sorted({r.point.hosts for r in rows}), sorted({r.point.size for r in rows})


def _rounded(rows: Sequence[Compared]) -> list[Compared]:
    """The rows with requested sizes: actual ones may be smaller, as parts have whole elements."""
    asked: list[int] = []
    for size in sorted({row.point.size for row in rows}, reverse=True):
        if not asked or size < (1 - _LESS) * asked[-1]:
            whole = 1 << (size - 1).bit_length()
            asked.append(whole if size > (1 - _LESS) * whole else size)
    return [
        row._replace(point=row.point._replace(size=min(n for n in asked if n >= row.point.size)))
        for row in rows
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}" if seconds >= 0.1 else f"{seconds * 1e3:.3g}"


def lines(rows: Sequence[Compared], ports: Ports, rate: float) -> Iterator[str]:
    """The tables, as Markdown. ``rate``: configured bytes/s of a port, on which laws are based."""
    yield (
        f"Ports of {format_link_rate(rate)}, {ports.burst:.0f} B at once after a pause; measured"
        " between"
        f" the first hosts: {format_link_rate(ports.rate)}, {ports.latency * 1e6:.3g} µs."
    )
    for collective in dict.fromkeys(row.point.collective for row in rows):
        yield from _tables(
            collective, _rounded([r for r in rows if r.point.collective == collective])
        )
    twice = [
        f"{p.collective} `{p.algorithm}` {p.hosts}x{format_size_argument(p.size)} {_ms(p.slower)}"
        for p in (row.point for row in _rounded(rows))
        if p.slower is not None
    ]
    if twice:
        yield ""
        yield (
            f"Measured twice, since iterations differed by more than {100 * (STEADY - 1):.0f} %;"
            f" the table has the faster launch, the other's median, ms: {', '.join(twice)}"
        )


def _tables(collective: str, rows: Sequence[Compared]) -> Iterator[str]:
    """The tables of one collective, by size: times, and their ratios to law and simulation."""
    names, hosts, sizes = _order(rows)
    at = {(r.point.algorithm, r.point.hosts, r.point.size): r for r in rows}
    columns = [("algorithm", "left"), *((f"{n} hosts", "right") for n in hosts)]
    for size in sizes:
        yield ""
        yield (
            f"{collective} of {format_size_argument(size)}, ms: measured (least to greatest) | law"
            " | simulated"
        )
        yield ""
        lines: list[list[str]] = []
        for name in names:
            mine = {n: at[name, n, size] for n in hosts if (name, n, size) in at}
            cells = [_cell(mine[n]) if n in mine else "" for n in hosts]
            power = exponent({n: row.point.seconds for n, row in mine.items()})
            cells.append(f"P^{power:.2f}" if power is not None else "")
            lines.append([f"`{name}`", *cells])
        yield from render_markdown([*columns, ("grows as", "left")], lines, right="--:")
        yield ""
        yield f"{collective} of {format_size_argument(size)}: measured over law, over simulated"
        yield ""
        lines = [
            [f"`{name}`", *(_over(at.get((name, n, size))) for n in hosts)]
            for name in names
            if name != LIBRARY
        ]
        yield from render_markdown(columns, lines, right="--:")
        ratios = [
            f"P = {n}: {at['ps', n, size].point.seconds / at['ring', n, size].point.seconds:.3g}"
            for n in hosts
            if ("ps", n, size) in at and ("ring", n, size) in at
        ]
        if ratios:
            yield ""
            yield "ps / ring (law: P): " + ", ".join(ratios)


def _over(row: Compared | None) -> str:
    """A measured time divided by its law, and by its simulation."""
    if row is None:
        return ""
    return f"{row.point.seconds / row.law:.2f}, {row.point.seconds / row.model:.2f}"


def _cell(row: Compared) -> str:
    point, law, model = row
    text = f"{_ms(point.seconds)} ({_ms(point.least)} to {_ms(point.most)})"
    if point.wrong:
        text += f" {point.wrong} wrong"
    return text if isnan(law) else f"{text} / {_ms(law)} / {_ms(model)}"


def errors(rows: Sequence[Compared], fitted: int) -> Iterator[str]:
    """The simulator's errors on more hosts than those whose ports were measured."""
    found = {
        p: model / p.seconds - 1
        for p, _, model in _rounded(rows)
        if p.hosts > fitted and not isnan(model)
    }
    if not found:
        return
    yield ""
    yield (
        f"Simulated against measured on more than {fitted} hosts, {len(found)} points:"
        f" {_off(found)}."
    )
    for size in sorted({p.size for p in found}):
        yield (
            f"- {format_size_argument(size)}:"
            f" {_off({p: e for p, e in found.items() if p.size == size})}"
        )
    for name in dict.fromkeys((p.collective, p.algorithm) for p in found):
        mine = {p: e for p, e in found.items() if (p.collective, p.algorithm) == name}
        each = ", ".join(
            f"{p.hosts}x{format_size_argument(p.size)} {100 * e:+.3g}" for p, e in mine.items()
        )
        yield f"- {name[0]} `{name[1]}`, %: {each}"


def _off(found: Mapping[LawPoint, float]) -> str:
    """The median of relative errors, and the largest."""
    worst = max(found, key=lambda p: abs(found[p]))
    return (
        f"median error {100 * median(map(abs, found.values())):.3g} %, worst"
        f" {100 * found[worst]:+.3g} % ({worst.collective} {worst.algorithm}, {worst.hosts}"
        f" hosts, {format_size_argument(worst.size)})"
    )


def draw(rows: Sequence[Compared], rate: float, path: Path) -> None:
    """Draw time over hosts at the largest size: measured, law, simulated. Raises as `checked`."""
    checked(path)
    from matplotlib.figure import Figure

    rows = [row for row in rows if row.point.collective == rows[0].point.collective]
    names, hosts, sizes = _order(rows)
    size = sizes[-1]
    figure = Figure(figsize=(8.5, 5), layout="constrained")
    axes = figure.subplots()
    for name, colour in zip(names, _COLOURS, strict=False):
        mine = [row for row in rows if (row.point.algorithm, row.point.size) == (name, size)]
        mine.sort(key=lambda row: row.point.hosts)
        points = [row.point for row in mine]
        at = [p.hosts for p in points]
        spread = [
            [1e3 * (p.seconds - p.least) for p in points],
            [1e3 * (p.most - p.seconds) for p in points],
        ]
        times = [1e3 * p.seconds for p in points]
        axes.errorbar(at, times, spread, fmt="o", color=colour, label=name, capsize=2, ms=5)
        axes.plot(at, [1e3 * row.law for row in mine], "-", color=colour, lw=1.2)
        axes.plot(at, [1e3 * row.model for row in mine], ":", color=colour, lw=1.6)
    axes.plot([], [], "k-", lw=1.2, label="textbook's law")
    axes.plot([], [], "k:", lw=1.6, label="simulated")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(hosts, [str(n) for n in hosts])
    axes.set(xlabel="hosts", ylabel="time, ms")
    axes.set_title(
        f"{rows[0].point.collective} of {format_size_argument(size)} over ports of"
        f" {format_link_rate(rate)}, measured"
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, path, 150)
