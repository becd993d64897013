"""The errors of this room: one line that names the file, the line and the remedy."""

from __future__ import annotations

__all__ = ["MissingLibrary", "ReportError"]


class ReportError(Exception):
    """Something a user can act on: a file that cannot be read, an option that makes no sense."""

    exit_status = 2


class MissingLibrary(ReportError):
    """A library of the extra ``reports`` that this needs and that is not here; its status is 3."""

    exit_status = 3

    def __init__(self, name: str, place: str = "") -> None:
        where = f"{place}: " if place else ""
        super().__init__(f"{where}{name} is not installed; pip install 'busbar[reports]'")
