"""The check of results: inputs are exact in any order, and nothing wrong passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.run.data import TURNS, Checked, Inputs, ResultCheck, exact
from bench.timing.measure import FunctionAction, Timing, measure
from bench.timing.starts import BarrierStart
from busbar.errors import Unsupported
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.transport import Spans, Start
from collectives.schedule.catalogue import spec
from collectives.schedule.dtypes import DTYPES, FLOAT8, dtype, limits
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import OPS, op, scale
from reports.records.measurement import OPERATION
from tests.collectives.cases import expected


def _inputs(
    name: str, nranks: int, kind: str, operation: str, elements: int
) -> tuple[Inputs, Layout]:
    collective = spec(name)
    layout = Layout(collective, nranks, collective.parts(nranks))
    return Inputs(layout, dtype(kind), op(operation), elements), layout


def _filled(inputs: Inputs, nranks: int, elements: int, kind: str) -> np.ndarray:
    """The inputs of all ranks, a row each."""
    found = np.empty((nranks, elements), dtype(kind))
    for rank in range(nranks):
        inputs.fill(rank, found[rank])
    return found


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("operation", OPS)
@pytest.mark.parametrize("nranks", [1, 2, 3, 16, 33])
def test_any_order_gives_the_expected_bits(kind: str, operation: str, nranks: int) -> None:
    """Rule: #wrong has zero tolerance because every order of reduction gives the same bits."""
    elements = 70_001  # past one turn of the table
    inputs, _ = _inputs("allreduce", nranks, kind, operation, elements)
    vectors = _filled(inputs, nranks, elements, kind)
    orders = [list(range(nranks)), list(np.random.default_rng(nranks).permutation(nranks))]
    for order in orders:
        result = vectors[order[0]].copy()
        for rank in order[1:]:
            result = op(operation).ufunc(result, vectors[rank])
        if op(operation).mean:
            scale(result, nranks)
        assert inputs.check(0, result).count == 0


def test_ranks_and_elements_differ() -> None:
    """Rule: no two ranks' inputs are alike, nor are neighbouring elements."""
    inputs, _ = _inputs("allreduce", 8, "float", "sum", 5000)
    vectors = _filled(inputs, 8, 5000, "float")
    for a in range(8):
        assert np.mean(vectors[a, 1:] == vectors[a, :-1]) < 0.01
        for b in range(a):
            assert np.mean(vectors[a] == vectors[b]) < 0.01


@given(st.integers(0, 999), st.sampled_from(["float", "bfloat16", "int8"]), st.integers(2, 9))
def test_one_wrong_element_is_found_and_named(index: int, kind: str, nranks: int) -> None:
    """Rule: a single changed element is counted, with its index and both values."""
    inputs, _ = _inputs("allreduce", nranks, kind, "sum", 1000)
    total = np.zeros(1000, dtype(kind))
    vector = np.empty_like(total)
    for rank in range(nranks):
        inputs.fill(rank, vector)
        total = total + vector
    good = total[index]
    total[index] = good + 1
    wrong = inputs.check(0, total)
    assert (wrong.count, wrong.index) == (1, index)
    assert (wrong.got, wrong.expected) == (str(total[index]), str(good))


@given(
    st.sampled_from((*DTYPES, *FLOAT8)),
    st.integers(1, 150_000),
    st.integers(0),
    st.integers(1, 255),
)
def test_a_digest_sees_any_single_element(kind: str, elements: int, at: int, flip: int) -> None:
    """Rule: any element that differs alone changes the digest, by whatever it differs."""
    inputs, _ = _inputs("broadcast", 2, kind, "sum", elements)
    result = np.empty(elements, dtype(kind))
    inputs.fill(0, result, turn=3)
    assert inputs.same_digest(1, result, 3) and not inputs.same_digest(1, result, 4)
    raw = result.view(np.uint8)
    raw[at % len(raw)] ^= flip
    assert not inputs.same_digest(1, result, 3)
    raw[at % len(raw)] ^= flip
    assert inputs.same_digest(1, result, 3)


@pytest.mark.parametrize("elements", [300, 70_001])
@pytest.mark.parametrize("name", ["allreduce", "allgather", "alltoall"])
def test_turns_have_results_of_their_own(name: str, elements: int) -> None:
    """Rule: the result of another turn is wrong nearly everywhere, and that of its own is right."""
    inputs, layout = _inputs(name, 3, "float", "sum", elements)
    for turn in range(TURNS):
        sources = []
        for rank in range(3):
            sources.append(np.empty(layout.elements(rank, Buffer.IN, elements), np.float32))
            inputs.fill(rank, sources[-1], turn)
        for rank, out in enumerate(expected(layout, elements, sources, np.add)):
            result = out.astype(np.float32)
            assert inputs.check(rank, result, turn=turn).count == 0
            assert inputs.same_digest(rank, result, turn)
            other = inputs.check(rank, result, turn=(turn + 1) % TURNS).count
            assert other > 0.99 * len(result)


