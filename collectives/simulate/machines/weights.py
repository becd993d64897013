"""Effects of caches where ranks share memory.

Measured with a machine, applied to a schedule's messages.
"""

from __future__ import annotations

from typing import NamedTuple


class Weights(NamedTuple):
    """Shares of 1.

    ``still``: of the time of bytes that nobody has written in the collective. ``calm``: of the time
    of additions whose sum nobody else reads.
    """

    still: float = 1.0
    calm: float = 1.0


#: Everything takes its whole time.
NONE = Weights()
