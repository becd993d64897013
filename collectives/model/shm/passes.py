"""The time of plans that access buffers in place: passes, windows, rounds and waits.

Follows ``Direct`` in `native/src/plans.cpp`: every rank does its passes in order, round by round,
each on the window that is due, and waits for passes of others. Ranks that share a core run on it
one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from collectives.execution.shm.dependences import ENTRY
from collectives.execution.shm.fast import window_bytes
from collectives.model.shm.draft import NodePrograms
from collectives.model.shm.rates import Between
from collectives.model.shm.states import Touch, Touched, in_order, touched

# Windows that are followed one by one, beyond the depth; then each takes as long as those before.
_FOLLOWED = 8


class Passes:
    """A draft's passes on a machine: ``between[a][b]`` are the rates between two cores.

    ``cores[r]`` is the core of rank r.
    """

    def __init__(self, draft: NodePrograms, cores: Sequence[int], between: Between) -> None:
        self._cores = cores
        self._graph = draft.dependence_graph
        self._between = between
        self._order = in_order(self._graph)
        self._touched: Touched = touched(self._graph, cores)

    def seconds(self, scale: float) -> float:
        """Seconds of an iteration, of passes whose sizes count ``scale`` bytes each."""
        found = self._graph
        size = max((w.size for works in found.works for w in works), default=0) * scale
        window = min(window_bytes(found, len(set(self._cores))), size)
        if not size:
            return 0.0
        windows = -(-size // window)
        followed = int(min(windows, found.depth + _FOLLOWED))
        share = self._shares(scale, window / size)
        whole = self._run(share, scale, window, followed)
        if followed == windows:
            return whole
        few = self._run(share, scale, window, followed - _FOLLOWED // 2)
        # The last window may be a part of one.
        return whole + (size / window - followed) * (whole - few) / (_FOLLOWED // 2)

    def _shares(self, scale: float, window: float) -> dict[tuple[int, int], float]:
        """Seconds per byte of each pass; ``window``: the share of the whole that one is."""
        known: dict[tuple[int, Touch], float] = {}
        found = {}
        for rank, number, work in self._order:
            core = self._cores[rank]
            through = self._touched.through[core] * scale
            near = window * through
            total = 0.0
            for touch in self._touched.of[rank, number]:
                if (core, touch) not in known:
                    distance = min(near, through) if touch.again else through
                    known[core, touch] = self._share(core, touch, distance)
                total += known[core, touch]
            if len(work.sources) > 1:
                total += (len(work.sources) - 1) * self._between[core][core].added(through)
            found[rank, number] = total
        return found

    def _share(self, core: int, touch: Touch, distance: float) -> float:
        """Seconds per byte of a place that a pass touches."""
        if touch.other < 0:
            return self._between[core][core].own(distance)
        return self._between[core][touch.other].far(distance)

    def _run(
        self, share: dict[tuple[int, int], float], scale: float, window: float, windows: int
    ) -> float:
        """Seconds of so many windows."""
        cores, between = self._cores, self._between
        now = [0.0] * len(cores)
        free = dict.fromkeys(cores, 0.0)
        done: dict[tuple[int, int, int], float] = {}

        def after(rank: int, waits: Sequence[tuple[int, int]], at: int) -> float:
            """The time at which a rank goes on that waits for others' passes on window ``at``."""
            begin = now[rank]
            for peer, task in waits:
                flag = between[cores[rank]][cores[peer]].flag
                begin = max(begin, flag + (done[peer, task, at] if task != ENTRY else 0.0))
            return begin

        for turn in range(windows + self._graph.depth):
            for rank, number, work in self._order:
                at = turn - work.stage
                if not 0 <= at < windows:
                    continue
                begin = max(after(rank, work.waits, at), free[cores[rank]])
                nbytes = min(window, max(0.0, work.size * scale - at * window))
                call = between[cores[rank]][cores[rank]].call
                now[rank] = begin + (call + nbytes * share[rank, number] if nbytes else 0.0)
                free[cores[rank]] = now[rank]
                done[rank, number, at] = now[rank]
        ends = [after(rank, waits, windows - 1) for rank, waits in enumerate(self._graph.exits)]
        return max(*ends, 0.0)
