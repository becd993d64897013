"""The errors that Busbar raises on purpose."""

from __future__ import annotations

import pickle

import pytest

from busbar import errors
from busbar.errors import BusbarError, MissingLibrary, ProbeError

ERRORS = [
    MissingLibrary("pandas", "a.parquet") if kind is MissingLibrary
    else ProbeError("topo -m", "no matrix", 3) if kind is ProbeError
    else kind("what is wrong")
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, BusbarError)
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: BusbarError) -> None:
    """Rule: another process gets the error as it was raised: class, message, attributes."""
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.args, vars(copy)) == (type(error), error.args, vars(error))
    assert str(copy) == str(error)
