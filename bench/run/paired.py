"""Pairs of ranks as jobs of a session: a table for each test and each kind of transfer.

Times are OSU's (docs/pt2pt.md): half a ping-pong; a window of messages and its answer; windows both
ways at once. An iteration holds several of these, and a row's time is that of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from bench.links.exchange import ExchangePattern, exchange
from bench.options.options import Choice, Options
from bench.options.pairs import TWO_SIDED, Pairing
from bench.run.catalogue import NOTHING_MISSING, Chosen, Job, jobs
from bench.run.work import check
from busbar.errors import Unsupported
from collectives.execution.transport import Reach
from collectives.schedule.layout import Elements
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective
from reports.records.record import Sample

# OSU goes 10,000 times there and back up to so many bytes and 1,000 times above; here these are the
# trips of one iteration, which is run often.
_SMALL_BYTES, _TRIPS, _LARGE_TRIPS = 8192, 100, 10
_TITLES: Mapping[str, str] = {
    "latency": "one way between two ranks",
    "bandwidth": "windows of messages one way between two ranks",
    "bidirectional_bandwidth": "windows of messages both ways between two ranks",
}


def todo(
    wanted: Sequence[Options],
    nranks: int,
    transport: str,
    missing: Mapping[str, str] = NOTHING_MISSING,
    *,
    oversubscribed: bool | None = None,
) -> list[Job]:
    """The jobs of a command: the tests of pairs, or `bench.run.catalogue.jobs`."""
    first = wanted[0]
    if first.pairing is not None:
        return pair_jobs(first, first.pairing, nranks)
    return jobs(wanted, nranks, transport, missing, oversubscribed=oversubscribed)


def pair_jobs(options: Options, pairing: Pairing, nranks: int) -> list[Job]:
    """The tests that were asked for, one way of moving bytes after the other.

    Raises Unsupported for fewer ranks than the pairs need.
    """
    most = nranks // 2
    count = most if pairing.pairs is None else pairing.pairs
    if not 0 < count <= most:
        count = max(1, count)
        raise Unsupported(f"--pairs {count} takes {2 * count} ranks; there are {nranks}")
    # As osu_mbw_mr: with ranks in blocks by host, each pair crosses between two halves.
    pairs = [(rank, rank + most) for rank in range(count)]
    found = []
    for test in pairing.tests:
        for way in options.algorithms:
            small, large = (
                _what(test, way.name, pairing, pairs, nranks, trips)
                for trips in (_TRIPS, _LARGE_TRIPS)
            )
            chosen = _Exchange(small, options, _named(test, way, pairing), nranks)
            if test == "latency":
                chosen.large = _Exchange(large, options, way, nranks)
            notes = check(small.spec, options, nranks)
            found.append(Job(small.spec, replace(options, collective=test), [chosen], notes))
    return found


def _named(test: str, way: Choice, pairing: Pairing) -> Choice:
    """A way with what is not as usual."""
    told = {} if pairing.pairs is None else {"pairs": pairing.pairs}
    if test != "latency" and pairing.window != Pairing.window:
        told["window"] = pairing.window
    return replace(way, parameters=tuple(told.items()))


class _What(NamedTuple):
    """A test between pairs; see `Chosen` for ``holds`` and ``reach``."""

    schedule: Schedule
    spec: Collective
    holds: int
    reach: Reach | None


def _what(
    test: str, way: str, pairing: Pairing, pairs: list[tuple[int, int]], nranks: int, trips: int
) -> _What:
    both, alone = test == "bidirectional_bandwidth", test == "latency"
    reach = None if way == TWO_SIDED else Reach(way, trips if alone else 1)
    if alone and reach is None:
        schedule, spec = exchange(ExchangePattern(chained=True), pairs, nranks, trips)
        holds = 2 * trips
    else:
        n = 1 if alone else pairing.window
        # Whoever puts knows from its flush that all has arrived, and needs no answer.
        how = ExchangePattern(both=both, messages=n, answered=reach is None and not both)
        # One that gets is the first of its pair, as one that puts or sends is.
        ends = [(b, a) for a, b in pairs] if way == "get" else pairs
        schedule, spec = exchange(how, ends, nranks)
        holds = trips if alone else n
    ways = 1 if alone else len(pairs) * (1 + both)
    named = replace(spec, name=test, title=_TITLES[test], bus_factor=lambda n: float(ways))
    return _What(schedule, named, holds, reach)


class _Exchange(Chosen):
    """A way of moving bytes in a test. ``large``: with fewer trips, for large messages."""

    large: _Exchange | None = None

    def __init__(self, what: _What, options: Options, choice: Choice, nranks: int) -> None:
        self._made, self.holds, self.reach = what.schedule, what.holds, what.reach
        super().__init__(what.spec, options, choice, nranks)
        self.parameters["per_iteration"] = what.holds

    def at(self, nbytes: int) -> Chosen:
        """What runs at a size."""
        return self if self.large is None or nbytes <= _SMALL_BYTES else self.large

    def schedule(self, root: int) -> Schedule:
        """The exchange, which has no root."""
        self._schedules[root] = self._made
        return self._made

    def prove(self) -> None:
        """See `Chosen.prove`."""
        super().prove()
        if self.large is not None:
            self.large.prove()

    def digests(self) -> list[str]:
        """See `Chosen.digests`."""
        return super().digests() + ([] if self.large is None else self.large.digests())

    def traffic(self, elements: Elements, itemsize: int, root: int) -> tuple[int, int]:
        """See `Chosen.traffic`."""
        sent, received = super().traffic(elements, itemsize, root)
        times = 1 if self.reach is None else self.reach.times
        return sent * times, received * times


def each(sample: Sample, holds: int) -> Sample:
    """A sample whose times are those of one of what an iteration holds.

    What was counted is of whole iterations, and left out then.
    """
    if holds == 1:
        return sample
    # To the picosecond, as they were measured.
    times = tuple(round(t / holds, 12) for t in sample.times)
    own = tuple(tuple(round(t / holds, 12) for t in of) for of in sample.per_rank)
    also = {name: tuple(round(t / holds, 12) for t in of) for name, of in sample.also.items()}
    whole = replace(sample, times=times, per_rank=own, also=also)
    return replace(whole, sent=None, received=None, total=None)
