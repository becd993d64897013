"""Codecs of gradients: uncompressed, cast, 8-bit, signs, or the largest elements.

A codec turns a float32 vector into bytes and back. The number of bytes depends only on the length
of the vector. Some codecs need error feedback: what is lost is added to the next vector.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from math import ceil
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from busbar.arguments import unknown
from busbar.errors import Unsupported
from collectives.schedule.catalogue import parse
from collectives.schedule.dtypes import dtype

Vector = NDArray[Any]
Wire = NDArray[np.uint8]
#: Elements that share a scale. One float32 per block adds 0.4 % to 8-bit codes; two add 6 % to
#: signs.
BLOCK = 1024
#: The all-reduces in which a vector is sent once and added at its destination.
ONCE = ("one_shot", "ps", "sharded_ps")


class Codec(ABC):
    """A compression of gradients: encodes float32 vectors as bytes and decodes them."""

    name: str
    adds: str | None = None
    """The element type of codes that can be added (``half``); None if codes cannot be added."""
    feedback: bool = False
    """Whether it needs error feedback, because it leaves out much of each vector."""

    @abstractmethod
    def nbytes(self, elements: int) -> int:
        """The number of bytes that encode a vector of ``elements`` elements."""

    @abstractmethod
    def encode(self, vector: Vector) -> Wire:
        """Encode a vector; returns the bytes."""

    @abstractmethod
    def decode(self, wire: Wire, elements: int) -> Vector:
        """Decode bytes; returns a float32 vector of ``elements`` elements."""


class Cast(Codec):
    """Casts each element to another floating-point type; ``float`` does not change vectors."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.adds = name, kind
        self._dtype = dtype(kind)

    def nbytes(self, elements: int) -> int:
        """Bytes of an encoded vector of ``elements`` elements."""
        return elements * self._dtype.itemsize

    def encode(self, vector: Vector) -> Wire:
        """Encode a float32 vector; elements that are too large for the type become infinite."""
        with np.errstate(over="ignore"):
            return vector.astype(self._dtype).view(np.uint8)

    def decode(self, wire: Wire, elements: int) -> Vector:
        """Decode bytes; returns a float32 vector of ``elements`` elements."""
        return wire.view(self._dtype).astype(np.float32)


class EightBit(Codec):
    """Encodes whole numbers of -127 … 127, and a scale per block: its largest magnitude / 127.

    The error of an element is at most half a scale.
    """

    name = "int8"

    def nbytes(self, elements: int) -> int:
        """Bytes of an encoded vector of ``elements`` elements."""
        return elements + 4 * _blocks(elements)

    def encode(self, vector: Vector) -> Wire:
        """Encode a float32 vector; returns the bytes."""
        blocks = _padded(vector)
        with np.errstate(invalid="ignore"):  # a nan makes the scale nan
            scales = np.abs(blocks).max(axis=1) / np.float32(127)
            # A block whose scale is 0 is sent as zeros.
            whole = np.rint(blocks / np.where(scales, scales, 1)[:, None])
            levels = whole.clip(-127, 127).astype(np.int8).ravel()[: len(vector)]
        return np.concatenate([scales.view(np.uint8), levels.view(np.uint8)])

    def decode(self, wire: Wire, elements: int) -> Vector:
        """Decode bytes; returns a float32 vector of ``elements`` elements."""
        scales, levels = np.split(wire, [4 * _blocks(elements)])
        values = _padded(levels.view(np.int8).astype(np.float32))
        with np.errstate(invalid="ignore"):
            return (values * scales.view(np.float32)[:, None]).ravel()[:elements]


class OneBit(Codec):
    """Encodes signs, and for each block the means of its elements ≥ 0 and of its elements < 0.

    Seide, Fu, Droppo, Li, Yu 2014 (1-bit stochastic gradient descent), with blocks for columns.
    """

    name, feedback = "1bit", True

    def nbytes(self, elements: int) -> int:
        """Bytes of an encoded vector of ``elements`` elements."""
        return ceil(elements / 8) + 8 * _blocks(elements)

    def encode(self, vector: Vector) -> Wire:
        """Encode a float32 vector; returns the bytes."""
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
        """Decode bytes; returns a float32 vector of ``elements`` elements."""
        head, bits = np.split(wire, [8 * _blocks(elements)])
        above, below = head.view(np.float32).reshape(2, -1)
        up = _padded(np.unpackbits(bits, count=elements))
        return np.where(up, above[:, None], below[:, None]).ravel()[:elements]


