"""The extension's stub says what the extension offers, and its tables are its own."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import numpy as np
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


@pytest.fixture
def watch() -> object:
    """A world of one rank, which nobody watches."""
    life = np.zeros(2 * core.LINE, np.uint8)
    return core.Watch(0, _line(life), [os.getpid()], False, 1.0), life


def _line(memory: np.ndarray) -> int:
    """Where the first whole line of some memory begins."""
    return -(-memory.ctypes.data // core.LINE) * core.LINE


def test_tables_that_end_early_or_have_other_rows_are_refused(watch: tuple[object, object]) -> None:
    """Rule: C++ reads no row that is not there, and converts no array into rows."""
    lines = np.zeros((core.plan_lines(1) + 1) * core.LINE, np.uint8)
    task = np.array([(False, 1, 0, 1, 1, 0)], core.TASK)
    place = (lines.ctypes.data, 0, False, False)
    two = np.array([place, place], core.PLACE)
    how = (watch[0], _line(lines), 0, 0)
    core.worksharing(*how, task, two, [1])
    with pytest.raises(ValueError, match="ends too early"):
        core.worksharing(*how, task, two[:1], [1])
    with pytest.raises(ValueError, match="ends too early"):
        core.worksharing(*how, task, two, [2])
    for other in (np.zeros(8, np.int64), two, task.tolist()):
        with pytest.raises(TypeError):
            core.worksharing(*how, other, two, [1])
