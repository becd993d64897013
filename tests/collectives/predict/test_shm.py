"""Predictions over shared memory, by hand and against naive readings of the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.links.exchange import PATTERNS, exchange
from busbar.errors import Unsupported
from collectives.execution.shm.pass_plans import EAGER_BYTES, WINDOW_BYTES
from collectives.execution.shm.tasks import STAGE
from collectives.predict import shm
from collectives.predict.fit import (
    MOST_EDGES,
    Fit,
    dump_fit,
    fit_curve,
    fit_shared_memory,
    load_fit,
)
from collectives.predict.interface import Operation
from collectives.predict.machine import Costs, Curve, LinkCosts, Machine, Shared, one_class
from collectives.predict.maps import fit_map
from collectives.predict.predictor import FitPredictor, choose_predictor
from collectives.predict.shm import Drafts, Rates, SharedMemoryPredictor, find_touches, order_passes
from collectives.schedule.catalogue import algorithms, collectives, draft, spec
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective
from reports.analysis.predicted import predictions
from reports.records.measurement import Measurement, Run
from tests.collectives.predict.predicting import seconds
from tests.collectives.predict.test_fit import measured
from tests.conftest import examples
from topology.model.measured import BURST, TRIPS, Swept

line = Curve.line
# Seconds by hand: a hop of messages, three kinds of swaps of messages, and the same where they lie.
CURVES = Shared(
    hop=line(98.4e-9, 2e-10),
    mail=line(150e-9, 2e-10),
    mail_join=line(160e-9, 2e-10),
    mail_burst=line(153.6e-9, 8e-10),
    pull=line(50e-9, 1e-10),
    warm=line(0.0, 2e-11),
    join=line(0.0, 3e-11),
)
OWN, FAR, ADD, CALL, FLAG = 1e-11, 5e-11, 1e-11, 10e-9, 40e-9
POST, FLIGHT, MESSAGE = 20e-9, 60e-9, 1e-10
LINK = replace(LinkCosts.assumed(1e-6, 1e-9, "by hand"), shared=CURVES)
START = 7e-9


def priced(ranks: int, cores: int = 0) -> Machine:
    """Ranks on cores of their own, or on so many in turn."""
    places = tuple(rank % (cores or ranks) for rank in range(ranks))
    return Machine(one_class(), [LINK], START, places)


def predicted(collective: str, name: str, ranks: int, size: int, **options: object) -> float:
    """Seconds without the start."""
    given_ = {key: options.pop(key) for key in ("segments",) if key in options}
    schedule = draft(collective, name, ranks, **given_)  # type: ignore[arg-type]
    machine = priced(ranks, int(options.pop("cores", 0)))  # type: ignore[call-overload]
    found = seconds(schedule, collective, machine, [size], **options)  # type: ignore[arg-type]
    return float(found[0]) - START


def test_rates_are_what_the_curves_say() -> None:
    """Rule: a moved byte is two lines, changing hands is two lines, a message has two ends."""
    rates = Rates(CURVES)
    assert (rates.flag, rates.call, rates.post, rates.flight) == pytest.approx(
        (FLAG, CALL, POST, FLIGHT)
    )
    for nbytes in (64.0, 1e5, 1e7):
        assert rates.own(nbytes) == pytest.approx(OWN)
        assert rates.far(nbytes) == pytest.approx(FAR)
        assert rates.added(nbytes) == pytest.approx(ADD)
        assert rates.eager_message(nbytes) == pytest.approx(MESSAGE)


N = 1 << 16


@pytest.mark.parametrize(
    ("collective", "name", "time"),
    [
        # Each copies its half into both results, in one pass.
        ("allgather", "ring", 2 * FLAG + CALL + N / 2 * 3 * OWN),
        # A rank adds its half of both inputs and stores the sum into both results, in one pass.
        # No line changes hands, as nobody but its owner writes an input, and nobody but the
        # adder a result. A rank enters and leaves by a flag of the other's.
        ("allreduce", "ring", 2 * FLAG + CALL + N / 2 * (4 * OWN + ADD)),
        ("allreduce", "one_shot", 2 * FLAG + CALL + N * (3 * OWN + ADD)),
        ("reduce", "flat", 2 * FLAG + CALL + N * (3 * OWN + ADD)),
        # The root adds, and stores the sum into both results, in one pass.
        ("allreduce", "ps", 2 * FLAG + CALL + N * (4 * OWN + ADD)),
    ],
)
def test_passes_by_hand(collective: str, name: str, time: float) -> None:
    """Rule: a pass costs its lines, by the cache they are in, its additions, and a flag a wait."""
    assert predicted(collective, name, 2, N) == pytest.approx(time, rel=1e-9)


@pytest.mark.parametrize("n", [64, 1024, 4096])
def test_letters_by_hand(n: int) -> None:
    """Rule: messages are posted and taken in order; the sender goes on while one is on its way."""
    hop = 2 * POST + FLIGHT
    assert predicted("broadcast", "flat", 2, n) == pytest.approx(
        # The root copies its part once the message is posted.
        hop + 2 * n * MESSAGE
    )
    assert predicted("reduce", "flat", 2, n) == pytest.approx(hop + CALL + 2 * n * MESSAGE)
    # Four segments: three more messages leave and arrive before the last one does.
    chain = predicted("broadcast", "chain", 2, n, segments=4)
    assert chain == pytest.approx(hop + 2 * n / 4 * MESSAGE + 3 * (POST + n / 4 * MESSAGE))
    both = predicted("allreduce", "recursive_doubling", 2, n)
    assert both == pytest.approx(hop + CALL + 2 * n * MESSAGE)


@pytest.mark.parametrize("collective", ["allreduce", "broadcast", "allgather"])
def test_the_way_through_mailboxes_ends_where_the_executor_ends_it(collective: str) -> None:
    """Rule: up to the limit a rank's bytes go as eager messages, everything else in passes."""
    name = {"allreduce": "one_shot", "broadcast": "flat", "allgather": "direct"}[collective]
    at = EAGER_BYTES * (2 if collective == "allgather" else 1)
    slow = replace(LINK, shared=replace(CURVES, pull=line(1.0, 1e-10), mail_join=CURVES.mail))
    machine = Machine(one_class(), [slow], 0.0, (0, 1))
    found = seconds(draft(collective, name, 2), collective, machine, [at, at + 64])
    assert found[0] < 0.1 < found[1]


