"""Pairs of ranks as jobs of a session: a table for each test and each kind of transfer.

Times are OSU's (docs/pt2pt.md): half a ping-pong; a window of messages and its answer; windows both
ways at once. An iteration holds several of these, and a row's time is that of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from bench.links.exchange import ExchangePattern, exchange
from bench.options.options import TWO_SIDED, Choice, Options, Pairing
from bench.run.contenders import Contender, Job, RankSetup, SizeDependentContender, jobs
from bench.run.work import check
from busbar.errors import Unsupported
from collectives.execution.transport import OneSidedAccess
from collectives.schedule.layout import Elements
from collectives.schedule.schedule import Schedule
from reports.records.measurement import Record

# OSU goes 10,000 times there and back up to so many bytes and 1,000 times above; here these are the
# trips of one iteration, which is run often.
_SMALL_BYTES, _TRIPS, _LARGE_TRIPS = 8192, 100, 10
_TITLES: Mapping[str, str] = {
    "latency": "one way between two ranks",
    "bandwidth": "windows of messages one way between two ranks",
    "bidirectional_bandwidth": "windows of messages both ways between two ranks",
}


def build_jobs(wanted: Sequence[Options], ranks: RankSetup) -> list[Job]:
    """The jobs of a command: the tests of pairs, or `bench.run.contenders.jobs`."""
    first = wanted[0]
    if first.pairing is not None:
        return pair_jobs(first, first.pairing, ranks.nranks)
    return jobs(wanted, ranks)


def pair_jobs(options: Options, pairing: Pairing, nranks: int) -> list[Job]:
    """The tests that were asked for, one way of moving bytes after the other.

    Raises Unsupported for fewer ranks than the pairs need.
    """
    most = nranks // 2
    count = most if pairing.pairs is None else pairing.pairs
    if not 0 < count <= most:
        count = max(1, count)
        what = "a pair" if pairing.pairs is None else f"--pairs {count}"
        few = "there is 1" if nranks == 1 else f"there are {nranks}"
        start = f"--ranks {2 * count} (or mpirun -n {2 * count}) starts them"
        raise Unsupported(f"{what} takes {2 * count} ranks, and {few}; {start}")
    # As osu_mbw_mr: with ranks in blocks by host, each pair crosses between two halves.
    pairs = [(rank, rank + most) for rank in range(count)]
    sweeps = []
    for test in pairing.tests:
        for way in options.algorithms:
            parameters = {} if pairing.pairs is None else {"pairs": pairing.pairs}
            if test != "latency" and pairing.window != Pairing.window:
                parameters["window"] = pairing.window
            named = replace(way, parameters=tuple(parameters.items()))
            small, large = (
                _Exchange(options, pairing, pairs, test, named, nranks, trips)
                for trips in (_TRIPS, _LARGE_TRIPS)
            )
            chosen = SizeDependentContender(small.label, [(0, small), (_SMALL_BYTES + 1, large)])
            notes = check(small.spec, options, nranks)
            one = chosen if test == "latency" else small
            sweeps.append(Job(small.spec, replace(options, collective=test), [one], notes))
    return sweeps


class _Exchange(Contender):
    """A way of moving bytes in a test, so many ``trips`` an iteration where one waits for another.

    ``spec``: the test as a collective.
    """

    def __init__(
        self,
        options: Options,
        pairing: Pairing,
        pairs: list[tuple[int, int]],
        test: str,
        way: Choice,
        nranks: int,
        trips: int,
    ) -> None:
        both, alone = test == "bidirectional_bandwidth", test == "latency"
        if way.name != TWO_SIDED:
            self.reach = OneSidedAccess(way.name, trips if alone else 1)
        if alone and self.reach is None:
            self._made, spec = exchange(ExchangePattern(chained=True), pairs, nranks, trips)
            self.holds = 2 * trips
        else:
            n = 1 if alone else pairing.window
            # Whoever puts knows from its flush that all has arrived, and needs no answer.
            answered = self.reach is None and not both
            # One that gets is the first of its pair, as one that puts or sends is.
            ends = [(b, a) for a, b in pairs] if way.name == "get" else pairs
            how = ExchangePattern(both=both, messages=n, answered=answered)
            self._made, spec = exchange(how, ends, nranks)
            self.holds = trips if alone else n
        ways = 1 if alone else len(pairs) * (1 + both)
        self.spec = replace(spec, name=test, title=_TITLES[test], bus_factor=lambda n: float(ways))
        super().__init__(self.spec, options, way, nranks)

    def schedule(self, root: int) -> Schedule:
        """The exchange, which has no root."""
        self._schedules[root] = self._made
        return self._made

    def traffic(self, elements: Elements, itemsize: int, root: int) -> tuple[int, int]:
        """See `Contender.traffic`."""
        sent, received = super().traffic(elements, itemsize, root)
        times = 1 if self.reach is None else self.reach.times
        return sent * times, received * times


def each(record: Record, holds: int) -> Record:
    """A record whose times are those of one of what an iteration holds.

    What was counted is of whole iterations, and left out then.
    """
    if holds == 1:
        return record

    def one(times: Sequence[float]) -> tuple[float, ...]:
        return tuple(round(t / holds, 12) for t in times)  # to the picosecond, as measured

    return structs.replace(
        record,
        times_s=one(record.times_s),
        per_rank_s=tuple(map(one, record.per_rank_s)),
        also={name: one(times) for name, times in record.also.items()},
        sent_bytes=None,
        received_bytes=None,
        total_bytes=None,
        per_iteration=holds,
    )
