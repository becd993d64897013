"""Measure collective communication from Python: ``busbar.run`` and others, see docs/python.md.

The public names are those of ``dir(busbar)``: functions such as ``busbar.run`` and ``busbar.load``,
the types of what they return, and `busbar.errors`, which they raise. They print nothing.
``busbar.bench``, ``busbar.reports`` and so on are aliases of our packages (`busbar.aliases`). The
other modules of this package are internal: all our packages share them.

The functions are defined in other packages and loaded by name at first use (`_DOORS`).
"""

from busbar.aliases import ROOMS, install

TYPE_CHECKING = False  # type checkers take it for True; typing itself is slow to import
if TYPE_CHECKING:
    from typing import Any

_DOORS = {
    "run": "bench.api.running:run",
    "step": "bench.api.running:step",
    "plan": "bench.api.running:plan",
    "compare": "bench.api.comparing:compare",
    "predict": "bench.api.predicting:predict",
    "simulate": "bench.api.predicting:simulate",
    "verify": "bench.api.calls:verify",
    "load": "bench.api.measured:load",
    "topology": "bench.api.machine:topology",
    "pick": "bench.api.machine:pick",
    "RunPlan": "bench.api.running:RunPlan",
    "MeasuredRows": "bench.api.measured:MeasuredRows",
    "ResultTable": "bench.api.results:ResultTable",
    "BestAlgorithm": "bench.api.results:BestAlgorithm",
    "ComparedRow": "bench.api.comparing:ComparedRow",
    "PredictedTime": "bench.api.predicting:PredictedTime",
    "SimulatedTime": "bench.api.predicting:SimulatedTime",
    "MachineMap": "bench.api.machine:MachineMap",
    "Picked": "bench.api.machine:Picked",
    "Pick": "topology.placement.pick:Pick",
    "Finding": "topology.diagnostics:Finding",
    "Measurement": "reports.records.measurement:Measurement",
    "Schedule": "collectives.schedule.schedule:Schedule",
    "Algorithm": "bench.api.keywords:Algorithm",
    "Collective": "bench.api.keywords:Collective",
    "DataTypes": "bench.api.keywords:DataTypes",
    "Sizes": "bench.api.keywords:Sizes",
    "Keywords": "bench.api.keywords:Keywords",
    "StepKeywords": "bench.api.keywords:StepKeywords",
    "BusbarError": "busbar.errors:BusbarError",
}
__all__ = [
    "Algorithm", "BestAlgorithm", "BusbarError", "Collective", "ComparedRow", "DataTypes",
    "Finding", "Keywords", "MachineMap", "MeasuredRows", "Measurement", "Pick", "Picked",
    "PredictedTime", "ResultTable", "RunPlan", "Schedule", "SimulatedTime", "Sizes",
    "StepKeywords", "compare", "load", "pick", "plan", "predict", "run", "simulate", "step",
    "topology", "verify",
]  # fmt: skip
install()


def __getattr__(name: str) -> "Any":
    if name == "__version__":
        from busbar.installation import busbar_version

        return busbar_version()
    if name == "errors" or (name in ROOMS and name not in _DOORS):
        from importlib import import_module

        return import_module(f"busbar.{name}")
    if name not in _DOORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from busbar.process import load
    from busbar.rooms import check_rooms

    check_rooms()
    return load(_DOORS[name])


def __dir__() -> list[str]:
    return sorted({*__all__, "__doc__", "__version__", "errors", *ROOMS})
