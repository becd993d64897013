"""Codes of a gradient on the wire: uncompressed, cast, 8-bit, signs, or its largest elements.

A codec turns a float32 vector into bytes and back; vectors of one length give the same number of
bytes. Some codecs have error feedback: what was lost is added to the next vector.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.steps.training.named import named
from busbar.errors import Unsupported
from collectives.schedule.dtypes import dtype

Vector = NDArray[Any]
Wire = NDArray[np.uint8]
#: Elements that share scales. A float32 for each block of 8 bits is 0.4 % more, two for each block
#: of signs 6 %.
BLOCK = 1024
#: The all-reduces in which a vector travels once and is added where it arrives.
ONCE = ("one_shot", "ps", "sharded_ps")


class Codec(ABC):
    """A form of float32 vectors."""

    name: str
    adds: str | None = None
    """The element type (``half``) whose sums are sums of what was encoded; None where none are."""
    feedback: bool = False
    """Whether it needs error feedback, without which what it leaves out is lost."""

    @abstractmethod
    def nbytes(self, elements: int) -> int:
        """Bytes of a vector of so many elements."""

    @abstractmethod
    def encode(self, vector: Vector) -> Wire:
        """The bytes of a vector."""

    @abstractmethod
    def decode(self, wire: Wire, elements: int) -> Vector:
        """The float32 vector that the bytes stand for."""


class Cast(Codec):
    """Each element in another floating type; ``float`` leaves all as it is."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.adds = name, kind
        self._dtype = dtype(kind)

    def nbytes(self, elements: int) -> int:
        """See `Codec`."""
        return elements * self._dtype.itemsize

    def encode(self, vector: Vector) -> Wire:
        """See `Codec`; what is too large for the type is infinite."""
        with np.errstate(over="ignore"):
            return vector.astype(self._dtype).view(np.uint8)

    def decode(self, wire: Wire, elements: int) -> Vector:
        """See `Codec`."""
        return wire.view(self._dtype).astype(np.float32)


class EightBit(Codec):
    """Whole numbers of ±127 and a scale for each block, the largest of it over 127.

    Off by half a scale at most.
    """

    name = "int8"

    def nbytes(self, elements: int) -> int:
        """See `Codec`."""
        return elements + 4 * _blocks(elements)

    def encode(self, vector: Vector) -> Wire:
        """See `Codec`."""
        blocks = _padded(vector)
        with np.errstate(invalid="ignore"):  # what is no number makes the scale none
            scales = np.abs(blocks).max(axis=1) / np.float32(127)
            # A block of zeros, or of numbers so small that their scale is 0, is sent as zeros.
            whole = np.rint(blocks / np.where(scales, scales, 1)[:, None])
            levels = whole.clip(-127, 127).astype(np.int8).ravel()[: len(vector)]
        return np.concatenate([scales.view(np.uint8), levels.view(np.uint8)])

    def decode(self, wire: Wire, elements: int) -> Vector:
        """See `Codec`."""
        scales, levels = _split(wire, 4 * _blocks(elements))
        values = _padded(levels.view(np.int8).astype(np.float32))
        with np.errstate(invalid="ignore"):
            return (values * scales.view(np.float32)[:, None]).ravel()[:elements]


class OneBit(Codec):
    """Signs, and for each block the means of what is positive or 0 and of what is negative.

    Seide, Fu, Droppo, Li, Yu 2014 (1-bit stochastic gradient descent), with blocks for columns.
    """

    name, feedback = "1bit", True

    def nbytes(self, elements: int) -> int:
        """See `Codec`."""
        return ceil(elements / 8) + 8 * _blocks(elements)

    def encode(self, vector: Vector) -> Wire:
        """See `Codec`."""
        blocks, up = _padded(vector), vector >= 0
        above = np.count_nonzero(_padded(up), axis=1)
        below = np.minimum(BLOCK, len(vector) - BLOCK * np.arange(len(blocks))) - above
        sums = np.maximum(blocks, 0).sum(axis=1), np.minimum(blocks, 0).sum(axis=1)
        means = [
            (total / np.maximum(1, count)).astype(np.float32)
            for total, count in zip(sums, (above, below), strict=True)
        ]
        return np.concatenate([*(m.view(np.uint8) for m in means), np.packbits(up)])

    def decode(self, wire: Wire, elements: int) -> Vector:
        """See `Codec`."""
        head, bits = _split(wire, 8 * _blocks(elements))
        above, below = head.view(np.float32).reshape(2, -1)
        up = _padded(np.unpackbits(bits, count=elements))
        return np.where(up, above[:, None], below[:, None]).ravel()[:elements]


