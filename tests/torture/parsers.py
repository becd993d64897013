"""Fuzz every parser in this process: only our errors, within bounds of time and memory per case.

``python -m tests.torture.parsers --seconds 60 --seed 1 --keep DIR``. Each parser in turn gets a
text that it should read, as it is or damaged.
"""

from __future__ import annotations

import contextlib
import random
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from tests.torture.bounds import TooLong, bounded
from tests.torture.campaign import Failure, run_campaign
from tests.torture.mutate import mutated
from tests.torture.targets import OURS, TARGETS, Target, quiet

SECONDS, BYTES = 2.0, 512 << 20
#: Of so many texts of a parser one is not damaged.
WHOLE = 5
#: The campaign's own files: no failure is located in them.
_OURS = {str(Path(__file__).with_name(f"{name}.py")) for name in ("bounds", "parsers", "targets")}


@dataclass(frozen=True)
class Case:
    """A parser and the bytes that it gets, each as the character of its number."""

    parser: str
    data: str


def drawn(rng: random.Random) -> Iterator[Case]:
    """Cases without end, of every parser in turn."""
    quiet()
    seed = rng.randrange(1 << 31)
    texts = {name: TARGETS[name].seeds(seed) for name in sorted(TARGETS)}
    for name, of in texts.items():  # what is loaded late is loaded before anything is bounded
        for data in rng.sample(of, min(4, len(of))):
            with contextlib.suppress(Exception):
                TARGETS[name].run(data)
    for turn in count():
        for name, of in texts.items():
            data = rng.choice(of)
            data = mutated(data, of, rng) if turn % WHOLE else data
            yield Case(name, data.decode("latin-1"))


def fault(target: Target, data: bytes) -> str | None:
    """Return the rule that a parser breaks on these bytes; None if it breaks none."""
    try:
        with bounded(SECONDS, BYTES):
            target.run(data)
    except OURS as error:
        text = str(error)
        if "\n" in text or not text.strip() or len(text) > target.longest:
            most = f"at most {target.longest} characters"
            return f"{text[:200]!r}\nthe message is not one line of {most}"
    except (Exception, TooLong) as error:  # noqa: BLE001 - finding them is what this is for
        # Time and memory run out anywhere, so those are one failure of a parser.
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename not in _OURS]
        where = f" in {frames[-1].name}, {Path(frames[-1].filename).name}" if frames else ""
        if isinstance(error, (TooLong, MemoryError)):
            where = ""
        return "".join(traceback.format_exception(error))[-3000:] + type(error).__name__ + where
    return None


def play(case: Case) -> Failure | None:
    """Run a case; a failure is named by its place in the code."""
    said = fault(TARGETS[case.parser], case.data.encode("latin-1"))
    if said is None:
        return None
    return Failure(f"{case.parser} {said.splitlines()[-1]}", asdict(case), said)


def main() -> None:
    """Run the command line."""
    run_campaign(__doc__, "parsers", drawn, play, Case, kind=lambda case: case.parser)


if __name__ == "__main__":
    main()
