"""``bench.step --join NAME``: a process that joins a run as a learner.

``--learners`` starts its learners in the same way.
"""

from __future__ import annotations

import numpy as np

from bench.steps.options import parse
from bench.steps.server.calling import SocketLearner, call
from bench.steps.server.learning import Rounds
from bench.steps.server.protocol import update_protocol
from bench.steps.server.served import training
from bench.steps.trace import Trace
from bench.steps.training.shared import parts
from bench.steps.waking import prompt_timers
from busbar.errors import RankFailure, Unavailable, Unsupported
from busbar.status import RANK_LOST
from busbar.units import format_bytes


def join(name: str) -> int:
    """Work until the servers say that it is over; gives the exit status.

    ``name``: of the run, and behind a colon the number of a learner that it began with. Raises
    Unavailable where there is no such run, RankFailure where this learner or a server fails.
    """
    run, _, given = name.partition(":")
    about, ends = call(run, int(given) if given.isdecimal() else -1)
    options = parse(list(map(str, about["words"])))
    servers, number, first = (int(about[key]) for key in ("servers", "number", "learners"))
    protocol = update_protocol(str(about["update"]), first, servers)
    if protocol.cancels and number >= first:
        raise Unsupported(
            f"{protocol.name} counts on the {first} learners that it began with;"
            " async, k-async:K and k-batch-async:K take new ones"
        )
    work = training(options, first)
    try:
        weights = np.empty(work.elements, work.dtype)
    except MemoryError:
        need = format_bytes(work.elements * work.dtype.itemsize)
        raise Unavailable(f"no memory for a learner's {need} of weights") from None
    trace = Trace(on=options.trace is not None)
    end = SocketLearner(ends, number, weights, parts(work.elements, servers))
    rounds = Rounds(
        end,
        protocol,
        work,
        number,
        lambda n: options.compute.seconds(servers + number, n),
        burn=options.burn,
        trace=trace,
        spans=trace.texts,
        warmup=options.warmup,
    )
    try:
        with prompt_timers():
            learned = rounds.run()
    except RankFailure:  # the servers are gone
        if number < first:  # and with them whoever started this process, which says why
            return RANK_LOST
        raise
    end.close()
    if learned.failed:
        raise RankFailure(f"learner {number}: {learned.failed}")
    return 0
