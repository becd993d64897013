"""Learners as processes of their own, which call the servers' sockets."""

from __future__ import annotations

import os
import sys
from subprocess import DEVNULL, Popen, TimeoutExpired

from bench.launch import child
from busbar.errors import RankFailure, Unavailable

# How long they take to end.
_ENDS_S = 10.0


class LearnerProcesses:
    """Processes of ``bench.step --join NAME``, which end when this one is killed.

    A context manager: none is left behind. Raises Unavailable where one cannot be started.
    """

    def __init__(self, name: str, learners: int) -> None:
        command = [sys.executable, "-m", "bench.step", "--join"]
        self._started: list[Popen[str]] = []
        try:
            for number in range(learners):
                learner = [*command, f"{name}:{number}"]
                self._started.append(child.popen(learner, os.environ, stdout=DEVNULL))
        except OSError as error:
            self._kill()
            raise Unavailable(f"a learner cannot be started: {error.strerror}") from None

    @property
    def pids(self) -> list[int]:
        """Their numbers."""
        return [process.pid for process in self._started]

    def look(self) -> None:
        """Raise RankFailure where a learner has ended before it began."""
        for process in self._started:
            if process.poll() is not None:
                status, pid = child.shell(process.returncode), process.pid
                raise RankFailure(f"a learner (pid {pid}) ended with {status} before it began")

    def wait(self) -> None:
        """Wait for those that end by themselves."""
        for process in self._started:
            try:
                process.wait(_ENDS_S)
            except TimeoutExpired:
                return

    def _kill(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()

    def __enter__(self) -> LearnerProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
