"""The machine section of a page: an SVG picture of links, and the measured matrices."""

from __future__ import annotations

from typing import Any

from reports.analysis.machine import MachinePart, MatrixShown, shown
from reports.page.markup import details, section, table, text
from topology.model.slow_units import Pairs

_KINDS = {
    "nvlink": "NVLink",
    "c2c": "C2C",
    "pcie": "PCIe",
    "cpu": "between CPUs",
    "network": "network",
}
_MOST_CELLS = 64 * 64


def machine_part(machine: MachinePart | None) -> str:
    """The section as HTML; empty without a machine."""
    if machine is None:
        return ""
    parts = [] if machine.drawing is None else [_picture(machine)]
    if machine.matrices:
        parts.append(f'<div class="plots">{"".join(map(_matrix, machine.matrices))}</div>')
    return section("machine", "The machine", *parts)


def matrix_data(machine: MachinePart | None) -> list[dict[str, Any]]:
    """The matrices as JSON data for the script that draws them."""
    return [
        {
            "name": m.name,
            "unit": seen.unit,
            "better": "more" if m.more_is_better else "less",
            "ids": m.ids,
            "values": [
                [None if c is None else float(f"{c[0]:.5g}") for c in row] for row in seen.cells
            ],
            "hover": [
                [_cell_text(m, seen, a, b) for b in range(len(m.ids))] for a in range(len(m.ids))
            ],
        }
        for m in (machine.matrices if machine else ())
        for seen in (shown(m),)
    ]


def _cell_text(m: Pairs, seen: MatrixShown, a: int, b: int) -> str:
    cell = seen.cells[a][b]
    if cell is None:
        return f"{text(m.ids[a])} to {text(m.ids[b])}: not measured"
    slow = "<br>slow for a pair of its class" if (a, b) in m.slow else ""
    low, high = cell[1:]
    return (
        f"{text(m.ids[a])} to {text(m.ids[b])}: {cell[0]:.4g} {seen.unit}"
        f"<br>95 %: {low:.4g} to {high:.4g}{slow}"
    )


def _matrix(m: Pairs) -> str:
    title, unit, cells = shown(m)
    values = [(cell[0], a, b) for a, row in enumerate(cells) for b, cell in enumerate(row) if cell]
    least, most = min(values), max(values)
    label = (
        f"{title}: {least[0]:.4g} {unit} ({m.ids[least[1]]} to {m.ids[least[2]]}) to "
        f"{most[0]:.4g} {unit} ({m.ids[most[1]]} to {m.ids[most[2]]})"
    )
    slow = [f"{m.ids[a]} to {m.ids[b]}" for a, b in sorted(m.slow)]
    label += (
        f"; slow for their class: {', '.join(slow)}."
        if slow
        else "; no pair is slow for its class."
    )
    numbers = ""
    if len(m.ids) ** 2 <= _MOST_CELLS:
        rows = (
            [
                m.ids[a],
                *(
                    "" if c is None else f"{'!' * ((a, b) in m.slow)}{c[0]:.4g}"
                    for b, c in enumerate(row)
                ),
            ]
            for a, row in enumerate(cells)
        )
        caption = f"{title} ({unit}); !: slow for its class"
        numbers = details("Numbers", table(caption, ["from / to", *m.ids], rows))
    return (
        f'<figure class="plot"><h3>{text(title)} ({text(unit)})</h3>'
        f'<div class="canvas square" id="matrix-{text(m.name)}" role="group" '
        f'aria-label="{text(label)}"></div>'
        f"<figcaption>{text(label)}</figcaption>{numbers}</figure>"
    )


def _picture(machine: MachinePart) -> str:
    drawing, shapes = machine.drawing, machine.shapes
    assert drawing is not None and shapes is not None
    kinds = [k for k in _KINDS if any(e.kind == k for e in drawing.edges)]
    legend = "".join(f'<li class="{k}">{_KINDS[k]}</li>' for k in kinds)
    label = (
        f"{len(drawing.nodes)} devices and {len(drawing.edges)} links, according to "
        f"{', '.join(machine.sources)}"
    )
    devices = table(
        "Devices", ["device", "facts"], ((n.id, "; ".join(n.hover[1:])) for n in drawing.nodes)
    )
    links = table("Links", ["link", "what"], (_halves(e.hover) for e in drawing.edges))
    return (
        f'<figure class="plot"><h3>Topology</h3><ul class="legend" aria-label="Kinds of '
        f'links">{legend}</ul>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="Topology, scrolls sideways">'
        f'<svg class="topology" role="img" aria-label="{text(label)}" style="max-width: '
        f'{shapes.width:.0f}px; min-width: {0.6 * shapes.width:.0f}px" '
        f'viewBox="0 0 {shapes.width:.0f} {shapes.height:.0f}">{shapes.markup}</svg></div>'
        f"<figcaption>{text(label)}. A thicker line carries more; pointing at a box or a line "
        "tells its facts.</figcaption>"
        f"{details('Devices and links as text', devices + links)}</figure>"
    )


def _halves(hover: str) -> tuple[str, str]:
    link, _, what = hover.partition(": ")
    return link, what
