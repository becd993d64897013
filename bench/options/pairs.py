"""The options of ``bench.pt2pt``, named as OSU's and IMB's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bench.options.argument_types import add_check, at_least, names
from busbar.arguments import Add
from busbar.units import MOST_RANKS

PT2PT = "pt2pt"
TITLE = "latency, bandwidth and message rate between pairs of ranks"
TESTS = ("latency", "bandwidth", "bidirectional_bandwidth")
TWO_SIDED = "two_sided"
TRANSFERS = (TWO_SIDED, "put", "get")
"""How bytes travel in a pair: as messages, or one rank reaches into the other's memory."""
#: What collectives' command lines have beside, as it is here.
DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "tuning": None,
        "nonblocking": False,
        "grid": None,
        "op": "sum",
        "datatype": "uint8",
        "root": 0,
        "placement": "out",
        "limit": "none",
    }
)


@dataclass(frozen=True)
class Pairing:
    """The tests of pairs, messages per window, and pairs at once (None: all)."""

    tests: tuple[str, ...]
    window: int = 64
    pairs: int | None = None


def add_options(add: Add) -> None:
    """Add the options of what is measured."""
    add(
        "--tests NAMES",
        f"of {', '.join(TESTS)}, joined by commas (default: all)",
        type=lambda text: tuple(dict.fromkeys(names(text, TESTS, "test"))),
        default=TESTS,
    )
    add("-A --algorithm NAMES", "two_sided (messages, the default), put or get (one-sided), or all")
    add(
        "-W --window N",
        "messages in flight in bandwidth tests (default 64, as OSU's)",
        type=at_least(1, "messages", 4096),
        default=64,
    )
    add(
        "--pairs N",
        "pairs that run at once; of P ranks, rank i is paired with rank i + P/2 (default: all)",
        type=at_least(1, "pairs", MOST_RANKS),
    )
    add_check(add)
