"""Mutants of the executors: a wait that is missing or too weak does not survive their tests.

``python -m tests.torture.executors --seconds 600 --keep DIR``. A case changes one place of the code
that carries schedules out, in a copy of the sources: `NATIVE` in C++, whose killer is the stress of
the native plans under ThreadSanitizer (`tests/native/stress.cpp`), and `PYTHON` in the executors
among threads and over MPI, whose killers are runs with ``--check timed``. A mutant that survives is
a failure, and so is one whose text is not in the sources any more, or a killer that fails for
sources that nobody changed.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from tests.torture.campaign import Failure, run_campaign

HOME = Path(__file__).resolve().parents[2]
UNCHANGED = ("native: unchanged", "python: unchanged")
# Seconds that a killer may take; whoever hangs is killed, too.
_PATIENCE_S = 400


class Mutant(NamedTuple):
    """Places of one file, each found once and replaced."""

    file: str
    changes: Sequence[tuple[str, str]]


def _plans(*changes: tuple[str, str]) -> Mutant:
    return Mutant("native/src/plans.cpp", changes)


_ENTER = "if (how_.enter_all) watch_.wait_all(entry_gate(), done_ + 1);"
_EXIT = "if (how_.exit_all) watch_.wait_all(exit_gate(), done_ + 1);"
_EXITS = "for (const Wait& wait : exits_) await(wait, how_.nwindows - 1);"
_WAITS = "for (const Wait& wait : task.waits) await(wait, window);"
_PUBLISH = "            if (task.publish) watch_.publish(progress(me), mark(me, round, index));\n"
_SENT = "    watch_.publish(*reinterpret_cast<Word*>(half), done_ + 1);\n"
_FILLED = "    std::memcpy(half + sizeof(Word), s.span, s.count * size_of(type_));\n"
_ARRIVED = "    watch_.wait(*reinterpret_cast<Word*>(half), done_ + 1, r.peer);\n"
_SHARED_ENTRY = (
    "    watch_.arrive(entry_gate(), me);\n    watch_.wait_all(entry_gate(), done_ + 1);\n"
)

NATIVE: dict[str, Mutant] = {
    "enter_all is not waited for": _plans((_ENTER, "")),
    "enter_all waits for the iteration before": _plans((_ENTER, _ENTER.replace(" + 1", ""))),
    "exit_all is not waited for": _plans((_EXIT, "")),
    "exit_all waits for the iteration before": _plans((_EXIT, _EXIT.replace(" + 1", ""))),
    "exits_ are not waited for": _plans((_EXITS, "")),
    "exits_ are waited for in the first window": _plans(
        (_EXITS, _EXITS.replace("how_.nwindows - 1", "0"))
    ),
    "a task does not wait": _plans((_WAITS, "")),
    "a task waits for the task before": _plans(
        (
            "mark(wait.peer, round, wait.task), wait.peer",
            "mark(wait.peer, round, wait.task) - 1, wait.peer",
        )
    ),
    "a task waits for the window before": _plans(
        (_WAITS, _WAITS.replace("window)", "window > 0 ? window - 1 : 0)"))
    ),
    "marks do not count iterations": _plans(("return done_ * marks + 2", "return 2")),
    "a task is published before it is done": _plans(
        (_PUBLISH, ""),
        (
            "            const std::size_t from = static_cast<std::size_t>(window) * size;\n",
            _PUBLISH
            + "            const std::size_t from = static_cast<std::size_t>(window) * size;\n",
        ),
    ),
    "the mailbox's word is not waited for": _plans((_ARRIVED, "")),
    "the mailbox's word is that of the iteration before": _plans(
        (_ARRIVED, _ARRIVED.replace("done_ + 1", "done_"))
    ),
    "the mailbox's word is written before the message": _plans(
        (_SENT, ""), (_FILLED, _SENT + _FILLED)
    ),
    "the mailbox has one half": _plans(
        ("s.mailbox + (done_ & 1) * s.stride", "s.mailbox"),
        ("r.mailbox + (done_ & 1) * r.stride", "r.mailbox"),
    ),
    "known is never waited for": _plans(("if (known + 1 < done_) {", "if (false) {")),
    "known is one iteration behind": _plans(
        ("if (known + 1 < done_) {", "if (known + 2 < done_) {"),
        (
            "watch_.wait(progress(s.peer), done_ - 1, s.peer);",
            "watch_.wait(progress(s.peer), done_ - 2, s.peer);",
        ),
    ),
    "known promises too much": _plans(
        ("        known = done_ - 1;\n", "        known = done_ + 1;\n")
    ),
    "an iteration of mailboxes is published before it is done": _plans(
        ("    ++done_;\n    watch_.publish(progress(watch_.rank()), done_);\n", "    ++done_;\n"),
        (
            "    std::int64_t index = 0;\n    const auto passed",
            "    watch_.publish(progress(watch_.rank()), done_ + 1);\n"
            "    std::int64_t index = 0;\n    const auto passed",
        ),
    ),
    "shared work does not wait for all to enter": _plans(
        (_SHARED_ENTRY, "    watch_.arrive(entry_gate(), me);\n")
    ),
    "shared work does not wait for all parts": _plans(
        (
            "    watch_.wait_all(exit_gate(), ++done_, [this](int part) { return holder(part); });",
            "    ++done_;",
        )
    ),
    "a part can be claimed twice": _plans(
        ("if (iteration_of(seen) > done_ ||", "if (iteration_of(seen) > done_ + 1 ||")
    ),
    "two ranks can claim a part": _plans(
        ("return word.compare_exchange_strong(seen, (", "return word.exchange(("),
        (" * kRanks + rank);", " * kRanks + rank) + 1 > 0;"),
    ),
    "a part counts before it is done": _plans(
        ("            watch_.arrive(exit_gate(), part);\n", ""),
        (
            "            if (!claim(part, core, any)) continue;\n",
            "            if (!claim(part, core, any)) continue;\n"
            "            watch_.arrive(exit_gate(), part);\n",
        ),
    ),
    "the barrier does not wait": _plans(
        ("    watch_.wait_all(barrier_gate(), ++barriers_);\n", "    ++barriers_;\n")
    ),
    "the barrier waits for the one before": _plans(
        ("wait_all(barrier_gate(), ++barriers_)", "wait_all(barrier_gate(), barriers_++)")
    ),
    "a word is published without release": Mutant(
        "native/src/watch.hpp",
        [
            (
                "word.value.store(value, std::memory_order_release)",
                "word.value.store(value, std::memory_order_relaxed)",
            )
        ],
    ),
    "a rank leaves without release": Mutant(
        "native/src/watch.hpp",
        [
            (
                "life_[rank_].word.value.store(1, std::memory_order_release)",
                "life_[rank_].word.value.store(1, std::memory_order_relaxed)",
            )
        ],
    ),
    "a word is waited for without acquire": Mutant(
        "native/src/watch.hpp",
        [
            (
                "if (word.value.load(std::memory_order_acquire) < value)",
                "if (word.value.load(std::memory_order_relaxed) < value)",
            )
        ],
    ),
}

_INPROC, _MPI = (
    "collectives/execution/inproc/transport.py",
    "collectives/execution/mpi/transport.py",
)
_WAIT, _NEXT = (
    f"            yield from requests(self._mpi, messages[{of}], waits={waits})\n"
    for of, waits in (("i : i + 1", True), ("i + n : i + n + 1", False))
)
PYTHON: dict[str, Mutant] = {
    "threads: a send does not wait until it was read": Mutant(
        _INPROC, [("            acks.get(send.peer, me, me)\n", "")]
    ),
    "threads: a late message is not put aside": Mutant(
        _INPROC, [("late.append((target, other, message.copy()))", "late.append((target, other, message))")]  # noqa: E501
    ),
    "threads: a late message is applied at once": Mutant(
        _INPROC, [("            if receive.late:\n", "            if False:\n")]
    ),
    "threads: a message is acknowledged before it is read": Mutant(
        _INPROC,
        [
            ("            acks.put(me, receive.peer, None)\n", ""),
            (
                "            target = self._view(receive.span)\n",
                "            acks.put(me, receive.peer, None)\n            time.sleep(0)\n"
                "            target = self._view(receive.span)\n",
            ),
        ],
    ),
    "threads: what is done before a step is left out": Mutant(
        _INPROC, [("        for move in step.before:\n", "        for move in ():\n")]
    ),
    "threads: what is done after a step is left out": Mutant(
        _INPROC, [("        for move in step.after:\n", "        for move in ():\n")]
    ),
    "mpi: a step's requests are not waited for": Mutant(
        _MPI, [("            *requests(mpi, self.messages, waits=True),\n", "")]
    ),
    "mpi: of a step's requests the first is not waited for": Mutant(
        _MPI,
        [("requests(mpi, self.messages, waits=True)", "requests(mpi, self.messages[1:], waits=True)")],  # noqa: E501
    ),
    "mpi: a segment is added before it came": Mutant(_MPI, [(_WAIT, ""), (_NEXT, _WAIT + _NEXT)]),
    "mpi: segments share a buffer": Mutant(
        _MPI, [("staging[i % n][: len(t)]", "staging[0][: len(t)]")]
    ),
    "mpi: a late sum is added as it arrives": Mutant(
        _MPI, [("elif not receive.late and self._phase", "elif self._phase")]
    ),
    "mpi: what arrived is not added": Mutant(
        _MPI, [("            *self.adds,\n", "")]
    ),
}  # fmt: skip

# Up to several segments of a message that is added (`collectives.execution.mpi.transport`).
_TIMED = ("--sizes", "64,8K,256K,4M", "-n", "25", "-w", "1", "-c", "timed")
_RUNS: dict[str, Sequence[tuple[str, ...]]] = {
    "threads": [
        ("allreduce", "--threads", "4", "--transport", "inproc", *_TIMED,
         "-A", "ring,recursive_doubling,halving_doubling"),
        ("alltoall", "--threads", "4", "--transport", "inproc", *_TIMED,
         "-A", "direct,pairwise,bruck"),
    ],
    "mpi": [
        ("allreduce", "--ranks", "4", "--transport", "mpi", *_TIMED,
         "-A", "ring,recursive_doubling,one_shot"),
        ("alltoall", "--ranks", "4", "--transport", "mpi", *_TIMED, "-A", "pairwise,bruck"),
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A mutant by its name, or one of `UNCHANGED`."""

    mutant: str


