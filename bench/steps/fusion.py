"""The gradients that are sent together: DDP's buckets, or Horovod's buffers and cycles.

Pure: sizes and times in, ranges of tensors out. Tensors are numbered in the order in which a
backward pass produces their gradients. Gradients that are sent together are a range of these
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from busbar.errors import Unsupported
from busbar.units import format_size_argument, parse_size

TensorRange = tuple[int, int]
"""The first tensor, and the one after the last."""

_MIB = 1 << 20
#: torch.nn.parallel.DistributedDataParallel: ``_DEFAULT_FIRST_BUCKET_BYTES``, ``bucket_cap_mb``.
_DDP = (_MIB, 25 * _MIB)
_TRIED = ((256, "K"), (1, "M"), (4, "M"), (16, "M"), (64, "M"))
# A buffer that holds every model.
_WHOLE = "256G"


@dataclass(frozen=True)
class Fusion:
    """A way to fuse gradients.

    ``limits``: with buckets, the bytes that close the first, the second …; the last one goes on.
    None: no limit. ``cycle``: seconds between two looks at what is ready; None where buckets are
    fixed. ``label``: as it was asked for.
    """

    label: str
    limits: tuple[int | None, ...]
    cycle: float | None = None

    def scaled(self, factor: float) -> Fusion:
        """The same buckets of a model with ``1/factor`` of every tensor."""
        smaller = (one and max(1, round(one / factor)) for one in self.limits)
        return replace(self, limits=tuple(smaller))

    @property
    def buffer(self) -> int:
        """Bytes of the buffer that a cycle fills."""
        assert self.limits[0] is not None, "a cycle fills a buffer of a size"
        return self.limits[0]


def parse(text: str, cycle: float | None = None) -> Fusion:
    """The options ``--fusion`` and ``--cycle``.

    ``ddp`` or ``ddp:FIRST,REST``; ``none``: every tensor alone; ``all``: all together; SIZE: a
    buffer of so many bytes, filled every ``cycle`` seconds as Horovod does, or without a cycle
    buckets of that size. Raises Unsupported.
    """
    head, _, rest = text.partition(":")
    if head == "ddp" and cycle is None:
        sizes = tuple(map(_positive, rest.split(","))) if rest else _DDP
        if len(sizes) != 2:
            raise Unsupported(f"--fusion {text[:40]!r}: write ddp:FIRST,REST, such as ddp:1M,25M")
        return Fusion(text, sizes)
    if text in ("none", "all") and cycle is None:
        return Fusion(text, (0 if text == "none" else None,))
    if text in ("none", "all", "ddp"):
        raise Unsupported(f"--cycle goes with --fusion SIZE, such as 64M, not with {text}")
    size = _positive(text)
    if cycle is None:
        return Fusion(text, (size,))
    return Fusion(f"{format_size_argument(size)}@{cycle * 1e3:g}ms", (size,), cycle)


def candidates(nbytes: int, cycle: float | None = None) -> list[Fusion]:
    """The choices that ``--sweep fusion`` tries for so many bytes of gradients.

    Buckets of 256K to 64M by fours as long as they are smaller than the gradients, torch's, none
    and all; with a cycle, buffers of these sizes.
    """
    sizes = [f"{one}{unit}" for one, unit in _TRIED if parse_size(f"{one}{unit}") < nbytes]
    if cycle is not None:
        return [parse(one, cycle) for one in (*sizes, _WHOLE)]
    return [parse(one) for one in ("none", *sizes, "ddp", "all")]


def _positive(text: str) -> int:
    size = parse_size(text)
    if size < 1:
        raise Unsupported(
            f"--fusion {text[:40]!r}: at least 1 byte is needed; none is --fusion none"
        )
    return size


def buckets(
    sizes: Sequence[int], limits: Sequence[int | None], kinds: Sequence[str] = ()
) -> list[TensorRange]:
    """Ranges of tensors, each of one type: a tensor is added first, then its bucket may be full.

    So does torch's ``compute_bucket_assignment_by_size``: a bucket holds at least one tensor, and
    may be larger than its limit by all but a byte of its last one. ``sizes``: bytes of each tensor.
    ``kinds``: the type of each, alike where left out. DDP keeps a bucket open for every type; here
    a tensor of another type closes it, since a range is one piece of memory.
    """
    found: list[TensorRange] = []
    first, held, number = 0, 0, 0
    for at, size in enumerate(sizes):
        if at > first and kinds and kinds[at] != kinds[at - 1]:
            found.append((first, at))
            first, held, number = at, 0, number + 1
        held += size
        limit = limits[min(number, len(limits) - 1)]
        if limit is not None and held >= limit:
            found.append((first, at + 1))
            first, held, number = at + 1, 0, number + 1
    if first < len(sizes):
        found.append((first, len(sizes)))
    return found


def filled(
    sizes: Sequence[int], start: int, stop: int, buffer: int, kinds: Sequence[str] = ()
) -> Iterator[TensorRange]:
    """Horovod's next fusion buffer: the ready tensors from ``start`` on that fit into it.

    A tensor that is larger than the buffer travels alone. Tensors of another type wait for the next
    buffer.
    """
    first, held = start, 0
    for at in range(start, stop):
        other = bool(kinds) and at > first and kinds[at] != kinds[at - 1]
        if at > first and (held + sizes[at] > buffer or other):
            yield first, at
            first, held = at, 0
        held += sizes[at]
    if first < stop:
        yield first, stop
