"""Execution plans of MSCCL++: read, proven, refused, and made a schedule that runs."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import BusbarError, ScheduleError, Unsupported
from collectives.formats.load import load
from collectives.formats.msccl import MscclError
from collectives.formats.mscclpp import parse
from collectives.formats.mscclpp_prove import prove
from collectives.schedule.cost import cost
from tests.collectives.mscclpp_files import MADE, Document, dumped, moved, without_one
from tests.command import collectives_main as main


def refusal(document: Document) -> str:
    """Why a plan is refused; empty where it is proven."""
    try:
        prove(parse(dumped(document)))
    except BusbarError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", sorted(MADE))
@pytest.mark.parametrize("n", [2, 3, 5])
def test_right_plans_are_proven(name: str, n: int) -> None:
    """Rule: puts, reads, sums and packets give the collective's result, as a schedule, too."""
    proof = prove(parse(dumped(MADE[name](n))))
    assert proof.layout.nranks == n and not proof.notes
    found = cost(proof.schedule, proof.layout.spec)
    # A rank receives (n-1)/n of the vector in each of the collective's halves.
    halves = 1 if name in ("gathers", "shared") else 2
    assert found.into == pytest.approx(halves * (n - 1) / n)


@pytest.mark.parametrize("name", sorted(MADE))
@pytest.mark.parametrize("n", [2, 3])
def test_every_single_change_is_refused(name: str, n: int) -> None:
    """Rule: a plan without one of its operations, or with one index changed, is refused."""
    document = MADE[name](n)
    for what, changed in without_one(document):
        assert refusal(changed), what
    for changed in moved(document):
        assert refusal(changed)


def test_the_reason_names_the_operation() -> None:
    """Rule: a deadlock, a race and a wrong result each name gpu, threadblock and operation."""
    document = MADE["reads"](2)
    said = dict(without_one(document))
    deadlock = "gpu 0, threadblock 0, operation 3 (wait): deadlock: gpu 1 signals 0 times"
    assert deadlock in refusal(said["signal"])
    assert "race: gpu" in refusal(said["wait"]) and "may be done before" in refusal(said["wait"])
    assert "race" in refusal(said["nop"])
    assert "lacks rank" in refusal(said["rres"])
    relaxed = json.loads(dumped(document).replace(b'"signal"', b'"rlxsignal"'))
    assert "race" in refusal(relaxed)


def test_shares_of_an_operation_are_moved_apart() -> None:
    """Rule: each threadblock of a group moves its part; parts of several copies are not one's."""
    document = MADE["shared"](2)
    assert prove(parse(dumped(document))).layout.nchunks == 4
    document["gpus"][0]["threadblocks"][1]["ops"][0]["tbg_info"]["tb_id"] = 0
    assert "race: nothing orders it" in refusal(document)
    document["gpus"][0]["threadblocks"][1]["ops"][0]["tbg_info"] = {"tb_id": 2, "tbg_size": 3}
    assert "in groups of [2, 3]" in refusal(document)


def test_packets_are_waited_for() -> None:
    """Rule: packets that nobody writes, or two write, are refused."""
    document = MADE["packets"](3)
    ops = document["gpus"][0]["threadblocks"][0]["ops"]
    twice = copy.deepcopy(document)
    twice["gpus"][0]["threadblocks"][0]["ops"].append(ops[0])
    assert "writes packets that" in refusal(twice)
    ops.pop()
    assert "deadlock: nobody writes packets" in refusal(document)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "glres"}, "the operation glres is not known here"),
        ({"name": "pipeline"}, "the operation pipeline is not known here"),
        ({"channel_type": "port"}, "operations over port channels are not known here"),
    ],
)
def test_what_is_not_known_is_said(change: Document, reason: str, tmp_path: Path) -> None:
    """Rule: a plan with operations that are not known is named, counted and not proven."""
    document = MADE["reads"](2)
    document["gpus"][1]["threadblocks"][0]["ops"][0] |= change
    path = tmp_path / "plan.json"
    path.write_bytes(dumped(document))
    with pytest.raises(Unsupported, match=reason) as refused:
        load(path, "allreduce", 2)
    assert "plan.json: an execution plan of MSCCL++ for allreduce on 2 gpus" in str(refused.value)
    assert "2 signal" in str(refused.value) and "gpu 1, threadblock 0, operation 0" in str(
        refused.value
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"id": 0,\n   "input', b'"id": 1,\n   "input', "ids of gpus"),
        (b'"buffer_id": 0', b'"buffer_id": 7', "buffer_id 7 is none"),
        (b'"type": "i"', b'"type": "x"', "type is none of"),
        (b'"inplace": true', b'"inplace": 1', "inplace"),
        (b'"protocol": "Simple"', b'"protocol": "Other"', "protocol is none of Simple, LL"),
        (b'"size": 1', b'"size": 2', "chunks; they have to be as many"),
        (b'"index": 0', b'"index": -1', "index is no whole number"),
        (b'"gpus"', b'"gpu"', "no execution plan"),
        (b'"gpus": [', b'"gpus": {', "no JSON"),
    ],
)
def test_what_is_no_plan_is_refused(old: bytes, new: bytes, reason: str) -> None:
    """Rule: a wrong field is refused by place and name."""
    text = dumped(MADE["reads"](2))
    assert old in text
    with pytest.raises(MscclError, match=reason):
        parse(text.replace(old, new, 1))


@given(st.sampled_from(sorted(MADE)), st.data())
def test_a_damaged_plan_is_never_a_traceback(name: str, data: st.DataObject) -> None:
    """Rule: a text that is cut or changed is read and proven, or refused by our errors."""
    text = bytearray(dumped(MADE[name](2)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at] = data.draw(st.sampled_from(b'0123456789-"{}[],:xios '))
    del text[data.draw(st.integers(len(text) // 2, 2 * len(text))) :]
    try:
        prove(parse(bytes(text)))
    except BusbarError as error:
        assert "\n" not in str(error)


def test_commands_read_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: verify, import, show and cost take a plan's file as they take MSCCL's XML."""
    path = tmp_path / "packets.json"
    path.write_bytes(dumped(MADE["packets"](3)))
    assert main(["verify", str(path)]) == 0
    said = capsys.readouterr().out
    assert "MSCCL++ plan, allreduce on 3 gpus" in said and "proven in place" in said
    assert main(["import", str(path)]) == 0
    assert "as a schedule: 2 steps with messages" in capsys.readouterr().out
    assert main(["show", str(path)]) == 0 and "rank 2" in capsys.readouterr().out
    assert main(["cost", str(path)]) == 0
    assert main(["verify", str(path), "-n", "4"]) == 2
    (_, wrong), *_ = without_one(MADE["packets"](3))
    path.write_bytes(dumped(wrong))
    capsys.readouterr()
    assert main(["verify", str(path)]) == 1
    assert "packets.json: gpu" in capsys.readouterr().err


def test_a_wrong_plan_is_a_schedule_error() -> None:
    """Rule: what is wrong is a ScheduleError, what is not known Unsupported."""
    _, wrong = next(without_one(MADE["gathers"](2)))
    with pytest.raises(ScheduleError):
        prove(parse(dumped(wrong)))
    other = MADE["reads"](2) | {"collective": "sendrecv"}
    with pytest.raises(Unsupported, match="says nothing of the result"):
        prove(parse(dumped(other)))
