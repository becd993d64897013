"""Names, parameters and compositions: what is known is found, what is not is said in one line."""

from __future__ import annotations

import pytest

from busbar.errors import Unsupported
from collectives.schedule.catalogue import (
    build,
    compositions,
    parameters,
    parse,
)


def test_compositions() -> None:
    """`halving+ring`: a reduce-scatter, an all-gather; `binomial+chain`: a reduce, a broadcast."""
    assert {"halving+ring", "binomial+chain"} <= set(compositions("allreduce"))
    assert set(parameters("allreduce", "binomial+chain")) >= {"root", "segments"}
    made = build("allreduce", "torus+ring", 6, grid=(2, 3))
    assert (made.name, dict(made.parameters)) == ("torus+ring", {"grid": (2, 3)})


@pytest.mark.parametrize(
    ("collective", "name", "given", "complaint"),
    [
        ("allreduc", "ring", {}, "no collective 'allreduc'; did you mean allreduce"),
        ("allreduce", "rng", {}, "no algorithm 'rng'; did you mean ring\\?$"),
        ("allreduce", "ring+rng", {}, "no composition 'ring\\+rng'; there are: reduce_scatter"),
        ("gather", "flat+flat", {}, "nothing composes to gather"),
        ("allreduce", "ring", {"segments": 2}, "no parameter 'segments'; its parameters: none"),
        ("allreduce", "torus", {"grid": 4}, "grid must be sizes like 4x4"),
        ("broadcast", "chain", {"segments": "x"}, "segments must be a whole number"),
        ("broadcast", "chain", {"segments": 0}, "at least 1"),
        ("broadcast", "flat", {"root": 4}, "root 4 is not a rank"),
        ("allreduce", "ring", {"pack": 2}, "pack must be 0 or 1"),
        ("allreduce", "halving+ring", {}, "needs a power of two of ranks, not 6"),
    ],
)
def test_what_cannot_be_says_so(
    collective: str, name: str, given: dict[str, object], complaint: str
) -> None:
    """Unknown names, parameters and values are refused in one line that names the remedy."""
    with pytest.raises(Unsupported, match=complaint) as caught:
        build(collective, name, 6 if "halving" in name else 4, **given)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_parse() -> None:
    """Names carry their parameters as key=value between colons."""
    assert parse("ring") == ("ring", {})
    assert parse("torus:grid=4x2") == ("torus", {"grid": (4, 2)})
    assert parse("chain:alpha=1e-6:segments=-3") == ("chain", {"alpha": 1e-6, "segments": -3})
    for bad in ("chain:segments", "chain:segments=x4", "chain:a=1:a=2", "chain:a=b"):
        with pytest.raises(Unsupported, match=r"key=value|no number"):
            parse(bad)
