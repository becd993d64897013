"""`busbar doctor`: what is in the way is named with its remedy; what is absent is no fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.cli import doctor
from bench.cli.doctor import CHECKS, Check, CheckStatus
from bench.launch.launch import AS_ROOT
from busbar.errors import Unavailable
from tests.command import command


def _mpirun(folder: Path, says: str) -> str:
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("launcher", "library", "state"),
    [
        ("HYDRA build details:", "MPICH 5.0.2", CheckStatus.GOOD),
        ("mpirun (Open MPI) 5.0.8", "Open MPI v5.0.8", CheckStatus.GOOD),
        ("mpirun (Open MPI) 5.0.8", "MPICH 5.0.2", CheckStatus.WRONG),
        ("HYDRA build details:", "Open MPI v5.0.8", CheckStatus.WRONG),
        ("prterun (PRRTE) 3.0", "MPICH 5.0.2", CheckStatus.WRONG),
        ("what nobody knows", "MPICH 5.0.2", CheckStatus.GOOD),
        ("HYDRA build details:", None, CheckStatus.ABSENT),
    ],
)
def test_a_launcher_of_another_mpi_is_found(
    launcher: str,
    library: str | None,
    state: CheckStatus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule: before anything runs it is said which MPI and launcher do not belong together."""
    monkeypatch.setattr(doctor, "mpirun_beside", lambda: _mpirun(tmp_path, launcher))
    monkeypatch.setattr(doctor, "_library", lambda: library)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    found = doctor._launcher()
    assert found.state is state
    assert bool(found.remedy) == (state is CheckStatus.WRONG)


def test_open_mpi_as_root_has_the_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: where Open MPI's mpirun would refuse root, the remedy is the command to paste.

    It stands before others, and not where the variables are set, nor of MPICH.
    """
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for name in AS_ROOT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("shutil.which", lambda name: _mpirun(other, "HYDRA build details:"))
    for library, says in (("MPICH 5", "HYDRA build"), ("Open MPI v5", "mpirun (Open MPI)")):
        path = _mpirun(tmp_path, says)
        monkeypatch.setattr(doctor, "mpirun_beside", lambda path=path: path)
        monkeypatch.setattr(doctor, "_library", lambda library=library: library)
        found = doctor._launcher()
        needs = library.startswith("Open MPI")
        assert found.state is CheckStatus.GOOD and ("refuses root" in found.text) == needs
        export = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; "
        assert found.remedy == f"{export * needs}write {path} where you mean this one, or --ranks"
    for name, value in AS_ROOT.items():
        monkeypatch.setenv(name, value)
    assert "refuses root" not in doctor._launcher().text


def test_a_machine_with_nothing_is_no_faulty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: without MPI, GPUs, compiler and plots a run goes on threads, and nothing is wrong."""

    def none(*_: object, **__: object) -> object:
        raise Unavailable("nothing here; do something")

    monkeypatch.setattr(doctor, "load_mpi", none)
    monkeypatch.setattr(doctor, "mpirun_beside", lambda: None)
    monkeypatch.setattr(doctor, "why_not", lambda: "it was not built; go on")
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor.take, "driver_here", lambda: False)
    monkeypatch.setattr(doctor, "_said", lambda command: (1, "unshare: no permission\n"))
    found = [check() for check in CHECKS]
    assert not [one for one in found if one.state is CheckStatus.WRONG]
    for name in ("MPI", "launcher", "C++ kernels", "reports", "completion", "namespaces"):
        (one,) = (one for one in found if one.name == name)
        assert one.state is CheckStatus.ABSENT and one.remedy, one
    assert "--transport inproc" in found[-1].text


def test_an_mpi_that_does_not_answer_in_time_is_not_said_to_be_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule: on a busy machine the time limit is named, not a fault of MPI."""
    monkeypatch.setattr(doctor, "_library", lambda: "MPICH 5")
    monkeypatch.setattr(doctor, "_PATIENCE_S", 0.0)
    assert doctor._threads().text == "MPI did not answer within 0 s"


def test_what_is_in_the_way_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: status 1 where something is in the way; its remedy is a line that can be copied."""
    remedy = "x" * 200
    bad = Check("open files", CheckStatus.WRONG, "far too few of them " * 9, remedy)
    monkeypatch.setattr(doctor, "CHECKS", (lambda: Check("a", CheckStatus.GOOD, "b"), lambda: bad))
    assert command("doctor")([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ok", "a", "b"] and lines[1].startswith("!!  open files")
    assert lines[-1].endswith(f"-> {remedy}")
    assert all(len(line) <= 80 for line in lines[:-1])


def test_findings_are_one_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: --json prints every check, its status and remedy as one object, and nothing else.

    The exit status is that of the text.
    """
    bad = Check("open files", CheckStatus.WRONG, "too few", "raise ulimit -n")
    fine, absent = Check("a", CheckStatus.GOOD, "\x1b b"), Check("c", CheckStatus.ABSENT, "none")
    for checks, good in (((fine, absent), True), ((fine, bad), False)):
        monkeypatch.setattr(doctor, "CHECKS", [lambda one=one: one for one in checks])
        assert command("doctor")(["--json"]) == (not good)
        shown = capsys.readouterr()
        found = json.loads(shown.out)
        assert found["good"] is good and not shown.err
        assert [(one["name"], one["finding"], one["remedy"]) for one in found["checks"]] == [
            (check.name, check.text, check.remedy) for check in checks
        ]
        statuses = [one["status"] for one in found["checks"]]
        assert statuses == ["good", "absent" if good else "wrong"]


def test_a_driver_without_its_libraries_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: where there is a GPU, what it lacks is in the way, and the extra for it is named."""
    monkeypatch.setattr(doctor.take, "driver_here", lambda: True)
    monkeypatch.setattr(doctor.os, "access", lambda *_: True)
    for one in (doctor._gpus(), doctor._nccl()):
        assert one.state is CheckStatus.WRONG and "[cuda13]" in one.remedy


def test_cores_that_a_quota_takes_away_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a container that sees 64 cores and may use the time of 1.5 says so."""
    monkeypatch.setattr(doctor, "cores", lambda: list(range(64)))
    monkeypatch.setattr(doctor, "core_share", lambda: 64.0)
    assert "quota" not in doctor._cores().text
    monkeypatch.setattr(doctor, "core_share", lambda: 1.5)
    assert "quota allows the time of 1.5" in doctor._cores().text