def _drafts(collective: str, name: str, ranks: int, in_place: bool = False) -> Drafts | None:
    try:
        return Drafts(draft(collective, name, ranks), spec(collective), 0, in_place)
    except Unsupported:
        return None


PAIRS = [(c, a) for c in collectives() for a in algorithms(c) if c not in ("barrier", "hypercube")]


@examples(60)
@given(st.sampled_from(PAIRS), st.integers(2, 6), st.booleans(), st.integers(0, 6))
def test_lines_are_where_the_last_iteration_left_them(
    pair: tuple[str, str], ranks: int, in_place: bool, crowd: int
) -> None:
    """Rule: followed element by element through many runs, a pass finds what `find_touches` says.

    Ranks that share a core never take a line from each other.
    """
    drafts = _drafts(*pair, ranks, in_place)
    if drafts is None:
        return
    found = drafts.of(64)[0].dependence_graph
    cores = [rank % (ranks - crowd % ranks) for rank in range(ranks)]
    told = find_touches(found, cores)
    holders: dict[tuple[int, int, int], set[int]] = {}

    def elements(place: tuple[int, int, int], size: int) -> list[tuple[int, int, int]]:
        return [(*place[:2], place[2] + i) for i in range(size)]

    for iteration in range(4):
        for rank, number, work in order_passes(found):
            core, far = cores[rank], []
            for place in (p for p in work.sources if p.segment != STAGE):
                held = [holders.setdefault(e, set()) for e in elements(place, work.size)]
                far.append({bool(h) and core not in h for h in held})
                for one in held:
                    one.add(core)
            for place in (p for p in work.targets if p.segment != STAGE):
                held = [holders.setdefault(e, set()) for e in elements(place, work.size)]
                away = {bool(h - {core}) for h in held}
                if away != {False} or place not in work.sources:
                    far.append(away)
                for one in held:
                    one.clear()
                    one.add(core)
            if iteration == 3 and found.aligned:
                staged = sum(p.segment == STAGE for p in (*work.sources, *work.targets))
                mine = [touch.other >= 0 for touch in told.of[rank, number]]
                assert sorted(mine) == sorted([*(f == {True} for f in far), *[False] * staged])
                assert all(len(f) == 1 for f in far)


