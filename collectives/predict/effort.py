"""Estimates of the memory and work of a simulation, made before it begins.

The constants are bytes and operations as counted on the algorithms of the catalogue. A test checks
that the measured memory is within a factor of `FACTOR` of the estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log2
from typing import Any, NamedTuple

import numpy as np

from busbar.errors import Unsupported
from busbar.units import format_bytes
from collectives.formats.load import draft, is_file
from collectives.predict.flows import Flows, SymmetryClasses, Traffic, traffic_of
from collectives.predict.machine import Network

#: Larger simulations are refused: bytes, and operations as in `Effort`.
MOST_BYTES, MOST_WORK = 8 << 30, 4e8
#: Measured memory is within this factor of the estimate.
FACTOR = 2.0
_SAMPLES = (32, 64, 128, 256)
#: Counts are extrapolated only for more ranks than this.
LEAST_ESTIMATED = 2 * _SAMPLES[-1]
_ROUTED = 1024


class Counts(NamedTuple):
    """Numbers of messages of a schedule.

    ``messages``: counted once for each distinct set of pairs, as each set is routed once.
    ``volumes``: counted once for each distinct step.
    """

    messages: float
    volumes: float


class Effort(NamedTuple):
    """The memory of a simulation in bytes (beyond the program's own), and its work.

    Reading a message from a step counts as one unit of work, routing a message as five.
    """

    nbytes: float
    work: float

    def check(self, what: str) -> None:
        """Raise Unsupported if a simulation would need too much memory or too many messages.

        ``what``: what is to be simulated, for the message.
        """
        if self.nbytes > MOST_BYTES:
            raise Unsupported(
                f"{what} would take about {format_bytes(self.nbytes)} of memory to simulate; at"
                f" most {format_bytes(MOST_BYTES)} are taken"
            )
        if self.work > MOST_WORK:
            raise Unsupported(
                f"{what} would take about {self.work:.1e} messages to simulate; at most"
                f" {MOST_WORK:.1e} are gone through"
            )


def counted(traffic: Traffic) -> Counts:
    """The counts of known traffic."""
    return Counts(traffic.messages, traffic.volumes)


def extrapolate(
    collective: str, name: str, nranks: int, parameters: Mapping[str, Any]
) -> Counts | None:
    """Estimate the counts of an algorithm on many ranks, from its counts on 32 to 256 ranks.

    None up to 512 ranks, for files, and if the parameters fit only one number of ranks.
    """
    if nranks <= LEAST_ESTIMATED or is_file(name):
        return None

    def count(n: int) -> Counts:
        return counted(traffic_of(draft(collective, name, n, **parameters)))

    try:
        return Counts(*grown(count, nranks))
    except Unsupported:
        return None


def grown(count: Callable[[int], Sequence[float]], nranks: int) -> list[float]:
    """Extrapolate counts through those of 32 to 256 ranks, by a + b·n + c·n·lg n + d·n²."""
    small = np.array([count(n) for n in _SAMPLES], float)
    basis = np.array([[1, n, n * log2(n), n * n] for n in (*_SAMPLES, nranks)])
    weights = np.linalg.solve(basis[:-1], small)
    # A weight that is only a rounding error must not grow with n².
    weights[np.abs(weights) < 1e-9 * np.abs(weights).max(axis=0, initial=0.0)] = 0.0
    large: list[float] = np.maximum(basis[-1] @ weights, small[-1]).tolist()
    return large


def estimate(counts: Counts, nranks: int, machine: Network) -> Effort:
    """The effort of reading and routing a schedule's messages and finding classes."""
    width = 0.0  # mean length of routes; not needed for few routes
    if counts.messages > _ROUTED:
        random = np.random.default_rng(0)
        ends = random.integers(0, min(nranks, machine.nranks), (2, _ROUTED))
        # A route is stored as one number per link, or three numbers per dimension.
        width = machine.routes(*ends).work / _ROUTED
    nbytes = 60 * len(machine.links) + 160 * nranks + counts.messages * (100 + 8 * width)
    return Effort(nbytes, counts.volumes + 5 * counts.messages)


def estimate_engine(flows: Flows, traffic: Traffic, classes: SymmetryClasses) -> float:
    """Bytes that the stages of all patterns and the engine need in addition to existing data."""
    ranks, rows = (int(of.max(initial=-1)) + 1 for of in (classes.rank, classes.message))
    share = rows / max(1, len(flows))
    cells = [flows.routes.cells(flows.rows(e)) for e in range(len(traffic.exchanges))]
    of_steps = sum(cells[part.exchange] for p in traffic.patterns for part in p.parts)
    return (
        rows * 60
        + share * (traffic.volumes * 140 + 24 * sum(cells) + 12 * of_steps)
        + ranks * (400 + 50 * len(traffic.patterns))
    )
