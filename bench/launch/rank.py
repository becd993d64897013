"""Entry points of a rank's process, with its control socket if there is a starter."""

from __future__ import annotations

import atexit
from collections.abc import Sequence

from bench.launch.control_socket import ControlSocket
from busbar.launchers import launched
from busbar.process import load
from busbar.status import INTERRUPTED, RANK_LOST


def command(argv: Sequence[str]) -> int:
    """Run a benchmark, see `bench.cli.main.command`, which is imported after the socket is open."""
    return joined("bench.cli.main:command", argv)


def step(argv: Sequence[str]) -> int:
    """Measure training steps, see `bench.steps.main.main`."""
    return joined("bench.steps.main:main", argv)


def joined(target: str, argv: Sequence[str]) -> int:
    """Call ``module:function`` with the arguments and this rank's control socket.

    Returns the exit status.
    """
    sign = launched()
    line = ControlSocket.open(None if sign is None else sign.rank)
    if line.connected:  # runs after MPI's own end, which registers later; lost until then
        atexit.register(line.leave)
    line.status = RANK_LOST  # for errors that nothing handles
    try:
        line.status = int(load(target)(argv, line))
    except KeyboardInterrupt:
        line.status = INTERRUPTED
        raise
    return line.status
