"""The exit statuses of all commands, and marks of printed runs that readers look for.

No other module has them. docs/launching.md has the same table of statuses.
"""

from __future__ import annotations

GOOD = 0
FOUND = 1
BAD = 2
MISSING = 3
RANK_LOST = 4
# As shells report a process that a signal ended: 128 plus the signal's number.
HUNG_UP = 128 + 1
INTERRUPTED = 128 + 2
CLOSED = 128 + 13
TERMINATED = 128 + 15

#: How the closing report of a run begins that has not measured everything.
EARLY = "# ended early:"
#: Reasons for an early end that was asked for: how one by a signal begins, and the one by --total.
BY_SIGNAL, TOTAL_OVER = "interrupted by", "the time of --total is over"
#: In the footnote of a table whose rows are over launches.
OVER_LAUNCHES = "launches' medians; 95 %: over launches"

MEANING = {
    GOOD: "nothing failed",
    FOUND: "a result was wrong, every row was skipped, a proof failed, a threshold was not kept,"
    " `check` or `doctor` has"
    " findings, `qualify` has a host that is not good, or a result file could not be kept",
    BAD: "bad input, or a full disk behind standard output",
    MISSING: "something is not on this machine: a library, a device, a launcher",
    RANK_LOST: "a rank failed or never arrived",
    INTERRUPTED: "Ctrl-C",
    CLOSED: "the reader of standard output has left (`head`)",
    HUNG_UP: "SIGHUP",
    TERMINATED: "SIGTERM",
}
