"""The proof of MSCCL algorithms: what is right is accepted, each thing that is wrong is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import BusbarError, ScheduleError, Unsupported
from collectives.formats.msccl import Algorithm, ThreadBlock, ThreadblockStep, parse, write
from collectives.formats.proof import chunk_layout, prove
from tests.collectives.msccl_files import OWN, exported, two
from tests.collectives.msccl_mutants import changes, mutants
from tests.collectives.msccl_runtime import always_right
from tests.conftest import examples, thorough

SMALL = [
    ("allgather", "ring", 3),
    ("allreduce", "recursive_doubling", 4),
    ("allreduce", "ring", 3),
    ("alltoall", "bruck", 3),
    ("broadcast", "binomial", 4),
    ("reduce", "binomial", 3),
    ("reduce_scatter", "ring", 3),
]


def refusal(algorithm: Algorithm) -> str:
    """Why an algorithm is refused, having been written and read; empty where it is not."""
    try:
        prove(parse(write(algorithm)))
    except BusbarError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("collective", "name", "n"), SMALL)
@pytest.mark.parametrize("in_place", [None, *thorough(False)])
def test_every_single_change_is_refused(
    collective: str, name: str, n: int, in_place: bool | None
) -> None:
    """A wrong offset, peer, type or count and a missing step are refused, every one.

    A dependency, a signal or a buffer may be one that makes no difference: then random executions
    must all be right.
    """
    algorithm = exported(collective, name, n, in_place)
    where, refused = chunk_layout(algorithm), 0
    for kind, mutant in mutants(algorithm):
        if refusal(mutant):
            refused += 1
            continue
        assert kind in ("dependency", "signal", "buffer"), kind
        assert always_right(mutant, where, 8), kind
    assert refused > 50


def step(kind: str, src: str, dst: str, **more: int) -> ThreadblockStep:
    """A step on the first chunks of two buffers."""
    return ThreadblockStep(0, kind, src, 0, dst, 0, 1)._replace(**more)


SEND, RECEIVE = step("s", "i", "i"), step("r", "o", "o")
SUM = [SEND, step("rrc", "i", "o")]


@pytest.mark.parametrize(
    ("chunks", "count", "complaint"),
    [(10**6, 10**6, "move 4000000 chunks"), (10**7, 1, "hold 40000002 chunks")],
)
def test_a_short_text_for_millions_of_chunks_is_refused(
    chunks: int, count: int, complaint: str
) -> None:
    """What a file makes us look at is bounded by more than the length of its text."""
    steps = [one._replace(cnt=count) for one in SUM]
    made = replace(two(steps, steps), nchunksperloop=chunks)
    gpus = [replace(gpu, chunks={**gpu.chunks, "i": chunks, "o": chunks}) for gpu in made.gpus]
    with pytest.raises(Unsupported, match=complaint):
        prove(replace(made, gpus=tuple(gpus)))


def test_the_smallest_sum() -> None:
    """Both send, both add what comes: sends do not wait for their receivers."""
    assert refusal(two(SUM, SUM)) == ""


def beside() -> Algorithm:
    """A sum in the input's place, and a threadblock that copies the input without waiting."""
    made = two([SEND, step("rrc", "i", "i"), step("cpy", "i", "o")], SUM)
    copies = ThreadBlock(0, -1, -1, 0, (step("cpy", "i", "s"),))
    blocks = (copies, replace(made.gpus[0].threadblocks[0], id=1))
    return replace(made, gpus=(replace(made.gpus[0], threadblocks=blocks), made.gpus[1]))


