"""Commands that are printed to be pasted begin as the process was started."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from busbar.arguments import STARTED, command


def _program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("cwd", "on_path", "expected"),
    [
        (".", True, "busbar"),
        (".", False, ".venv/bin/busbar"),
        ("elsewhere", False, "~/.venv/bin/busbar"),
    ],
)
def test_the_program_is_named_as_a_shell_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cwd: str, on_path: bool, expected: str
) -> None:
    """Rule: by its name if it is found there; else by its path, below here or below the home."""
    path = _program(tmp_path / ".venv/bin/busbar")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.delenv(STARTED, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(path.parent) if on_path else "/nowhere")
    monkeypatch.setattr(sys, "argv", [str(path), "allreduce"])
    monkeypatch.chdir(tmp_path / cwd)
    assert command("allreduce") == f"{expected} allreduce"


def test_a_module_is_named_with_its_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: python -m is kept, with the interpreter; ranks name what started them.

    A program that imports Busbar, as this test does, has no command of its own.
    """
    monkeypatch.delenv(STARTED, raising=False)
    monkeypatch.setattr(sys, "argv", ["anything"])
    assert command("allreduce") == "busbar allreduce"
    python = _program(tmp_path / "my venv/python")
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.chdir(tmp_path)
    for module, expected in (("bench.allreduce", "-m bench."), ("busbar.__main__", "-m busbar ")):
        spec = ModuleSpec(module, None)
        monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec, raising=False)
        assert command("allreduce") == f"'my venv/python' {expected}allreduce"
    monkeypatch.setenv(STARTED, ".venv/bin/busbar ")
    assert command("allreduce") == ".venv/bin/busbar allreduce"