def changed(mutant: Mutant, home: Path) -> str:
    """The mutant's file as it becomes.

    Raises ValueError for text that is not there once, SyntaxError for what is no Python.
    """
    text = (home / mutant.file).read_text()
    for old, new in mutant.changes:
        if text.count(old) != 1:
            raise ValueError(f"{mutant.file} has {text.count(old)} times: {old.strip()}")
        text = text.replace(old, new)
    if mutant.file.endswith(".py"):
        compile(text, mutant.file, "exec")
    return text


def drawn(rng: random.Random) -> Iterator[Case]:
    """What must pass, then every mutant once, in an order of the seed."""
    yield from map(Case, UNCHANGED)
    names = [*NATIVE, *PYTHON]
    rng.shuffle(names)
    yield from map(Case, names)


def play(case: Case) -> Failure | None:
    """Run a case: a mutant is killed; unchanged sources pass."""
    name, unchanged = case.mutant, case.mutant in UNCHANGED
    mutant = NATIVE.get(name) or PYTHON.get(name)
    native = name in NATIVE or name == UNCHANGED[0]
    with tempfile.TemporaryDirectory() as folder:
        try:
            killer, said = (_native if native else _python)(name, mutant, Path(folder))
        except (ValueError, SyntaxError, subprocess.CalledProcessError) as error:
            return Failure(f"no mutant any more: {error}", asdict(case), "")
    print(f"  {name}: {killer or 'passed' if unchanged else killer or 'SURVIVED'}", flush=True)
    if unchanged and killer:
        return Failure(f"{killer} fails for unchanged sources", asdict(case), said)
    if not unchanged and not killer:
        return Failure("survived", asdict(case), said)
    return None


