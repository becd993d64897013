"""The errors that Busbar raises on purpose, each with a one-line message and an exit status.

`busbar.process` prints the message and exits with the status.
"""

from __future__ import annotations

from contextlib import contextmanager
from errno import ENOENT

from busbar.installation import extra
from busbar.status import BAD, MISSING, RANK_LOST

TYPE_CHECKING = False  # type checkers take it for True; typing itself is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: The most characters of a probe error's reason, which may quote a long text.
LONGEST = 1000


class BusbarError(Exception):
    """An error that the user can correct: the message says what is wrong, where, and the remedy."""

    exit_status: int = BAD

    def __reduce__(self) -> tuple[object, ...]:
        """Restore a pickled error from its message and attributes: ``__init__`` may take others."""
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[BusbarError], args: tuple[object, ...]) -> BusbarError:
    error = kind.__new__(kind)
    error.args = args
    return error


@contextmanager
def rewording(change: Callable[[str], str]) -> Iterator[None]:
    """A context in which messages of errors are those that ``change`` returns for them."""
    try:
        yield
    except BusbarError as error:
        error.args = (change(str(error)),)
        raise


class ScheduleError(BusbarError):
    """A schedule is inconsistent, or its result is not that of its collective."""


class Unsupported(BusbarError):
    """Something that is not supported: a rank count, operation, type, placement or option."""


class ReportError(BusbarError):
    """A file cannot be read in its format, or lacks what is needed for the request."""


class MissingFile(ReportError, Unsupported, FileNotFoundError):
    """A file to read does not exist: ``filename``. Python's FileNotFoundError, too."""

    def __init__(self, message: str, filename: str | Path) -> None:
        super().__init__(message)
        self.errno, self.filename = ENOENT, str(filename)

    def __reduce__(self) -> tuple[object, ...]:
        """Restore the attributes of an OSError, too, which are not in ``__dict__``."""
        more = {"errno": self.errno, "filename": self.filename}
        return _restored, (type(self), self.args), self.__dict__ | more

    def __str__(self) -> str:
        """The message; OSError would add its number and the file."""
        return str(self.args[0])


class Unavailable(BusbarError):
    """Something is missing on this machine: a library, a device, a launcher."""

    exit_status = MISSING


class RankFailure(BusbarError):
    """A rank failed, or did not arrive, while others waited for it."""

    exit_status = RANK_LOST


class MissingLibrary(Unavailable, ReportError):
    """A library of the extra ``reports`` is needed for a file or figure and is not installed."""

    def __init__(self, name: str, place: str = "") -> None:
        where = f"{place}: " if place else ""
        super().__init__(f"{where}{name} is not installed; {extra('reports')}")


class StoreError(ReportError):
    """A file cannot be written; the message names it and the reason."""


class ProbeError(BusbarError):
    """A source of a map cannot be read, or its text cannot be parsed.

    Attributes:
        source: the format or probe that failed, such as ``topo -m``.
        line: the line of the text, counted from 1; None if the error has no line.
        reason: what is wrong and, if there is one, the remedy; one sentence.

    """

    def __init__(self, source: str, reason: str, line: int | None = None) -> None:
        reason = reason if len(reason) <= LONGEST else f"{reason[:LONGEST]}…"
        self.source = source
        self.reason = reason
        self.line = line
        place = f"{source}, line {line}" if line is not None else source
        super().__init__(f"{place}: {reason}")
