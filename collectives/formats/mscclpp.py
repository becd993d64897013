"""Read execution plans of MSCCL++ (JSON): gpus, their threadblocks, their operations.

Names are those of the format. Chunks of ``i``, ``o`` and ``s`` are numbered as in MSCCL. A remote
buffer is a gpu and a letter. A channel of a threadblock is named by the gpu at its other end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from collectives.formats.msccl import BUFFERS, MOST_GPUS, MscclError

_MOST_OPERATIONS = 1 << 18
_MOST_CHUNKS = 1 << 20
_MOST_NAME = 60


class Effect(NamedTuple):
    """The effect of an operation. Most write the sum of their sources to each destination.

    ``reads_packets``: which sources are packets, for which the reader waits: ``all``, or ``after``
    for all but the first. ``writes_packets``: the same for destinations. ``control``: the operation
    moves no data, and orders other operations.
    """

    control: bool = False
    reads_packets: str = ""
    writes_packets: str = ""


_AFTER, _ALL = "after", "all"
_CONTROL = ("nop", "barrier", "signal", "wait", "rlxsignal", "rlxwait")
#: Operations that can be proven. Others (pipeline, semaphores, multicast) are only read and shown.
EFFECTS: Mapping[str, Effect] = MappingProxyType(
    {
        **dict.fromkeys(_CONTROL, Effect(control=True)),
        **dict.fromkeys(("put", "get", "copy", "re", "res", "rre", "rres"), Effect()),
        **dict.fromkeys(("ppkt", "cpkt"), Effect(writes_packets=_ALL)),
        "rppkt": Effect(reads_packets=_ALL, writes_packets=_ALL),
        "upkt": Effect(reads_packets=_ALL),
        "repkt": Effect(reads_packets=_AFTER),
        **dict.fromkeys(("respkt", "recpkt", "recspkt"), Effect(False, _AFTER, _AFTER)),
    }
)


def is_packet(which: str, position: int) -> bool:
    """True if the source or destination at a position consists of packets."""
    return which == _ALL or (which == _AFTER and position > 0)


class Chunks(NamedTuple):
    """``size`` chunks of a gpu's buffer, from ``first`` on."""

    gpu: int
    buffer: str
    first: int
    size: int


@dataclass(frozen=True)
class PlanOperation:
    """One operation of a threadblock. ``peers``: (gpu, number of the channel to that gpu).

    ``share``: (i, n): this threadblock moves part i (from 0) of n of each buffer (tbg_info).
    """

    name: str
    sources: tuple[Chunks, ...] = ()
    targets: tuple[Chunks, ...] = ()
    peers: tuple[tuple[int, int], ...] = ()
    barrier: int = -1
    threadblocks: int = 0
    share: tuple[int, int] = (0, 1)
    #: Why the operation cannot be proven; empty if it can.
    unproven: str = ""


@dataclass(frozen=True)
class PlanGpu:
    """One gpu: the chunks of its buffers, and the operations of each threadblock, in order."""

    id: int
    chunks: Mapping[str, int]
    threadblocks: tuple[tuple[PlanOperation, ...], ...]


@dataclass(frozen=True)
class ExecutionPlan:
    """The plan of a file. ``gpus``: in the order of their ids."""

    name: str
    collective: str
    protocol: str
    inplace: bool
    gpus: tuple[PlanGpu, ...]

    @property
    def ngpus(self) -> int:
        """The number of gpus."""
        return len(self.gpus)

    def operations(self) -> Iterator[tuple[int, int, int, PlanOperation]]:
        """All operations, each with its gpu, its threadblock and its number there."""
        for gpu in self.gpus:
            for tb, block in enumerate(gpu.threadblocks):
                for number, operation in enumerate(block):
                    yield gpu.id, tb, number, operation

    def counts(self) -> Counter[str]:
        """How often each operation occurs."""
        return Counter(operation.name for *_, operation in self.operations())


