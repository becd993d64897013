"""Compressed gradients and their sums among ranks: bytes, errors, error feedback, refusals."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bench.steps.exchange import _ALGORITHMS, CompressedMean
from bench.steps.training.codecs import BLOCK, CODECS, ONCE, Feedback, codec, suits
from bench.steps.training.problem import relative_error
from busbar.errors import Unsupported
from collectives.execution.inproc.transport import InprocTransport
from collectives.execution.inproc.world import InprocWorld, run
from tests.conftest import examples

_lengths = st.integers(0, 2 * BLOCK + 3)
_vectors = _lengths.flatmap(
    lambda n: arrays(np.float32, n, elements=st.floats(-1e3, 1e3, width=32, allow_subnormal=False))
)
NAMES = (*CODECS, "topk:fraction=0.3")


def _random(elements: int, seed: int | tuple[int, int] = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(elements).astype(np.float32)


@pytest.mark.parametrize("name", NAMES)
@given(elements=_lengths)
@examples(25)
def test_a_vector_takes_as_many_bytes_as_counted(name: str, elements: int) -> None:
    """Rule: the number of bytes depends only on the length, and decoding returns that length."""
    chosen = codec(name)
    wire = chosen.encode(_random(elements))
    assert wire.dtype == np.uint8 and len(wire) == chosen.nbytes(elements)
    back = chosen.decode(wire, elements)
    assert back.dtype == np.float32 and len(back) == elements


@pytest.mark.parametrize(
    ("name", "bits"),
    [("none", 32), ("fp16", 16), ("bf16", 16), ("int8", 8.04), ("1bit", 1.07), ("topk", 0.65)],
)
def test_bits_an_element(name: str, bits: float) -> None:
    """Rule: a large vector costs about so many bits per element, with scales and indices."""
    assert codec(name).nbytes(1 << 20) * 8 / (1 << 20) == pytest.approx(bits, rel=0.02)


@pytest.mark.parametrize("name", ["none", "fp16", "bf16", "int8", "1bit", "topk:fraction=0.3"])
@given(vector=_vectors)
@examples(40)
def test_how_far_off(name: str, vector: np.ndarray) -> None:
    """Rule: casts are off by half a unit in the last place, 8 bits by half a scale.

    Signs never grow the vector's squared error above its own squares; the largest elements come
    back as they were and nothing smaller than what was left out is kept.
    """
    chosen, n = codec(name), len(vector)
    back = chosen.decode(chosen.encode(vector), n)
    off = np.abs(back - vector)
    if name == "none":
        assert np.array_equal(back, vector)
    elif name in ("fp16", "bf16"):
        relative = 2.0 ** -(11 if name == "fp16" else 8)
        assert (off <= np.abs(vector) * relative + 2.0**-24).all()
    elif name == "int8":
        for start in range(0, n, BLOCK):
            block = slice(start, start + BLOCK)
            scale = np.abs(vector[block]).max(initial=0) / 127
            assert (off[block] <= scale * 0.5001).all()
    elif name == "1bit":
        squares = np.sum(vector.astype(np.float64) ** 2)
        assert np.sum(off.astype(np.float64) ** 2) <= squares * 1.0001 + 1e-9
    else:
        kept = back != 0
        assert np.array_equal(back[kept], vector[kept])
        left = np.abs(vector[~kept]).max(initial=0)
        assert np.count_nonzero(kept) <= ceil(0.3 * n)
        assert np.abs(vector[kept]).min(initial=np.inf) >= left


@pytest.mark.parametrize("name", ["1bit", "topk", "topk:fraction=0.3"])
def test_feedback_loses_nothing(name: str) -> None:
    """Rule: all decoded vectors and the remaining error add up to all vectors.

    The remaining error stays bounded; without feedback the error grows with every vector.
    """
    n, rounds = 600, 1500
    keeping, without = Feedback(codec(name), n), codec(name)
    wanted, sent, lossy = np.zeros(n), np.zeros(n), np.zeros(n)
    sizes = []
    for turn in range(rounds):
        vector = _random(n, turn) + np.float32(0.1)
        wanted += vector
        sent += without.decode(keeping.encode(vector), n)
        lossy += without.decode(without.encode(vector), n)
        sizes.append(float(np.linalg.norm(keeping.left)))
    assert np.allclose(wanted, sent + keeping.left, atol=0.05)
    assert max(sizes[rounds // 2 :]) < 2 * max(sizes[: rounds // 2])
    assert np.linalg.norm(wanted - sent) < np.linalg.norm(wanted - lossy) / 3


def test_only_what_needs_it_keeps_anything() -> None:
    """Rule: casts and 8-bit codes have no feedback; only casts can be added on the way."""
    kept = {name: codec(name).feedback for name in CODECS}
    assert [name for name in CODECS if kept[name]] == ["1bit", "topk"]
    assert {n: codec(n).adds for n in CODECS} == {
        "none": "float",
        "fp16": "half",
        "bf16": "bfloat16",
        "int8": None,
        "1bit": None,
        "topk": None,
    }
    keeping = Feedback(codec("int8"), 100)
    keeping.encode(_random(100))
    assert keeping.left.size == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_number_stays_none(name: str) -> None:
    """Rule: a vector with an infinite element or a nan does not become finite."""
    chosen = codec(name)
    for bad in (np.inf, -np.inf, np.nan):
        vector = _random(700)
        vector[5] = bad
        assert not np.isfinite(chosen.decode(chosen.encode(vector), 700)).all(), bad


@pytest.mark.parametrize("name", NAMES)
def test_zeros_stay_zeros(name: str) -> None:
    """Rule: zeros, and elements too small for a scale, stay (nearly) zero."""
    for small in (0.0, 1e-45):
        chosen = codec(name)
        back = chosen.decode(chosen.encode(np.full(40, small, np.float32)), 40)
        assert np.abs(back).max() <= 1e-44


N = 4099


def _summed(
    algorithm: str, text: str, ranks: int, turns: int = 1, n: int = N
) -> list[tuple[list[np.ndarray], np.ndarray, int, int]]:
    """Return, by rank, the vectors after each turn, what it keeps back, bytes sent and received."""
    found: list[tuple[list[np.ndarray], np.ndarray, int, int]] = [([], np.empty(0), 0, 0)] * ranks

    def body(world: InprocWorld) -> None:
        vector, total = np.empty((2, n), np.float32)
        where = InprocTransport(world), world.rank, ranks
        action = CompressedMean(algorithm, codec(text), *where, vector, total)
        ended = []
        for turn in range(turns):
            vector[:] = _random(n, (world.rank, turn))
            action()
            assert np.array_equal(vector, _random(n, (world.rank, turn))), "it is left alone"
            ended.append(total.copy())
        left = np.concatenate([feedback.left for feedback in action._feedback])
        found[world.rank] = ended, left, action.sent, action.received
        action.close()

    run(ranks, body, deadline=60)
    return found


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("algorithm", ONCE)
def test_all_ranks_end_with_the_same_mean(algorithm: str, ranks: int) -> None:
    """Rule: all ranks get the same bits: the mean of the decoded vectors."""
    for text in CODECS:
        turns = _summed(algorithm, text, ranks)
        exact = [_random(N, (rank, 0)) for rank in range(ranks)]
        for ended, *_ in turns:
            assert np.array_equal(ended[0], turns[0][0][0])
        error = relative_error(turns[0][0][0], np.mean(exact, axis=0, dtype=float))
        most = {"none": 1e-6, "fp16": 5e-4, "bf16": 4e-3, "int8": 0.02, "1bit": 0.75, "topk": 1}
        assert error < most[text], (text, error)
        if text == "none":
            total = np.zeros(N, np.float32)
            for vector in exact:
                total += vector
            total /= np.float32(ranks)
            assert np.array_equal(turns[0][0][0], total), "added in rank order"


@pytest.mark.parametrize("algorithm", ONCE)
def test_feedback_makes_up_for_what_was_left(algorithm: str) -> None:
    """Rule: over all turns the sums are the exact sums, less the errors that ranks still keep."""
    ranks, turns = 3, 40
    for text in ("1bit", "topk:fraction=0.1"):
        found = _summed(algorithm, text, ranks, turns, 700)
        given = (_random(700, (r, t)).astype(float) for r in range(ranks) for t in range(turns))
        wanted = sum(given)
        kept = sum(left.astype(float) for _, left, *_ in found)
        assert np.allclose(ranks * np.sum(found[0][0], axis=0), wanted - kept, atol=1e-2)


def test_feedback_goes_on_in_other_ranges() -> None:
    """Rule: the error of a gradient is added the next time, even if its range has changed."""
    n = 700
    wanted, sent, left = np.zeros(n), np.zeros(n), np.zeros(n, np.float32)

    def body(world: InprocWorld) -> None:
        vector, total = np.empty((2, n), np.float32)
        for turn in range(60):
            vector[:] = _random(n, (0, turn))
            wanted[:] += vector
            for part in (slice(0, 7 * turn), slice(7 * turn, n)):
                where = InprocTransport(world), 0, 1, vector[part], total[part], left[part]
                action = CompressedMean("one_shot", codec("1bit"), *where)
                action()
                action.close()
            sent[:] += total

    run(1, body, deadline=60)
    assert np.allclose(wanted, sent + left, atol=0.01) and np.abs(left).max() > 0


@pytest.mark.parametrize("n", [0, 1, 3, N])
@pytest.mark.parametrize("algorithm", ONCE)
def test_the_bytes_are_those_of_the_codes(algorithm: str, n: int) -> None:
    """Rule: a rank's bytes are the codes' lengths for each move, and the sum that is sent back.

    The transport counts them as it moves them.
    """
    ranks = 4
    for text in ("none", "int8", "1bit"):
        chosen = codec(text)
        shards = [n * (r + 1) // ranks - n * r // ranks for r in range(ranks)]
        for rank, (_, _, sent, received) in enumerate(_summed(algorithm, text, ranks, n=n)):
            code = chosen.nbytes(n)
            others = sum(chosen.nbytes(s) for r, s in enumerate(shards) if r != rank)
            expected = {
                "one_shot": (3 * code, 3 * code),
                "ps": (12 * n, 3 * code) if rank == 0 else (code, 4 * n),
                "sharded_ps": (
                    others + 3 * 4 * shards[rank],
                    3 * chosen.nbytes(shards[rank]) + 4 * (n - shards[rank]),
                ),
            }[algorithm]
            assert (sent, received) == expected, (text, rank)


def test_what_is_added_on_the_way_must_be_a_number() -> None:
    """Rule: a ring exchanges only casts; algorithms that send a vector once exchange all codes."""
    for text in ("int8", "1bit", "topk"):
        with pytest.raises(Unsupported) as caught:
            suits(codec(text), "ring")
        assert f"ring with --compress {text}: it adds on the way" in str(caught.value)
        for name in ONCE:
            suits(codec(text), name)
    assert tuple(_ALGORITHMS) == ONCE
    for text in ("none", "fp16", "bf16"):
        suits(codec(text), "ring")
