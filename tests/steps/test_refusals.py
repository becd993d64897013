"""Texts that name what cannot be: a problem, a codec, a rule, a protocol, a fusion, a law."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.steps import buckets
from bench.steps.options import compute
from bench.steps.server.protocol import update_protocol
from bench.steps.training.codecs import codec
from bench.steps.training.problem import rule, shape
from busbar.errors import Unsupported


def _problem(text: str) -> object:
    return shape(text, 16)


def _rule(text: str) -> object:
    """A rule and, behind a blank, its rate."""
    name, _, rate = text.partition(" ")
    return rule(name, float(rate or 0.1))


def _protocol(text: str) -> object:
    return update_protocol(text, 4)


def _cycle(text: str) -> object:
    return buckets.parse_fusion(text, 0.005)


def _straggler(text: str) -> object:
    return compute("fixed:1", None, 0, [text])


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (_problem, "resnet", "no problem 'resnet'; there are: softmax, network"),
        (_problem, "softmax:hidden=3", "problem softmax has no parameter 'hidden'"),
        (_problem, "network:hidden=0", "problem network: 0 of something"),
        (_problem, "network:samples=-1", "problem network: -1 of something"),
        (_problem, "network:batch=8", "problem network has no parameter 'batch'"),
        (_problem, "network:hidden=2.5", "hidden must be a whole number, not 2.5"),
        (_problem, "softmax:samples=15", "a batch of 16 from 15 samples"),
        (_problem, "softmax:samples=100000000", "at most 16777216"),
        (_problem, "network:hidden", "is not one key=value"),
        (codec, "zip", "no compression 'zip'; there are: none, fp16, bf16, int8, 1bit, topk"),
        (codec, "topk:fraction=0", "fraction 0 is not in (0, 1]"),
        (codec, "topk:fraction=1.5", "fraction 1.5 is not in (0, 1]"),
        (codec, "topk:k=5", "compression topk has no parameter 'k'; its parameters: fraction"),
        (codec, "int8:fraction=0.1", "compression int8 has no parameter 'fraction'"),
        (_rule, "momentum", "no rule 'momentum'; there are: fixed, staleness, distance, adagrad"),
        (_rule, "fixed 0", "--rate 0: a rate is a number above 0"),
        (_rule, "fixed nan", "--rate nan"),
        (_rule, "fixed inf", "--rate inf"),
        (_rule, "distance:c=0", "c must be above 0, not 0"),
        (_rule, "fixed:c=1", "rule fixed has no parameter 'c'; its parameters: none"),
        (_protocol, "k-sync:0", "K is a number from 1 to 4"),
        (_protocol, "k-async:5", "K is a number from 1 to 4"),
        (_protocol, "k-async:-1", "K is a number from 1 to 4"),
        (_protocol, "k-async:²", "K is a number from 1 to 4"),
        (_protocol, "k-async:", "K is a number from 1 to 4"),
        (_protocol, "k-async", "k-async needs its K, as k-async:2"),
        (_protocol, "async:2", "there is k-async:K"),
        (_protocol, "batch-sync", "no protocol"),
        (_protocol, "batch-sync:2", "no protocol"),
        (_protocol, "k-", "no protocol"),
        (_protocol, "", "no protocol ''; there are: sync, "),
        (buckets.parse_fusion, "ddp:1M", "ddp:FIRST,REST"),
        (buckets.parse_fusion, "0", "at least 1 byte"),
        (buckets.parse_fusion, "many", "no size"),
        (_cycle, "ddp", "--cycle goes with"),
        (_cycle, "none", "--cycle goes with"),
        *((compute, text, "--compute") for text in ("exp:-1", "exp:nan", "exp:1,", "fixed:")),
        *((compute, text, "--compute") for text in ("fixed:1e99", "often", "model")),
        *((_straggler, text, "RANK:FACTOR") for text in ("1", "1:0", "x:2", "1:-2", "1:inf")),
    ],
)
def test_what_cannot_be_is_one_line(parse: Callable[[str], object], text: str, said: str) -> None:
    """Rule: what cannot be is refused in a line with the value, and what there is or to write."""
    with pytest.raises(Unsupported) as caught:
        parse(text)
    assert said in str(caught.value) and "\n" not in str(caught.value)
