"""The models that have a name, each generated from its architecture's parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.steps.workloads import convolutions, transformers
from bench.steps.workloads.workload import Tensor, Workload
from busbar.arguments import unknown


def _toy() -> list[Tensor]:
    """Ten layers of 256 x 256, for a first look and for tests."""
    return [Tensor(f"layer{n}.weight", (256, 256)) for n in range(10)]


MODELS: Mapping[str, Callable[[], list[Tensor]]] = {
    "toy": _toy,
    "alexnet": convolutions.alexnet,
    "resnet50": convolutions.resnet50,
    "vgg16": convolutions.vgg16,
    "inception_v3": convolutions.inception_v3,
    "nt3": convolutions.nt3,
    "bert_large": transformers.bert_large,
    "gpt2": transformers.gpt2,
    "llama2_7b": transformers.llama2_7b,
    "llama3_8b": transformers.llama3_8b,
}


def model(name: str) -> Workload:
    """The model of that name. Raises Unsupported with the list of names."""
    if name not in MODELS:
        raise unknown("model", name, [*MODELS, "FILE.csv", "FILE.json"])
    return Workload(name, tuple(MODELS[name]()))
