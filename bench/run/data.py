"""Inputs whose reduction is exact in any order, the expected result, and checks of results.

All ranks share one table T of random values; element i of rank r's vector is T[(a(i) + r·K) mod M].
So the expected result depends on a(i) only, and is a second table: one look-up per element, for any
rank count, operation and type. The values of T are small enough that every partial result is exact,
so the check needs no tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unsupported
from collectives.execution.transport import Action, Array, Spans, Start, Wrapper, unwatched
from collectives.schedule.dtypes import limits
from collectives.schedule.layout import Elements, Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import Op, scale

if TYPE_CHECKING:
    from bench.options.argument_types import Checks
    from bench.timing.starts import Arrived

_M = 65521  # prime, so that shifts by any rank and block visit every value
_RANK_STRIDE, _BLOCK_STRIDE, _TURN_STRIDE = 7919, 104729, 15485863
TURNS = 7
"""Different inputs that iterations take in turn; a prime, so that no pair of buffers keeps step."""
DIGEST_BYTES = 64 << 10
"""From this size on, a rank's result is compared by digest if each timed iteration is checked."""
_WORDS = 2 * np.arange(_M, dtype=np.uint64) + np.uint64(1)


def exact(kind: np.dtype[Any]) -> int:
    """The largest integer up to which a type represents all integers exactly."""
    return int(np.iinfo(kind).max) if kind.kind in "iu" else 2 ** (limits(kind).nmant + 1)


class Wrong(NamedTuple):
    """How many elements of a rank's output are wrong, and the first of them."""

    count: int  # type: ignore[assignment]
    index: int  # type: ignore[assignment]
    got: str
    expected: str


