"""An `Algorithm` as MSCCL XML text, attributes in the order that the format's tools write."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import quoteattr

from collectives.formats.msccl import Algorithm


def _element(tag: str, indent: int, end: str, **attributes: object) -> str:
    text = " ".join(f"{key}={quoteattr(str(value))}" for key, value in attributes.items())
    return f"{'  ' * indent}<{tag} {text}{end}>"


def _lines(algorithm: Algorithm) -> Iterator[str]:
    head = {
        "name": algorithm.name,
        "proto": algorithm.proto,
        "nchannels": algorithm.nchannels,
        "nchunksperloop": algorithm.nchunksperloop,
        "ngpus": algorithm.ngpus,
        "coll": algorithm.coll,
        "inplace": int(algorithm.inplace),
        "outofplace": int(algorithm.outofplace),
        "minBytes": algorithm.min_bytes,
        "maxBytes": algorithm.max_bytes,
    }
    yield _element("algo", 0, "", **head, **({"root": algorithm.root} if algorithm.root else {}))
    for gpu in algorithm.gpus:
        chunks = {"i_chunks": gpu.i_chunks, "o_chunks": gpu.o_chunks, "s_chunks": gpu.s_chunks}
        yield _element("gpu", 1, "", id=gpu.id, **chunks)
        for tb in gpu.threadblocks:
            yield _element("tb", 2, "", id=tb.id, send=tb.send, recv=tb.recv, chan=tb.chan)
            for step in tb.steps:
                yield _element("step", 3, "/", **step._asdict())
            yield "    </tb>"
        yield "  </gpu>"
    yield "</algo>"


def write(algorithm: Algorithm) -> bytes:
    """The XML of an algorithm; `collectives.formats.parse` reads it back as it was."""
    return ("\n".join(_lines(algorithm)) + "\n").encode()