class TopK(Codec):
    """The largest elements, by magnitude, with their places; all others are 0.

    Strom 2015; Aji, Heafield 2017. ``fraction`` of the elements, at least one.
    """

    name, feedback = "topk", True

    def __init__(self, *, fraction: float = 0.01) -> None:
        if not 0 < fraction <= 1:
            raise Unsupported(f"compression topk: fraction {fraction:g} is not in (0, 1]")
        self._fraction = fraction

    def _kept(self, elements: int) -> int:
        return ceil(self._fraction * elements)

    def nbytes(self, elements: int) -> int:
        """See `Codec`: 4 for a place and 4 for a value."""
        return 8 * self._kept(elements)

    def encode(self, vector: Vector) -> Wire:
        """See `Codec`."""
        n, kept = len(vector), self._kept(len(vector))
        places = np.argpartition(np.abs(vector), n - kept)[n - kept :] if kept else np.arange(0)
        values = vector[places].astype(np.float32)
        return np.concatenate([places.astype(np.uint32).view(np.uint8), values.view(np.uint8)])

    def decode(self, wire: Wire, elements: int) -> Vector:
        """See `Codec`."""
        places, values = _split(wire, 4 * self._kept(elements))
        vector = np.zeros(elements, np.float32)
        vector[places.view(np.uint32)] = values.view(np.float32)
        return vector


class Feedback:
    """A codec for a series of vectors of one length; it adds what one lost to the next.

    The sum of all vectors is that of all encoded ones and `left`, up to rounding.
    """

    def __init__(self, codec: Codec, elements: int) -> None:
        self.codec = codec
        self.left = np.zeros(elements if codec.feedback else 0, np.float32)

    def encode(self, vector: Vector) -> Wire:
        """The bytes of a vector and of what was left; keeps what is left now."""
        if not self.codec.feedback:
            return self.codec.encode(vector)
        wanted = vector + self.left
        wire = self.codec.encode(wanted)
        self.left = wanted - self.codec.decode(wire, len(wanted))
        return wire


CODECS: dict[str, Callable[..., Codec]] = {
    "none": partial(Cast, "none", "float"),
    "fp16": partial(Cast, "fp16", "half"),
    "bf16": partial(Cast, "bf16", "bfloat16"),
    "int8": EightBit,
    "1bit": OneBit,
    "topk": TopK,
}


def codec(text: str) -> Codec:
    """A codec by its name, ``int8`` or ``topk:fraction=0.01``. Raises Unsupported for others."""
    return named("compression", text, CODECS)


def suits(codec: Codec, algorithm: str) -> None:
    """Raise Unsupported where an all-reduce cannot carry what a codec makes of a vector."""
    if codec.adds is None and algorithm not in ONCE:
        raise Unsupported(
            f"{algorithm} with --compress {codec.name}: it adds on the way, and such codes cannot"
            f" be added; take {', '.join(ONCE)}, or fp16 or bf16"
        )


def _blocks(elements: int) -> int:
    return ceil(elements / BLOCK)


def _padded(vector: Vector) -> Vector:
    """The vector as blocks, filled up with zeros."""
    return np.pad(vector, (0, -len(vector) % BLOCK)).reshape(-1, BLOCK)


def _split(wire: Wire, at: int) -> tuple[Wire, Wire]:
    return wire[:at], wire[at:]
