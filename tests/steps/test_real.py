"""Steps with real gradients, on threads: one process's weights, falling loss, compressed sums."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.launch.control_socket import step
from bench.steps.training.codecs import codec
from tests.conftest import called

SMALL = ("--problem", "softmax:samples=256:features=6", "--batch", "4", "--threads", "3")
N = 6 * 10 + 10


def stepped(*argv: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, what records say of steps, and standard error."""
    status, out, err = called(step, *argv, "--json")
    return status, [json.loads(line)["step"] for line in out.splitlines() if '"step"' in line], err


def test_every_all_reduce_trains_as_one_process() -> None:
    """Rule: synchronous weights are one process's, to rounding, and `ps` adds in its order.

    Warm-ups train nothing; the loss falls, and starts where the weights start.
    """
    names = ("ps", "ring", "sharded_ps", "one_shot", "halving_doubling")
    status, found, _ = stepped(*SMALL, "--update", ",".join(names), "-n", "30", "-w", "3")
    assert status == 0 and [one["update"] for one in found] == list(names)
    for one in found:
        curve, apart = one["curve"], one["apart"]
        assert apart["updates"] == 30 and apart["part"] < 1e-5 and 0 < apart["whole"] < 1e-5
        assert curve["updates"] == list(range(31)) and curve["seconds"] == sorted(curve["seconds"])
        assert curve["loss"][0] == found[0]["curve"]["loss"][0] > curve["loss"][-1] + 0.01
        assert [one["problem"], one["rule"], one["rate"]] == [SMALL[1], "fixed", 0.1]
    assert found[0]["apart"]["bits"] and found[0]["ranks_agree"] and found[1]["ranks_agree"]


@pytest.mark.parametrize("rule", ["staleness", "distance", "adagrad"])
def test_every_rule_without_staleness(rule: str) -> None:
    """Rule: with every rule a synchronous run has the weights of one process."""
    _, found, _ = stepped(*SMALL, "--update", "ps", "-n", "10", "--rule", rule)
    assert found[0]["apart"]["bits"] and found[0]["apart"]["updates"] == 10


@pytest.mark.parametrize(
    ("code", "least", "most"),
    [
        ("none", 0, 0),
        ("fp16", 1e-5, 1e-3),
        ("int8", 1e-4, 0.02),
        ("1bit", 0.2, 0.9),
        ("topk", 0.5, 1),
    ],
)
def test_a_compressed_sum_is_off_by_what_its_codec_loses(
    code: str, least: float, most: float
) -> None:
    """Rule: a step sends one code to each other rank; the sum's error is that of the codec."""
    for given, n in ((SMALL, N), (("--threads", "3", "--model", "toy", "--scale", "64"), 10240)):
        status, found, _ = stepped(*given, "--update", "one_shot", "-n", "6", "--compress", code)
        assert status == 0
        if code == "none":
            assert "sum_error" not in found[0]
            continue
        assert least < found[0]["sum_error"] < most
        assert found[0]["compress"] == code
        assert found[0]["sent_bytes_per_rank"] == 2 * codec(code).nbytes(n)


@pytest.mark.parametrize("servers", ["1", "2"])
def test_every_protocol_trains(servers: str) -> None:
    """Rule: every protocol has a curve; sync weights are one process's to the bit, over shards."""
    names = ("sync", "k-sync:3", "k-sync:2", "k-batch-sync:2", "async", "k-async:2")
    argv = ("--threads", str(3 + int(servers)), "--servers", servers, "--rule", "adagrad")
    status, found, _ = stepped(*SMALL, *argv, "--update", ",".join(names), "-n", "30")
    assert status == 0 and [one["update"] for one in found] == list(names)
    for one in found:
        curve = one["curve"]
        assert len(set(map(len, curve.values()))) == 1 and len(curve["loss"]) > 20
        assert curve["loss"][0] == found[0]["curve"]["loss"][0] > curve["loss"][-1] + 0.01
        assert curve["seconds"] == sorted(curve["seconds"]) and curve["seconds"][0] == 0
        assert ("apart" in one) == (one["update"] in ("sync", "k-sync:3"))
        assert one.get("apart", {"bits": True})["bits"]


