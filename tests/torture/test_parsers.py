"""Fuzz every parser: damaged texts give our errors only, within bounds of time and memory.

``pytest tests/torture/test_parsers.py --hypothesis-profile search --hypothesis-seed N`` looks for
more; a failure shrinks, is printed, and is tried first in the next run (``.hypothesis``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from busbar.errors import ReportError
from tests.torture.bounds import TooLong, bounded
from tests.torture.damage import damaged
from tests.torture.targets import OURS, TARGETS, Broken, Target, printable, quiet

pytestmark = pytest.mark.timeout(960)
SECONDS, BYTES = 2.0, 512 << 20
SEED = 20261122


def hold(target: Target, data: bytes) -> None:
    """Run a parser on these bytes; raises what breaks a rule, and no error of ours."""
    try:
        with bounded(SECONDS, BYTES):
            target.run(data)
    except OURS as error:
        text = str(error)
        assert text.strip() and "\n" not in text and len(text) <= target.longest, text[:200]


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_no_parser_gives_anything_but_what_it_should(name: str) -> None:
    """Rule: damaged texts are read or refused with our errors, within 2 s and 512 MiB each."""
    quiet()
    target, examples = TARGETS[name], settings().max_examples
    texts = target.seeds(SEED)
    for data in texts[:4]:  # what is imported late is imported before anything is bounded
        with contextlib.suppress(Exception):
            target.run(data)

    @settings(max_examples=examples // 2, suppress_health_check=list(HealthCheck))
    @given(st.one_of(st.sampled_from(texts), damaged(texts), damaged(texts), damaged(texts)))
    def holds(data: bytes) -> None:
        hold(target, data)

    holds()


def _hangs(_: bytes) -> None:
    while True:
        pass


def _swallows(_: bytes) -> None:
    bytearray(600 << 20)


def _stumbles(_: bytes) -> None:
    raise KeyError("size")


def _chatters(_: bytes) -> None:
    raise ReportError("one\ntwo")


def _paints(_: bytes) -> None:
    printable("a\x1b[2Jb")


@pytest.mark.parametrize(
    ("run", "error"),
    [
        (_hangs, TooLong),
        (_swallows, MemoryError),
        (_stumbles, KeyError),
        (_chatters, AssertionError),
        (_paints, Broken),
    ],
)
def test_what_a_parser_must_not_do_is_found(
    run: Callable[[bytes], None], error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: time, memory, foreign errors, messages of several lines and escapes are failures."""
    monkeypatch.setattr("tests.torture.test_parsers.SECONDS", 0.2)
    with pytest.raises(error):
        hold(Target("odd-parser", run, lambda _: [b"text"]), b"one")


def test_errors_of_ours_are_no_failures() -> None:
    """Rule: a text that is refused in one line has been taken as it should be."""

    def refuses(data: bytes) -> None:
        raise ReportError("no row of this")

    hold(Target("refuses", refuses, lambda _: []), b"")


def test_damage_reaches_every_kind() -> None:
    """Rule: of two texts hundreds of different ones are made; some stay as they were."""
    texts = [b"# size 1024 12.5\n" * 9, b'{"a": [1, 2], "b": "c"}']
    made = set()

    @settings(max_examples=300, derandomize=True)
    @given(damaged(texts))
    def draw(data: bytes) -> None:
        made.add(data)

    draw()
    assert len(made) > 150 and not made.isdisjoint(texts)
