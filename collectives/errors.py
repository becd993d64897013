"""The small family of errors that this project raises on purpose; a message is one line."""

from __future__ import annotations

__all__ = ["BusbarError", "RankFailure", "ScheduleError", "Unavailable", "Unsupported"]


class BusbarError(Exception):
    """Something a user can act on: the message names what, where and the remedy."""

    exit_status = 2


class ScheduleError(BusbarError):
    """A schedule does not hold together, or does not do what its collective asks for."""


class Unsupported(BusbarError):
    """A combination that cannot be: a rank count, an operation, a type, a placement."""


class Unavailable(BusbarError):
    """Something that is not on this machine: a library, a device, a launcher."""

    exit_status = 3


class RankFailure(BusbarError):
    """A rank failed, or did not arrive, while others waited for it."""

    exit_status = 4
