"""A model as a list of tensors: what a training step computes and exchanges.

Models are generated from an architecture's parameters, or read from a user's table of tensors, CSV
or JSON. Sources: He et al. 2016 (ResNet-50), Simonyan and Zisserman 2015 (VGG16), Krizhevsky 2014
(AlexNet), Szegedy et al. 2016 (InceptionV3), as torchvision builds them; NT3 is CANDLE's Pilot1
benchmark; Devlin et al. 2019 (BERT), Radford et al. 2019 (GPT-2), Touvron et al. 2023 (Llama 2),
Meta 2024 (Llama 3). Tensors are in the order of the forward pass. The work of a convolution's
weight is its elements times the positions at which it is applied. The work of a transformer's
matrix is its elements, since every token is multiplied by it. The work of an embedding table is one
row, since a token selects one. Attention between tokens is left out.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from busbar.arguments import unknown
from busbar.errors import Unsupported
from busbar.files import read_text
from busbar.terminal import make_printable


@dataclass(frozen=True)
class Tensor:
    """A parameter of a model, and its gradient.

    ``work``: its cost in a backward pass, in a unit that is the same for all tensors of the model
    (multiplications, seconds). ``dtype``: the gradient's type, if the model's file names one.
    """

    name: str
    shape: tuple[int, ...]
    work: float = 1.0
    dtype: str = ""

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Workload:
    """A model: its tensors in the order of its forward pass.

    ``backward_s``: seconds of a backward pass, if its file states them.
    """

    name: str
    tensors: tuple[Tensor, ...]
    backward_s: float | None = None

    @property
    def elements(self) -> int:
        """The number of parameters."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def ready(self) -> Sequence[Tensor]:
        """The tensors in the order in which a backward pass computes gradients: the last first."""
        return self.tensors[::-1]

    def shares(self) -> NDArray[np.float64]:
        """Each tensor's share of a backward pass, in the order of ``ready``; they sum to 1."""
        work = np.array([tensor.work for tensor in self.ready], float)
        return work / work.sum() if work.sum() > 0 else np.full(len(work), 1 / len(work))

    def scaled(self, factor: float) -> Workload:
        """The model with ``1/factor`` of the elements of each tensor, at least one.

        Over a link this takes as long as the whole model takes over a link that is ``factor`` times
        as fast. The new tensors are vectors.
        """
        if factor == 1:
            return self
        flat = tuple(replace(t, shape=(max(1, round(t.elements / factor)),)) for t in self.tensors)
        return replace(self, name=f"{self.name}/{factor:g}", tensors=flat)


_CLASSES = 1000


class _Layers:
    """Collects the tensors of a network. ``positions``: the size of the current feature map."""

    def __init__(self, positions: int) -> None:
        self.positions = positions
        self.tensors: list[Tensor] = []

    def weight(self, name: str, *shape: int) -> None:
        """Add a tensor that is applied at every position."""
        tensor = Tensor(name, shape)
        self.tensors.append(Tensor(name, shape, float(tensor.elements * self.positions)))

    def conv(self, name: str, out: int, into: int, *kernel: int) -> None:
        """Add a convolution with a bias."""
        self.weight(f"{name}.weight", out, into, *kernel)
        self.weight(f"{name}.bias", out)

    def normed(self, name: str, out: int, into: int, *kernel: int) -> None:
        """Add a convolution without a bias, and its batch normalisation."""
        self.weight(f"{name}.conv.weight", out, into, *kernel)
        self.weight(f"{name}.bn.weight", out)
        self.weight(f"{name}.bn.bias", out)

    def linear(self, name: str, out: int, into: int) -> None:
        """Add a fully connected layer, which is applied once."""
        self.positions = 1
        self.conv(name, out, into)

    def norm(self, name: str, width: int) -> None:
        """Add a layer normalisation."""
        self.weight(f"{name}.weight", width)
        self.weight(f"{name}.bias", width)

    def table(self, name: str, rows: int, width: int) -> None:
        """Add an embedding table, of which a token uses one row."""
        self.tensors.append(Tensor(name, (rows, width), float(width)))


def resnet50() -> list[Tensor]:
    """161 tensors, 25,557,032 parameters."""
    net = _Layers(112 * 112)
    net.normed("conv1", 64, 3, 7, 7)
    into, side = 64, 56
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(blocks):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            net.positions = side * side
            net.normed(f"{name}.1", width, into, 1, 1)
            side //= stride
            net.positions = side * side
            net.normed(f"{name}.2", width, width, 3, 3)
            net.normed(f"{name}.3", 4 * width, width, 1, 1)
            if block == 0:
                net.normed(f"{name}.downsample", 4 * width, into, 1, 1)
            into = 4 * width
    net.linear("fc", _CLASSES, into)
    return net.tensors


