"""What this installation says of itself."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from busbar import host

ROOT = Path(host.__file__).resolve().parent.parent


def _never(name: str) -> str:
    raise PackageNotFoundError(name)


def test_the_version_is_declared_in_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a clone that was never installed knows its version.

    No other project's is taken for it.
    """
    project = ROOT / "pyproject.toml"
    if not project.exists():
        pytest.skip("not a checkout")
    declared = re.search(r'^version = "(.+)"$', project.read_text(), re.MULTILINE)
    assert declared is not None
    monkeypatch.setattr(host, "version", _never)
    asked = host.busbar_version.__wrapped__
    assert asked() == declared.group(1)
    monkeypatch.setattr(host, "_ROOT", tmp_path)
    assert asked() == "unknown"
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\nversion = "7"\n')
    assert asked() == "unknown"
    monkeypatch.setattr(host, "version", lambda name: "3.1")
    assert asked() == "3.1"
