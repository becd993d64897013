"""Checks of results: after the timed iterations, or of every one of them outside the clock."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bench.options.argument_types import Checks
from bench.run.data import DIGEST_BYTES, TURNS, Inputs, Wrong
from bench.timing.starts import Arrived
from collectives.execution.transport import Action, Array, Spans, Start, Wrapper, unwatched


class ResultCheck:
    """Compares a row's results on one rank, each of inputs and into a result made for it.

    ``ulps``: by how many units in the last place a library's average may be off. ``compares``:
    False where an iteration leaves nothing behind to compare. ``digests``: long results are
    compared by digest, which `Inputs.same_digest` describes, and element by element if it differs.
    """

    def __init__(
        self, inputs: Inputs, rank: int, source: Array, target: Array, *, ulps: int = 0,
        compares: bool = True, digests: bool = False,
    ) -> None:  # fmt: skip
        self._inputs, self._rank, self._ulps = inputs, rank, ulps
        self._source, self._target = source, target
        self._digests = digests and not ulps and target.nbytes >= DIGEST_BYTES
        self._turn, self.iterations = 0, 0
        self.wrong = Wrong(0, -1, "", "") if compares else None

    def fresh(self) -> None:
        """Poison the result and write other inputs than those of the iterations before.

        What is left of an earlier iteration, in the result or on its way, is then wrong.
        """
        self._turn = (self._turn + 1) % TURNS
        poison(self._target)
        # In place the inputs are then written over it: of an all-gather only the rank's own part.
        self._inputs.fill(self._rank, self._source, self._turn)

    def look(self) -> None:
        """Compare the result, and add what is wrong to ``wrong``."""
        if self.wrong is None:
            return
        self.iterations += 1
        if self._digests and self._inputs.same_digest(self._rank, self._target, self._turn):
            return
        wrong = self._inputs.check(self._rank, self._target, self._ulps, self._turn)
        first = self.wrong if self.wrong.count else wrong
        self.wrong = first._replace(count=self.wrong.count + wrong.count)


class Checked(Wrapper):
    """An action whose every iteration is compared: warm-ups and timed ones, outside the clock.

    The comparison comes right after the iteration, and then the next one's inputs are written,
    before any other rank is waited for: an iteration that returns before its result is complete,
    or while others still read its input, is found out. Only then do ranks ``meet``: those that
    compared longest would begin the next iteration while the others still wake up. ``reached``:
    ranks reach into the memory of ranks that take no part, and also meet before the comparison.
    ``arrived``: called with the number of the iteration that comes next, warm-ups among them.
    """

    one_by_one = True

    def __init__(
        self,
        action: Action,
        proof: ResultCheck,
        meet: Callable[[], None],
        arrived: Arrived,
        *,
        reached: bool,
    ) -> None:
        self.action, self._proof = action, proof
        self._meet, self._arrived, self._reached = meet, arrived, reached
        self.divides = action.divides

    def __call__(self) -> None:
        """See `Action.__call__`."""
        self.action()

    def between(self) -> None:
        """See `Action.between`."""
        if self._reached:
            self._meet()
        self._proof.look()
        self._proof.fresh()
        self._arrived(self._proof.iterations)
        self._meet()

    def spans(self, n: int, start: Start) -> Spans:
        """See `Action.spans`; never timed as a loop."""
        parts = list[Spans]()
        for i in range(n):
            alone = start._replace(at=start.at[i : i + 1], arrived=unwatched)
            parts.append(self.action.spans(1, alone))
            self.between()
        begins, ends, absolute = zip(*parts, strict=True)
        return Spans(np.concatenate(begins), np.concatenate(ends), all(absolute))


def remark(checks: Checks) -> str:
    """The line above a table that says which iterations are checked; empty for none."""
    if checks.timed:
        return (
            "checked: every timed iteration, outside the clock, element by element; from"
            f" {DIGEST_BYTES >> 10} KiB a rank on by digest"
        )
    if checks.iterations > 1:
        return f"checked: {checks.iterations} more iterations after the timed ones"
    return "checked: one more iteration after the timed ones" if checks.iterations else ""


def poison(target: Array) -> None:
    """Leave nothing in a result that could be right without being written."""
    target.view(np.uint8)[:] = 0xA5
