"""Convolutional models, tensor by tensor in the order of their forward pass.

Sources: He et al. 2016 (ResNet-50), Simonyan and Zisserman 2015 (VGG16), Krizhevsky 2014 (AlexNet),
Szegedy et al. 2016 (InceptionV3), as torchvision builds them; NT3 is CANDLE's Pilot1 benchmark. A
weight's work is its elements times the positions that it is applied at.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.steps.workloads.workload import Tensor

_CLASSES = 1000


class _Layers:
    """Collects tensors; ``at``: positions of the current feature map."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.tensors: list[Tensor] = []

    def weight(self, name: str, *shape: int) -> None:
        """A tensor that is applied at every position."""
        tensor = Tensor(name, shape)
        self.tensors.append(Tensor(name, shape, float(tensor.elements * self.at)))

    def conv(self, name: str, out: int, into: int, *kernel: int) -> None:
        """A convolution with a bias."""
        self.weight(f"{name}.weight", out, into, *kernel)
        self.weight(f"{name}.bias", out)

    def normed(self, name: str, out: int, into: int, *kernel: int) -> None:
        """A convolution without a bias, and batch normalisation."""
        self.weight(f"{name}.conv.weight", out, into, *kernel)
        self.weight(f"{name}.bn.weight", out)
        self.weight(f"{name}.bn.bias", out)

    def linear(self, name: str, out: int, into: int) -> None:
        """A fully connected layer, applied once."""
        self.at = 1
        self.conv(name, out, into)


def resnet50() -> list[Tensor]:
    """161 tensors, 25,557,032 parameters."""
    net = _Layers(112 * 112)
    net.normed("conv1", 64, 3, 7, 7)
    into, side = 64, 56
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(blocks):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            net.at = side * side
            net.normed(f"{name}.1", width, into, 1, 1)
            side //= stride
            net.at = side * side
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
        net.at = (224 >> stage) ** 2
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
        net.at = side * side
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
    net.at = length - 19 - 9
    net.conv("conv2", filters, filters, 10)
    into = net.at // 10 * filters  # pooled by ten, flattened
    for n, out in enumerate((200, 20, 2), 1):
        net.linear(f"dense{n}", out, into)
        into = out
    return net.tensors


#: A branch of an Inception module: each convolution's filters and kernel; the first one's input is
#: the module's.
_Branch = Sequence[tuple[int, tuple[int, int]]]


def inception_v3() -> list[Tensor]:
    """292 tensors, 27,161,264 parameters, the auxiliary head (3,326,696) among them."""
    net = _Layers(149 * 149)
    into = 3
    stem = ((32, 3, 149), (32, 3, 147), (64, 3, 147), (80, 1, 73), (192, 3, 71))
    for n, (width, kernel, side) in enumerate(stem):
        net.at = side * side
        net.normed(f"stem{n}", width, into, kernel, kernel)
        into = width
    for n, module in enumerate(_modules()):
        net.at = module[0] ** 2
        for branch, convs in enumerate(module[1]):
            wide = into
            for k, (width, kernel2) in enumerate(convs):
                split = width < 0  # beside the one before, which it shares its input with
                net.normed(f"mixed{n}.{branch}.{k}", abs(width), wide, *kernel2)
                wide = wide if split else abs(width)
        into = module[2]
        if n == _AUX_AFTER:
            net.at = 25
            net.normed("aux.0", 128, into, 1, 1)
            net.at = 1
            net.normed("aux.1", 768, 128, 5, 5)
            net.linear("aux.fc", _CLASSES, 768)
    net.linear("fc", _CLASSES, into)
    return net.tensors


#: The module that the auxiliary head hangs on, Mixed_6e.
_AUX_AFTER = 7


def _modules() -> list[tuple[int, list[_Branch], int]]:
    """The side, the branches and the output channels of each Inception module.

    Filters below 0 are of a pair that splits: both take what came before the first of them.
    """
    one, three, five, row, column = (1, 1), (3, 3), (5, 5), (1, 7), (7, 1)
    fives: _Branch = [(48, one), (64, five)]
    threes: _Branch = [(64, one), (96, three), (96, three)]
    found: list[tuple[int, list[_Branch], int]] = [
        (35, [[(64, one)], fives, threes, [(pool, one)]], 224 + pool) for pool in (32, 64, 64)
    ]
    found.append((17, [[(384, three)], threes], 768))
    for c in (128, 160, 160, 192):
        seven: _Branch = [(c, one), (c, row), (192, column)]
        twice: _Branch = [(c, one), (c, column), (c, row), (c, column), (192, row)]
        found.append((17, [[(192, one)], seven, twice, [(192, one)]], 768))
    down: _Branch = [(192, one), (192, row), (192, column), (192, three)]
    found.append((8, [[(192, one), (320, three)], down], 1280))
    split = ((-384, (1, 3)), (-384, (3, 1)))
    wide: _Branch = [(384, one), *split]
    long: _Branch = [(448, one), (384, three), *split]
    return [*found, *[(8, [[(320, one)], wide, long, [(192, one)]], 2048)] * 2]
