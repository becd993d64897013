"""MSCCL algorithms: gpus, their threadblocks and steps; read from XML text and written as XML text.

Names are those of the format. A step is what the runtime calls a transfer; the effect of its type
is one row of `OPERATIONS`.

The grammar is that of the format's runtime (RCCL, msccl_parser). Elements and attributes that the
runtime ignores are ignored here, too. A file may come from anywhere, so a DTD (and with it
entities) is refused, and sizes are limited. As in the runtime, steps are ordered as in the file,
and not by the attribute ``s``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple
from xml.parsers import expat

from busbar.errors import Unsupported
from busbar.terminal import make_printable

# The letters of the buffers: input, output, scratch.
BUFFERS = ("i", "o", "s")

PROTOCOLS = ("Simple", "LL", "LL128")


class Operation(NamedTuple):
    """The effect of a step's type: receive a message, read ``src``, send a value, write ``dst``.

    The value is the message or ``src``, or the sum of both. ``adds``: it is added to ``dst``.
    """

    receives: bool = False
    reads: bool = False
    sends: bool = False
    writes: bool = False
    adds: bool = False


# ``ra`` adds residuals that a caller gives the runtime in a further buffer; the proof refuses it.
OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "s": Operation(reads=True, sends=True),
        "r": Operation(receives=True, writes=True),
        "rcs": Operation(receives=True, sends=True, writes=True),
        "rrs": Operation(receives=True, reads=True, sends=True),
        "rrc": Operation(receives=True, reads=True, writes=True),
        "rrcs": Operation(receives=True, reads=True, sends=True, writes=True),
        "cpy": Operation(reads=True, writes=True),
        "re": Operation(reads=True, writes=True, adds=True),
        "ra": Operation(reads=True, writes=True, adds=True),
        "nop": Operation(),
    }
)


class ThreadblockStep(NamedTuple):
    """One step of a threadblock. ``depid``: the threadblock that it waits for; -1 for none."""

    s: int
    type: str
    srcbuf: str
    srcoff: int
    dstbuf: str
    dstoff: int
    cnt: int
    depid: int = -1
    deps: int = -1
    hasdep: int = 0

    @property
    def operation(self) -> Operation:
        """The effect of the step's type."""
        return OPERATIONS[self.type]


@dataclass(frozen=True)
class ThreadBlock:
    """Steps in strict order; ``send`` and ``recv`` are the peers on channel ``chan``, or -1."""

    id: int
    send: int
    recv: int
    chan: int
    steps: tuple[ThreadblockStep, ...]


@dataclass(frozen=True)
class Gpu:
    """One gpu's threadblocks, and the number of chunks of each buffer (``i o s``) by the file."""

    id: int
    chunks: Mapping[str, int]
    threadblocks: tuple[ThreadBlock, ...]


@dataclass(frozen=True)
class Algorithm:
    """The algorithm of a file. ``gpus``: in the order of their ids, 0 to ngpus−1.

    ``inplace``, ``outofplace``: True for the placements in which it may run. ``root`` is an
    attribute of Busbar: the format has none, and the runtime ignores it.
    """

    name: str
    proto: str
    nchannels: int
    nchunksperloop: int
    coll: str
    inplace: bool
    outofplace: bool
    gpus: tuple[Gpu, ...]
    min_bytes: int = 0
    max_bytes: int = 0
    root: int = 0

    @property
    def ngpus(self) -> int:
        """The number of gpus."""
        return len(self.gpus)

    def placements(self) -> tuple[bool, ...]:
        """The placements that the file declares: False for out of place, True for in place."""
        return (False,) * self.outofplace + (True,) * self.inplace

    def steps(self) -> Iterator[tuple[Gpu, ThreadBlock, ThreadblockStep]]:
        """All steps, each with its gpu and its threadblock."""
        for gpu in self.gpus:
            for tb in gpu.threadblocks:
                for step in tb.steps:
                    yield gpu, tb, step


#: The most bytes of a file.
MOST_BYTES = 256 * 2**20
#: The most steps that a file may have. The proof of such a file takes minutes.
MOST_STEPS = 1_000_000
#: The most GPUs of a file that is read or written.
MOST_GPUS = 4096
# The largest number of chunks; the runtime itself keeps offsets in 16 bits.
_MOST_CHUNKS = 1 << 24
_PARENT = {"algo": None, "gpu": "algo", "tb": "gpu", "step": "tb"}


class MscclError(Unsupported):
    """A file is no MSCCL algorithm. The message has file, line, element and reason."""


