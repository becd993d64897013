"""Runs the launches of a campaign, each with a deadline, and has every observation kept."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.launch.child import owned
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
from busbar.errors import BusbarError, Unavailable
from busbar.start import python

#: Seconds that the worker's own guard waits beyond the deadline.
GUARD_S = 5.0
# A launch may take so many times as long as the slowest of the first half of its batch, and so
# many seconds at least. Seconds between two looks at this.
_PATIENCE, _PATIENCE_S, _LOOK_S = 3.0, 10.0, 0.5
_TAIL = 1 << 12

Words = Callable[[Launch], Sequence[str]]
Decide = Callable[[Sequence[Observation]], Decision]


class Interrupted(BusbarError):
    """A signal ended the campaign; what was measured is kept."""

    def __init__(self, number: int, remedy: str) -> None:
        """``remedy``: how the campaign goes on."""
        super().__init__(f"interrupted; {remedy}")
        self.exit_status = 128 + number


class Watcher(Protocol):
    """What is called during a campaign: with every decision, and with every observation."""

    def decided(self, decision: Decision) -> None:
        """A batch is about to begin, or with no launches the campaign is over."""

    def observed(self, observation: Observation) -> None:
        """A launch has ended; called before any further decision. Must keep it. May raise."""


@dataclass(frozen=True)
class Engine:
    """How launches are run.

    ``words``: the command line of a launch, ``env`` its environment. ``ranks(launch)``: ranks a
    host. ``deadline(launch)``: seconds after which it is ended at the latest. ``at_once``: most
    launches at the same time. ``identities``: what the hosts reported, by host, filled in stage
    alone.
    """

    words: Words
    env: Mapping[str, str]
    ranks: Callable[[Launch], int]
    deadline: Callable[[Launch], float]
    at_once: int
    identities: dict[str, Identity] = field(default_factory=dict)
    # By batch: seconds of the launches that have finished, and how many launches it has.
    _seconds: dict[int, list[float]] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)

    def campaign(
        self, decide: Decide, observations: Sequence[Observation], watcher: Watcher, remedy: str
    ) -> Decision:
        """Run launches until there are no more; returns the last decision.

        ``observations``: those of before. Raises Interrupted at SIGINT, SIGTERM or SIGHUP, when
        every launch has been ended, Unavailable where a launcher cannot be started, and what
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
                room = asyncio.Semaphore(self.at_once)
                batch = [
                    asyncio.create_task(self._one(launch, room)) for launch in decision.launches
                ]
                try:
                    for ended in asyncio.as_completed(batch):
                        observation = await ended
                        watcher.observed(observation)
                        known.append(observation)
                finally:
                    for task in batch:
                        task.cancel()
                    await asyncio.gather(*batch, return_exceptions=True)

    async def _one(self, launch: Launch, room: asyncio.Semaphore) -> Observation:
        async with room:
            lines, outcome = await self._run(launch)
        if launch.stage is Stage.ALONE and (own := identity(lines)) is not None:
            self.identities[launch.hosts[0]] = own
        names = {one.hostname: host for host, one in self.identities.items()}
        return observe(launch, lines, outcome, self.ranks(launch), names)

    async def _run(self, launch: Launch) -> tuple[list[Line], Outcome]:
        """Run a launch to its end, or to its deadline; nothing of it is left when this returns."""
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
        """The deadline of a launch, nearer once half of its batch has finished in less time."""
        finished = self._seconds.get(launch.batch, [])
        if 2 * len(finished) < self._sizes.get(launch.batch, 0) or not finished:
            return self.deadline(launch)
        return min(self.deadline(launch), max(_PATIENCE_S, _PATIENCE * max(finished)))


@contextlib.asynccontextmanager
async def _interruptible(remedy: str) -> AsyncIterator[None]:
    """Cancel the current task at a signal that ends processes, and raise Interrupted."""
    task, loop, received = asyncio.current_task(), asyncio.get_running_loop(), list[int]()
    assert task is not None

    def interrupt(number: int) -> None:
        if not received:  # a second one would cut the ending of launches short
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
        raise Interrupted(received[0] if received else signal.SIGINT, remedy) from None
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _lines(
    stream: asyncio.StreamReader, lines: list[Line], most: int, tail: bytearray
) -> None:
    """Collect a launch's lines of ours, at most so many, and the end of the rest."""
    while True:
        try:
            text = await stream.readline()
        except ValueError:  # a line beyond the limit, which is none of ours
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
    """Keep the end of a stream."""
    while data := await stream.read(1 << 16):
        tail += data
        del tail[:-_TAIL]


async def _ended(process: asyncio.subprocess.Process) -> None:
    """End a launcher by its holder, which leaves nothing; see `bench.qualify.holder`."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    await process.wait()
