"""Text of measured matrices: values, classes of pairs, slow pairs, and expected rates."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from busbar.tables import Column, render_lines
from busbar.terminal import make_lines_printable, make_printable, wrap_line
from busbar.units import format_count, two_decimals
from topology.model.measured import (
    QUANTITIES,
    Estimate,
    Matrix,
    Slow,
    by_class,
    ends,
    expected,
    matrix,
    slow,
)
from topology.model.topology import Topology

# Sentences are at most this wide.
_PROSE = 80

#: For each quantity its title, and the factor from base units to the shown unit.
_SHOWN = {
    "latency": ("latency, us, one way (median)", 1e6),
    "bandwidth": ("bandwidth, GB/s, row to column (median)", 1e-9),
    "bandwidth_both": ("bandwidth both ways at once, GB/s, sum (median)", 1e-9),
}

#: Titles of a GPU's rates to and from the host.
_HOST = {
    "host_to_device": "from the host", "device_to_host": "to the host", "host_both": "both ways",
}  # fmt: skip


def text(topology: Topology) -> str:
    """Return all measured matrices of the map; ``!`` marks pairs that are slow for their class.

    The last line says which share of the cores other programs took meanwhile. Empty if nothing was
    measured.
    """
    parts = []
    for name, more_is_better in QUANTITIES.items():
        cells = matrix(topology, name)
        if cells:
            slow_pairs = slow(topology, cells, more_is_better)
            parts.append(_matrix(topology, name, cells, slow_pairs))
            parts.append(_classes(topology, name, cells))
            parts += [_slow(name, slow_pairs)] if slow_pairs else []
    if parts and topology.disturbance:
        parts.append("\n".join([*wrap_line(topology.disturbance, _PROSE, 0), ""]))
    return make_lines_printable("\n".join(parts))


def host_rates(topology: Topology) -> str:
    """Return a line per GPU with its rates to and from the host; empty if none was measured."""
    lines = []
    for gpu in topology.gpus:
        words = [
            f"{title} {two_decimals(rate * 1e-9)}"
            for name, title in _HOST.items()
            if (rate := gpu.number(name)) is not None
        ]
        lines += [f"{gpu.id}  {', '.join(words)}"] if words else []
    return make_lines_printable("\n".join(["copies, GB/s", *lines, ""]) if lines else "")


def links_and_peers(topology: Topology) -> str:
    """Return a line per GPU with its active NVLinks, and a matrix of peer access; or empty.

    For maps of which no source states what connects the GPUs.
    """
    lines = []
    for gpu in topology.gpus:
        links, rate = gpu.number("nvlinks"), gpu.number("nvlink_rate")
        if links is not None:
            each = f" of {two_decimals(rate * 1e-9)} GB/s each way" if rate else ""
            lines.append(f"{gpu.id}  {links:g} NVLink{'s' * (links != 1)}{each}")
    lines += [""] * bool(lines)
    ids = [gpu.id for gpu in topology.gpus]
    if any(topology.pair(a, b, "p2p_read") for a in ids for b in ids):
        columns: list[Column] = [("", "left", ids)]
        for b in ids:
            cells = [str(topology.pair(a, b, "p2p_read") or "-") for a in ids]
            columns.append((b, "right", cells))
        lines += ["peer access (read), row to column", *render_lines(columns, gap=" ")]
        lines += [
            "NS: not supported, by the chipset (CNS), GPU (GNS), topology (TNS)",
            "",
        ]
    return make_lines_printable("\n".join(lines))


def _matrix(
    topology: Topology,
    name: str,
    cells: dict[tuple[str, str], Estimate],
    slow_pairs: tuple[Slow, ...],
) -> str:
    title, factor = _SHOWN[name]
    marked = {(entry.a, entry.b) for entry in slow_pairs}
    ids = ends(topology, cells)
    rows = [["", *ids]]
    for a in ids:
        row = [a]
        for b in ids:
            cell = cells.get((a, b))
            mark = "!" * ((a, b) in marked)
            row.append("-" if cell is None else f"{mark}{two_decimals(cell.value * factor)}")
        rows.append(row)
    columns = (list(map(make_printable, column)) for column in zip(*rows, strict=True))
    lines = render_lines(
        ((head, "right" if at else "left", cells) for at, (head, *cells) in enumerate(columns)),
        gap=" ",
    )
    return "\n".join([title, *lines]) + "\n"


def _classes(topology: Topology, name: str, cells: dict[tuple[str, str], Estimate]) -> str:
    """A line per class: the number of pairs, their median and range, and the expected rate."""
    _, factor = _SHOWN[name]
    unit = "us" if name == "latency" else "GB/s"
    lines = []
    for kind, pairs in by_class(topology, cells).items():
        values = [cells[pair].value * factor for pair in pairs]
        line = f"  {kind}: {_range(pairs, cells, factor, unit)}"
        promised = [rate for a, b in pairs if (rate := expected(topology, a, b))]
        if promised and name == "bandwidth" and kind != "?":
            rate = median(promised) * factor
            line += (
                f"; link rates promise {two_decimals(rate)}, {100 * median(values) / rate:.0f} %"
                " reached"
            )
        lines.append(line)
    return "\n".join(lines) + "\n"


def _range(pairs: Sequence[tuple[str, str]], cells: Matrix, factor: float, unit: str) -> str:
    """The number of a class's pairs, their median and range; of one measurement its interval."""
    values = [cells[pair].value * factor for pair in pairs]
    one = cells[pairs[0]]
    if len({frozenset(pair) for pair in pairs}) == 1 and all(cells[p] == one for p in pairs):
        known = one.low < one.high
        shown = _interval(one, factor) if known else two_decimals(values[0])
        return f"1 {'pair' if len(pairs) > 1 else 'directed pair'}, median {shown} {unit}"
    spread = f"{two_decimals(min(values))} to {two_decimals(max(values))}"
    count = format_count(len(pairs), "directed pair")
    return f"{count}, median {two_decimals(median(values))} {unit} ({spread})"


def _slow(name: str, slow_pairs: tuple[Slow, ...]) -> str:
    _, factor = _SHOWN[name]
    unit = "us" if name == "latency" else "GB/s"
    lines = [
        f"  ! {entry.a} to {entry.b}: {_interval(entry.estimate, factor)} {unit}, "
        f"others of {entry.kind}: {two_decimals(entry.typical * factor)} {unit}"
        for entry in slow_pairs
    ]
    return "\n".join(["slower than the class by more than the noise:", *lines]) + "\n"


def _interval(cell: Estimate, factor: float) -> str:
    ends = f"{two_decimals(cell.low * factor)}, {two_decimals(cell.high * factor)}"
    return f"{two_decimals(cell.value * factor)} [{ends}]"
