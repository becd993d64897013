"""The extension's stub says what the extension offers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import native

core = native.load()
if core is None:
    pytest.skip(native.why_not(), allow_module_level=True)

STUB = ast.parse(Path(native.__file__).with_name("_core.pyi").read_text(encoding="utf-8"))


def _parameters(function: ast.FunctionDef) -> list[str]:
    """Parameters as the stub has them, `self` left out."""
    every = function.args.posonlyargs + function.args.args
    return [one.arg for one in every if one.arg != "self"]


def _real(text: str) -> int:
    """How many parameters pybind11 says that a function has, `self` left out."""
    inside = text.partition("(")[2].rpartition(") ->")[0]
    return len(re.findall(r"(?:^|, )(?!self\b)\w+: ", inside))


def test_the_stub_is_what_is_there() -> None:
    """Rule: the same names, and functions and methods of as many parameters."""
    named: set[str] = set()
    for node in STUB.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            named.add(node.target.id)
        elif isinstance(node, ast.FunctionDef):
            named.add(node.name)
            assert _real(getattr(core, node.name).__doc__) == len(_parameters(node)), node.name
        elif isinstance(node, ast.ClassDef):
            named.add(node.name)
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name != "__buffer__":
                    real = getattr(getattr(core, node.name), method.name).__doc__
                    assert _real(real) == len(_parameters(method)), (node.name, method.name)
    assert named == {name for name in vars(core) if not name.startswith("__")}
