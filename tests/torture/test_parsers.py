"""A short run of the fuzzing of parsers; and it finds what it looks for."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from busbar.errors import ReportError
from tests.conftest import Run, thorough
from tests.torture import parsers
from tests.torture.mutate import mutated
from tests.torture.parsers import Case
from tests.torture.targets import Broken, Target, printable

pytestmark = pytest.mark.timeout(960)


@pytest.mark.parametrize("cases", [300, *thorough(700)])
def test_no_parser_gives_anything_but_what_it_should(cases: int, tmp_path: Path, run: Run) -> None:
    """Rule: damaged texts are read or refused with our errors, within 2 s and 512 MiB each."""
    words = ["-m", "tests.torture.parsers", "--cases", str(cases), "--seconds", "600"]
    done = run(sys.executable, *words, "--seed", "20261122", "--keep", str(tmp_path))
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert list(tmp_path.iterdir()) == []


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
    ("run", "said"),
    [
        (_hangs, "TooLong"),
        (_swallows, "MemoryError"),
        (_stumbles, "KeyError in _stumbles"),
        (_chatters, "not one line"),
        (_paints, Broken.__name__),
    ],
)
def test_what_a_parser_must_not_do_is_kept_and_replays(
    run: Callable[[bytes], None], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: time, memory, foreign errors, long messages, escapes are found once, as a replay."""
    target = Target("odd-parser", run, lambda _: [b"text"])
    monkeypatch.setitem(parsers.TARGETS, target.name, target)
    monkeypatch.setattr(parsers, "SECONDS", 0.2)
    cases = [Case(target.name, data) for data in ("one\xff", "two")]
    monkeypatch.setattr(parsers, "drawn", lambda rng: iter(cases))

    def ended(*argv: str) -> object:
        monkeypatch.setattr(sys, "argv", ["parsers", *argv])
        with pytest.raises(SystemExit) as end:
            parsers.main()
        return end.value.code

    assert ended("--keep", str(tmp_path)) == 1
    (kept,) = tmp_path.iterdir()
    failure = json.loads(kept.read_text())
    assert said in failure["wrong"] and failure["case"]["data"] == "one\xff"
    assert ended("--replay", str(kept)) == 1


def test_errors_of_ours_are_no_failures() -> None:
    """Rule: a text that is refused in one line has been taken as it should be."""

    def refuses(data: bytes) -> None:
        raise ReportError("no row of this")

    assert parsers.fault(Target("refuses", refuses, lambda _: []), b"") is None


def test_the_same_seed_gives_the_same_cases() -> None:
    """Rule: a campaign can be run again; damage depends on the seed alone."""
    texts = [b"# size 1024 12.5\n" * 9, b'{"a": [1, 2], "b": "c"}']
    first, again = (
        [mutated(texts[n % 2], texts, rng) for n in range(300)]
        for rng in (random.Random(7), random.Random(7))
    )
    assert first == again
    assert len(set(first)) > 250
