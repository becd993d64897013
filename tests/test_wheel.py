"""What is packed runs where it is installed: on every Python, with the extension and without it.

Building and installing takes minutes, so all of this is `thorough`. `make wheel` runs .ci/wheel.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.once import once

# The oldest and the newest; each has to compile for more than a minute.
MINORS = (10, 13)
TABLE = ("allreduce", "--ranks", "2", "-b", "1K", "-e", "4K", "-n", "20", "-A", "ring")
THREADS = "busbar: ranks are threads of this process: "

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("wheel"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler here"),
]


def _interpreter(minor: int) -> str | None:
    """A Python 3.``minor`` of this machine: the one that runs, of pyenv, or on PATH."""
    if sys.version_info[1] == minor:
        return sys.executable
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/python"))
    return str(pyenv[-1]) if pyenv else shutil.which(f"python3.{minor}")


def _packed() -> Path:
    """The folder with the sources and a wheel for each Python that is here."""
    pythons = filter(None, map(_interpreter, MINORS))
    return once("dist", lambda folder: _run(REPO / ".ci" / "wheel", folder, *pythons))


def _run(
    *words: object, status: int = 0, folder: Path = REPO, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A process that must end with ``status``; ``variables`` replace those of the environment."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words, environment = tuple(map(str, words)), kept | variables
    done = subprocess.run(
        words, env=environment, cwd=folder, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == status, done
    return done


class Environment:
    """An empty environment of a Python, with what is installed into it."""

    def __init__(self, minor: int, folder: Path, path: str | None = None) -> None:
        """``path``: what its commands find beside their own; None for all of PATH."""
        python = _interpreter(minor)
        if python is None:
            pytest.skip(f"no Python 3.{minor} here")
        _run(python, "-m", "venv", folder)
        self._bin = folder / "bin"
        self._path = os.environ["PATH"] if path is None else path
        self._folder = folder

    def __call__(self, name: str, *words: object, status: int = 0) -> tuple[str, str]:
        """Run a command of the environment; its output and its standard error."""
        there = {"PATH": f"{self._bin}:{self._path}", "HOME": str(self._folder)}
        # Not in the checkout, whose packages Python would find first.
        done = _run(self._bin / name, *words, status=status, folder=self._folder, **there)
        return done.stdout, done.stderr


@pytest.mark.parametrize("minor", MINORS)
def test_a_wheel_runs_on_its_python(minor: int, tmp_path: Path) -> None:
    """Rule: a wheel needs no compiler, has the extension, and measures without and with an MPI.

    The command that adds an MPI is the one that the note names.
    """
    env = Environment(minor, tmp_path / "venv", path="/nowhere")
    (wheel,) = _packed().glob(f"*-cp3{minor}-*manylinux*.whl")
    env("python", "-m", "pip", "install", "--quiet", wheel)
    assert re.fullmatch(r"busbar 0\S* \([0-9a-f]{12}\)\n", env("busbar", "--version")[0])
    env("python", "-c", "import native._core, busbar.bench.tune")
    out, err = env("busbar", *TABLE)
    assert out.count("\n        ") and err.startswith(THREADS), (out, err)
    (hint,) = re.findall(r"pip install '(busbw\[mpi\])'", err)
    assert "C++ kernels" in env("busbar", "doctor")[0]
    env("python", "-m", "pip", "install", "--quiet", hint)
    file = tmp_path / "run.jsonl"
    out, err = env("busbar", *TABLE, "--out", file)
    assert THREADS not in err and "(shm)" in out, (out, err)
    assert "2 ranks, out-of-place, MPICH" in env("busbar", "reports", "show", file)[0]
    env("busbar", "topology")
    env("busbar", "collectives", "verify", "ring", "-c", "allreduce", "-n", "4")


@pytest.mark.parametrize("minor", MINORS)
def test_the_sources_run_without_a_compiler(minor: int, tmp_path: Path) -> None:
    """Rule: without a compiler the sources install and measure, and say what is missing."""
    env = Environment(minor, tmp_path / "venv", path="/nowhere")
    (sources,) = _packed().glob("*.tar.gz")
    env("python", "-m", "pip", "install", "--quiet", sources)
    out, err = env("busbar", *TABLE)
    assert err.startswith(THREADS) and "(inproc)" in out, (out, err)
    doctor = " ".join(env("busbar", "doctor")[0].split())
    assert "the native extension is not available" in doctor
    assert f"install --force-reinstall --no-deps {sources}" in doctor
