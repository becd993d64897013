"""A short run of each campaign; and campaigns find what they look for."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from bench.run.data import Inputs, Wrong
from tests.conftest import environment, thorough
from tests.torture import corruption, executors, mutants

SEED = 20261122
CASES = {"corruption": 60, "mutants": 160, "faults": 1, "resources": 2, "neighbours": 1}
MORE = {"mutants": 460, "faults": 3, "resources": 4}


@pytest.mark.timeout(960)
@pytest.mark.parametrize(("name", "cases"), [*CASES.items(), *thorough(*MORE.items())])
def test_a_short_campaign(name: str, cases: int, tmp_path: Path) -> None:
    """Rule: a short run of each campaign finds nothing; `make torture` runs them long."""
    words = ["--cases", str(cases), "--seconds", "600", "--seed", str(SEED)]
    done = subprocess.run(
        [sys.executable, "-m", f"tests.torture.{name}", *words, "--keep", str(tmp_path)],
        capture_output=True, text=True, timeout=900, check=False, env=environment(),
    )  # fmt: skip
    said = [path.read_text()[-3000:] for path in tmp_path.iterdir()]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:] + "\n".join(said)


def test_mutants_of_executors_are_of_these_sources() -> None:
    """Rule: what a mutant changes is in the sources, once: a list that has aged is noticed here."""
    assert executors.NATIVE.keys().isdisjoint(executors.PYTHON)
    for mutant in (*executors.NATIVE.values(), *executors.PYTHON.values()):
        before = (executors.HOME / mutant.file).read_text()
        assert executors.changed(mutant, executors.HOME) != before
    gone = executors.Mutant(mutant.file, [("no such line of code", "")])
    with pytest.raises(ValueError, match="has 0 times"):
        executors.changed(gone, executors.HOME)


def test_a_blind_check_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a check that sees nothing wrong fails the campaign on corruption."""
    monkeypatch.setattr(Inputs, "check", lambda *_: Wrong(0, 0, "", ""))
    cases = islice(corruption.drawn(random.Random(SEED)), 20)
    assert any(corruption.play(case) for case in cases)


def test_a_blind_proof_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a proof that accepts everything fails the campaign on mutants."""
    monkeypatch.setattr(mutants, "verify", lambda *_, **__: None)
    cases = islice(mutants.drawn(random.Random(SEED)), 40)
    assert any(mutants.play(case) for case in cases)
