"""The growth of time with the number of ranks, as an exponent, and the verdict on the law of ports.

No I/O.

By the textbook, time is proportional to the bytes through the busiest port: 2n(P-1) for a parameter
server, 2n(P-1)/P for a ring. The two differ by a factor of P, so their exponents in P differ by
exactly 1 over any rank counts. A measured exponent within a half of one of them follows that law
and not the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.units import format_size
from reports.records.cores import per_core_text
from reports.records.measurement import Measurement, listed
from reports.statistics.distributions import student_quantile
from reports.statistics.inference import Samples, drawn_medians

#: Bytes through the busiest port in units of n, by the textbook, from P.
VOLUMES: Mapping[str, Callable[[int], float]] = {
    "ps": lambda p: 2.0 * (p - 1),
    "ring": lambda p: 2.0 * (p - 1) / p,
    "sharded_ps": lambda p: 2.0 * (p - 1) / p,
}
_HALF = 0.5  # of what the exponents of the two laws differ by
_TAIL = 0.025
_FEWEST = 6  # values that a median needs to have an interval


def total(ranks: int) -> float:
    """The least volume over all links of an all-reduce, in units of n: 2(P-1)."""
    return 2.0 * (ranks - 1)


@dataclass(frozen=True)
class Growth:
    """Time ~ P to the ``exponent`` at one size, by least squares of the logarithms over ``ranks``.

    ``low``, ``high``: its 95 % interval, None where nothing is known of it. ``port``, ``links``:
    the exponents, over the same rank counts, of the bytes through the busiest port by the textbook,
    and over all links.
    """

    algorithm: str
    size: int
    ranks: tuple[int, ...]
    exponent: float
    low: float | None
    high: float | None
    port: float
    links: float

    def follows(self, law: float) -> bool | None:
        """Whether it goes with this exponent: surely, surely not, or None."""
        low, high = (self.exponent if end is None else end for end in (self.low, self.high))
        if law - _HALF < low and high < law + _HALF:
            return None if self.low is None else True
        return False if high < law - _HALF or low > law + _HALF else None

    @property
    def text(self) -> str:
        """``ring as P^0.31 (0.25 to 0.36; by its port P^0.29)``."""
        within = "" if self.low is None else f"{self.low:.2f} to {self.high:.2f}; "
        return f"{self.algorithm} as P^{self.exponent:.2f} ({within}by its port P^{self.port:.2f})"


def grown(
    algorithm: str, size: int, points: Mapping[int, Samples], volume: Callable[[int], float]
) -> Growth | None:
    """The growth over rank counts (each with its samples, one a run); None for fewer than two.

    The interval holds two: percentiles over medians drawn anew from the iterations
    (`reports.statistics.inference.drawn_medians`), and, from three rank counts on, Student's t on
    what is left of time over volume beside a power of P, since what differs from launch to launch
    is in no iteration.
    """
    counts = sorted(points)
    if len(counts) < 2:
        return None
    x = np.log(counts)
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    times = np.log(
        [float(np.median(np.concatenate([*map(np.asarray, points[n])]))) for n in counts]
    )
    volumes = np.log([volume(n) for n in counts])
    exponent, port = float(weights @ times), float(weights @ volumes)
    bounds = [*_by_iterations([points[n] for n in counts], weights)]
    if len(counts) > 2:
        left = (times - volumes) - (times - volumes).mean() - (exponent - port) * (x - x.mean())
        error = sqrt(float(left @ left) / (len(counts) - 2) * float(weights @ weights))
        off = student_quantile(_TAIL, len(counts) - 2) * error
        bounds += [exponent - off, exponent + off]
    low, high = (min(bounds), max(bounds)) if bounds else (None, None)
    links = float(weights @ np.log([total(n) for n in counts]))
    return Growth(algorithm, size, tuple(counts), exponent, low, high, port, links)


def _by_iterations(points: Sequence[Samples], weights: NDArray[np.float64]) -> Sequence[float]:
    if any(sum(map(len, runs)) < _FEWEST for runs in points):
        return ()
    random = np.random.default_rng(0)
    drawn = np.log(np.stack([drawn_medians(runs, random) for runs in points]))
    return [float(end) for end in np.quantile(weights @ drawn, [_TAIL, 1 - _TAIL])]


class Verdict(NamedTuple):
    """The verdict on the law in one line, and its basis."""

    headline: str
    details: str

    def __str__(self) -> str:
        """Both."""
        return f"{self.headline}. {self.details}"


def verdict(growths: Sequence[Growth], rows: Sequence[Measurement]) -> Verdict:
    """Whether the law holds, or what cannot show it and why, in words.

    ``growths``: one an algorithm at one size and over the same rank counts; ``rows``: what they
    were measured by. There is a verdict on a parameter server (``ps``) beside another.
    """
    if len(growths) < 2 or all(one.algorithm != "ps" for one in growths):
        return Verdict(
            "No verdict on the law",
            "It takes a parameter server and a ring, each on several rank counts:"
            " -A ring,ps,sharded_ps --ranks 2,4,8,16.",
        )
    first, last = growths[0].ranks[0], growths[0].ranks[-1]
    texts = "; ".join(one.text for one in growths)
    text = f"At {format_size(growths[0].size)} from {first} to {last} ranks time grows: {texts}."
    follow = [one.follows(one.port) for one in growths]
    if all(follow):
        return Verdict("The law holds: time goes with the bytes through the busiest port", text)
    if any(r.worksharing for r in rows):
        why = "work of one rank may have been carried out by another"
        texts = "so that bytes belong to no port; measure again."
        return Verdict(f"These rows cannot show the law: {why}", f"{text} {texts}")
    why, whose = what_is_shared(rows)
    if why:
        return Verdict(
            f"This machine cannot show the law: {why}", f"{text} {whose}, {_seen(growths)}."
        )
    if False in follow:
        return Verdict("The law does not hold here", f"{text} The records do not say why.")
    wide = "The intervals are too wide to tell one law from the other"
    remedy = "take more iterations, or more rank counts."
    return Verdict("No verdict on the law", f"{text} {wide}; {remedy}")


def what_is_shared(rows: Sequence[Measurement]) -> tuple[str, str]:
    """Why times need not go with the bytes of a port; empty where nothing is known to be shared."""
    crowded = [r for r in rows if r.oversubscribed]
    nodes = max((_nodes(r) for r in rows), default=1)
    if crowded and nodes == 1:
        most = max(crowded, key=lambda r: (r.ranks_per_core or 0.0, r.ranks or 0))
        cores = round((most.ranks or 0) / (most.ranks_per_core or 1.0))
        shared = f"{cores} core{'s' * (cores != 1)}"
        whose = f"All work shares {shared}, whatever port it belongs to"
        return f"{most.ranks} ranks share {shared}", whose
    if crowded:
        whose = "All work of a node shares its cores, whatever port it belongs to"
        return per_core_text([r.ranks_per_core for r in crowded]), whose
    if nodes == 1:
        whose = "All bytes share that host's memory, whatever port they belong to"
        return "all ranks are on one host", whose
    return "", ""


def _seen(growths: Sequence[Growth]) -> str:
    """The consequence of sharing, and whether it was measured."""
    links = growths[0].links
    goes = [one.follows(links) for one in growths]
    seen = "or more" if False in goes else "which nothing here denies"
    seen = "as they do" if all(goes) else seen
    law = f"with the bytes of all links together, as P^{links:.2f}"
    return f"so that all times should go {law}, {seen}"


def _nodes(row: Measurement) -> int:
    each = listed(row.run.environment.get("ranks_per_node"))
    return max(len(each), len(row.run.hosts), 1)