def _native(name: str, mutant: Mutant | None, folder: Path) -> tuple[str, str]:
    """Build the stress of the native plans with a mutant, and run it; who killed it, and how."""
    sources = folder / "native/src"
    shutil.copytree(HOME / "native/src", sources)
    if mutant is not None:
        (folder / mutant.file).write_text(changed(mutant, folder))
    kernels, objects = _kernels(), []
    flags = ["-std=c++20", "-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=thread", "-pthread"]
    units = [*(sources / f"{one}.cpp" for one in ("plans", "watch", "timed", "calls"))]
    for unit in [*units, HOME / "tests/native/stress.cpp"]:
        objects.append(str(folder / f"{unit.stem}.o"))
        command = ["c++", *flags, f"-I{sources}", "-c", str(unit), "-o", objects[-1]]
        subprocess.run(command, check=True, timeout=_PATIENCE_S)
    program = str(folder / "stress")
    link = ["c++", *flags, *objects, *kernels, "-o", program]
    subprocess.run(link, check=True, timeout=_PATIENCE_S)
    # The sanitizer does not know every address layout that newer kernels hand out.
    command = ["setarch", "-R", program] if shutil.which("setarch") else [program]
    return _killed("stress", command, dict(os.environ, TSAN_OPTIONS="halt_on_error=1"), folder)