FLOATS = [name for name in (*DTYPES, *FLOAT8) if dtype(name).kind not in "iu"]


@given(st.sampled_from(FLOATS), st.integers(1, 4), st.integers(-9, 9), st.integers(0, 999))
def test_averages_may_be_off_by_so_many_ulps(kind: str, ulps: int, off: int, index: int) -> None:
    """Rule: a float is right if off by up to ``ulps`` units in its last place, else wrong."""
    inputs, _ = _inputs("allreduce", 2, kind, "avg", 1000)
    ranks = _filled(inputs, 2, 1000, kind)
    result = op("avg").ufunc(ranks[0], ranks[1]).astype(dtype(kind))
    scale(result, 2)
    assert inputs.check(0, result).count == 0
    bits = result.view(f"u{result.itemsize}")
    fraction = limits(result.dtype).nmant
    inside = int(bits[index]) % (1 << fraction)
    if not 0 <= inside + off < 1 << fraction:
        return  # in the next binade a unit is another
    bits[index] = int(bits[index]) + off
    assert inputs.check(0, result, ulps).count == (abs(off) > ulps)
    assert inputs.check(0, result).count == (off != 0)
    result[index] = np.nan
    assert inputs.check(0, result, ulps).count == 1


@pytest.mark.parametrize("kind", ["int32", "uint8"])
def test_integers_have_no_last_place(kind: str) -> None:
    """Rule: an average of integers is right to the unit, whatever the library."""
    inputs, _ = _inputs("allreduce", 1, kind, "avg", 100)
    result = np.empty(100, dtype(kind))
    inputs.fill(0, result)
    assert inputs.check(0, result, 4).count == 0
    result[7] += 1
    assert inputs.check(0, result, 4)[:2] == (1, 7)


@pytest.mark.parametrize("elements", [1, 65_520, 65_521, 65_522, 140_003])
def test_parts_continue_each_other(elements: int) -> None:
    """Rule: all-gather yields the ranks' inputs side by side, past any turn of the table."""
    inputs, _ = _inputs("allgather", 3, "int32", "sum", elements)
    result = _filled(inputs, 3, elements, "int32").ravel()
    assert inputs.check(1, result).count == 0
    result[2 * elements] ^= 1
    assert inputs.check(1, result)[:2] == (1, 2 * elements)


@pytest.mark.parametrize("kind", FLOATS)
def test_exact_integers_are_exact(kind: str) -> None:
    """Rule: integers up to the type's limit are themselves in it, and the next one is not."""
    most = exact(dtype(kind))
    near = np.arange(max(0, most - 1000), most + 1)
    assert (near.astype(dtype(kind)).astype(np.float64) == near).all()
    assert float(np.asarray(most + 1).astype(dtype(kind))) != most + 1


def _reduced(shares: np.ndarray, kind: str, operation: str) -> np.ndarray:
    """The reduction over ranks, a row each, by way of numbers that hold it exactly."""
    integers = dtype(kind).kind in "iu"
    wide = shares.astype(np.int64 if integers else np.float64)
    with np.errstate(over="ignore"):
        result = op(operation).ufunc.reduce(wide, axis=0).astype(dtype(kind))
    if op(operation).mean:
        scale(result, len(shares))
    return result


