"""Recipes: Slurm scripts, MPIJobs and containers say what they were asked for, and nothing else."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bench.launch.recipes import TABLE, Job, apptainer, dockerfile, mpijob, slurm
from bench.qualify import main as qualify
from bench.qualify.main import most_seconds
from busbar.errors import BusbarError, Unsupported

_WORD = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
_JOBS = st.builds(
    Job,
    st.lists(_WORD, max_size=5).map(lambda words: ["allreduce", *words]),
    st.from_regex("[a-z0-9][a-z0-9-]{0,20}[a-z0-9]", fullmatch=True),
    st.integers(1, 1000),
    st.integers(1, 64),
    st.integers(0, 8),
    st.integers(1, 10000),
)


def _recipe(*argv: str) -> int:
    return TABLE.start("bench.recipe", argv)


# -- Slurm


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an ``srun`` and a ``busbar`` that print their words, NUL after each."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("srun", "busbar here"):
        (folder / name).write_text('#!/bin/sh\nprintf "%s\\0" "$0" "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def _started(script: str, stub: Path) -> list[str]:
    """The words of the program that a script starts."""
    done = subprocess.run(
        ["bash", "-s"],
        input=script.encode(),
        env={"PATH": f"{stub}:/bin", "SLURM_JOB_ID": "7"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().split("\0")[:-1]


@given(_JOBS, _WORD)
def test_a_slurm_script_starts_the_command_word_by_word(stub: Path, job: Job, written: str) -> None:
    """Rule: whatever characters a word has, srun gets it whole, and a comment stays one."""
    busbar = [str(stub / "busbar here")]
    script = slurm(job, busbar, "pmi2", written)
    words = _started(script, stub)
    if job.starts_ranks:
        assert words == [*busbar, *job.command]
    else:
        assert words == [str(stub / "srun"), "--mpi=pmi2", *busbar, *job.command]
    options = [line.split(" ", 1)[1] for line in script.split("set -eu")[0].splitlines()
               if line.startswith("#SBATCH")]  # fmt: skip
    assert [option.partition("=")[0] for option in options] == [
        "--job-name", "--nodes", "--ntasks-per-node", *["--gpus-per-node"] * bool(job.gpus),
        "--time", "--output", "--exclusive",
    ]  # fmt: skip
    assert shlex.split(" ".join(options))  # no quote is left open


def test_what_starts_its_ranks_is_started_once(stub: Path) -> None:
    """Rule: `qualify`, and a benchmark with --ranks, are not started on every rank.

    `qualify` is told how Slurm starts its ranks, and goes on where one of the nodes fails.
    """
    busbar, about = [str(stub / "busbar here")], ("a", 2, 1, 0, 1)
    script = slurm(Job(["qualify", "--seed", "3"], *about), busbar, "pmix", "")
    own = ["-o", "qualify-7", "--launcher-option=--mpi=pmix"]
    assert _started(script, stub)[1:] == ["qualify", *own, "--seed", "3"]
    for settled in (["-o", "mine"], ["--resume", "mine"]):
        script = slurm(Job(["qualify", *settled], *about), busbar, "pmix", "")
        assert "qualify-7" not in _started(script, stub)
    assert "#SBATCH --no-kill" in script.split("set -eu")[0].splitlines()
    script = slurm(Job(["qualify"], "a", 2, 8, 8, 1), busbar, "pmix", "")
    assert "--ranks-per-host=8" in _started(script, stub)
    script = slurm(Job(["allreduce", "--ranks=4"], *about), busbar, "pmix", "")
    assert _started(script, stub) == [*busbar, "allreduce", "--ranks=4"]


def test_a_qualification_of_many_hosts_has_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: --time is by default twice what qualify's dry run says, at least 30 minutes.

    With a core for each rank of a node: the same recipe on whatever machine it is written.
    """
    monkeypatch.setattr(qualify, "core_share", lambda: 1000.0)

    def minutes(*words: str) -> int:
        assert _recipe("slurm", "--mpi", "pmi2", *words) == 0
        match = re.search("^#SBATCH --time=(\\d+)$", capsys.readouterr().out, re.MULTILINE)
        assert match is not None
        return int(match[1])

    assert minutes("--", "allreduce") == minutes("-N", "4", "--", "qualify") == 30
    many = ["-N", "200", "--", "qualify", "--at-once", "1"]
    expected = 2 * most_seconds(["--at-once", "1"], 200, 1) / 60
    assert expected <= minutes(*many) < expected + 1 and expected > 100
    assert minutes("--time", "5", *many) == 5
    few, more = (minutes("-N", "200", "--ranks-per-node", n, "--", "qualify") for n in ("1", "2"))
    assert few > 1.5 * more > 30