class TopK(Codec):
    """Encodes the elements of largest magnitude, with their indices; the others become 0.

    Strom 2015; Aji, Heafield 2017. ``fraction``: of the elements, rounded up.
    """

    name, feedback = "topk", True

    def __init__(self, *, fraction: float = 0.01) -> None:
        if not 0 < fraction <= 1:
            raise Unsupported(f"compression topk: fraction {fraction:g} is not in (0, 1]")
        self._fraction = fraction

    def _count(self, elements: int) -> int:
        return ceil(self._fraction * elements)

    def nbytes(self, elements: int) -> int:
        """Bytes of an encoded vector: 4 for the index and 4 for the value of a chosen element."""
        return 8 * self._count(elements)

    def encode(self, vector: Vector) -> Wire:
        """Encode a float32 vector; returns the bytes."""
        first = len(vector) - self._count(len(vector))
        indices = (
            np.argpartition(np.abs(vector), first)[first:] if first < len(vector) else np.arange(0)
        )
        values = vector[indices].astype(np.float32)
        return np.concatenate([indices.astype(np.uint32).view(np.uint8), values.view(np.uint8)])

    def decode(self, wire: Wire, elements: int) -> Vector:
        """Decode bytes; returns a float32 vector of ``elements`` elements."""
        indices, values = np.split(wire, [4 * self._count(elements)])
        vector = np.zeros(elements, np.float32)
        vector[indices.view(np.uint32)] = values.view(np.float32)
        return vector


class Feedback:
    """Encodes a series of vectors of one length, and adds each vector's error to the next vector.

    The sum of all vectors is the sum of all decoded vectors plus `left`, up to rounding.
    """

    def __init__(self, codec: Codec, elements: int, left: Vector | None = None) -> None:
        """``left``: memory for `left`, so that series of other parts of a vector can share it."""
        self.codec = codec
        if left is None:
            left = np.zeros(elements if codec.feedback else 0, np.float32)
        self.left = left

    def encode(self, vector: Vector) -> Wire:
        """Encode the sum of a vector and `left`; the error of encoding becomes the new `left`."""
        if not self.codec.feedback:
            return self.codec.encode(vector)
        exact = vector + self.left
        wire = self.codec.encode(exact)
        np.subtract(exact, self.codec.decode(wire, len(exact)), out=self.left)
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
    """The codec called ``int8``, ``topk:fraction=0.01`` …; raises Unsupported for other names."""
    return make_by_name("compression", text, CODECS)


def suits(codec: Codec, algorithm: str) -> None:
    """Raise Unsupported if an all-reduce cannot exchange vectors that a codec encoded.

    Encodings that cannot be added need one that sends each vector to its destination unchanged.
    """
    if codec.adds is None and algorithm not in ONCE:
        raise Unsupported(
            f"{algorithm} with --compress {codec.name}: it adds on the way, and such codes cannot"
            f" be added; take {', '.join(ONCE)}, or fp16 or bf16"
        )


def _blocks(elements: int) -> int:
    return ceil(elements / BLOCK)


def _padded(vector: Vector) -> Vector:
    """The vector as rows of `BLOCK` elements; the last row is filled up with zeros."""
    return np.pad(vector, (0, -len(vector) % BLOCK)).reshape(-1, BLOCK)


T = TypeVar("T")


def make_by_name(what: str, text: str, table: Mapping[str, Callable[..., T]]) -> T:
    """Call the constructor that ``text`` names, such as ``topk:fraction=0.01``.

    Parameters are numbers, and keyword-only in the constructor. ``what``: the noun in messages of
    errors. Raises Unsupported for an unknown name or parameter, and as the constructor does.
    """
    name, parameters = parse(text)
    if name not in table:
        raise unknown(what, name, list(table))
    known = {
        p.name: p.default
        for p in inspect.signature(table[name]).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }
    for key, value in parameters.items():
        if key not in known:
            has = ", ".join(known) or "none"
            raise Unsupported(f"{what} {name} has no parameter {key!r}; its parameters: {has}")
        whole = isinstance(known[key], int)
        if not isinstance(value, int if whole else (int, float)):
            kind = "a whole number" if whole else "a number"
            raise Unsupported(f"{what} {name}: {key} must be {kind}, not {value!r}")
    return table[name](**parameters)