@examples(40)
@given(st.sampled_from(PAIRS), st.integers(2, 5), st.integers(1, 40), st.booleans())
def test_one_draft_serves_all_sizes(
    pair: tuple[str, str], ranks: int, times: int, in_place: bool
) -> None:
    """Rule: where chunks are equal, chunks of one element stand for chunks of any size."""
    drafts, exact = (_drafts(*pair, ranks, in_place) for _ in range(2))
    if drafts is None or exact is None:
        return
    split = drafts.split
    small, scale = drafts.of(times * split)
    assert scale == times
    large = exact._draft(times * split)
    host = choose_predictor(priced(ranks))
    assert isinstance(host, SharedMemoryPredictor)
    cores = [host.core(rank) for rank in range(ranks)]
    between = host.between(cores)
    found = [
        shm.Passes(one, cores, between).seconds(4 * by) for one, by in ((small, times), (large, 1))
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-9)


@pytest.mark.parametrize("name", ["ring", "tree", "ps", "swing", "double_tree"])
def test_later_windows_are_like_those_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: following some windows one by one gives what following all of them gives."""
    size = 64 * 3 * WINDOW_BYTES
    short = predicted("allreduce", name, 4, size)
    monkeypatch.setattr(shm, "_FOLLOWED", 1 << 20)
    assert short == pytest.approx(predicted("allreduce", name, 4, size), rel=1e-6)


@examples(40)
@given(st.sampled_from(PAIRS), st.integers(2, 5), st.integers(0, 9))
def test_more_bytes_take_longer(pair: tuple[str, str], ranks: int, power: int) -> None:
    """Rule: where messages lie, twice the size takes longer, but no more than twice as long."""
    if _drafts(*pair, ranks) is None:
        return
    size = 60 * EAGER_BYTES * 2**power  # equal parts for up to six ranks
    one, two = (predicted(*pair, ranks, n) for n in (size, 2 * size))
    assert one < two <= 2 * one * (1 + 1e-12)  # but for rounding


def test_turns_on_a_core_add_up() -> None:
    """Rule: four ranks on two cores take twice as long for the same passes as on four."""
    size = 1 << 18
    alone, crowded = (predicted("allreduce", "one_shot", 4, size, cores=c) for c in (4, 2))
    # Beside entering and leaving, in which turns may hide.
    assert crowded == pytest.approx(2 * alone, abs=4 * FLAG)


def test_in_place_copies_less() -> None:
    """Rule: in place an all-gather has its own part already, in rows and reports alike."""
    out, inside = (
        predicted("allgather", "ring", 2, N, in_place=in_place) for in_place in (False, True)
    )
    # The pass that stores into the other's result no longer stores into one's own.
    assert inside == pytest.approx(out - N / 2 * OWN)
    costs = Fit((Costs({"network": LINK}, 0.0, 2, transport="shm"),))
    rows = [
        Measurement(
            run=Run("x", 0, "x"),
            collective="allgather",
            size=N,
            placement=p,
            algorithm="ring",
            transport="shm",
            ranks=2,
        )
        for p in ("out", "in")
    ]
    assert predictions(rows, costs) == pytest.approx([out, inside])
    operation = Operation("allgather", "ring", 2, in_place=True)
    assert FitPredictor(costs).on(2).seconds(operation, [N]) == pytest.approx([inside])


# -- from measurements to curves


def _sweep(kind: str, each: int, small: Curve, large: Curve) -> list[Swept]:
    """Times that follow one curve through mailboxes and another where messages lie."""
    found = []
    for nbytes in (8 << i for i in range(20)):
        curve = small if nbytes * each <= EAGER_BYTES else large
        found.append(Swept("RANK0", "RANK1", kind, nbytes, (float(curve(nbytes)),) * 3))
    return found


def _kinds() -> dict[str, list[Swept]]:
    """A machine of the curves above as a sweep shows it: hops of several windows overlap."""
    pull = []
    for one in _sweep("trip", TRIPS, CURVES.hop, CURVES.pull):
        hops, windows = 2 * TRIPS, max(1, -(-one.nbytes // WINDOW_BYTES))
        share = (hops + windows - 1) / (hops * windows)
        pull.append(one._replace(seconds=tuple(t * share for t in one.seconds)))
    return {
        "trip": pull,
        "still": _sweep("still", 1, CURVES.mail, CURVES.warm),
        "sum": _sweep("sum", 1, CURVES.mail_join, CURVES.join),
        "burst": _sweep("burst", BURST * TRIPS, CURVES.mail_burst, CURVES.mail_burst),
    }


def _fit(samples: Sequence[Swept]) -> Curve:
    times = np.array([one.seconds for one in samples]).T
    return fit_curve([one.nbytes for one in samples], times)


def test_curves_are_told_apart_by_how_messages_went() -> None:
    """Rule: each way has a curve of its own, found again where the other's times end."""
    found = fit_shared_memory(_kinds(), _fit, 2, 2)
    assert found is not None
    for name, sizes in (("hop", (8, 1024)), ("mail", (8, 8192)), ("mail_join", (8, 8192)),
                        ("mail_burst", (8, 256)), ("warm", (16384, 1 << 22)),
                        ("join", (16384, 1 << 22)), ("pull", (2048, 1 << 22))):  # fmt: skip
        told, truth = (getattr(curves, name)(np.array(sizes)) for curves in (found, CURVES))
        assert told == pytest.approx(truth, rel=1e-6), name
        assert min(*getattr(found, name).alpha, *getattr(found, name).beta) >= 0


