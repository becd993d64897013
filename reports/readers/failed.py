"""Lines of a run that broke off: by the benchmark, MPI, the launcher or the scheduler.

Rows that were finished before stand in the log as if all were well, so that this must be said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from reports.readers.text import Line
from reports.records.measurement import Note

#: How the note begins.
SAYS = "the run failed: "
_END = re.compile(
    r"\b(?:NCCL|RCCL|CUDA|Cuda|HIP) failure:? "  # nccl-tests and rccl-tests, old and new
    r"|\bTest (?:timeout \(\d+s?\)|failure\b)"  # the same, of the test as a whole
    r"|\bDATA VALIDATION ERROR:"  # OSU, which ends there
    r"|\btime limit for job execution has been reached"  # Open MPI's --timeout
    r"|\bSignal: [A-Z].* \(\d+\)|\bexited on signal \d|exited with non-zero status"  # Open MPI
    r"|\bMPI_ABORT was invoked|\bFatal error in \w+:|\bAbort\(\d+\) on node"
    r"|\bBAD TERMINATION OF ONE OF|\bEXIT STRING: "  # Hydra
    r"|\bsrun: error: .*(?:tasks? |Killed|Terminated|Exited)|\bslurmstepd: error: \*\*\* "
    r"|^\s*(?:\S+: line \d+: .*)?(?:Segmentation fault|Bus error|Killed|Aborted)\b"
)
_WARNING = re.compile(r"\bNCCL WARN \S")
_MOST = 200


def notes(source: str, lines: Iterable[Line], rows: bool) -> list[Note]:
    """At most one note: the first line by which the run broke off.

    NCCL's warnings, which a good run may have too, count where there is no row.
    """
    warned: Line | None = None
    for line in lines:
        if _END.search(line.text):
            return [_note(source, line)]
        if not rows and warned is None and _WARNING.search(line.text):
            warned = line
    return [] if warned is None else [_note(source, warned)]


def _note(source: str, line: Line) -> Note:
    return Note(source, line.number, SAYS + line.text.strip()[:_MOST])