# -- MPIJob


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


# What the operator's type MPIJob (kubeflow.org/v2beta1) and Kubernetes' pods say of the fields that
# we write: names, types, and the words that a field may have.
_COUNT, _TEXT = {"type": "integer", "minimum": 1}, {"type": "string"}
_LABELS = {"type": "object", "additionalProperties": _TEXT}
_POD = _object(
    "containers",
    affinity=_object(
        "podAntiAffinity",
        podAntiAffinity=_object(
            "requiredDuringSchedulingIgnoredDuringExecution",
            requiredDuringSchedulingIgnoredDuringExecution={
                "type": "array",
                "items": _object(
                    "topologyKey",
                    topologyKey=_TEXT,
                    labelSelector=_object("matchLabels", matchLabels=_LABELS),
                ),
            },
        ),
    ),
    containers={
        "type": "array",
        "minItems": 1,
        "items": _object(
            "name image",
            name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
            image=_TEXT,
            command={"type": "array", "items": _TEXT},
            readinessProbe=_object("tcpSocket", tcpSocket=_object("port", port=_COUNT)),
            resources=_object(
                "limits",
                limits={"type": "object", "additionalProperties": {"type": ["integer", "string"]}},
            ),
            volumeMounts={
                "type": "array",
                "items": _object("name mountPath", name=_TEXT, mountPath=_TEXT),
            },
        ),
    },
    volumes={
        "type": "array",
        "items": _object("name", name=_TEXT, emptyDir=_object("", medium={"enum": ["", "Memory"]})),
    },
)
_REPLICAS = _object(
    "template",
    replicas=_COUNT,
    restartPolicy={"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
    template=_object("spec", spec=_POD),
)
SCHEMA = _object(
    "apiVersion kind metadata spec",
    apiVersion={"const": "kubeflow.org/v2beta1"},
    kind={"const": "MPIJob"},
    metadata=_object("name", name=_TEXT, namespace=_TEXT),
    spec=_object(
        "mpiReplicaSpecs",
        slotsPerWorker=_COUNT,
        mpiImplementation={"enum": ["OpenMPI", "Intel", "MPICH"]},
        launcherCreationPolicy={"enum": ["AtStartup", "WaitForWorkersReady"]},
        sshAuthMountPath=_TEXT,
        runPolicy=_object(
            "",
            cleanPodPolicy={"enum": ["All", "Running", "None"]},
            backoffLimit={"type": "integer", "minimum": 0},
            activeDeadlineSeconds=_COUNT,
        ),
        mpiReplicaSpecs=_object("Launcher Worker", Launcher=_REPLICAS, Worker=_REPLICAS),
    ),
)


def _expanded(word: str) -> str:
    """A word of a container's command as Kubernetes starts it, without variables."""
    return word.replace("$$", "$")


@given(_JOBS, _WORD)
def test_an_mpijob_is_one_of_the_operators(job: Job, written: str) -> None:
    """Rule: an MPIJob fits the operator's type, and starts the command word by word."""
    made = yaml.safe_load(mpijob(job, "registry:5000/busbar@sha256:ab", written))
    jsonschema.validate(made, SCHEMA)
    spec, sets = made["spec"], made["spec"]["mpiReplicaSpecs"]
    launcher, worker = (sets[name]["template"]["spec"]["containers"][0] for name in sorted(sets))
    words = [_expanded(word) for word in launcher["command"]]
    if job.starts_ranks:
        assert words == ["busbar", *job.command]
    else:
        ranks = spec["slotsPerWorker"] * sets["Worker"]["replicas"]
        assert words == ["mpirun", "-n", str(ranks), "busbar", *job.command]
    assert sets["Worker"]["replicas"] == job.nodes
    assert made["metadata"]["name"] == job.name
    assert worker.get("resources", {"limits": {}})["limits"].get("nvidia.com/gpu", 0) == job.gpus
    assert not any("$(" in word.replace("$$", "") for word in launcher["command"])


# -- containers


@pytest.mark.parametrize("extra", ["mpi", "mpi,cuda12"])
def test_containers_have_the_same_steps(extra: str) -> None:
    """Rule: both recipes install the same, from the same base; only CUDA's asks for GPUs."""
    docker, definition = dockerfile(extra, "a\nRUN b"), apptainer(extra, "a\n%post")
    known = re.compile("(#|FROM|RUN|COPY|ENV|CMD) ?")
    assert all(known.match(line) for line in docker.splitlines() if line)
    assert "RUN b" not in docker.splitlines() and definition.count("\n%post") == 1
    for text in (docker, definition):
        assert f"'/src[{extra}]'" in text and "debian:bookworm-slim" in text
        assert ("--gpus" in text or "--nv" in text) == ("cuda" in extra)
    assert ("NVIDIA_VISIBLE_DEVICES" in docker) == ("cuda" in extra)


# -- the commands


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["slurm"], "no command; write it after --"),
        (["slurm", "--", "allredcue"], "did you mean allreduce"),
        (["slurm", "-N", "0", "--", "all"], "at least 1"),
        (["mpijob", "--name", "A b", "--", "all"], "small letters"),
        (["mpijob", "--image", "a b", "--", "all"], "no name of an image"),
        (["container", "--cuda", "9"], "--cuda"),
        (["slurm", "--mpi", "pmix", "--", "qualify", "\x1b[2J"], "control characters"),
        (["slurm", "--", "allreduce", "--frob"], "arguments: --frob"),
        (["mpijob", "--", "allreduce", "-g", "1"], "say how many a node has: --gpus G"),
    ],
)
def test_what_is_no_recipe_is_refused(argv: list[str], said: str) -> None:
    """Rule: a mistake is one line that names it."""
    with pytest.raises(Unsupported, match=said):
        _recipe(*argv)


def test_recipes_are_printed_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: -o writes what is printed without it, to a new file; both say how they were made."""
    file = tmp_path / "job.sh"
    job = ["--gpus", "4", "--", "reduce_scatter", "-b", "1M"]
    assert _recipe("slurm", "--mpi", "pmi2", *job) == 0
    printed = capsys.readouterr().out
    assert _recipe("slurm", "--mpi", "pmi2", "-o", str(file), *job) == 0
    assert capsys.readouterr() == ("", f"busbar: next: sbatch {file}\n")
    written = file.read_text()
    assert printed.splitlines()[2:] == written.splitlines()[2:]
    for name in (["slurm", *job], ["mpijob", *job], ["container"]):
        with pytest.raises(BusbarError, match="exists already; remove it, or name another file"):
            _recipe(name[0], "-o", str(file), *name[1:])
    assert file.read_text() == written
    assert "recipe slurm --mpi pmi2 --gpus 4 -- reduce_scatter -b 1M" in printed
    assert "--job-name=busbar-reduce-scatter" in printed and "--ntasks-per-node=4" in printed
    with pytest.raises(BusbarError):
        _recipe("slurm", "-o", str(tmp_path / "no" / "job.sh"), *job)
