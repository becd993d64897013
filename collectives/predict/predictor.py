"""Choose the predictor that suits a machine, and predict measured rows from a fit."""

from __future__ import annotations

from functools import cache

from collectives.predict.fit import Fit
from collectives.predict.interface import CollectivePredictor
from collectives.predict.machine import Machine
from collectives.predict.maps import machine_from_fit
from collectives.predict.nccl import NcclPredictor
from collectives.predict.ports import PortPredictor
from collectives.predict.shm import SharedMemoryPredictor
from collectives.predict.simulation import NetworkPredictor


def choose_predictor(machine: Machine) -> CollectivePredictor:
    """The most exact predictor for what is known of a machine.

    Measured costs come first (shared memory before others), then a network, then NCCL's model.
    """
    if any(link.shared is not None for link in machine.costs):
        return SharedMemoryPredictor(machine)
    if machine.costs:
        return PortPredictor(machine)
    return NetworkPredictor(machine) if machine.network is not None else NcclPredictor(machine)


class FitPredictor:
    """Predictors from one fit, by number of ranks."""

    def __init__(self, fit: Fit) -> None:
        self.fit = fit
        #: The predictor for a number of ranks, made once.
        self.on = cache(
            lambda ranks: choose_predictor(machine_from_fit(fit.for_ranks(ranks), ranks))
        )