def parse(text: bytes, name: str = "XML") -> Algorithm:
    """Parse an XML text. ``name``: the file's name for errors. Raises MscclError."""
    if len(text) > MOST_BYTES:
        raise MscclError(f"{name}: more than {MOST_BYTES >> 20} MiB; no MSCCL algorithm is so long")
    return _Reader(name).run(text)


class _Reader:
    """Builds the algorithm from the events of the XML parser expat."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.line = 0
        # Empty lines before the text, which are not parsed: XML forbids them before its header.
        self.skipped = 0
        # The known elements that are open, and the depth inside an element that is ignored.
        self.open: list[str] = []
        self.passed = 0
        self.algo: dict[str, Any] = {}
        self.ngpus = 0
        self.nsteps = 0
        self.gpu = 0
        self.chunks: dict[str, int] = {}
        self.tb: dict[str, int] = {}
        self.gpus: dict[int, Gpu] = {}
        self.tbs: dict[int, ThreadBlock] = {}
        self.steps: list[ThreadblockStep] = []

    def run(self, text: bytes) -> Algorithm:
        parser = expat.ParserCreate()
        parser.StartDoctypeDeclHandler = self._doctype
        parser.StartElementHandler = lambda tag, attributes: self._start(parser, tag, attributes)
        parser.EndElementHandler = self._end
        blanks = len(text) - len(text.lstrip())
        self.skipped = text.count(b"\n", 0, blanks)
        try:
            parser.Parse(memoryview(text)[blanks:], True)
        except expat.ExpatError as error:
            reason, line = expat.ErrorString(error.code), error.lineno + self.skipped
            raise MscclError(f"{self.name}:{line}: no XML: {reason}") from None
        except (LookupError, ValueError) as error:
            raise MscclError(f"{self.name}: no XML: {error}") from None
        missing = [g for g in range(self.ngpus) if g not in self.gpus]
        if missing:
            self._fail("algo", f"ngpus is {self.ngpus}, but there is no gpu {missing[0]}")
        return Algorithm(gpus=tuple(self.gpus[g] for g in range(self.ngpus)), **self.algo)

    def _fail(self, element: str, reason: str) -> None:
        raise MscclError(f"{self.name}:{self.line}: {element}: {reason}")

    def _doctype(self, *_: object) -> None:
        raise MscclError(f"{self.name}: a DTD is not accepted; MSCCL XML has none")

    def _start(self, parser: expat.XMLParserType, tag: str, attributes: Mapping[str, str]) -> None:
        self.line = parser.CurrentLineNumber + self.skipped
        if not self.open and not self.passed and tag != "algo":
            self._fail(tag, "the outermost element of an MSCCL algorithm is algo")
        if self.passed or _PARENT.get(tag, tag) != (self.open[-1] if self.open else None):
            self.passed += 1
            return
        self.open.append(tag)
        {"algo": self._algo, "gpu": self._gpu, "tb": self._tb, "step": self._step}[tag](attributes)

    def _end(self, tag: str) -> None:
        if self.passed:
            self.passed -= 1
            return
        self.open.pop()
        if tag == "tb":
            block = ThreadBlock(**self.tb, steps=tuple(self.steps))
            self.tbs[block.id] = block
        elif tag == "gpu":
            tbs = tuple(self.tbs[i] for i in sorted(self.tbs))
            self.gpus[self.gpu] = Gpu(self.gpu, self.chunks, tbs)

    def _required(self, element: str, attributes: Mapping[str, str], key: str) -> str:
        if key not in attributes:
            self._fail(element, f"the attribute {key} is missing")
        return attributes[key]

    def _text(self, element: str, attributes: Mapping[str, str], key: str, known: Any) -> str:
        value = self._required(element, attributes, key)
        if value not in known:
            self._fail(element, f"{key}={value[:40]!r} is none of {', '.join(known)}")
        return value

    def _whole(
        self,
        element: str,
        attributes: Mapping[str, str],
        key: str,
        low: int = 0,
        high: int = _MOST_CHUNKS,
        default: int | None = None,
    ) -> int:
        """A whole-number attribute between ``low`` and ``high``, both included."""
        if key not in attributes and default is not None:
            return default
        text = self._required(element, attributes, key).strip()
        digits = text[1:] if text[:1] == "-" else text
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            self._fail(element, f"{key}={text[:40]!r} is not a whole number")
        if not low <= int(text) <= high:
            self._fail(element, f"{key}={text} is not between {low} and {high}")
        return int(text)

    def _algo(self, attributes: Mapping[str, str]) -> None:
        whole = partial(self._whole, "algo", attributes)
        self.ngpus = whole("ngpus", 1, MOST_GPUS)
        inplace = whole("inplace", high=1, default=0)
        self.algo = {
            "name": make_printable(attributes.get("name", "")),
            "proto": self._text("algo", attributes, "proto", PROTOCOLS),
            "nchannels": whole("nchannels", 1),
            "nchunksperloop": whole("nchunksperloop", 1),
            "coll": self._required("algo", attributes, "coll"),
            "inplace": bool(inplace),
            # Older files have only inplace, and are for one placement.
            "outofplace": bool(whole("outofplace", high=1, default=1 - inplace)),
            "min_bytes": whole("minBytes", high=2**63 - 1, default=0),
            "max_bytes": whole("maxBytes", high=2**63 - 1, default=0),
            "root": whole("root", 0, self.ngpus - 1, default=0),
        }

    def _gpu(self, attributes: Mapping[str, str]) -> None:
        self.gpu = self._whole("gpu", attributes, "id", 0, self.ngpus - 1)
        if self.gpu in self.gpus:
            self._fail("gpu", f"there is a gpu {self.gpu} already")
        whole = partial(self._whole, f"gpu {self.gpu}", attributes)
        self.chunks = {buffer: whole(f"{buffer}_chunks") for buffer in BUFFERS}
        self.tbs = {}

    def _tb(self, attributes: Mapping[str, str]) -> None:
        where = f"gpu {self.gpu}: tb"
        tb = self._whole(where, attributes, "id")
        where = f"{where} {tb}"
        if tb in self.tbs:
            self._fail(where, "there is one with this id already")
        self.tb = {
            "id": tb,
            "send": self._whole(where, attributes, "send", -1, self.ngpus - 1),
            "recv": self._whole(where, attributes, "recv", -1, self.ngpus - 1),
            "chan": self._whole(where, attributes, "chan", 0, self.algo["nchannels"] - 1),
        }
        for key in ("send", "recv"):
            if self.tb[key] == self.gpu:
                self._fail(where, f"{key} is the gpu itself")
        self.steps = []

    def _step(self, attributes: Mapping[str, str]) -> None:
        where = f"gpu {self.gpu}: tb {self.tb['id']}: step {len(self.steps)}"
        self.nsteps += 1
        if self.nsteps > MOST_STEPS:
            self._fail(where, f"more than {MOST_STEPS:,} steps; a file has at most so many")

        whole = partial(self._whole, where, attributes, low=-1)
        step = ThreadblockStep(
            s=whole("s", low=0),
            type=self._text(where, attributes, "type", OPERATIONS),
            srcbuf=self._text(where, attributes, "srcbuf", BUFFERS),
            srcoff=whole("srcoff"),
            dstbuf=self._text(where, attributes, "dstbuf", BUFFERS),
            dstoff=whole("dstoff"),
            cnt=whole("cnt", low=0),
            depid=whole("depid"),
            deps=whole("deps"),
            hasdep=whole("hasdep", low=0, high=1),
        )
        if step.operation.sends and self.tb["send"] < 0:
            self._fail(where, f"{step.type} sends, but the threadblock's send is -1")
        if step.operation.receives and self.tb["recv"] < 0:
            self._fail(where, f"{step.type} receives, but the threadblock's recv is -1")
        if step.depid >= 0 and step.deps < 0:
            self._fail(where, f"depid={step.depid}, but deps={step.deps} is no step")
        self.steps.append(step)


def _element(tag: str, indent: int, end: str, **attributes: object) -> str:
    from xml.sax.saxutils import quoteattr  # loads urllib, which takes as long as numpy

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
        chunks = {f"{buffer}_chunks": count for buffer, count in gpu.chunks.items()}
        yield _element("gpu", 1, "", id=gpu.id, **chunks)
        for tb in gpu.threadblocks:
            yield _element("tb", 2, "", id=tb.id, send=tb.send, recv=tb.recv, chan=tb.chan)
            for step in tb.steps:
                yield _element("step", 3, "/", **step._asdict())
            yield "    </tb>"
        yield "  </gpu>"
    yield "</algo>"


def write(algorithm: Algorithm) -> bytes:
    """The XML text of an algorithm; `parse` returns the same algorithm from it."""
    return ("\n".join(_lines(algorithm)) + "\n").encode()
