"""What others wrote is data: bounded, never carried out, kept by allow-list."""

from __future__ import annotations

import ast
import gzip
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.options.arrival import arrivals
from bench.run import tuning_file
from bench.run.contenders import read_counts
from bench.run.environment import allowed
from bench.steps import workloads as model
from busbar.errors import ProbeError, ReportError, Unsupported
from collectives.formats import msccl
from collectives.formats.load import load_layout
from collectives.predict.fit import read_fit
from reports.analysis.expect import from_file
from reports.readers.reading import read
from tests.conftest import REPO
from topology.sources.gather import gather

ROOMS = ("collectives", "topology", "bench", "reports", "native", "benchmarks")
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "xml.dom", "xml.etree"}
FORBIDDEN_CALLS = {"eval", "exec", "__import__", "unsafe_load"}
FORBIDDEN_OF = {("yaml", "load"), ("os", "system"), ("os", "popen")}


def _offences(tree: ast.AST) -> list[tuple[int, str]]:
    """Lines that could carry out what was read, with what is wrong with them."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module), *(f"{node.module}.{name}" for name in names)]
            found += [
                (node.lineno, name)
                for name in names
                if any(name == bad or name.startswith(bad + ".") for bad in FORBIDDEN_MODULES)
            ]
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            of = getattr(getattr(node.func, "value", None), "id", "")
            if name in FORBIDDEN_CALLS:
                found.append((node.lineno, name))
            if (of, name) in FORBIDDEN_OF:
                found.append((node.lineno, f"{of}.{name}"))
            found += [
                (node.lineno, "shell=True")
                for one in node.keywords
                if one.arg == "shell" and getattr(one.value, "value", True)
            ]
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_that_was_read_is_carried_out(room: str) -> None:
    """Rule: no pickle, no eval, no shell, no XML parser that knows entities."""
    files = sorted((REPO / room).rglob("*.py"))
    assert files
    wrong = [
        f"{file.relative_to(REPO)}:{line} {what}"
        for file in files
        for line, what in _offences(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from xml.etree import ElementTree",
        "from xml import etree",
        "eval(text)",
        "builtins.exec(text)",
        "os.system(text)",
        "subprocess.run(text, shell=True)",
        "yaml.load(text)",
    ],
)
def test_the_walk_sees_what_is_forbidden(line: str) -> None:
    """Rule: the test above can fail."""
    assert _offences(ast.parse(f"def f():\n    {line}\n"))
    assert not _offences(ast.parse("subprocess.run([text], shell=False)\nyaml.safe_load(text)"))


# Where the interpreter's own path is only named to people, or a compiler is looked for beside it.
NAMED = {
    "busbar/arguments.py": 1,  # in a command to be pasted
    "busbar/installation.py": 1,
    "busbar/door.py": 1,  # in an error
    "bench/cli/doctor.py": 1,
    "bench/trials/selfcheck.py": 1,
}


def _interpreters(tree: ast.AST) -> int:
    """How often `sys.executable` is read, or a ``python`` is named as a command."""
    return sum(
        (isinstance(node, ast.Attribute) and (node.attr == "executable"))
        or (isinstance(node, ast.ImportFrom) and node.module == "sys")
        or (isinstance(node, ast.List | ast.Tuple) and _is_python(node.elts))
        for node in ast.walk(tree)
    )  # fmt: skip


def _is_python(words: list[ast.expr]) -> bool:
    first = words[0] if words else None
    return (
        isinstance(first, ast.Constant)
        and str(first.value).startswith("python")
        and (isinstance(words[-1], ast.Constant | ast.Starred | ast.Name) and len(words) > 1)
    )


def test_every_interpreter_is_started_by_one_function() -> None:
    """Rule: only `busbar.start.python` names the interpreter of a process that we start.

    ``python -m`` elsewhere would run what lies in the working directory. Benchmarks run scripts
    and texts of their own, but none of our modules by ``-m``.
    """
    found = {}
    for room in ("busbar", *ROOMS):
        for file in sorted((REPO / room).rglob("*.py")):
            name, text = str(file.relative_to(REPO)), file.read_text(encoding="utf-8")
            if room != "benchmarks":
                found[name] = _interpreters(ast.parse(text))
            else:
                assert not any(s in text for s in ('executable, "-m"', '", "-m", "bench')), name
    assert found.pop("busbar/start.py") == 1
    assert {name: count for name, count in found.items() if count} == NAMED


def test_the_walk_sees_an_interpreter() -> None:
    """Rule: the test above can fail."""
    for line in ('run([sys.executable, "-m", "x"])', 'run(["python3", "-m", "x"])'):
        assert _interpreters(ast.parse(line)) == 1
    assert _interpreters(ast.parse("from sys import executable")) == 1


NAMES = st.one_of(
    st.text(min_size=1, max_size=20),
    st.sampled_from(
        [
            "AWS_SECRET_ACCESS_KEY",
            "GITHUB_TOKEN",
            "MY_NCCL_TOKEN",
            "nccl_debug",
            "SLURM_JWT",
            "PATH",
        ]
    ),
)


@given(st.dictionaries(NAMES, st.text(max_size=8)))
def test_only_settings_of_libraries_are_kept(variables: dict[str, str]) -> None:
    """Rule: a variable that is not on the list does not reach a record, whatever it is called."""
    known = {"NCCL_ALGO": "Ring", "UCX_TLS": "sm", "SLURM_JOB_ID": "7"}
    kept = allowed({**variables, **known})
    libraries = ("NCCL_", "UCX_", "OMPI_MCA_", "PRTE_MCA_", "MPIR_CVAR_", "FI_", "I_MPI_", "OMP_")
    jobs = {"CUDA_VISIBLE_DEVICES", "HYDRA_LAUNCHER_EXEC", "SLURM_JOB_ID", "SLURM_JOB_PARTITION"}
    assert known.items() <= kept.items()
    assert all(name.startswith(libraries) or name in jobs for name in kept)


BOUNDED: dict[str, tuple[str, Callable[[Path], Any], type[Exception], str]] = {
    "log": ("reports.readers.text.LIMIT", read, ReportError, "more than"),
    "rules": ("reports.analysis.expect._MOST_BYTES", from_file, ReportError, "more than"),
    "tuning": ("bench.run.tuning_file._MOST_BYTES", tuning_file.load, Unsupported, "more than"),
    "fit": ("collectives.predict.fit._MOST_BYTES", read_fit, Unsupported, "more than"),
    "counts": (
        "bench.run.contenders._MOST_BYTES",
        lambda path: read_counts(path, 2),
        Unsupported,
        "more than",
    ),
    "arrival": (
        "bench.options.arrival._MOST_BYTES",
        lambda path: arrivals(str(path)),
        ArgumentTypeError,
        "more than",
    ),
    "model": ("bench.steps.workloads.MOST_BYTES", model.read, Unsupported, "more than"),
    "msccl": ("collectives.formats.load.MOST_BYTES", load_layout, Unsupported, "more than"),
    "map": (
        "topology.sources.gather.MAX_BYTES",
        lambda path: gather([str(path)]),
        ProbeError,
        "more than",
    ),
}


@pytest.mark.parametrize("kind", BOUNDED)
def test_what_never_ends_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: of a file whose size nobody knows before, so much is read and no more."""
    bound, reader, error, said = BOUNDED[kind]
    monkeypatch.setattr(bound, 10_000)
    with pytest.raises(error, match=said):
        reader(Path("/dev/zero"))


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: the bound is on what a packed log becomes, member by member."""
    monkeypatch.setattr("reports.readers.text.LIMIT", 3 << 20)
    path = tmp_path / "log.gz"
    for parts in (1, 4):
        path.write_bytes(gzip.compress(bytes((4 << 20) // parts)) * parts)
        assert path.stat().st_size < 1 << 15
        with pytest.raises(ReportError, match="more than"):
            read(path)


def test_an_msccl_file_has_so_many_steps_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: what a file makes us build is bounded, not only its bytes."""
    from tests.collectives.msccl_files import CHAIN

    assert msccl.parse(CHAIN.encode())
    monkeypatch.setattr(msccl, "MOST_STEPS", 3)
    with pytest.raises(Unsupported, match="more than 3 steps"):
        msccl.parse(CHAIN.encode())
