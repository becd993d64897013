"""``bench.step --join NAME``: this process is a learner of a run whose learners are processes.

Those that ``--learners`` starts are such, too.
"""

from __future__ import annotations

import numpy as np

from bench.steps.options import parse
from bench.steps.server.calling import SocketLearner, call
from bench.steps.server.hooks import parts
from bench.steps.server.learning import Rounds
from bench.steps.server.protocol import update_protocol
from bench.steps.server.trained import training
from busbar.errors import RankFailure, Unavailable
from busbar.sizes import human

__all__ = ["join"]


def join(name: str) -> int:
    """Work until the servers say that it is over; gives the exit status.

    Raises Unavailable where there is no such run, RankFailure where this learner or a server fails.
    """
    about, ends = call(name)
    options = parse(list(map(str, about["words"])))
    servers, number = int(about["servers"]), int(about["number"])
    protocol = update_protocol(str(about["update"]), int(about["learners"]), servers)
    work = training(options, int(about["learners"]))
    try:
        weights = np.empty(work.elements, work.dtype)
    except MemoryError:
        need = human(work.elements * work.dtype.itemsize)
        raise Unavailable(f"no memory for a learner's {need} of weights") from None
    places = parts(work.elements, servers)
    end = SocketLearner(ends, number, weights, places)
    rounds = Rounds(
        end,
        protocol,
        work.learner(number),
        work.coding(places),
        places,
        weights,
        lambda n: options.compute.seconds(servers + number, n),
        number=number,
        burn=options.burn,
    )
    learned = rounds.run()
    end.close()
    if learned.failed:
        raise RankFailure(f"learner {number}: {learned.failed}")
    return 0