class Inputs:
    """Data for one collective, rank count, type and operation.

    ``op`` is None for collectives that only move data. ``layout`` says which parts each rank has
    and wants, ``elements`` how many elements the parts have (see `Layout.bounds`). Raises
    Unsupported for an average whose check could not detect errors.
    """

    def __init__(
        self, layout: Layout, dtype: np.dtype[Any], op: Op | None, elements: Elements
    ) -> None:
        self._layout, self._dtype, self._op = layout, dtype, op
        parts = layout.spec.parts(layout.nranks)
        self._sizes = np.broadcast_to(np.asarray(elements, np.int64), parts)
        self._starts = np.cumsum(self._sizes) - self._sizes
        table = _table(dtype, op, layout.nranks)
        # The table twice in a row, so that M values from any start are one slice.
        self._double = np.concatenate([table, table])
        self._whole = int(self._sizes.sum())
        self._reduced: dict[tuple[tuple[int, ...], int], Array] = {}
        self._digests: dict[tuple[int, int], int] = {}

    def _of_rank(self, rank: int, source: int, length: int) -> Array:
        """A rank's input: ``length`` elements, from table index ``source`` on for rank 0."""
        start = (source + rank * _RANK_STRIDE) % _M
        return self._double[start : start + length]

    def _expected(self, holders: tuple[int, ...], source: int, length: int, shift: int) -> Array:
        """The reduction over ``holders``: ``length`` elements from index ``source + shift`` on."""
        if self._op is None or len(holders) == 1:
            return self._of_rank(holders[0], source + shift, length)
        if self._whole > _M:  # the whole table is needed, and one table serves all shifts
            source, shift = (source + shift) % _M, 0
        if (holders, shift) not in self._reduced:
            self._reduced[holders, shift] = self._reduce(holders, self._op, shift)
        return self._reduced[holders, shift][source : source + length]

    def _reduce(self, holders: tuple[int, ...], op: Op, shift: int) -> Array:
        """The table of reduced values, as far as these sizes need it."""
        whole = self._whole
        width = min(whole, _M)
        # Floats are reduced in double precision, which is as exact and much faster.
        wide = self._double if self._dtype.kind in "iu" else self._double.astype(np.float64)
        starts = ((shift + rank * _RANK_STRIDE) % _M for rank in holders)
        parts = (wide[start : start + width] for start in starts)
        result = reduce(op.ufunc, parts).astype(self._dtype)
        if op.mean:
            scale(result, self._layout.nranks)
        return np.concatenate([result, result]) if whole > _M else result

    def fill(self, rank: int, target: Array, turn: int = 0) -> None:
        """Write a rank's ``in`` buffer, which may be in device memory.

        ``turn``: number of the input set, from 0 on. Sets differ in every element.
        """
        shift = turn * _TURN_STRIDE % _M
        for begin, part, length, source in self._pieces(rank, Buffer.IN):
            del part
            target[begin : begin + length] = self._of_rank(rank, source + shift, length)

    def _pieces(self, rank: int, buffer: Buffer) -> Iterator[tuple[int, int, int, int]]:
        """The contiguous runs of a rank's buffer: first element, part, length, and table index."""
        at = 0
        for part in self._layout.parts(rank, buffer).tolist():
            for start, length, source in _blocks(int(self._starts[part]), int(self._sizes[part])):
                yield at + start, part, length, source
            at += int(self._sizes[part])

    def _wanted(self, rank: int, turn: int) -> Iterator[tuple[int, Array]]:
        """The expected content of a rank's ``out``: runs, each with its first element's index."""
        holders = self._layout.spec.holders(self._layout.nranks, self._layout.root)
        shift = turn * _TURN_STRIDE % _M
        for begin, part, length, source in self._pieces(rank, Buffer.OUT):
            yield begin, self._expected(tuple(holders[part]), source, length, shift)

    def check(self, rank: int, result: Array, ulps: int = 0, turn: int = 0) -> Wrong:
        """Compare a rank's ``out``, which may be in device memory, with the expected result.

        The comparison is bit for bit, but floats may differ by ``ulps``, as a library's average
        rounds.
        """
        count, first = 0, Wrong(0, -1, "", "")
        for begin, wanted in self._wanted(rank, turn):
            got = host(result[begin : begin + len(wanted)])
            bad = _differ(got, wanted, ulps)
            wrong = int(np.count_nonzero(bad))
            if wrong and not count:
                i = int(np.flatnonzero(bad)[0])
                first = Wrong(0, begin + i, str(got[i]), str(wanted[i]))
            count += wrong
        return first._replace(count=count)

    def same_digest(self, rank: int, result: Array, turn: int) -> bool:
        """True if a rank's ``out`` in host memory has the digest of the expected result.

        Any single wrong element changes the digest (see `digest`). Each turn's expected one is
        cached.
        """
        if (rank, turn) not in self._digests:
            runs = (wanted for _, wanted in self._wanted(rank, turn))
            self._digests[rank, turn] = digest(runs)
        total = digest(
            result[begin : begin + length] for begin, _, length, _ in self._pieces(rank, Buffer.OUT)
        )
        return total == self._digests[rank, turn]


def digest(runs: Iterator[Array]) -> int:
    """Sum of all 64-bit words modulo 2^64, each multiplied by an odd number given by its position.

    An odd factor has an inverse modulo 2^64. So if only one word differs, the sum differs too. No
    element of 1, 2, 4 or 8 bytes lies in two words. If two words are swapped, the sum also changes,
    unless their difference is a multiple of a high power of two.
    """
    total = 0
    for number, run in enumerate(runs):
        raw = np.ascontiguousarray(run).view(np.uint8)
        whole = len(raw) // 8 * 8
        words = raw[:whole].view(np.uint64)
        last = int.from_bytes(raw[whole:].tobytes(), "little")
        of_run = int(np.dot(words, _WORDS[: len(words)])) + last * (2 * _M + 1)
        total += of_run * (2 * number + 1)
    return total % 2**64


def host(array: Any) -> Array:
    """The vector in host memory: itself, or a copy if it is in device memory."""
    copied: Array = array if isinstance(array, np.ndarray) else array.host()
    return copied


def _differ(got: Array, wanted: Array, ulps: int) -> NDArray[np.bool_]:
    """True for each wrong element; floats may differ by ``ulps`` units in the last place."""
    if not ulps or got.dtype.kind in "iu":
        bits = f"u{got.itemsize}"
        return np.asarray(got.view(bits) != wanted.view(bits))
    values, targets = got.astype(np.float64), wanted.astype(np.float64)
    binade = np.floor(np.log2(np.maximum(np.abs(targets), np.finfo(np.float64).tiny)))
    unit = np.exp2(binade - limits(got.dtype).nmant)
    return np.asarray(~(np.abs(values - targets) <= ulps * unit))


