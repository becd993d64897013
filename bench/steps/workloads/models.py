"""The models that are known by name, each generated from its architecture's few numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.steps.workloads.workload import Tensor, Workload
from busbar.arguments import unknown

__all__ = ["MODELS", "model"]


def _toy() -> list[Tensor]:
    """Ten layers of 256 x 256, for a first look and for tests."""
    return [Tensor(f"layer{n}.weight", (256, 256)) for n in range(10)]


MODELS: Mapping[str, Callable[[], list[Tensor]]] = {"toy": _toy}


def model(name: str) -> Workload:
    """The model of that name. Raises Unsupported with the list of names."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return Workload(name, tuple(MODELS[name]()))