def test_a_sweep_of_one_way_only_gives_no_curves() -> None:
    """Rule: where nothing was measured beyond the mailboxes, the executor is not followed."""
    short = {kind: [s for s in found if s.nbytes <= 1024] for kind, found in _kinds().items()}
    assert fit_shared_memory(short, _fit, 2, 2) is None


class _Exchange(Operation):
    """An operation whose specification stands in no catalogue."""

    def __init__(self, what: Collective, schedule: Schedule) -> None:
        super().__init__(what.name, "", schedule.nranks, built=schedule)
        self.__dict__["what"] = what

    @property
    def spec(self) -> Collective:
        """See `Operation`."""
        found: Collective = self.__dict__["what"]
        return found


@pytest.mark.parametrize("kind", ["still", "sum", "trip"])
def test_the_model_gives_back_what_it_was_made_of(kind: str) -> None:
    """Rule: the sweep's own schedules, predicted, take the bytes' time that was measured."""
    host = SharedMemoryPredictor(Machine(one_class(), [LINK], 0.0, (0, 1)))
    name = "latency" if kind == "trip" else kind
    schedule, what = exchange(PATTERNS[name], [(0, 1)], 2, TRIPS if kind == "trip" else 1)
    if kind == "trip":
        curve, hops = CURVES.pull, 2 * TRIPS
    else:
        curve, hops = (CURVES.warm if kind == "still" else CURVES.join), 1
    sizes = [1 << 16, 1 << 18]
    found = host.seconds(_Exchange(what, schedule), sizes)
    slope = (found[1] - found[0]) / (sizes[1] - sizes[0])
    # Of a trip's 16 hops the first sends what was left alone.
    assert slope == pytest.approx(hops * curve.beta[0], rel=0.06)


def test_a_measured_map_of_shared_memory_has_the_curves() -> None:
    """Rule: only fits over shm have curves, which read back equal and are never negative."""
    found = fit_map(measured(transport="shm"))
    link = next(iter(found.links.values()))
    assert link.shared is not None and found.cores == (0, 1)
    assert load_fit(dump_fit([found])).costs == (found,)
    assert next(iter(fit_map(measured()).links.values())).shared is None
    for curve in vars(link.shared).values():
        assert min(*curve.alpha, *curve.beta) >= 0 and len(curve.edges) <= MOST_EDGES
