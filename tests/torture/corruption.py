"""The check sees damaged results: flipped bits, and right values in wrong places.

``python -m tests.torture.corruption --seconds 60 --seed 1 --keep DIR``. A case takes a right result
of a random collective, type, operation and rank count, damages it in a way of `DAMAGE`, and checks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.run.data import Inputs
from busbar.errors import Unsupported
from collectives.schedule.catalogue import collectives, spec
from collectives.schedule.dtypes import DTYPES, FLOAT8, dtype
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import OPS, op, scale
from collectives.schedule.spec import Unit
from tests.collectives.cases import expected
from tests.torture.campaign import Failure, run_campaign

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A result and its damage."""

    collective: str
    nranks: int
    dtype: str
    op: str
    elements: int
    damage: str
    seed: int


def _bit(out: Array, part: int, rng: random.Random) -> None:
    bits = out.view(np.uint8)
    at = rng.randrange(len(bits))
    bits[at] ^= 1 << rng.randrange(8)


def _shift(out: Array, part: int, rng: random.Random) -> None:
    out[:] = np.roll(out, rng.choice((-1, 1, part, rng.randrange(1, len(out) + 1))))


def _swap(out: Array, part: int, rng: random.Random) -> None:
    a, b = (part * rng.randrange(max(1, len(out) // part)) for _ in range(2))
    kept = out[a : a + part].copy()
    out[a : a + part] = out[b : b + part]
    out[b : b + part] = kept


def _copy(out: Array, part: int, rng: random.Random) -> None:
    a, b = (part * rng.randrange(max(1, len(out) // part)) for _ in range(2))
    out[a : a + part] = out[b : b + part].copy()


def _poison(out: Array, part: int, rng: random.Random) -> None:
    start = rng.randrange(len(out))
    out[start : start + part].view(np.uint8)[:] = rng.choice((0xA5, 0, 0xFF))


DAMAGE: dict[str, Callable[[Array, int, random.Random], None]] = {
    "bit": _bit,
    "shift": _shift,
    "swap": _swap,
    "copy": _copy,
    "poison": _poison,
}


def drawn(rng: random.Random) -> Iterator[Case]:
    """Cases without end."""
    names = [
        name
        for name in collectives()
        if spec(name).unit is not Unit.NOTHING and name != "alltoallv"
    ]
    while True:
        name = rng.choice(names)
        nranks = rng.choice((2, 3, 4, 5, 8, 9, 16, 33, 64, 127, 128, 200))
        yield Case(
            name,
            nranks,
            rng.choice((*DTYPES, *FLOAT8)),
            rng.choice(list(OPS)) if spec(name).reduces else "max",
            rng.choice((1, 2, 7, 64, 300)),
            rng.choice(list(DAMAGE)),
            rng.randrange(1 << 30),
        )


def result(case: Case) -> tuple[Inputs, Array, int]:
    """Return the check, the right output of some rank, and that rank."""
    what, kind, rng = spec(case.collective), dtype(case.dtype), random.Random(case.seed)
    layout = Layout(what, case.nranks, what.parts(case.nranks))
    operation = op(case.op) if what.reduces else None
    inputs = Inputs(layout, kind, operation, case.elements)
    given = []
    for rank in range(case.nranks):
        given.append(np.empty(layout.elements(rank, Buffer.IN, case.elements), kind))
        inputs.fill(rank, given[-1])
    outs = expected(layout, case.elements, given, op(case.op).ufunc)
    rank = rng.choice([r for r in range(case.nranks) if len(outs[r])])
    out = outs[rank].astype(kind).copy()
    if operation is not None and operation.mean:
        scale(out, case.nranks)
    return inputs, out, rank


def play(case: Case) -> Failure | None:
    """Run a case: the right output passes, the damaged one does not."""
    with np.errstate(all="ignore"):
        try:
            inputs, out, rank = result(case)
        except Unsupported:  # an average that the type cannot hold, say
            return None
        before = inputs.check(rank, out).count
        good = out.copy()
        DAMAGE[case.damage](out, case.elements, random.Random(case.seed))
        differs = not np.array_equal(good.astype(np.float64), out.astype(np.float64))
        after = inputs.check(rank, out).count
    if before:
        return Failure(f"{before} elements of a right result count as wrong", asdict(case), "")
    # Whole parts may be alike where they are so short that there are few values for them.
    if differs and not after:
        return Failure("damage was not seen", asdict(case), f"{good[:20]}\n{out[:20]}")
    return None


if __name__ == "__main__":
    run_campaign(__doc__, "corruption", drawn, play, Case, kind=lambda case: case.damage)
