"""Models: their counts, a user's files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.steps.workloads import MODELS, model, parse, read
from busbar.errors import Unsupported
from tests.conftest import examples

#: Parameters and tensors as the models' own sources count them.
COUNTS = {
    "toy": (655_360, 10),
    "alexnet": (61_100_840, 16),
    "resnet50": (25_557_032, 161),
    "vgg16": (138_357_544, 32),
    "inception_v3": (27_161_264, 292),
    "nt3": (154_922_918, 10),
    "bert_large": (335_141_888, 391),
    "gpt2": (124_439_808, 148),
    "llama2_7b": (6_738_415_616, 291),
    "llama3_8b": (8_030_261_248, 291),
}


def test_models_have_the_parameters_of_their_papers() -> None:
    """Rule: models have the published counts, and every tensor has its own name."""
    found = {name: (model(name).elements, len(model(name).tensors)) for name in MODELS}
    assert found == COUNTS
    for name in MODELS:
        tensors = model(name).tensors
        assert len({tensor.name for tensor in tensors}) == len(tensors)


def test_known_shapes_stand_where_they_should() -> None:
    """Rule: the last tensor of the forward pass is ready first; convolutions do most work."""
    resnet, vgg = model("resnet50"), model("vgg16")
    assert resnet.tensors[0].shape == (64, 3, 7, 7)
    assert [tensor.shape for tensor in resnet.ready[:2]] == [(1000,), (1000, 2048)]
    assert model("llama3_8b").tensors[3].shape == (1024, 4096)
    # VGG16's three dense layers have nine tenths of the parameters and a hundredth of the work.
    dense = vgg.ready[:6]
    assert sum(tensor.elements for tensor in dense) > 0.88 * vgg.elements
    assert vgg.shares()[:6].sum() < 0.01
    assert vgg.shares().sum() == pytest.approx(1)


def test_a_scaled_model_keeps_its_tensors() -> None:
    """Rule: --scale divides every tensor's elements, leaves none empty, and leaves the work."""
    whole, part = model("vgg16"), model("vgg16").scaled(1000)
    assert len(part.tensors) == len(whole.tensors)
    assert min(tensor.elements for tensor in part.tensors) == 1
    assert part.elements == pytest.approx(whole.elements / 1000, rel=0.01)
    assert np.array_equal(part.shares(), whole.shares())
    assert whole.scaled(1) is whole


@examples(40)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 50), min_size=1, max_size=4),
            st.sampled_from(["", "fp16", "bf16", "fp32"]),
            st.floats(0, 1000),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_csv_and_json_of_a_model_are_the_same_model(
    rows: list[tuple[list[int], str, float]],
) -> None:
    """Rule: both forms of a file say the same, tensor for tensor."""
    lines = ["name,shape,dtype,backward_ms"]
    objects = []
    for n, (shape, kind, ms) in enumerate(rows):
        lines.append(f"t{n},{'x'.join(map(str, shape))},{kind},{ms!r}")
        objects.append({"name": f"t{n}", "shape": shape, "dtype": kind, "backward_ms": ms})
    table = parse("\n".join(lines), "own.csv")
    document = parse(json.dumps({"name": "own", "tensors": objects}), "own.json")
    assert table == document
    assert [list(tensor.shape) for tensor in table.tensors] == [shape for shape, _, _ in rows]
    assert table.backward_s == pytest.approx(sum(ms for *_, ms in rows) / 1e3)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("m.csv", "", "columns name,shape"),
        ("m.csv", "name,size\na,3", "columns name,shape"),
        ("m.csv", "name,shape\na,-3x4", "m.csv:2: shape '-3x4'"),
        ("m.csv", "name,shape\na,0", "numbers from 1"),
        ("m.csv", "name,shape\na,3.5", "write 64x3x7x7"),
        ("m.csv", "name,shape\n,3", "a name and a shape"),
        ("m.csv", "name,shape\n", "no tensors"),
        ("m.csv", "name,shape,dtype\na,3,fp64", "no dtype 'fp64'"),
        ("m.csv", "name,shape,backward_ms\na,3,nan", "backward_ms 'nan'"),
        ("m.csv", "name,shape,backward_ms\na,3,1\nb,3,", "tensor b: no backward_ms"),
        ("m.csv", "name,shape\na,9999999999999x9999999", "numbers from 1"),
        ("m.json", "[", "no JSON"),
        ("m.json", "7", "a list of tensors"),
        ("m.json", '[{"name": "a", "shape": [3, -1]}]', "m.json: tensor 0: shape"),
        ("m.json", '[{"name": "a", "shape": [true]}]', "shape"),
        ("m.json", "[7]", "a name and a shape"),
    ],
)
def test_a_file_that_is_no_model_is_one_line(name: str, text: str, said: str) -> None:
    """Rule: an error in a model's file is one line with its place."""
    with pytest.raises(Unsupported) as error:
        parse(text, name)
    assert said in str(error.value) and "\n" not in str(error.value)


@examples(60)
@given(st.text(max_size=200), st.sampled_from(["m.csv", "m.json"]))
def test_no_text_is_anything_but_a_model_or_refused(text: str, name: str) -> None:
    """Rule: a reader of files gives a model or Unsupported, whatever it reads."""
    try:
        assert parse(text, name).elements >= 1
    except Unsupported as error:
        assert str(error)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Rule: an error names the file."""
    with pytest.raises(Unsupported, match=r"none\.csv: cannot be read"):
        read(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes(b"name,shape\n\xff,3\n")
    with pytest.raises(Unsupported, match="no UTF-8"):
        read(tmp_path / "latin.csv")