def _kernels() -> list[str]:
    """The kernels, which no mutant touches, compiled once for all cases and campaigns."""
    kept = HOME / "build/native/mutants"
    kept.mkdir(parents=True, exist_ok=True)
    newest = max(path.stat().st_mtime for path in (HOME / "native/src").glob("kernels*"))
    found = []
    for source in sorted((HOME / "native/src").glob("kernels*.cpp")):
        target = kept / f"{source.stem}.o"
        if not target.exists() or target.stat().st_mtime < newest:
            flags = ["-std=c++20", "-O1", "-g1", "-fsanitize=thread", "-pthread"]
            command = ["c++", *flags, "-c", str(source), "-o", str(target)]
            subprocess.run(command, check=True, timeout=_PATIENCE_S)
        found.append(str(target))
    return found


def _python(name: str, mutant: Mutant | None, folder: Path) -> tuple[str, str]:
    """Run benchmarks of a copy of the packages with a mutant; who killed it, and how."""
    for package in ("bench", "busbar", "collectives", "native", "reports", "topology"):
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(HOME / package, folder / package, ignore=skipped)
    if mutant is not None:
        (folder / mutant.file).write_text(changed(mutant, folder))
    environment = dict(os.environ, PYTHONPATH=str(folder), PYTHONDONTWRITEBYTECODE="1")
    through = name.partition(":")[0]
    said = ""
    for run in _RUNS.get(through) or [one for runs in _RUNS.values() for one in runs]:
        command = [sys.executable, "-m", f"bench.{run[0]}", *run[1:], "-T", "60"]
        which = f"{run[0]} --transport {run[run.index('--transport') + 1]} -c timed"
        killer, said = _killed(which, command, environment, folder)
        if killer:
            return killer, said
    return "", said


def _killed(
    name: str, command: Sequence[str], environment: dict[str, str], folder: Path
) -> tuple[str, str]:
    """The name and how it ended, where a killer fails or hangs; and what was said."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False,
            env=environment, cwd=folder,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{name} (hangs)", ""
    said = done.stdout[-2000:] + done.stderr[-2000:]
    if done.returncode == 0:
        return "", said
    if "data race" in done.stderr:
        return f"{name} (race)", said
    wrong = "wrong result" in done.stderr or "failed:" in done.stderr
    return f"{name} ({'wrong result' if wrong else f'status {done.returncode}'})", said


if __name__ == "__main__":
    run_campaign(
        __doc__, "executors", drawn, play, Case, lambda case: case.mutant.partition(":")[0]
    )
