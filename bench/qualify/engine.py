"""Runs the launches of a campaign, each with a deadline, and passes on every observation."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.launch.child import owned
from bench.launch.launch import Interrupted
from bench.qualify.lines import (
    LINES_A_RANK,
    MOST_LINE,
    Identity,
    Line,
    Outcome,
    identity,
    observe,
    parse,
)
from bench.qualify.model import Decision, Launch, Observation, Stage
from busbar.errors import Unavailable
from busbar.start import python

#: Seconds after the deadline at which a worker ends itself.
GUARD_S = 5.0
# A launch may take _PATIENCE times as long as the slowest of the first half of its batch, but at
# least _PATIENCE_S seconds. This is checked every _LOOK_S seconds.
_PATIENCE, _PATIENCE_S, _LOOK_S = 3.0, 10.0, 0.5
_TAIL = 1 << 12

Words = Callable[[Launch], Sequence[str]]
Decide = Callable[[Sequence[Observation]], Decision]


class Watcher(Protocol):
    """Callbacks of a campaign, for every decision and every observation."""

    def decided(self, decision: Decision) -> None:
        """Called before a batch begins; without launches, the campaign is over."""

    def observed(self, observation: Observation) -> None:
        """Called when a launch has ended, before any further decision. Must store it. May raise."""


@dataclass(frozen=True)
class Engine:
    """Runs launches.

    ``words``: the command line of a launch. ``env``: its environment. ``ranks(launch)``: ranks on
    each host. ``deadline(launch)``: seconds after which the launch is ended. ``at_once``: most
    launches at the same time. ``identities``: the identity that each host reported, filled in stage
    alone. ``here``: the host that this process runs on; empty if that is none of them.
    """

    words: Words
    env: Mapping[str, str]
    ranks: Callable[[Launch], int]
    deadline: Callable[[Launch], float]
    at_once: int
    identities: dict[str, Identity] = field(default_factory=dict)
    here: str = ""
    # Hosts by the names that they report; empty where `identities` has changed.
    _names: dict[str, str] = field(default_factory=dict)
    # By batch: seconds of the launches that have finished, and how many launches it has.
    _seconds: dict[int, list[float]] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)

    def campaign(
        self, decide: Decide, observations: Sequence[Observation], watcher: Watcher, remedy: str
    ) -> Decision:
        """Run launches until no more are needed. Returns the last decision.

        ``observations``: those made earlier. Raises Interrupted at SIGINT, SIGTERM or SIGHUP, after
        all launches have been ended; Unavailable if a launcher cannot be started; and whatever
        ``watcher`` raises.
        """
        return asyncio.run(self._campaign(decide, list(observations), watcher, remedy))

    async def _campaign(
        self, decide: Decide, known: list[Observation], watcher: Watcher, remedy: str
    ) -> Decision:
        async with _interruptible(remedy):
            while True:
                decision = decide(known)
                watcher.decided(decision)
                if not decision.launches:
                    return decision
                self._sizes[decision.launches[0].batch] = len(decision.launches)
                for launches in self.in_turn(decision.launches):
                    await self._at_once(launches, known, watcher)

    def in_turn(self, launches: Sequence[Launch]) -> Sequence[Sequence[Launch]]:
        """The launches that run at the same time, one group after the other.

        Starting launches takes the cores of this host, so that it would look slow: its own launches
        come last.
        """
        parts = (
            [one for one in launches if self.here not in one.hosts],
            [one for one in launches if self.here in one.hosts],
        )
        return [part for part in parts if part]

    async def _at_once(
        self, launches: Sequence[Launch], known: list[Observation], watcher: Watcher
    ) -> None:
        """Run launches at the same time. Their observations are added to ``known``."""
        room = asyncio.Semaphore(self.at_once)
        tasks = [asyncio.create_task(self._one(launch, room)) for launch in launches]
        try:
            for ended in asyncio.as_completed(tasks):
                observation = await ended
                watcher.observed(observation)
                known.append(observation)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, launch: Launch, room: asyncio.Semaphore) -> Observation:
        async with room:
            lines, outcome = await self._run(launch)
        if launch.stage is Stage.ALONE and (own := identity(lines)) is not None:
            self.identities[launch.hosts[0]] = own
            self._names.clear()
        names = self._named() if len(launch.hosts) > 1 else {}
        return observe(launch, lines, outcome, self.ranks(launch), names)

    def _named(self) -> Mapping[str, str]:
        """Hosts by reported name, without names that several machines report (cloned images)."""
        if not self._names:
            times = Counter(one.hostname for one in self.identities.values())
            known = self.identities.items()
            self._names.update(
                (one.hostname, host) for host, one in known if times[one.hostname] == 1
            )
        return self._names

    async def _run(self, launch: Launch) -> tuple[list[Line], Outcome]:
        """Run a launch until it ends or its deadline passes. No process of it is left behind."""
        start = time.monotonic()
        words = python("bench.qualify.holder", *self.words(launch))
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                env=dict(self.env),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=2 * MOST_LINE,
                **owned(),
            )
        except OSError as error:
            raise Unavailable(f"{words[0]}: cannot be started: {error.strerror}") from None
        assert process.stdout is not None and process.stderr is not None
        most = LINES_A_RANK * self.ranks(launch) * len(launch.hosts)
        lines, tail = list[Line](), bytearray()
        reading = asyncio.gather(
            _lines(process.stdout, lines, most, tail), _last(process.stderr, tail), process.wait()
        )
        status = None
        try:
            while not reading.done() and time.monotonic() < start + self._limit(launch):
                await asyncio.wait((reading,), timeout=_LOOK_S)
            if reading.done():
                status = process.returncode
            seconds = time.monotonic() - start
        finally:
            await _ended(process)
            reading.cancel()
        if status == 0:
            self._seconds.setdefault(launch.batch, []).append(seconds)
        return lines, Outcome(status, tail.decode(errors="replace"), seconds)

    def _limit(self, launch: Launch) -> float:
        """The deadline of a launch; shorter once half of its batch has finished quickly."""
        finished = self._seconds.get(launch.batch, [])
        if 2 * len(finished) < self._sizes.get(launch.batch, 0) or not finished:
            return self.deadline(launch)
        return min(self.deadline(launch), max(_PATIENCE_S, _PATIENCE * max(finished)))


@contextlib.asynccontextmanager
async def _interruptible(remedy: str) -> AsyncIterator[None]:
    """Cancel the current task at SIGINT, SIGTERM or SIGHUP, and raise Interrupted.

    ``remedy``: the end of the error's message.
    """
    task, loop, received = asyncio.current_task(), asyncio.get_running_loop(), list[int]()
    assert task is not None

    def interrupt(number: int) -> None:
        if not received:  # a second signal would interrupt the ending of launches
            received.append(number)
            task.cancel()

    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    for number in numbers:
        loop.add_signal_handler(number, interrupt, number)
    try:
        yield
    except asyncio.CancelledError:
        raise Interrupted(received[0] if received else signal.SIGINT, f"; {remedy}") from None
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _lines(
    stream: asyncio.StreamReader, lines: list[Line], most: int, tail: bytearray
) -> None:
    """Collect at most ``most`` lines of the workers, and the end of any other output."""
    while True:
        try:
            text = await stream.readline()
        except ValueError:  # a line longer than any line of a worker
            continue
        if not text:
            return
        line = parse(text.decode(errors="replace"))
        if line is None:
            tail += text  # MPICH's launcher prints to standard output which rank was killed
            del tail[:-_TAIL]
        elif len(lines) < most:
            lines.append(line)


async def _last(stream: asyncio.StreamReader, tail: bytearray) -> None:
    """Collect the end of a stream in ``tail``."""
    while data := await stream.read(1 << 16):
        tail += data
        del tail[:-_TAIL]


async def _ended(process: asyncio.subprocess.Process) -> None:
    """End a launcher and all its processes, through its holder; see `bench.qualify.holder`."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    await process.wait()