@pytest.mark.parametrize(
    ("algorithm", "complaint"),
    [
        (beside(), r"step 1 \(rrc\): race: it writes i\[0\], which .* \(cpy\) may read"),
        (two([*reversed(SUM)], [*reversed(SUM)]), "gpu 0, threadblock 0, step 0 .*deadlock"),
        (two(SUM, [step("rrc", "i", "o")]), "gpu 0, threadblock 0, step 1 .*nobody sends"),
        (two([*SUM, SEND], SUM), "gpu 0, threadblock 0, step 2 .*nobody receives"),
        (two([SEND, RECEIVE], SUM), "gpu 0, threadblock 0, step 1 .*lacks rank 0's share"),
        (two([SEND, step("rrs", "i", "o")], SUM), "nobody receives"),
        (
            two([*SUM, step("re", "i", "o")], SUM),
            "step 2 .*rank 0's share of chunk 0 a second time",
        ),
        (two([SEND, step("rrc", "s", "o")], SUM), r"step 1 .*reads s\[0\], where nothing"),
        (two([SEND, step("rrc", "i", "o", dstoff=1)], SUM), r"o\[1\] is out of range"),
        (two([*SUM, step("ra", "i", "o")], SUM), "residuals"),
        (two([SEND._replace(cnt=0), *SUM[1:]], SUM), "deadlock: nobody sends"),
        (two([SEND._replace(depid=3, deps=0), *SUM[1:]], SUM), "no such threadblock"),
        (two([SEND._replace(depid=0, deps=1), *SUM[1:]], SUM), "deadlock"),
        (two(SUM, SUM, outofplace=False), "inplace and outofplace are both 0"),
        (two(SUM, SUM, coll="custom"), "custom"),
        (two([step("nop", "i", "o", depid=0, deps=0), *SUM], SUM), "must have a dependency itself"),
    ],
)
def test_what_is_refused_and_where(algorithm: Algorithm, complaint: str) -> None:
    """Each rule that is broken is refused with the gpu, the threadblock and the step."""
    with pytest.raises((ScheduleError, Unsupported), match=complaint):
        prove(algorithm)


def test_in_place_shares_memory() -> None:
    """In place input and output are one: what is a copy out of place is a second share in place."""
    algorithm = two([SEND, step("rrc", "i", "i"), step("cpy", "i", "o")], SUM)
    assert refusal(algorithm) == ""
    assert "overwrites its caller's input" in prove(algorithm).notes[0]
    assert refusal(replace(algorithm, inplace=True)) == ""
    late = two([SEND, step("cpy", "i", "o"), step("rrc", "i", "o")], SUM)
    assert refusal(late) == ""
    twice = two([SEND, step("r", "i", "s"), step("re", "s", "i"), step("re", "s", "o")], SUM)
    assert "nothing has been written" in refusal(twice)
    assert "second time" in refusal(replace(twice, inplace=True, outofplace=False))


def test_a_connection_that_fills_is_told() -> None:
    """A file that hangs where a connection holds little is right, with a note that says so."""
    many = [SEND] * 9 + [step("r", "i", "s")] * 8
    algorithm = two([*many, step("rrc", "i", "o")], [*many, step("rrc", "i", "o")])
    notes = prove(algorithm).notes
    assert len(notes) == 1
    assert "holds only 8 sends" in notes[0]


@examples(40)
@given(st.data())
def test_proven_means_right_in_every_execution(data: st.DataObject) -> None:
    """Files with a few random changes: whatever is proven is right in random executions."""
    base = parse(data.draw(st.sampled_from([*OWN.values()])).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        gpu = data.draw(st.sampled_from(base.gpus))
        block = data.draw(st.integers(0, len(gpu.threadblocks) - 1))
        options = [*changes(base, gpu.id, block)]
        base = data.draw(st.sampled_from(options))[1] if options else base
    if not refusal(base):
        assert always_right(base, chunk_layout(base), 3)


def test_a_shared_connection_is_named_in_plain_words() -> None:
    """Two threadblocks on one connection: the message is a sentence (it had "send tos gpu")."""
    algorithm = exported("allreduce", "ring", 3)
    gpu = algorithm.gpus[0]
    sender = next(tb for tb in gpu.threadblocks if any(s.operation.sends for s in tb.steps))
    twin = replace(sender, id=max(tb.id for tb in gpu.threadblocks) + 1, recv=-1)
    steps = tuple(s for s in sender.steps if s.operation.sends and not s.operation.receives)
    twin = replace(twin, steps=steps[:1])
    gpus = (replace(gpu, threadblocks=(*gpu.threadblocks, twin)), *algorithm.gpus[1:])
    assert f"sends to gpu {sender.send} on channel" in refusal(replace(algorithm, gpus=gpus))
