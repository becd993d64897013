"""Write a placed schedule in the formats of simulators: GOAL text and Chakra execution traces.

Both are made from `turns`, which gives each rank's messages with their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unsupported
from collectives.schedule.layout import Layout, carried_elements
from collectives.schedule.schedule import Schedule

Column = NDArray[np.int64]


class Message(NamedTuple):
    """A message to or from a peer. ``tag``: the message's number among those of the same pair."""

    peer: int
    nbytes: int
    tag: int


@dataclass
class Turn:
    """A rank's part of one step: all its messages at once, then additions of ``reduced_bytes``."""

    sends: list[Message] = field(default_factory=list)
    receives: list[Message] = field(default_factory=list)
    reduced_bytes: int = 0


def _messages(schedule: Schedule, where: Layout, part: int) -> Column:
    """All moves in the order of steps, a column each; rows: step, src, dst, bytes, reduce, tag."""
    carried = carried_elements(where, part)
    tables = []
    for number, step in enumerate(schedule.steps):
        m = step.moves().joined()
        tables.append(np.stack([np.full(len(m), number), m.src, m.dst, carried(m), m.reduce]))
    every = np.concatenate([np.empty((5, 0), np.int64), *tables], axis=1)
    every = every[:, every[3] > 0]
    pair = every[1] * schedule.nranks + every[2]
    order = np.argsort(pair, kind="stable")
    starts = np.flatnonzero(np.diff(pair[order], prepend=-1))
    tag = np.empty(len(pair), np.int64)
    tag[order] = np.arange(len(pair)) - np.repeat(starts, np.diff(starts, append=len(pair)))
    return np.concatenate([every, tag[None]])


def _by(ranks: Column, nranks: int) -> list[Column]:
    """For each rank the indices at which ``ranks`` has it, in ascending order."""
    order = np.argsort(ranks, kind="stable")
    return np.split(order, np.cumsum(np.bincount(ranks, minlength=nranks))[:-1])


def turns(schedule: Schedule, where: Layout, nbytes: int) -> Iterator[list[Turn]]:
    """For each rank the steps in which it sends, receives or adds; empty messages are left out.

    ``nbytes``: the collective's size, as in the size column of nccl-tests. Raises Unsupported if
    the size is so small that ranks have no bytes. Ranks are generated one at a time, since all
    turns of a large schedule would not fit into memory.
    """
    n = schedule.nranks
    part = where.spec.size(n, nbytes, 1).elements
    if part < 1:
        raise Unsupported(f"{where.spec.name} on {n} ranks: {nbytes} bytes leave no rank any")
    every = _messages(schedule, where, part)
    return (
        _of_rank(every[:, sent], every[:, got])
        for sent, got in zip(_by(every[1], n), _by(every[2], n), strict=True)
    )


def _of_rank(sent: Column, got: Column) -> list[Turn]:
    turns_by_step: dict[int, Turn] = {}
    for step, src, dst, nbytes, _, tag in sent.T.tolist():
        turn = turns_by_step.setdefault(step, Turn())
        if src != dst:
            turn.sends.append(Message(dst, nbytes, tag))
    for step, src, dst, nbytes, reduce, tag in got.T.tolist():
        turn = turns_by_step.setdefault(step, Turn())
        if src != dst:
            turn.receives.append(Message(src, nbytes, tag))
        turn.reduced_bytes += nbytes if reduce else 0
    return [turns_by_step[step] for step in sorted(turns_by_step) if turns_by_step[step] != Turn()]


def _rank(rank: int, steps: Sequence[Turn], ns_per_byte: float) -> Iterator[str]:
    yield f"rank {rank} {{"
    label, last = 0, 0
    for turn in steps:
        labels = []
        for verb, to, messages in (("send", "to", turn.sends), ("recv", "from", turn.receives)):
            for peer, nbytes, tag in messages:
                label += 1
                labels.append(label)
                yield f"l{label}: {verb} {nbytes}b {to} {peer} tag {tag}"
        if last:
            yield from (f"l{one} requires l{last}" for one in labels)
        label += 1
        yield f"l{label}: calc {round(turn.reduced_bytes * ns_per_byte)}"
        # In a step without messages the additions depend on the step before.
        yield from (f"l{label} requires l{one}" for one in labels or [last] if one)
        last = label
    yield "}"


def goal(ranks: Iterable[Sequence[Turn]], ns_per_byte: float = 0.0) -> bytes:
    """GOAL text of all ranks' turns; an addition takes ``ns_per_byte`` nanoseconds per byte.

    LogGOPSim and ATLAHS read this format (T. Hoefler et al., LogGOPSim, 2010). A rank's steps
    follow one another, as in execution: messages depend on the ``calc`` that ends the step before.
    """
    lines = [""]
    for rank, steps in enumerate(ranks):
        lines += ["", *_rank(rank, steps, ns_per_byte)]
        lines[0] = f"num_ranks {rank + 1}"
    return ("\n".join(lines) + "\n").encode()


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


def _nodes(rank: int, steps: Sequence[Turn]) -> Iterator[bytes]:
    number = 0
    last: list[int] = []
    for at, turn in enumerate(steps):
        numbers = []
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
                numbers.append(number)
                number += 1
        last = numbers or last
        if turn.reduced_bytes:
            yield _node(
                number,
                f"step{at}_reduce",
                _COMPUTE,
                last,
                _attribute("num_ops", _INT64, max(1, turn.reduced_bytes // 4)),
                _attribute("tensor_size", _UINT64, turn.reduced_bytes),
            )
            last = [number]
            number += 1


def chakra(ranks: Iterable[Sequence[Turn]]) -> Iterator[bytes]:
    """Chakra traces, one file per rank, which ASTRA-sim reads as a workload.

    An addition is one operation per four bytes. The few protobuf fields (MLCommons Chakra,
    ``schema/protobuf/et_def.proto``) are encoded here without a library, with each message after
    its length. ASTRA-sim reads sizes as int64, ranks and tags as int32, operations as int64 and
    tensor sizes as uint64.
    """
    metadata = _bytes(1, _VERSION.encode())
    for rank, steps in enumerate(ranks):
        messages = [metadata, *_nodes(rank, steps)]
        yield b"".join(_varint(len(one)) + one for one in messages)
