"""All campaigns, one after the other: ``make torture SECONDS=600``, or ``python -m tests.torture``.

Each has a share of the time and prints its seed. A case that fails is kept in ``--keep``; it runs
again with ``python -m tests.torture.NAME --replay FILE``. Parsers are fuzzed by hypothesis, which
keeps its failures in ``.hypothesis`` and tries them first.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path

_PARSERS = "tests/torture/test_parsers.py"
SHARES = {
    "faults": 0.4,
    "parsers": 0.12,
    "corruption": 0.06,
    "mutants": 0.08,
    "executors": 0.12,
    "resources": 0.12,
    "neighbours": 0.1,
}


def main() -> int:
    """Run the campaigns; return 1 if a case failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--keep", type=Path, default=Path("build/torture"))
    parser.add_argument("--only", nargs="+", choices=sorted(SHARES), default=list(SHARES))
    options = parser.parse_args()
    whole = sum(SHARES[name] for name in options.only)
    failed = []
    for name in options.only:
        seconds = options.seconds * SHARES[name] / whole
        if name == "parsers":
            failed += [name] * _fuzz_parsers(seconds, options.seed)
            continue
        words = ["--seconds", f"{seconds:.0f}", "--seed", str(options.seed)]
        done = subprocess.run(
            [sys.executable, "-m", f"tests.torture.{name}", *words, "--keep", str(options.keep)],
            check=False,
        )
        failed += [name] * (done.returncode != 0)
    print(f"seed {options.seed}: {'all held' if not failed else 'failed: ' + ', '.join(failed)}")
    return 1 if failed else 0


def _fuzz_parsers(seconds: float, seed: int) -> bool:
    """Run the tests of parsers with other seeds until the time is over; True if one failed."""
    end, command = time.monotonic() + seconds, [sys.executable, "-m", "pytest", "-q", _PARSERS]
    while time.monotonic() < end:
        words = ["--hypothesis-profile", "search", "--hypothesis-seed", str(seed)]
        if subprocess.run([*command, *words], check=False).returncode:
            return True
        seed += 1
    return False


if __name__ == "__main__":
    sys.exit(main())