def vgg16() -> list[Tensor]:
    """32 tensors, 138,357,544 parameters."""
    net, into = _Layers(0), 3
    for stage, (width, convs) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))):
        net.positions = (224 >> stage) ** 2
        for n in range(convs):
            net.conv(f"conv{stage + 1}_{n + 1}", width, into, 3, 3)
            into = width
    for name, out, wide in (("fc6", 4096, 512 * 49), ("fc7", 4096, 4096), ("fc8", _CLASSES, 4096)):
        net.linear(name, out, wide)
    return net.tensors


def alexnet() -> list[Tensor]:
    """16 tensors, 61,100,840 parameters."""
    net, into = _Layers(0), 3
    convs = ((64, 11, 55), (192, 5, 27), (384, 3, 13), (256, 3, 13), (256, 3, 13))
    for n, (width, kernel, side) in enumerate(convs, 1):
        net.positions = side * side
        net.conv(f"conv{n}", width, into, kernel, kernel)
        into = width
    for name, out, wide in (("fc6", 4096, 256 * 36), ("fc7", 4096, 4096), ("fc8", _CLASSES, 4096)):
        net.linear(name, out, wide)
    return net.tensors


def nt3() -> list[Tensor]:
    """10 tensors, 154,922,918 parameters: 1-D convolutions over 60,483 gene expressions."""
    length, filters = 60_483, 128
    net = _Layers(length - 19)
    net.conv("conv1", filters, 1, 20)
    net.positions = length - 19 - 9
    net.conv("conv2", filters, filters, 10)
    into = net.positions // 10 * filters  # pooled by ten, flattened
    for n, out in enumerate((200, 20, 2), 1):
        net.linear(f"dense{n}", out, into)
        into = out
    return net.tensors


# A branch of an Inception module: the filters and the kernel of each convolution.
_Branch = Sequence[tuple[int, tuple[int, int]]]


def inception_v3() -> list[Tensor]:
    """292 tensors, 27,161,264 parameters, including the auxiliary head (3,326,696)."""
    net = _Layers(149 * 149)
    into = 3
    stem = ((32, 3, 149), (32, 3, 147), (64, 3, 147), (80, 1, 73), (192, 3, 71))
    for n, (width, kernel, side) in enumerate(stem):
        net.positions = side * side
        net.normed(f"stem{n}", width, into, kernel, kernel)
        into = width
    for n, module in enumerate(_modules()):
        net.positions = module[0] ** 2
        for branch, convs in enumerate(module[1]):
            wide = into
            for k, (width, kernel2) in enumerate(convs):
                split = width < 0  # the next convolution has the same input
                net.normed(f"mixed{n}.{branch}.{k}", abs(width), wide, *kernel2)
                wide = wide if split else abs(width)
        into = module[2]
        if n == _AUX_AFTER:
            net.positions = 25
            net.normed("aux.0", 128, into, 1, 1)
            net.positions = 1
            net.normed("aux.1", 768, 128, 5, 5)
            net.linear("aux.fc", _CLASSES, 768)
    net.linear("fc", _CLASSES, into)
    return net.tensors


# The auxiliary head follows this module, Mixed_6e.
_AUX_AFTER = 7


def _modules() -> list[tuple[int, list[_Branch], int]]:
    """The feature map's side, the branches and the output channels of each Inception module.

    Negative numbers of filters mark two parallel convolutions with the same input.
    """
    one, three, five, row, column = (1, 1), (3, 3), (5, 5), (1, 7), (7, 1)
    fives: _Branch = [(48, one), (64, five)]
    threes: _Branch = [(64, one), (96, three), (96, three)]
    modules: list[tuple[int, list[_Branch], int]] = [
        (35, [[(64, one)], fives, threes, [(pool, one)]], 224 + pool) for pool in (32, 64, 64)
    ]
    modules.append((17, [[(384, three)], threes], 768))
    for c in (128, 160, 160, 192):
        seven: _Branch = [(c, one), (c, row), (192, column)]
        twice: _Branch = [(c, one), (c, column), (c, row), (c, column), (192, row)]
        modules.append((17, [[(192, one)], seven, twice, [(192, one)]], 768))
    down: _Branch = [(192, one), (192, row), (192, column), (192, three)]
    modules.append((8, [[(192, one), (320, three)], down], 1280))
    split = ((-384, (1, 3)), (-384, (3, 1)))
    wide: _Branch = [(384, one), *split]
    long: _Branch = [(448, one), (384, three), *split]
    return [*modules, *[(8, [[(320, one)], wide, long, [(192, one)]], 2048)] * 2]


