"""Completion of a shell's words: what argcomplete's shell function asks for, and is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import Run

pytest.importorskip("argcomplete")


@pytest.fixture
def offered(run: Run, tmp_path: Path) -> object:
    """``offered(line)``: the words that may stand where the line ends, as a shell is told them."""

    def ask(line: str) -> set[str]:
        told = tmp_path / "told"
        for name in ("run.jsonl", "run.png", "run.html"):
            (tmp_path / name).touch()
        env = {
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_IFS": "\n",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(told),
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
        }
        done = run(sys.executable, "-m", "busbar", env=env, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done
        return {word.strip() for word in told.read_text().split("\n")}

    return ask


@pytest.mark.parametrize(
    ("line", "some", "none"),
    [
        ("busbar ", {"allreduce", "topology", "doctor", "all"}, {"sendrecv_pairs"}),
        ("busbar allr", {"allreduce"}, {"allgather"}),
        ("busbar topology p", {"pick"}, {"check", "pattern"}),
        ("busbar topology pick --obj", {"--objective"}, {"--ranks"}),
        ("busbar allreduce --ranks 4 -A ring,dou", {"ring,double_tree"}, {"ring,ring"}),
        ("busbar reports compare --fail", {"--fail-slower"}, {"--out"}),
        ("busbar reports plot a b --out=x --f", {"--format"}, {"--from"}),
        ("busbar allreduce --transport ", {"auto", "mpi", "shm"}, {"--ranks"}),
        ("busbar allreduce -c ", {"timed"}, {"run.jsonl"}),
        ("busbar help a", {"allreduce", "all"}, {"doctor", "--help"}),
        ("busbar help reports s", {"show", "scaling"}, {"plot"}),
        ("busbar collectives show r", {"ring", "recursive_doubling"}, {"ps", "run.jsonl"}),
        ("busbar collectives cost ring,p", {"ring,ps"}, {"ring,ring"}),
        ("busbar collectives show ring -c allr", {"allreduce"}, {"allgather"}),
        ("busbar reports show r", {"run.jsonl"}, {"run.png", "run.html"}),
    ],
)
def test_words_are_completed_at_every_door(
    offered: object, line: str, some: set[str], none: set[str]
) -> None:
    """Rule: a command's own commands, options and names are offered, and no other command's.

    For a run's file all files are offered but figures and pages; after ``help``, commands.
    """
    found = offered(line)  # type: ignore[operator]
    assert some <= found and not none & found, found
