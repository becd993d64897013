"""A campaign's rates as records, which ``reports`` reads like those of any benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.qualify.model import ALLREDUCE, BACKWARD, BOTH, FORWARD, WAYS, Observation
from bench.qualify.store import Header
from collectives.schedule import catalogue
from reports.readers.codec import to_jsonl
from reports.records.measurement import Measurement, Run

# For each measure: the name of the test in `bench.pt2pt`.
_TESTS = {
    FORWARD: "bandwidth",
    BACKWARD: "bandwidth",
    BOTH: "bidirectional_bandwidth",
    ALLREDUCE: "allreduce",
}


def records(header: Header, observations: Sequence[Observation]) -> bytes:
    """The lines of a record file: a run for each launch with rates, a row for each measure."""
    ordered = sorted(observations, key=lambda one: one.launch.number)
    return to_jsonl(row for one in ordered for row in _rows(header, one))


def _rows(header: Header, one: Observation) -> Iterator[Measurement]:
    launch, settings = one.launch, header.settings
    per_host = settings.ranks or 1
    environment = {
        "started": header.started,
        "hosts": list(launch.hosts),
        "ranks_per_node": [per_host] * len(launch.hosts),
        "qualify": {"launch": launch.number, "stage": launch.stage.value},
    }
    run = Run(
        "", launch.number, "", program="bench.qualify", hosts=launch.hosts, environment=environment
    )
    for measure, values in one.rates.items():
        test, ways = _TESTS[measure], WAYS.get(measure, 1)
        pairs = per_host if len(launch.hosts) == 2 else 1
        ranks = per_host * len(launch.hosts)
        # Data of pairs crosses one link once.
        factor = catalogue.spec("allreduce").bus_factor(ranks) if measure == ALLREDUCE else 1.0
        yield Measurement(
            run=run,
            collective=test,
            algorithm="ring" if measure == ALLREDUCE else measure,
            transport=settings.transport,
            dtype="float32" if measure == ALLREDUCE else "uint8",
            op="sum" if measure == ALLREDUCE else "none",
            ranks=ranks,
            size=settings.nbytes,
            count=settings.nbytes // (4 if measure == ALLREDUCE else 1),
            root=-1,
            bus_factor=factor,
            alg_factor=float(ways * pairs),
            times_s=tuple(settings.nbytes * pairs / rate for rate in values),
            timing="each",
            wrong=sum(report.wrong for report in one.reports),
        )
