"""The frame of a campaign: options, seed, time, and failures that are kept and replay."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

C = TypeVar("C")


class Failure(NamedTuple):
    """A broken rule, the case as JSON, and the output of the run."""

    wrong: str
    case: dict[str, Any]
    said: str


def pythons() -> dict[str, str]:
    """The Python of each MPI that is here."""
    found = {"mpich": sys.executable}
    if os.environ.get("BUSBAR_OPENMPI_PYTHON"):
        found["openmpi"] = os.environ["BUSBAR_OPENMPI_PYTHON"]
    return found


def own_shm(size: str = "") -> None:
    """Start this program again in a mount namespace with an empty /dev/shm, if it may mount."""
    if os.environ.get("BUSBAR_OWN_SHM") or os.geteuid() or not shutil.which("unshare"):
        return
    options = f"-o size={size}" if size else ""
    line = f'mount -t tmpfs {options} none /dev/shm && BUSBAR_OWN_SHM=1 exec "$@"'
    spec = sys.modules["__main__"].__spec__
    assert spec is not None
    again = [sys.executable, "-m", spec.name, *sys.argv[1:]]
    os.execvp("unshare", ["unshare", "-m", "sh", "-c", line, "sh", *again])


def run_campaign(
    doc: str | None,
    name: str,
    drawn: Callable[[random.Random], Iterator[C]],
    play: Callable[[C], Failure | None],
    made: Callable[..., C],
    kind: Callable[[C], str],
    shm: bool = False,
) -> None:
    """Run a campaign's command line; exit with 1 if a case failed.

    ``drawn`` yields the cases of a seed, ``play`` runs one, ``made`` makes one of its fields, and
    ``kind`` names what it is counted under. ``shm``: with a /dev/shm of its own, if it may mount.
    Of failures that say the same the first one is kept.
    """
    parser = argparse.ArgumentParser(description=doc, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--cases", type=int, help="at most so many")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", type=Path, help="folder for the cases that fail")
    parser.add_argument("--replay", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args()
    if shm:
        own_shm()
    if options.replay:
        sys.exit(_replay(options.replay, play, made))
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    print(f"{name}: seed {seed}", flush=True)
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    running = (options.keep or Path()) / f"{name}-running.json"
    end, counts, failures = time.monotonic() + options.seconds, Counter[str](), Counter[str]()
    for number, case in enumerate(drawn(random.Random(seed))):
        if time.monotonic() > end or number == options.cases:
            break
        counts[kind(case)] += 1
        if options.keep:  # what is left if this process does not survive it
            running.write_text(json.dumps({"case": vars(case)}))
        failure = play(case)
        if failure is not None:
            failures[failure.wrong] += 1
            if failures[failure.wrong] == 1:
                _keep(name, failure, options.keep)
    running.unlink(missing_ok=True)
    for which, count in sorted(counts.items()):
        print(f"  {which}: {count}")
    print(f"{name}: {counts.total()} cases, {failures.total()} failures, seed {seed}")
    sys.exit(1 if failures else 0)


def _keep(name: str, failure: Failure, folder: Path | None) -> None:
    text = json.dumps(failure.case, sort_keys=True)
    file = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    print(f"FAILED {file} {text[:500]}\n  {failure.wrong}", flush=True)
    if folder is not None:
        (folder / file).write_text(json.dumps(failure._asdict(), indent=1))


def _replay(
    files: Sequence[Path], play: Callable[[C], Failure | None], made: Callable[..., C]
) -> int:
    failed = 0
    for path in files:
        failure = play(made(**json.loads(path.read_text())["case"]))
        failed += failure is not None
        print(f"{path}: {'as it should be' if failure is None else failure.wrong}", flush=True)
    return 1 if failed else 0
