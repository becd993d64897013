"""Utilisation of each link, from the counters of the switches' ports. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from bench.cluster.network import Cable, Network
from busbar.errors import Unavailable
from busbar.units import format_link_rate

#: Prints the counters of all devices in the switches' namespace.
COUNTERS = ("ip", "-s", "-j", "link", "show")


class Use(NamedTuple):
    """The utilisation (0 to 1) of a link: away from its lower end, and towards it."""

    cable: Cable
    up: float
    down: float


def counters(text: str) -> dict[str, tuple[int, int]]:
    """Bytes that each device of a switch received and sent. Raises Unavailable for other text."""
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