def bert_large() -> list[Tensor]:
    """391 tensors, 335,141,888 parameters: 24 layers of 1024, with the pooler."""
    net, d = _Layers(1), 1024
    for name, rows in (("word", 30_522), ("position", 512), ("type", 2)):
        net.table(f"embeddings.{name}", rows, d)
    net.norm("embeddings.norm", d)
    for n in range(24):
        for name in ("query", "key", "value", "output"):
            net.linear(f"layer{n}.{name}", d, d)
        net.norm(f"layer{n}.norm1", d)
        net.linear(f"layer{n}.up", 4 * d, d)
        net.linear(f"layer{n}.down", d, 4 * d)
        net.norm(f"layer{n}.norm2", d)
    net.linear("pooler", d, d)
    return net.tensors


def gpt2() -> list[Tensor]:
    """148 tensors, 124,439,808 parameters: 12 layers of 768; the head shares the token table."""
    net, d = _Layers(1), 768
    net.weight("wte", 50_257, d)
    net.table("wpe", 1024, d)
    for n in range(12):
        net.norm(f"h{n}.ln_1", d)
        net.linear(f"h{n}.attn", 3 * d, d)
        net.linear(f"h{n}.proj", d, d)
        net.norm(f"h{n}.ln_2", d)
        net.linear(f"h{n}.fc", 4 * d, d)
        net.linear(f"h{n}.out", d, 4 * d)
    net.norm("ln_f", d)
    return net.tensors


def llama2_7b() -> list[Tensor]:
    """291 tensors, 6,738,415,616 parameters."""
    return _llama(vocabulary=32_000, heads=32, hidden=11_008)


def llama3_8b() -> list[Tensor]:
    """291 tensors, 8,030,261,248 parameters: keys and values have a quarter of the heads."""
    return _llama(vocabulary=128_256, heads=8, hidden=14_336)


def _llama(vocabulary: int, heads: int, hidden: int) -> list[Tensor]:
    """A Llama of 32 layers of width 4096. ``heads``: of 128 elements, for keys and for values."""
    net, d = _Layers(1), 4096
    net.table("embed", vocabulary, d)
    for n in range(32):
        net.weight(f"layer{n}.norm1", d)
        for name, out in (("q", d), ("k", heads * 128), ("v", heads * 128), ("o", d)):
            net.weight(f"layer{n}.{name}", out, d)
        net.weight(f"layer{n}.norm2", d)
        for name, out, into in (("gate", hidden, d), ("up", hidden, d), ("down", d, hidden)):
            net.weight(f"layer{n}.{name}", out, into)
    net.weight("norm", d)
    net.weight("head", vocabulary, d)
    return net.tensors


MODELS: Mapping[str, Callable[[], list[Tensor]]] = {
    # For a first try of Busbar, and for tests.
    "toy": lambda: [Tensor(f"layer{n}.weight", (256, 256)) for n in range(10)],
    "alexnet": alexnet,
    "resnet50": resnet50,
    "vgg16": vgg16,
    "inception_v3": inception_v3,
    "nt3": nt3,
    "bert_large": bert_large,
    "gpt2": gpt2,
    "llama2_7b": llama2_7b,
    "llama3_8b": llama3_8b,
}


def model(name: str) -> Workload:
    """The model of that name, or of a .csv or .json file. Raises Unsupported if there is none."""
    if name.endswith((".csv", ".json")):
        return read(Path(name))
    if name not in MODELS:
        raise unknown("model", name, [*MODELS, "FILE.csv", "FILE.json"])
    return Workload(name, tuple(MODELS[name]()))


#: The types that --precision and a model's file may name, and nccl-tests' names for them.
PRECISIONS: Mapping[str, str] = {"fp32": "float", "fp16": "half", "bf16": "bfloat16"}
_TYPES = {
    **PRECISIONS,
    "float32": "float",
    "float16": "half",
    "bfloat16": "bfloat16",
    "float": "float",
    "half": "half",
}
#: The most bytes of a model's file.
MOST_BYTES = 16 << 20
_MOST_TENSORS = 100_000
_MOST_ELEMENTS = 1 << 44
#: The most milliseconds of a step: an hour.
MOST_MS = 3.6e6
_SHAPE = re.compile(r"[0-9]{1,13}([x, ]+[0-9]{1,13}){0,15}", re.ASCII)


