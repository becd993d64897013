"""Utilisation of links, from the counters of switches' ports; the picture of a cluster. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from bench.cluster.network import Cable, Network
from busbar.errors import Unavailable
from busbar.units import format_link_rate

#: Prints the counters of all devices in the switches' namespace.
COUNTERS = ("ip", "-s", "-j", "link", "show")


class Use(NamedTuple):
    """The utilisation (0 to 1) of a link between host and switch, or between switches.

    ``up``: away from its lower end, the host's side; ``down``: towards it.
    """

    cable: Cable
    up: float
    down: float


def counters(text: str) -> dict[str, tuple[int, int]]:
    """Bytes that each network device of a switch received and sent, by the device's name.

    ``text``: what ``ip -s -j link show`` printed. Raises Unavailable for any other text.
    """
    try:
        return {
            str(one["ifname"]): tuple(int(one["stats64"][way]["bytes"]) for way in ("rx", "tx"))  # type: ignore[misc]
            for one in json.loads(text)
        }
    except (ValueError, KeyError, TypeError):
        raise Unavailable("ip -s -j link show: no counters of links in what it printed") from None


def used(
    network: Network,
    before: Mapping[str, tuple[int, int]],
    after: Mapping[str, tuple[int, int]],
    seconds: float,
) -> list[Use]:
    """The utilisation of each cable in ``seconds``. A port receives what its host sends."""
    found = []
    for cable in network.cables():
        rx, tx = (
            (after[cable.device][way] - before[cable.device][way]) / seconds for way in (0, 1)
        )
        # An uplink's device is at its lower end, a host's at its upper.
        up, down = (rx, tx) if cable.host is not None else (tx, rx)
        found.append(Use(cable, up / cable.up, down / cable.down))
    return found


def said(uses: Sequence[Use], seconds: float) -> str:
    """A line about the busiest and the median link, by the busier direction of each."""
    shares = [max(use.up, use.down) for use in uses]
    most = max(shares)
    busiest = uses[shares.index(most)]
    sends = busiest.up >= busiest.down
    way = "out of" if sends else "into"
    rate = busiest.cable.up if sends else busiest.cable.down
    return (
        f"links, in {seconds:.3g} s with start and end: busiest {way} {busiest.cable.device},"
        f" {100 * most:.3g} % of {format_link_rate(rate)};"
        f" median {100 * median(shares):.3g} %"
    )


_WIDE, _HIGH, _MARGIN = 78, 34, 24
_ROWS = {"spine": 40, "leaf": 130, "host": 240}
_UNUSED = "#b5b5b5"
# From idle to full: viridis reversed, as in the simulator's pictures.
_SCALE = ((253, 231, 37), (94, 201, 98), (33, 145, 140), (59, 82, 139), (68, 1, 84))


def picture(network: Network, uses: Sequence[Use] = ()) -> str:
    """Draw the network: two lines per link, up and down, coloured by utilisation."""
    busy = {use.cable.device: use for use in uses}
    place = [_MARGIN + (host + 0.5) * _WIDE for host in range(network.hosts)]
    leaves = [
        fmean(x for host, x in enumerate(place) if network.rack(host) == rack)
        for rack in range(network.racks)
    ]
    middle = fmean(leaves)
    lines, boxes, cables = [], [], network.cables()
    for cable in cables:
        if cable.host is not None:
            ends = (place[cable.host], _ROWS["host"]), (leaves[cable.rack], _ROWS["leaf"])
        else:
            ends = (leaves[cable.rack], _ROWS["leaf"]), (middle, _ROWS["spine"])
        lines += _cable(cable, *ends, busy)
    if network.racks > 1:
        boxes += _box(middle, _ROWS["spine"], "spine", "#b8d98a")
    for rack, x in enumerate(leaves):
        boxes += _box(x, _ROWS["leaf"], network.leaf(rack), "#b8d98a")
    for host, x in enumerate(place):
        cable = cables[host]
        slow = min(cable.up, cable.down) < network.rate
        boxes += _box(x, _ROWS["host"], network.name(host), "#f3b6ab" if slow else "#dfe7f2")
        for line, rate in enumerate(dict.fromkeys((cable.up, cable.down))):
            boxes.append(_text(x, _ROWS["host"] + 32 + 12 * line, format_link_rate(rate), 10))
    width, height = 2 * _MARGIN + network.hosts * _WIDE, _ROWS["host"] + 90
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {max(width, 360)} {height}"'
            ' font-family="sans-serif">',
            '<rect width="100%" height="100%" fill="white"/>',
            *lines,
            *boxes,
            *(_legend(height) if uses else []),
            "</svg>\n",
        ]
    )


def _cable(
    cable: Cable, low: tuple[float, float], high: tuple[float, float], busy: Mapping[str, Use]
) -> list[str]:
    """Two parallel lines: up on the left, down on the right."""
    use = busy.get(cable.device)
    found = []
    for shift, way, rate, share in (
        (-2.5, "up", cable.up, use.up if use else None),
        (2.5, "down", cable.down, use.down if use else None),
    ):
        title = f"{cable.device} {way}, {format_link_rate(rate)}"
        title += f": {100 * share:.3g} %" if share is not None else ""
        found.append(
            f'<line x1="{low[0] + shift:.1f}" y1="{low[1]}" x2="{high[0] + shift:.1f}"'
            f' y2="{high[1]}" stroke={quoteattr(_colour(share))} stroke-width="3">'
            f"<title>{escape(title)}</title></line>"
        )
    return found


def _colour(share: float | None) -> str:
    if share is None:
        return _UNUSED
    at = np.linspace(0, 1, len(_SCALE))
    mixed = (round(np.interp(share, at, part)) for part in np.transpose(_SCALE))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _box(x: float, y: float, label: str, colour: str) -> list[str]:
    wide = _WIDE - 14
    return [
        f'<rect x="{x - wide / 2:.1f}" y="{y - _HIGH / 2}" width="{wide}" height="{_HIGH}" rx="5"'
        f' fill="{colour}" stroke="#444444"/>',
        _text(x, y + 4, label, 12),
    ]


def _text(x: float, y: float, text: str, size: int) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" font-size="{size}" text-anchor="middle">{escape(text)}</text>'
    )


def _legend(height: int) -> list[str]:
    y = height - 34
    steps = [
        f'<rect x="{_MARGIN + 12 * i}" y="{y}" width="12" height="10" fill="{_colour(i / 10)}"/>'
        for i in range(11)
    ]
    return [*steps, _text(_MARGIN + 66, y + 24, "0 to 100 % of the link's rate", 10)]