Fault = Callable[[np.ndarray, np.ndarray], np.ndarray]
FAULTS: dict[str, Fault] = {
    "the result rolled by one": lambda shares, right: np.roll(right, 1),
    "two halves swapped": lambda shares, right: np.roll(right, len(right) // 2),
    "rank 0 twice, rank 1 never": lambda shares, right: shares[[0, 0, *range(2, len(shares))]],
    "the last rank twice": lambda shares, right: shares[[*range(len(shares)), -1]],
    "the last rank never": lambda shares, right: shares[:-1],
}


# Either side of where a type's limit changes how its values are chosen.
EDGES = (2, 3, 4, 5, 8, 9, 12, 13, 16, 17, 64, 100, 101, 126, 127, 128, 254, 255, 256, 257, 300)


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param(EDGES, id="edges"),
        pytest.param(range(2, 301), id="all", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("kind", (*DTYPES, *FLOAT8))
@pytest.mark.parametrize("operation", OPS)
def test_misplacement_is_seen_on_any_number_of_ranks(
    kind: str, operation: str, counts: Sequence[int]
) -> None:
    """Rule: what lies elsewhere, is there twice or is missing is wrong, on 2 to 300 ranks.

    An average of integers that could only be 0 is refused instead. Twice the least is the least.
    """
    idempotent = operation in ("min", "max")
    most = {"int8": 126, "uint8": 254}.get(kind, 300) if operation == "avg" else 300
    for n in counts:
        # Among n ranks one alone has the greatest of n shares at every n-th element or so.
        elements = 600 + (24 * n if idempotent else 0)
        if n > most:
            with pytest.raises(Unsupported, match=f"avg of {kind} on {n} ranks"):
                _inputs("allreduce", n, kind, operation, elements)
            continue
        inputs, _ = _inputs("allreduce", n, kind, operation, elements)
        shares = _filled(inputs, n, elements, kind)
        right = _reduced(shares, kind, operation)
        assert inputs.check(0, right).count == 0
        for what, fault in FAULTS.items():
            if idempotent and what == "the last rank twice":
                continue
            found = fault(shares, right)
            if found.ndim == 2:
                found = _reduced(found, kind, operation)
            assert inputs.check(0, found).count == np.count_nonzero(found != right), what
            assert inputs.check(0, found).count, f"{what} goes unseen on {n} ranks"


@pytest.mark.parametrize("nranks", [127, 128, 300])
@pytest.mark.parametrize("kind", ["int8", "uint8", "bfloat16", "f8e4m3"])
def test_averages_over_more_ranks_than_the_type_counts(kind: str, nranks: int) -> None:
    """Rule: the divisor is the rank count itself, also where that is no number of the type."""
    sums = np.arange(17).astype(dtype(kind))
    wanted = np.arange(17) // nranks if sums.dtype.kind in "iu" else np.arange(17) / nranks
    scale(sums, nranks)
    assert np.array_equal(sums, wanted.astype(dtype(kind)))


def test_a_zero_with_a_sign_is_wrong() -> None:
    """Rule: bits are compared, so that a flipped sign of a 0 is seen as any other bit is."""
    inputs, _ = _inputs("allreduce", 9, "f8e5m2", "sum", 5000)
    shares = _filled(inputs, 9, 5000, "f8e5m2")
    result = _reduced(shares, "f8e5m2", "sum")
    assert inputs.check(0, result).count == 0
    zeros = result.view(np.uint8) == 0
    result.view(np.uint8)[zeros] = 0x80
    assert inputs.check(0, result).count == np.count_nonzero(zeros) > 0


class _Native(FunctionAction):
    """An action that the transport times itself, as the extension does: n iterations a call."""

    def __init__(self, once: Callable[[], None], *, absolute: bool) -> None:
        super().__init__(once)
        self._absolute, self.batches = absolute, list[int]()

    def spans(self, n: int, start: Start) -> Spans:
        self.batches.append(n)
        for _ in range(n):
            self()
        return Spans(np.zeros(n), np.full(n, 1e-6), absolute=self._absolute)


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("spoiled", [None, 0, 3, 7, 11])
def test_each_of_a_batch_is_compared(spoiled: int | None, absolute: bool) -> None:
    """Rule: where one native call runs many iterations, each is a call of its own, and compared."""
    collective, n = spec("broadcast"), 50

    def body(world: InprocWorld) -> tuple[int, int, list[int]]:
        inputs = Inputs(Layout(collective, 1, 1), np.dtype("f4"), None, n)
        source, target = np.empty(n, np.float32), np.empty(n, np.float32)
        runs, told = list[int](), list[int]()

        def once() -> None:
            target[:] = source
            if len(runs) == spoiled:
                target[4] += 1
            runs.append(0)

        result = ResultCheck(inputs, 0, source, target, digests=True)
        result.fresh()
        native = _Native(once, absolute=absolute)
        action = Checked(native, result, world.barrier, told.append, reached=False)
        how = BarrierStart(world, clock=lambda: 0.0, one_clock=True)
        timed = measure(action, world, Timing(warmup=2, iterations=10), how)
        assert len(timed.times_s) == 10 and (OPERATION in timed.also) == absolute
        assert result.wrong is not None and told == list(range(1, 13))
        return result.wrong.count, result.iterations, native.batches

    ((wrong, iterations, batches),) = run(1, body)
    assert (wrong, iterations) == (spoiled is not None, 12) and set(batches) == {1}