def read(path: Path) -> Workload:
    """Read a model from a file. Raises Unsupported with the file and the tensor that is wrong."""
    return parse(read_text(path, MOST_BYTES), str(path))


def parse(text: str, name: str) -> Workload:
    """Parse the text of a model's file. The ending of its ``name`` states the format."""
    title = make_printable(Path(name).stem)
    if name.endswith(".json"):
        title, rows = _json(text, name, title)
    else:
        rows = _csv(text, name)
    tensors: list[Tensor] = []
    times: list[float | None] = []
    for where, row in rows:
        tensor, seconds = _tensor(row, where)
        tensors.append(tensor)
        times.append(seconds)
        if len(tensors) > _MOST_TENSORS:
            raise Unsupported(f"{name}: more than {_MOST_TENSORS:,} tensors")
    if not tensors:
        raise Unsupported(f"{name}: no tensors; write name,shape and a line a tensor")
    known = [seconds for seconds in times if seconds is not None]
    if known and len(known) < len(times):
        at = times.index(None)
        raise Unsupported(f"{name}: tensor {tensors[at].name}: no backward_ms, but others have one")
    if sum(tensor.elements for tensor in tensors) > _MOST_ELEMENTS:
        raise Unsupported(f"{name}: more than {_MOST_ELEMENTS:,} parameters")
    return Workload(title, tuple(tensors), sum(known) if known else None)


def _csv(text: str, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    table = csv.DictReader(io.StringIO(text))
    try:
        heads = [head.strip() for head in table.fieldnames or ()]
        if not {"name", "shape"} <= set(heads):
            raise Unsupported(f"{name}: the first line must name the columns name,shape")
        table.fieldnames = heads
        for row in table:
            yield f"{name}:{table.line_num}", row
    except csv.Error as error:
        raise Unsupported(f"{name}:{table.line_num}: {error}") from None


def _json(text: str, name: str, title: str) -> tuple[str, Iterator[tuple[str, Mapping[str, Any]]]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unsupported(f"{name}: no JSON ({str(error)[:60]})") from None
    if isinstance(document, dict):
        title = make_printable(str(document.get("name", title))[:40])
        document = document.get("tensors")
    if not isinstance(document, list):
        raise Unsupported(f"{name}: a list of tensors is needed, or an object with one")
    return title, ((f"{name}: tensor {n}", row) for n, row in enumerate(document))


def _tensor(row: object, where: str) -> tuple[Tensor, float | None]:
    """A row's tensor, and the seconds of its backward pass; None if the row has none."""
    if not isinstance(row, dict) or not row.get("name") or row.get("shape") in (None, ""):
        raise Unsupported(f"{where}: a name and a shape are needed")
    name = make_printable(str(row["name"])[:200])
    kind = str(row.get("dtype") or "")
    if kind and kind not in _TYPES:
        raise Unsupported(f"{where}: no dtype {kind[:40]!r}; there are: {', '.join(_TYPES)}")
    shape = _shape(row["shape"], where)
    backward_ms = row.get("backward_ms")
    if backward_ms in (None, ""):
        return Tensor(name, shape, float(prod(shape)), _TYPES.get(kind, "")), None
    seconds = parse_ms(backward_ms)
    if seconds is None:
        raise Unsupported(f"{where}: backward_ms {str(backward_ms)[:40]!r}: from 0 to {MOST_MS:g}")
    return Tensor(name, shape, seconds, _TYPES.get(kind, "")), seconds


def parse_ms(value: Any) -> float | None:
    """Convert milliseconds, from 0 to `MOST_MS`, to seconds; None for any other value."""
    try:
        ms = float(value)
    except (TypeError, ValueError):
        return None
    return ms / 1e3 if 0 <= ms <= MOST_MS else None


def _shape(value: object, where: str) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    if isinstance(value, list) and all(type(size) is int for size in value):
        sizes = value
    elif isinstance(value, str) and _SHAPE.fullmatch(value.strip("()[] ")):
        sizes = [int(size) for size in re.split(r"[x, ]+", value.strip("()[] "))]
    else:
        raise Unsupported(f"{where}: shape {str(value)[:40]!r}: write 64x3x7x7, numbers from 1")
    if not sizes or min(sizes) < 1 or prod(sizes) > _MOST_ELEMENTS:
        raise Unsupported(f"{where}: shape {str(value)[:40]!r}: numbers from 1 are needed")
    return tuple(sizes)