def _blocks(first: int, length: int) -> list[tuple[int, int, int]]:
    """Offset, length and table start of the runs of ``length`` elements from ``first`` on."""
    blocks = []
    at = first
    while at < first + length:
        block, inside = divmod(at, _M)
        n = min(_M - inside, first + length - at)
        blocks.append((at - first, n, (inside + block * _BLOCK_STRIDE) % _M))
        at += n
    return blocks


def _table(dtype: np.dtype[Any], op: Op | None, nranks: int) -> Array:
    """M values with an exact reduction over the ranks, which changes if a rank's share is missing.

    If all values were 1, a sum would not show which ranks and positions they come from. So there
    are always several values, and several results. Raises Unsupported for averages of integers if
    the type cannot hold the sum of a 1 from each rank: all averages would be 0.
    """
    random = np.random.default_rng(20090101)
    if op is not None and op.name == "prod":
        return _factors(random, dtype, nranks)
    top = exact(dtype) if dtype.kind not in "iu" else min(exact(dtype), 2**31 - 1)
    share = top // nranks
    if op is None or op.name in ("min", "max"):
        return _extremes(random, min(top, 2**24), op, nranks).astype(dtype)
    if op.mean and dtype.kind in "iu":
        if nranks >= top:
            raise Unsupported(
                f"avg of {dtype.name} on {nranks} ranks: the type holds no sum above {top}, so"
                f" every average would be 0; at most {top - 1} ranks"
            )
        return _about_whole(random, share, nranks).astype(dtype)
    if share > 1:
        return random.integers(1, share, _M, endpoint=True).astype(dtype)
    # Values are 0 or 1. In each group of neighbours at most one is 1, so that no sum exceeds the
    # limit; with groups of one, about every second value is 1. A sum reads ``nranks`` neighbours,
    # which may touch one group more than they fill.
    group = -(-nranks // (top - 1)) if nranks > top else 1
    firsts = np.arange(0, _M - group + 1, group)
    drawn = random.random(len(firsts)) < (0.75 if group > 1 else 0.5)
    chosen = (firsts + random.integers(0, group, len(firsts)))[drawn]
    return _by_rank(np.isin(np.arange(_M), chosen)).astype(dtype)


def _by_rank(values: Array) -> Array:
    """Reorder a table of ``values`` so that consecutive ranks read consecutive entries of it."""
    table = np.empty_like(values)
    table[np.arange(_M) * _RANK_STRIDE % _M] = values
    return table


def _extremes(random: np.random.Generator, top: int, op: Op | None, nranks: int) -> Array:
    """Values from 1 to ``top``. With many ranks, few are near an end, so that ties are rare."""
    if op is None:
        return random.integers(1, top, _M, endpoint=True)
    values = np.ceil(top * random.random(_M) ** max(1.0, nranks / top)).clip(1, top)
    return values if op.name == "max" else top + 1 - values


def _about_whole(random: np.random.Generator, share: int, nranks: int) -> Array:
    """Values whose averages lie close to a whole number, so that they are rounded both ways."""
    if share > 1:
        return random.integers(0, share // 2 * 2, _M, endpoint=True)
    # Ones, with 2 and 0 in turn at random places: a sum differs from ``nranks`` by 1 at most.
    off = np.flatnonzero(random.random(_M) < 0.5)
    off = off[: len(off) // 2 * 2]
    values = np.ones(_M, np.int64)
    values[off] += np.where(np.arange(len(off)) % 2, 1, -1)
    return _by_rank(values)


def _factors(random: np.random.Generator, dtype: np.dtype[Any], nranks: int) -> Array:
    """Factors whose products are exact: wrapping integers, or ± powers of two for floats."""
    if dtype.kind in "iu":
        return (2 * random.integers(0, 2**6, _M) + 1).astype(dtype)
    # A product of n factors 2^e, |e| ≤ 1, lies between 2^-n and 2^n.
    exponents = random.integers(-1, 2, _M) * int(nranks < -limits(dtype).minexp)
    signs = random.choice([-1.0, 1.0], _M)
    return (signs * np.exp2(exponents)).astype(dtype)


class ResultCheck:
    """Checks a row's results on one rank, with fresh inputs and a poisoned result each time.

    ``ulps``: units in the last place by which a library's average may be off. ``compares``: False
    if an iteration leaves no data to compare. ``digests``: compare long results by digest (see
    `Inputs.same_digest`), and element by element only if the digest differs.
    """

    def __init__(
        self, inputs: Inputs, rank: int, source: Array, target: Array, *, ulps: int = 0,
        compares: bool = True, digests: bool = False,
    ) -> None:  # fmt: skip
        self._inputs, self._rank, self._ulps = inputs, rank, ulps
        self._source, self._target = source, target
        self._digests = digests and not ulps and target.nbytes >= DIGEST_BYTES
        self._turn, self.iterations = 0, 0
        self.wrong = Wrong(0, -1, "", "") if compares else None

    def fresh(self) -> None:
        """Poison the result, and write inputs that differ from those of the previous iterations.

        Data left from an earlier iteration, in the result or in transit, is then wrong.
        """
        self._turn = (self._turn + 1) % TURNS
        poison(self._target)
        # In place, the inputs then overwrite the poison (for all-gather only in the own part).
        self._inputs.fill(self._rank, self._source, self._turn)

    def look(self) -> None:
        """Compare the result, and add the number of wrong elements to ``wrong``."""
        if self.wrong is None:
            return
        self.iterations += 1
        if self._digests and self._inputs.same_digest(self._rank, self._target, self._turn):
            return
        wrong = self._inputs.check(self._rank, self._target, self._ulps, self._turn)
        first = self.wrong if self.wrong.count else wrong
        self.wrong = first._replace(count=self.wrong.count + wrong.count)


class Checked(Wrapper):
    """An action whose result is compared after every iteration, also warm-ups, outside the clock.

    The comparison comes right after the iteration. Then the inputs of the next iteration are
    written, before waiting for any other rank. So an iteration that returns before its result is
    complete, or while other ranks still read its input, is detected. Only then do ranks ``meet``,
    so that no rank begins the next iteration early. ``reached``: ranks access the memory of ranks
    that take no part, and so also meet before the comparison. ``arrived``: called with the number
    of the next iteration, warm-ups included.
    """

    one_by_one = True

    def __init__(
        self,
        action: Action,
        proof: ResultCheck,
        meet: Callable[[], None],
        arrived: Arrived,
        *,
        reached: bool,
    ) -> None:
        self.action, self._proof = action, proof
        self._meet, self._arrived, self._reached = meet, arrived, reached
        self.divides = action.divides

    def __call__(self) -> None:
        """Run the operation once, without a check of its result."""
        self.action()

    def between(self) -> None:
        """Check the iteration's result and write new data, untimed; see `Action.between`."""
        if self._reached:
            self._meet()
        self._proof.look()
        self._proof.fresh()
        self._arrived(self._proof.iterations)
        self._meet()

    def spans(self, n: int, start: Start) -> Spans:
        """Run and check n iterations; returns when each began and ended.

        Iterations are timed one by one, never as a loop. See `Action.spans`.
        """
        parts = list[Spans]()
        for i in range(n):
            alone = start._replace(at=start.at[i : i + 1], arrived=unwatched)
            parts.append(self.action.spans(1, alone))
            self.between()
        begins, ends, absolute = zip(*parts, strict=True)
        return Spans(np.concatenate(begins), np.concatenate(ends), all(absolute))


def describe_checks(checks: Checks) -> str:
    """The line above a table that says which iterations are checked; empty for none."""
    if checks.timed:
        return (
            "checked: every timed iteration, outside the clock, element by element; from"
            f" {DIGEST_BYTES >> 10} KiB a rank on by digest"
        )
    if checks.iterations > 1:
        return f"checked: {checks.iterations} more iterations after the timed ones"
    return "checked: one more iteration after the timed ones" if checks.iterations else ""


def poison(target: Array) -> None:
    """Fill a result with a pattern that is never a correct result."""
    target.view(np.uint8)[:] = 0xA5
