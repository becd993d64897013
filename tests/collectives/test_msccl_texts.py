"""MSCCL XML as people hand it on: headers, comments, blanks, missing or miswritten attributes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.formats.msccl import MscclError, parse, write
from collectives.formats.proof import prove
from tests.collectives.msccl_files import exported

TEXT = write(exported("allreduce", "ring", 3)).decode()


@given(
    blanks=st.text(st.sampled_from(" \t\r\n"), max_size=6),
    header=st.sampled_from(
        ["", '<?xml version="1.0"?>', "<?xml version='1.0' encoding='UTF-8'?>\n"]
    ),
    comment=st.sampled_from(["", "<!-- made by hand -->\n"]),
)
def test_what_may_stand_around_an_algorithm(blanks: str, header: str, comment: str) -> None:
    """Rule: blanks, a header and comments change nothing, and lines are the file's own."""
    text = blanks + header + comment + TEXT + comment
    assert parse(text.encode()) == parse(TEXT.encode())
    line = 1 + text.split("<gpu ")[0].count("\n")
    with pytest.raises(MscclError, match=f"^f.xml:{line}: gpu: the attribute id"):
        parse(text.replace('<gpu id="0"', "<gpu", 1).encode(), "f.xml")


ELEMENTS = ["algo", "gpu", "tb", "step"]


@given(st.data())
def test_an_attribute_that_is_missing_or_not_its_own(data: st.DataObject) -> None:
    """Rule: an attribute with a default in the runtime may be missing, else the element is named.

    A name in capitals is another name, as for the runtime.
    """
    tag = data.draw(st.sampled_from(ELEMENTS))
    found = list(re.finditer(rf"<{tag} [^>]*>", TEXT))
    one = data.draw(st.sampled_from(found))
    name = data.draw(st.sampled_from(re.findall(r"(\w+)=", one[0])))
    new = data.draw(st.sampled_from(["", f' {name.upper()}=""']))
    changed = re.sub(rf' {name}="[^"]*"', new, one[0])
    text = TEXT[: one.start()] + changed + TEXT[one.end() :]
    if name in ("name", "inplace", "outofplace", "minBytes", "maxBytes"):
        assert parse(text.encode()).gpus == parse(TEXT.encode()).gpus
        return
    line = 1 + TEXT[: one.start()].count("\n")
    where = {"algo": "algo", "gpu": r"gpu", "tb": r"gpu \d: tb", "step": r"gpu \d: tb \d: step \d"}
    with pytest.raises(
        MscclError, match=rf"^f.xml:{line}: {where[tag]}.*: the attribute {name} is"
    ):
        parse(text.encode(), "f.xml")


def test_gaps_in_threadblock_ids_are_told() -> None:
    """Rule: ids with gaps are proven like others, with a note that RCCL wants none."""
    apart = re.sub(r'(tb id|depid)="(\d+)"', lambda m: f'{m[1]}="{3 * int(m[2])}"', TEXT)
    assert prove(parse(TEXT.encode())).notes == ()
    assert prove(parse(apart.encode())).notes == (
        "gpu 0 has no threadblock 1: RCCL takes no gaps in their ids",
    )
