"""Fuzz every parser in this process: only our errors, within bounds of time and memory per case.

``python -m tests.torture.parsers --seconds 60 --seed 1 --keep DIR`` prints the seed and the
failures. Each failure is kept as a file named after its parser; ``--replay FILE …`` runs it again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.torture.bounds import TooLong, bounded
from tests.torture.mutate import mutated
from tests.torture.targets import OURS, TARGETS, Target, quiet

SECONDS, BYTES = 2.0, 512 << 20
#: The campaign's own files: no failure is located in them.
_OURS = {str(Path(__file__).with_name(f"{name}.py")) for name in ("bounds", "parsers", "targets")}


@dataclass
class Campaign:
    """Failures so far, one for each place in the code, and how many cases each parser had."""

    keep: Path | None
    cases: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)

    def case(self, target: Target, data: bytes) -> None:
        """Run one case; keep it where it fails in a way that no earlier one did."""
        running = None if self.keep is None else self.keep / f"{target.name}-running"
        if running is not None:
            running.write_bytes(data)  # what is left if this process does not survive it
        self.cases[target.name] += 1
        said = fault(target, data)
        if running is not None:
            running.unlink()
        if said is None:
            return
        where = f"{target.name} {said.splitlines()[-1]}"
        if where not in self.failures:
            self.failures[where] = said
            name = f"{target.name}-{hashlib.sha256(data).hexdigest()[:12]}"
            if self.keep is not None:
                (self.keep / name).write_bytes(data)
                (self.keep / f"{name}.txt").write_text(said, errors="replace")
            print(f"FAILED {name}\n{said}", flush=True)


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


def campaign(
    names: Sequence[str],
    seed: int,
    going: Callable[[int], bool],
    keep: Path | None = None,
    good: int | None = None,
) -> Campaign:
    """Run cases on the named parsers in turn, while ``going(number of the case)``.

    Cases start from all good texts, or from ``good`` texts of each parser.
    """
    quiet()
    found = Campaign(keep)
    rng = random.Random(seed)
    texts = {name: TARGETS[name].seeds(seed) for name in names}
    if good is not None:
        texts = {name: rng.sample(of, min(good, len(of))) for name, of in texts.items()}
    for name in names:  # what is loaded late is loaded before anything is bounded
        for data in texts[name]:
            with contextlib.suppress(Exception):
                TARGETS[name].run(data)
    for name in names:
        for data in texts[name]:
            found.case(TARGETS[name], data)
    number = 0
    while going(number):
        name = names[number % len(names)]
        data = mutated(rng.choice(texts[name]), texts[name], rng)
        found.case(TARGETS[name], data)
        number += 1
    return found


def main(argv: Iterable[str] | None = None) -> int:
    """Run the command line; return 1 if a case failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--cases", type=int, help="instead of --seconds: so many, from few texts")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", type=Path, help="folder for the cases that fail")
    parser.add_argument("--only", nargs="+", choices=sorted(TARGETS), metavar="PARSER")
    parser.add_argument("--replay", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args(None if argv is None else list(argv))
    if options.replay:
        return _replay(options.replay)
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.seconds
    names = options.only or sorted(TARGETS)
    few = options.cases is not None
    found = campaign(
        names,
        seed,
        lambda n: n < options.cases if few else time.monotonic() < end,
        options.keep,
        good=4 if few else None,
    )
    for name, count in sorted(found.cases.items()):
        print(f"{name}: {count} cases")
    print(f"{sum(found.cases.values())} cases, {len(found.failures)} failures, seed {seed}")
    return 1 if found.failures else 0


def _replay(files: Sequence[Path]) -> int:
    quiet()
    failed = 0
    for path in files:
        name = path.name.rpartition("-")[0]
        if name not in TARGETS:
            raise SystemExit(f"{path}: no parser {name!r}; a case is named PARSER-HASH")
        said = fault(TARGETS[name], path.read_bytes())
        failed += said is not None
        print(f"{path}: {'as it should be' if said is None else said}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
