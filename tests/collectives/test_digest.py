"""A schedule's fingerprint, and the file that keeps all of it."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import Unsupported
from collectives.formats import load as files
from collectives.formats import own
from collectives.formats.load import load, prove_file
from collectives.formats.msccl import MscclError
from collectives.schedule.catalogue import build, spec
from collectives.schedule.digest import digest
from collectives.schedule.moves import Buffer, Move, Slot
from collectives.schedule.schedule import Schedule
from tests.collectives.cases import PAIRS
from tests.conftest import collectives_cli

RANKS = st.integers(0, 3)
SLOTS = st.builds(Slot, st.sampled_from(Buffer), st.integers(0, 3), st.just(1))
MOVES = st.builds(Move, RANKS, RANKS, SLOTS, SLOTS, st.booleans())
STEPS = st.lists(st.lists(MOVES, max_size=3), max_size=3)


def _steps(steps: Sequence[Sequence[Move]]) -> Schedule:
    return Schedule.of(4, 4, steps)


@given(STEPS, STEPS)
def test_one_digest_a_schedule(a: list[list[Move]], b: list[list[Move]]) -> None:
    """Rule: two schedules have one digest exactly when steps and moves are the same, in order."""
    assert (digest(_steps(a)) == digest(_steps(b))) == (a == b)


def test_every_shape_and_algorithm_has_its_own() -> None:
    """Rule: algorithms that move different things, and one on other ranks, are told apart."""
    built = [build("allreduce", name, n) for name in ("ring", "tree", "ps") for n in (4, 5)]
    assert len(set(map(digest, built))) == len(built)


@pytest.mark.parametrize(("collective", "name"), PAIRS)
def test_a_schedule_file_keeps_every_step(collective: str, name: str) -> None:
    """Rule: a schedule that is written and read has the same digest: same steps, moves, scratch."""
    built = build(collective, name, 8)
    stored = own.parse(own.write(built, spec(collective)))
    assert digest(stored.schedule) == digest(built) and stored.schedule.name == name


def test_a_schedule_file_is_proven_as_any_other(tmp_path: Path) -> None:
    """Rule: export writes it, verify proves it; a wrong or damaged one is refused in one line."""
    path = tmp_path / "chain.json"
    command = "export chain:segments=4 -c broadcast -n 4 -F busbar -o"
    assert collectives_cli(*command.split(), str(path))[0] == 0
    status, out, _ = collectives_cli("verify", str(path))
    assert status == 0 and "chain: schedule of Busbar, broadcast on 4 ranks" in out
    assert digest(load(path, "broadcast", 4)) == digest(build("broadcast", "chain", 4, segments=4))
    text = path.read_bytes()
    for old, new, said, status in (
        (b'"ranks":4', b'"ranks":0', "no schedule of Busbar", 2),
        (b'"root":0', b'"root":4', "root 4 is no rank", 2),
        (b'"chunks":4', b'"chunks":0', "chunks", 1),
        (b"[[[0,0,", b"[[[9,0,", "rank 9 of 4", 1),
        (b"broadcast", b"broadcost", "did you mean broadcast?", 2),
        (b"]]]}", b"]]]", "no schedule of Busbar", 2),
    ):
        path.write_bytes(text.replace(old, new, 1))
        code, out, err = collectives_cli("verify", str(path))
        assert (code, len((out + err).splitlines())) == (status, 1), (said, out, err)
        assert said in out + err
    path.write_bytes(text)
    with pytest.raises(Unsupported, match="it is for ranks 4, not 5"):
        load(path, "broadcast", 5)


def test_a_schedule_file_has_a_limit_and_a_slow_proof_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a file with too many moves is refused with the limit; a long proof has a note first."""
    path, notes = tmp_path / "ring.json", list[str]()
    path.write_bytes(own.write(build("allgather", "ring", 4), spec("allgather")))
    prove_file(path, notes.append)
    assert not notes
    monkeypatch.setattr(files, "_MANY_STEPS", 5)
    prove_file(path, notes.append)
    assert notes == [f"{path}: proving 16 steps, which may take minutes"]
    monkeypatch.setattr(own, "_MOST_MOVES", 15)
    with pytest.raises(MscclError, match="more than 15 steps or moves"):
        prove_file(path)