def recognises(text: bytes) -> bool:
    """True if a text is JSON and not XML, by its first character."""
    return text.lstrip()[:1] == b"{"


def parse(text: bytes, name: str = "JSON") -> ExecutionPlan:
    """Parse a JSON text. ``name``: the file's name for errors. Raises MscclError."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise MscclError(f"{name}:{error.lineno}: no JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise MscclError(f"{name}: no JSON that can be read: {str(error)[:80]}") from None
    if not isinstance(document, dict) or "gpus" not in document or "collective" not in document:
        raise MscclError(f"{name}: JSON, but no execution plan of MSCCL++: no gpus and collective")
    return _Reader(name).plan(document)


class _Reader:
    """Builds a plan and checks all fields; errors name gpu, threadblock and operation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.where = "plan"
        self.count = 0

    def _fail(self, reason: str) -> MscclError:
        return MscclError(f"{self.name}: {self.where}: {reason}")

    def _whole(self, fields: Mapping[str, Any], key: str, most: int, least: int = 0) -> int:
        value = fields.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._fail(f"{key} is no whole number between {least} and {most}")
        return value

    def _text(self, fields: Mapping[str, Any], key: str, known: Sequence[str] = ()) -> str:
        value = fields.get(key)
        if not isinstance(value, str) or (known and value not in known):
            wanted = f"none of {', '.join(known)}" if known else "no text"
            raise self._fail(f"{key} is {wanted}")
        return value[:_MOST_NAME]

    def _list(self, fields: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
        value = fields.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self._fail(f"{key} is no list of objects")
        return value

    def plan(self, document: Mapping[str, Any]) -> ExecutionPlan:
        gpus = self._list(document, "gpus")
        if not 0 < len(gpus) <= MOST_GPUS:
            raise self._fail(f"{len(gpus)} gpus; 1 to {MOST_GPUS} are read")
        protocol = self._text(document, "protocol", ("Simple", "LL"))
        inplace = document.get("inplace")
        if not isinstance(inplace, bool):
            raise self._fail("inplace is neither true nor false")
        read = tuple(self._gpu(gpu, n, len(gpus)) for n, gpu in enumerate(gpus))
        self.where = "plan"
        collective = self._text(document, "collective")
        return ExecutionPlan(self._text(document, "name"), collective, protocol, inplace, read)

    def _gpu(self, gpu: Mapping[str, Any], number: int, ngpus: int) -> PlanGpu:
        self.where = f"gpu {number}"
        if self._whole(gpu, "id", ngpus - 1) != number:
            raise self._fail("ids of gpus do not count up from 0")
        names = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
        chunks = {b: self._whole(gpu, names[b], _MOST_CHUNKS) for b in BUFFERS}
        channels: dict[str, list[tuple[int, int]]] = {}
        for channel in self._list(gpu, "channels"):
            kind = self._text(channel, "channel_type")
            ends = channels.setdefault(kind, [])
            for peer in self._numbers(channel, "connected_to", ngpus - 1):
                ends.append((peer, sum(1 for gpu_, _ in ends if gpu_ == peer)))
        remote = [
            (self._whole(one, "rank", ngpus - 1), self._text(one, "type", BUFFERS))
            for one in self._list(gpu, "remote_buffers")
        ]
        blocks = []
        for tb, block in enumerate(self._list(gpu, "threadblocks")):
            self.where = f"gpu {number}, threadblock {tb}"
            blocks.append(self._block(block, number, channels, remote))
        return PlanGpu(number, chunks, tuple(blocks))

    def _numbers(self, fields: Mapping[str, Any], key: str, most: int) -> list[int]:
        value = fields.get(key, [])
        whole = isinstance(value, list) and all(type(one) is int for one in value)
        if not whole or not all(0 <= one <= most for one in value):
            raise self._fail(f"{key} is no list of numbers between 0 and {most}")
        return list(value)

    def _block(
        self,
        block: Mapping[str, Any],
        gpu: int,
        channels: Mapping[str, list[tuple[int, int]]],
        remote: Sequence[tuple[int, str]],
    ) -> tuple[PlanOperation, ...]:
        own: dict[str, list[tuple[int, int]]] = {}
        for channel in self._list(block, "channels"):
            kind = self._text(channel, "channel_type")
            ends = channels.get(kind, [])
            for id in self._numbers(channel, "channel_ids", 65535):
                own.setdefault(kind, []).append(ends[id] if id < len(ends) else (-1, id))
        buffers: dict[str, list[tuple[int, str]]] = {}
        for refs in self._list(block, "remote_buffer_refs"):
            kind = self._text(refs, "access_channel_type")
            for id in self._numbers(refs, "remote_buffer_ids", len(remote) - 1):
                buffers.setdefault(kind, []).append(remote[id])
        operations, head = [], self.where
        for number, operation in enumerate(self._list(block, "ops")):
            self.count += 1
            if self.count > _MOST_OPERATIONS:
                raise self._fail(f"more than {_MOST_OPERATIONS} operations")
            name = self._text(operation, "name")
            self.where = f"{head}, operation {number} ({name})"
            operations.append(self._operation(name, operation, gpu, own, buffers))
        return tuple(operations)

    def _operation(
        self,
        name: str,
        fields: Mapping[str, Any],
        gpu: int,
        channels: Mapping[str, list[tuple[int, int]]],
        buffers: Mapping[str, list[tuple[int, str]]],
    ) -> PlanOperation:
        kind = self._text(fields, "channel_type") if "channel_type" in fields else ""
        unproven = "" if name in EFFECTS else f"the operation {name} is not known here"
        if kind not in ("", "memory", "none"):
            unproven = unproven or f"operations over {kind} channels are not known here"
        if fields.get("reduce_op", "sum") not in ("sum", "min", "max"):
            unproven = unproven or "its reduce_op is not known here"
        if unproven:
            return PlanOperation(name, unproven=unproven)
        peers = []
        ends = channels.get(kind, [])
        for id in self._numbers(fields, "channel_ids", 65535):
            if id >= len(ends) or ends[id][0] < 0:
                raise self._fail(f"channel {id} is none of the threadblock's {len(ends)}")
            peers.append(ends[id])
        sources, targets = (
            tuple(self._chunks(one, gpu, buffers.get(kind, [])) for one in self._list(fields, key))
            for key in ("src_buff", "dst_buff")
        )
        barrier = self._whole(fields, "barrier_id", 65535) if name == "barrier" else -1
        blocks = self._whole(fields, "num_threadblocks", 65535, 1) if name == "barrier" else 0
        share = (0, 1)
        if "tbg_info" in fields:
            group = fields["tbg_info"]
            if not isinstance(group, dict):
                raise self._fail("tbg_info is no object")
            size = self._whole(group, "tbg_size", 1024, 1)
            share = self._whole(group, "tb_id", size - 1), size
        result = PlanOperation(name, sources, targets, tuple(peers), barrier, blocks, share)
        if not EFFECTS[name].control and not (result.sources and result.targets):
            raise self._fail("it has no src_buff or no dst_buff")
        sizes = {one.size for one in (*result.sources, *result.targets)}
        if len(sizes) > 1:
            raise self._fail(f"its buffers have {sorted(sizes)} chunks; they have to be as many")
        return result

    def _chunks(
        self, fields: Mapping[str, Any], gpu: int, remote: Sequence[tuple[int, str]]
    ) -> Chunks:
        index = self._whole(fields, "index", _MOST_CHUNKS)
        size = self._whole(fields, "size", _MOST_CHUNKS, 1)
        if "buffer_id" not in fields:
            return Chunks(gpu, self._text(fields, "type", BUFFERS), index, size)
        id = self._whole(fields, "buffer_id", 65535)
        if id >= len(remote):
            raise self._fail(f"buffer_id {id} is none of the threadblock's {len(remote)}")
        return Chunks(*remote[id], index, size)
