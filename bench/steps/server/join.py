"""``bench.step --join NAME``: a process that joins a run as a learner.

``--learners`` starts its learners in the same way.
"""

from __future__ import annotations

import numpy as np

from bench.steps.compute import prompt_timers
from bench.steps.options import parse
from bench.steps.server.protocol import update_protocol
from bench.steps.server.socket_channel import CallingChannel, connect_to_run
from bench.steps.server.trainer_hooks import make_trainer
from bench.steps.server.worker_loop import WorkerLoop
from bench.steps.trace import Trace
from bench.steps.training.samples import parts
from busbar.errors import RankFailure, Unavailable, Unsupported
from busbar.status import RANK_LOST
from busbar.units import format_bytes


def join(name: str) -> int:
    """Learn until the servers end the run; returns the exit status.

    ``name``: of the run; behind a colon the number of a learner that takes part from the beginning.
    Raises Unavailable if there is no such run, RankFailure if this learner or a server fails.
    """
    run, _, digits = name.partition(":")
    about, servers = connect_to_run(run, int(digits) if digits.isdecimal() else -1)
    options = parse(list(map(str, about["words"])))
    number, founders = int(about["number"]), int(about["learners"])
    protocol = update_protocol(str(about["update"]), founders, len(servers))
    if protocol.cancels and number >= founders:
        raise Unsupported(
            f"{protocol.name} counts on the {founders} learners that it began with;"
            " async, k-async:K and k-batch-async:K take new ones"
        )
    trainer = make_trainer(options, founders)
    try:
        weights = np.empty(trainer.elements, trainer.dtype)
    except MemoryError:
        need = format_bytes(trainer.elements * trainer.dtype.itemsize)
        raise Unavailable(f"no memory for a learner's {need} of weights") from None
    worker = WorkerLoop(
        CallingChannel(servers, number),
        weights,
        parts(trainer.elements, len(servers)),
        protocol,
        trainer,
        number,
        lambda n: options.compute.seconds(len(servers) + number, n),
        burn=options.burn,
        trace=Trace(on=options.trace is not None),
        sends_trace=True,
        warmup=options.warmup,
    )
    try:
        with prompt_timers():
            log = worker.run()
    except RankFailure:  # a server has exited
        if number < founders:  # the process that started this one reports the reason
            return RANK_LOST
        raise
    if log.failed:
        raise RankFailure(f"learner {number}: {log.failed}")
    return 0
