"""The errors that Busbar raises on purpose."""

from __future__ import annotations

import io
import pickle
import sys

import pytest

from busbar import errors
from busbar.errors import BusbarError, MissingFile, MissingLibrary, ProbeError
from busbar.process import serve
from busbar.status import INTERRUPTED

ERRORS = [
    MissingLibrary("pandas", "a.parquet") if kind is MissingLibrary
    else ProbeError("topo -m", "no matrix", 3) if kind is ProbeError
    else MissingFile("no such file: a.csv", "a.csv") if kind is MissingFile
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


class _Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "text"), [(_Terminal, "busbar: interrupted\n"), (io.StringIO, "")]
)
def test_an_interrupt_is_confirmed_on_a_terminal(
    stream: type[io.StringIO], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: Ctrl-C before there is anything to report is confirmed, on a terminal only."""

    def interrupted() -> int:
        raise KeyboardInterrupt

    screen = stream()
    monkeypatch.setattr(sys, "stderr", screen)
    assert serve("busbar", interrupted) == INTERRUPTED
    assert screen.getvalue() == text
