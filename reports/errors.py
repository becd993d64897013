"""The errors of this room: one line that names the file, the line and the remedy."""

from __future__ import annotations

__all__ = ["ReportError"]


class ReportError(Exception):
    """Something a user can act on: a file that cannot be read, an option that makes no sense."""

    exit_status = 2
