"""A schedule as Chakra execution traces, one file a rank, which ASTRA-sim takes as a workload.

The wire format is written by hand: a handful of protobuf fields (MLCommons Chakra,
``schema/protobuf/et_def.proto``), each message behind its length. ASTRA-sim reads sizes as int64,
ranks and tags as int32, operations as int64 and tensor sizes as uint64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from collectives.formats.traffic import Turn

_VERSION = "0.0.4"
# NodeType of the schema.
_COMPUTE, _SEND, _RECEIVE = 4, 5, 6
# Field numbers of AttributeProto's values.
_INT32, _INT64, _UINT64, _BOOL = 7, 9, 13, 27


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


@lru_cache(1 << 12)
def _attribute(name: str, kind: int, value: int) -> bytes:
    return _bytes(10, _bytes(1, name.encode()) + _number(kind, value))


def _node(number: int, name: str, kind: int, waits: Sequence[int], *attributes: bytes) -> bytes:
    head = _number(1, number) + _bytes(2, name.encode()) + _number(3, kind)
    # Packed, as proto3 writes repeated numbers; an empty list is left out.
    after = _bytes(5, b"".join(map(_varint, waits))) if waits else b""
    return head + after + _attribute("is_cpu_op", _BOOL, 0) + b"".join(attributes)


def _nodes(rank: int, steps: Sequence[Turn], itemsize: int) -> Iterator[bytes]:
    number = 0
    last: list[int] = []
    for at, turn in enumerate(steps):
        mine = []
        for verb, kind, messages in (
            ("send", _SEND, turn.sends),
            ("recv", _RECEIVE, turn.receives),
        ):
            for peer, nbytes, tag in messages:
                src, dst = (rank, peer) if kind == _SEND else (peer, rank)
                yield _node(
                    number,
                    f"step{at}_{verb}_{peer}_{tag}",
                    kind,
                    last,
                    _attribute("comm_size", _INT64, nbytes),
                    _attribute("comm_src", _INT32, src),
                    _attribute("comm_dst", _INT32, dst),
                    _attribute("comm_tag", _INT32, tag),
                )
                mine.append(number)
                number += 1
        last = mine or last
        if turn.reduced_bytes:
            yield _node(
                number,
                f"step{at}_reduce",
                _COMPUTE,
                last,
                _attribute("num_ops", _INT64, max(1, turn.reduced_bytes // itemsize)),
                _attribute("tensor_size", _UINT64, turn.reduced_bytes),
            )
            last = [number]
            number += 1


def chakra(ranks: Iterable[Sequence[Turn]], itemsize: int = 4) -> Iterator[bytes]:
    """The trace of every rank's turns; an addition is one operation per ``itemsize`` bytes."""
    metadata = _bytes(1, _VERSION.encode())
    for rank, steps in enumerate(ranks):
        messages = [metadata, *_nodes(rank, steps, itemsize)]
        yield b"".join(_varint(len(one)) + one for one in messages)
