"""Execution plans of MSCCL++ to test with, made for any number of gpus, and changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

Document = dict[str, Any]


def _plan(name: str, collective: str, protocol: str, gpus: list[Document]) -> Document:
    return {
        "name": name, "collective": collective, "protocol": protocol, "inplace": True,
        "reuse_resources": False, "gpus": gpus, "num_threads_per_block": 1024,
        "use_double_scratch_buffer": protocol == "LL", "buffer_alignment": 16,
        "min_message_size": 0, "max_message_size": 18446744073709551615,
    }  # fmt: skip


def _gpu(rank: int, n: int, chunks: tuple[int, int, int], blocks: list[list[Document]],
         letter: str) -> Document:  # fmt: skip
    peers = [other for other in range(n) if other != rank]
    ids = list(range(n - 1))
    return {
        "id": rank,
        "input_chunks": chunks[0], "output_chunks": chunks[1], "scratch_chunks": chunks[2],
        "threadblocks": [
            {
                "id": tb,
                "ops": ops,
                "channels": [{"channel_type": "memory", "channel_ids": ids}],
                "remote_buffer_refs": [
                    {"access_channel_type": "memory", "remote_buffer_ids": ids}
                ],
            }
            for tb, ops in enumerate(blocks)
        ],
        "channels": [{"channel_type": "memory", "connected_to": peers}],
        "remote_buffers": [
            {"rank": other, "type": letter, "access_channel_types": ["memory"]} for other in peers
        ],
        "semaphores": [],
    }  # fmt: skip


def _local(letter: str, index: int) -> Document:
    return {"type": letter, "index": index, "size": 1}


def _remote(buffer: int, index: int) -> Document:
    return {"buffer_id": buffer, "index": index, "size": 1}


def _op(name: str, sources: list[Document], targets: list[Document]) -> Document:
    return {
        "name": name, "src_buff": sources, "dst_buff": targets, "channel_type": "memory",
        "reduce_op": "sum",
    }  # fmt: skip


def _control(name: str, n: int) -> Document:
    return {"name": name, "channel_ids": list(range(n - 1)), "channel_type": "memory"}


def reads(n: int) -> Document:
    """All-reduce: each gpu reads its chunk of all others, adds, and writes the sum to all."""
    gpus = []
    for rank in range(n):
        others = range(n - 1)
        ops = [
            _op("rres", [_local("i", rank), *(_remote(p, rank) for p in others)],
                [_local("i", rank), *(_remote(p, rank) for p in others)]),
            {"name": "nop"},
            _control("signal", n),
            _control("wait", n),
        ]  # fmt: skip
        gpus.append(_gpu(rank, n, (n, n, 0), [ops], "i"))
    return _plan("reads", "allreduce", "Simple", gpus)


def gathers(n: int) -> Document:
    """All-gather: each gpu puts its part into the output of all others."""
    gpus = []
    for rank in range(n):
        ops = [
            _op("put", [_local("o", rank)] * (n - 1), [_remote(p, rank) for p in range(n - 1)]),
            {"name": "nop"},
            _control("signal", n),
            _control("wait", n),
        ]
        gpus.append(_gpu(rank, n, (1, n, 0), [ops], "o"))
    return _plan("gathers", "allgather", "Simple", gpus)


def packets(n: int) -> Document:
    """All-reduce in packets: chunks to their owners, who add them and send the sums to all."""
    gpus = []
    for rank in range(n):
        others = [other for other in range(n) if other != rank]
        send = [
            # Scratch of the owner: a chunk for each sender, then one for each sum.
            _op("ppkt", [_local("i", other)], [_remote(p, rank)])
            for p, other in enumerate(others)
        ]
        add = _op(
            "respkt",
            [_local("i", rank), *(_local("s", other) for other in others)],
            [_local("i", rank), *(_remote(p, n + rank) for p in range(n - 1))],
        )
        take = [_op("upkt", [_local("s", n + other)], [_local("i", other)]) for other in others]
        gpus.append(_gpu(rank, n, (n, n, 2 * n), [send, [add], take], "s"))
    return _plan("packets", "allreduce", "LL", gpus)


def shared(n: int) -> Document:
    """`gathers`, where two threadblocks share each put, with a channel of their own each."""
    document = gathers(n)
    for gpu in document["gpus"]:
        (block,) = gpu["threadblocks"]
        gpu["channels"][0]["connected_to"] *= 2
        gpu["threadblocks"] = [copy.deepcopy(block), copy.deepcopy(block)]
        for tb, one in enumerate(gpu["threadblocks"]):
            one["id"] = tb
            one["channels"][0]["channel_ids"] = [tb * (n - 1) + p for p in range(n - 1)]
            one["ops"][0]["tbg_info"] = {"tb_id": tb, "tbg_size": 2}
    return document


MADE = {"reads": reads, "gathers": gathers, "packets": packets, "shared": shared}


def dumped(document: Document) -> bytes:
    """A plan as the text of a file."""
    return json.dumps(document, indent=1).encode()


def without_one(document: Document) -> Iterator[tuple[str, Document]]:
    """Every plan with one operation missing, and the operation's name."""
    for g, gpu in enumerate(document["gpus"]):
        for t, block in enumerate(gpu["threadblocks"]):
            for number, operation in enumerate(block["ops"]):
                changed = copy.deepcopy(document)
                del changed["gpus"][g]["threadblocks"][t]["ops"][number]
                yield operation["name"], changed


def moved(document: Document) -> Iterator[Document]:
    """Every plan with one chunk's index changed to another of the buffer."""
    for g, gpu in enumerate(document["gpus"]):
        for t, block in enumerate(gpu["threadblocks"]):
            for number, operation in enumerate(block["ops"]):
                for key in ("src_buff", "dst_buff"):
                    for at in range(len(operation.get(key, []))):
                        changed = copy.deepcopy(document)
                        found = changed["gpus"][g]["threadblocks"][t]["ops"][number][key][at]
                        found["index"] += 1 if found["index"] == 0 else -1
                        yield changed