@pytest.mark.parametrize("rule", ["staleness", "distance:c=0.1"])
def test_rules_of_staleness_over_a_server(rule: str) -> None:
    """Rule: rules that use staleness or the weights that were read train over a server, too."""
    _, found, _ = stepped(*SMALL, "--threads", "4", "--update", "async", "-n", "60", "--rule", rule)
    assert found[0]["rule"] == rule
    assert found[0]["curve"]["loss"][0] > found[0]["curve"]["loss"][-1] + 0.005


@pytest.mark.parametrize("code", ["bf16", "int8", "1bit", "topk:fraction=0.1"])
def test_compressed_gradients_go_to_servers(code: str) -> None:
    """Rule: a server receives codes and sends uncompressed weights."""
    plain = ("--threads", "4", "--model", "toy", "--scale", "64")
    for given, n in (((*SMALL, "--threads", "4"), N), (plain, 10240)):
        words = "--update k-batch-async:2 -n 20 --servers 2 --json --compress"
        status, out, _ = called(step, *given, words, code)
        assert status == 0
        record = json.loads(out.splitlines()[1])
        halves = [codec(code).nbytes(half) for half in (n // 2, n - n // 2)]
        # A few words and gradients that come when all is over count, too, but for no update.
        assert 2 * halves[0] <= record["received_bytes"] < 2.6 * halves[0] + 300
        assert record["step"]["bits_per_element"] == 8 * codec(code).nbytes(n) / n
        assert 0 < record["step"]["gradient_error"] < 1


def test_compressed_training_learns() -> None:
    """Rule: with error feedback the loss falls as it does without compression."""
    ends = {}
    for code in ("none", "int8", "1bit", "topk:fraction=0.1"):
        argv = ("--update", "one_shot", "-n", "150", "--rate", "0.5", "--compress", code)
        _, found, _ = stepped(*SMALL, *argv)
        first, *_, last = found[0]["curve"]["loss"]
        ends[code] = last / first
    assert ends["none"] < 0.9
    assert all(abs(end - ends["none"]) < 0.1 for end in ends.values()), ends


def test_warm_ups_leave_no_feedback() -> None:
    """Rule: a training is the same after any warm-up, also with error feedback."""
    argv = ("--update", "one_shot", "-n", "6", "--compress", "1bit", "-w")
    (one,), (other,) = (stepped(*SMALL, *argv, warmup)[1] for warmup in ("0", "2"))
    assert one["curve"]["loss"] == other["curve"]["loss"]


def test_a_plot_is_written_and_needs_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: `--plot` draws the run; without the library it says so before anything is measured."""
    pytest.importorskip("matplotlib")
    words = ("--update", "ps", "-n", "3", "--plot", str(tmp_path / "a.svg"))
    status, found, err = stepped(*SMALL, *words)
    assert status == 0 and len(found) == 1 and "a.svg" in err
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")
    monkeypatch.setattr("bench.steps.options.find_spec", lambda name: None)
    status, found, err = stepped(*SMALL, *words)
    assert found == [] and "matplotlib is not installed" in err and status != 0


def test_compressed_gradients_are_of_one_type(tmp_path: Path) -> None:
    """Rule: models with tensors of other types than float32 are not compressed."""
    model = tmp_path / "m.csv"
    model.write_text("name,shape,dtype\na,4x4,fp32\nb,8,fp16\n")
    words = ("--threads", "2", "--model", str(model), "--update", "one_shot", "-n", "2")
    status, found, err = stepped(*words, "--compress", "int8")
    assert status == 2 and found == [] and "m has tensors of other types" in err
    assert stepped(*words)[0] == 0
