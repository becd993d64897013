"""Compressed sums among ranks that are threads: what they add up to, the bytes, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from bench.steps.exchange import _ALGORITHMS, CompressedMean
from bench.steps.training.codecs import CODECS, ONCE, codec, suits
from bench.steps.training.problem import relative_error
from busbar.errors import Unsupported
from collectives.execution.inproc.transport import InprocTransport
from collectives.execution.inproc.world import InprocWorld, run

N = 4099


def _given(rank: int, turn: int, elements: int) -> np.ndarray:
    return np.random.default_rng((rank, turn)).standard_normal(elements).astype(np.float32)


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
            vector[:] = _given(world.rank, turn, n)
            action()
            assert np.array_equal(vector, _given(world.rank, turn, n)), "it is left alone"
            ended.append(total.copy())
        left = np.concatenate([feedback.left for feedback in action._feedback])
        found[world.rank] = ended, left, action.sent, action.received
        action.close()

    run(ranks, body, deadline=60)
    return found


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("algorithm", ONCE)
def test_all_ranks_end_with_the_same_mean(algorithm: str, ranks: int) -> None:
    """Rule: all ranks have the same bits, which are the mean of what the codec leaves of each."""
    for text in CODECS:
        turns = _summed(algorithm, text, ranks)
        exact = [_given(rank, 0, N) for rank in range(ranks)]
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
    """Rule: over all turns the sums are what was to be summed, less what ranks still keep back."""
    ranks, turns = 3, 40
    for text in ("1bit", "topk:fraction=0.1"):
        found = _summed(algorithm, text, ranks, turns, 700)
        given = (_given(r, t, 700).astype(float) for r in range(ranks) for t in range(turns))
        wanted = sum(given)
        kept = sum(left.astype(float) for _, left, *_ in found)
        assert np.allclose(ranks * np.sum(found[0][0], axis=0), wanted - kept, atol=1e-2)


@pytest.mark.parametrize("n", [0, 1, 3, N])
@pytest.mark.parametrize("algorithm", ONCE)
def test_the_bytes_are_those_of_the_codes(algorithm: str, n: int) -> None:
    """Rule: a rank's bytes are those of the moves, a code's length each, and of the sum's way back.

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
    """Rule: a ring carries casts only; whoever exchanges once carries all."""
    for text in ("int8", "1bit", "topk"):
        with pytest.raises(Unsupported) as caught:
            suits(codec(text), "ring")
        assert f"ring with --compress {text}: it adds on the way" in str(caught.value)
        for name in ONCE:
            suits(codec(text), name)
    assert tuple(_ALGORITHMS) == ONCE
    for text in ("none", "fp16", "bf16"):
        suits(codec(text), "ring")
