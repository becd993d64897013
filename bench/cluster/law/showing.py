"""The table and the plot of a law."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from bench.cluster.law.growth import (
    LIBRARY,
    LawPoint,
    Ports,
    exponent,
    simulated,
    textbook,
)
from bench.cluster.law.measuring import STEADY
from bench.cluster.text import rate_text
from busbar.figures import checked, save
from busbar.sizes import short

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


def _order(points: Sequence[LawPoint]) -> tuple[list[str], list[int], list[int]]:
    names = list(dict.fromkeys(point.algorithm for point in points))
    names.sort(key=lambda name: name == LIBRARY)
    hosts, sizes = ({getattr(p, key) for p in points} for key in ("hosts", "size"))
    return names, sorted(hosts), sorted(sizes)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}" if seconds >= 0.1 else f"{seconds * 1e3:.3g}"


def lines(points: Sequence[LawPoint], ports: Ports, rate: float) -> Iterator[str]:
    """The tables, as Markdown. ``rate``: bytes/s of a port as it was set, which laws are of."""
    names, hosts, sizes = _order(points)
    at = {(p.algorithm, p.hosts, p.size): p for p in points}
    yield (
        f"Ports of {rate_text(rate)}; measured between the first hosts:"
        f" {rate_text(ports.rate)}, {ports.latency * 1e6:.3g} µs."
    )
    for size in sizes:
        yield ""
        yield f"All-reduce of {short(size)}, ms: measured (least to greatest) | law | simulated"
        yield ""
        yield "| algorithm | " + " | ".join(f"{n} hosts" for n in hosts) + " | grows as |"
        yield "|---|" + "--:|" * len(hosts) + "---|"
        for name in names:
            cells, measured = [], {}
            for n in hosts:
                point = at.get((name, n, size))
                cells.append(_cell(point, ports, rate) if point else "")
                if point:
                    measured[n] = point.seconds
            power = exponent(measured)
            cells.append(f"P^{power:.2f}" if power is not None else "")
            yield f"| `{name}` | " + " | ".join(cells) + " |"
        ratios = [
            (n, at["ps", n, size].seconds / at["ring", n, size].seconds)
            for n in hosts
            if ("ps", n, size) in at and ("ring", n, size) in at
        ]
        if ratios:
            yield ""
            yield "ps / ring (law: P): " + ", ".join(f"P = {n}: {ratio:.3g}" for n, ratio in ratios)
    twice = [
        f"`{p.algorithm}` {p.hosts}x{short(p.size)} {_ms(p.slower)}" for p in points if p.slower
    ]
    if twice:
        yield ""
        yield (
            f"Measured twice, since iterations differed by more than {100 * (STEADY - 1):.0f} %;"
            f" the table has the faster launch, the other's median, ms: {', '.join(twice)}"
        )


def _cell(point: LawPoint, ports: Ports, rate: float) -> str:
    text = f"{_ms(point.seconds)} ({_ms(point.least)} to {_ms(point.most)})"
    if point.wrong:
        text += f" {point.wrong} wrong"
    if point.algorithm == LIBRARY:
        return text
    law = textbook(point.algorithm, point.hosts) * point.size / rate
    model = simulated(point.algorithm, point.hosts, point.size, ports)
    return f"{text} | {_ms(law)} | {_ms(model)}".replace(" | ", " / ")


def errors(points: Sequence[LawPoint], ports: Ports, fitted: int) -> Iterator[str]:
    """How far the simulator is off on more hosts than the ports were measured on."""
    found = {
        p: simulated(p.algorithm, p.hosts, p.size, ports) / p.seconds - 1
        for p in points
        if p.algorithm != LIBRARY and p.hosts > fitted
    }
    if not found:
        return
    worst = max(found, key=lambda p: abs(found[p]))
    yield ""
    yield (
        f"Simulated against measured on more than {fitted} hosts, {len(found)} points:"
        f" median error {100 * median(map(abs, found.values())):.3g} %, worst"
        f" {100 * found[worst]:+.3g} % ({worst.algorithm}, {worst.hosts} hosts, "
        f"{short(worst.size)})."
    )
    for name in dict.fromkeys(p.algorithm for p in found):
        mine = {p: e for p, e in found.items() if p.algorithm == name}
        each = ", ".join(f"{p.hosts}x{short(p.size)} {100 * e:+.3g}" for p, e in mine.items())
        yield f"- `{name}`, %: {each}"


def draw(points: Sequence[LawPoint], ports: Ports, rate: float, path: Path) -> None:
    """Time over hosts at the largest size: measured, law, simulated. Raises what `checked` does."""
    checked(path)
    from matplotlib.figure import Figure

    names, hosts, sizes = _order(points)
    size = sizes[-1]
    figure = Figure(figsize=(8.5, 5), layout="constrained")
    axes = figure.subplots()
    for name, colour in zip(names, _COLOURS, strict=False):
        mine = [p for p in points if p.algorithm == name and p.size == size]
        mine.sort(key=lambda p: p.hosts)
        at = [p.hosts for p in mine]
        times = [p.seconds * 1e3 for p in mine]
        spread = [
            [1e3 * (p.seconds - p.least) for p in mine],
            [1e3 * (p.most - p.seconds) for p in mine],
        ]
        axes.errorbar(at, times, spread, fmt="o", color=colour, label=name, capsize=2, ms=5)
        if name == LIBRARY:
            continue
        law = [1e3 * textbook(name, n) * size / rate for n in at]
        model = [1e3 * simulated(name, n, size, ports) for n in at]
        axes.plot(at, law, "-", color=colour, lw=1.2)
        axes.plot(at, model, ":", color=colour, lw=1.6)
    axes.plot([], [], "k-", lw=1.2, label="textbook's law")
    axes.plot([], [], "k:", lw=1.6, label="simulated")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(hosts, [str(n) for n in hosts])
    axes.set(xlabel="hosts", ylabel="time, ms")
    axes.set_title(f"All-reduce of {short(size)} over ports of {rate_text(rate)}, measured")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, path, 150)
