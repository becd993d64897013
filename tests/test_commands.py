"""Every command as a process: closed pipes, full disks, no UTF-8, Ctrl-C, bad flags, exit statuses.

What a case does is carried out by `commands_process`: one interpreter serves all of them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.cli.main import commands, names
from bench.options.options import ALL
from busbar import errors, process, status
from busbar.cli import COMMANDS as DOORS
from busbar.cli import ROOMS
from tests.conftest import REPO, environment, without_progress
from tests.reports.runs import records, to_jsonl

MATRIX = "\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n"
SWEEP = "allreduce --transport inproc --ranks 2 -b 1K -e 1K -n 9 -A ring"
PAIRS = "pt2pt --transport inproc --ranks 2 -b 1K -e 1K -n 9 --tests latency"
TUNE = "tune --from RUN --out FOLDER/rules.json"
STEP = "step --threads 2 --model toy --scale 64 --update ring -n 2"
#: The commands, and how their errors begin. RUN is a file of records, MAP a matrix of GPUs.
COMMANDS: dict[str, str] = {
    "": "busbar",
    "--version": "busbar",
    SWEEP: "busbar",
    "allreduce --help": "busbar",
    PAIRS: "busbar",
    "pt2pt --help": "busbar",
    "allreduce --ranks 4 --dry-run -A all": "busbar",
    TUNE: "busbar",
    "tune --help": "busbar",
    "ab --help": "busbar",
    "selfcheck --help": "busbar",
    STEP: "busbar",
    "step --help": "busbar",
    "step --model list": "busbar",
    "cluster --dry-run --hosts 2": "busbar",
    "doctor": "busbar",
    "doctor --help": "busbar",
    "topology --from MAP": "topology",
    "topology --json --from MAP": "topology",
    "topology export json --from MAP": "topology",
    "topology pick -k 2 --from MAP": "topology",
    "collectives list": "collectives",
    "collectives show ring -c allreduce -n 4": "collectives",
    "collectives verify ring -c allreduce -n 4": "collectives",
    "collectives cost -c allreduce -n 4 -b 1K -e 4K": "collectives",
    "collectives simulate ring -n 8 --machine dgx1": "collectives",
    "collectives export ring -c allreduce -n 16": "collectives",
    "reports show RUN": "reports",
    "reports help": "reports",
    "reports md RUN": "reports",
    "reports warmup RUN": "reports",
    "reports import RUN --format csv": "reports",
}
DRY = "allreduce --ranks 4 --dry-run -A all"
#: Times, and the memory that is free, are as long as they are.
TIMED = (SWEEP, PAIRS, TUNE, STEP, DRY, "doctor")
#: A benchmark without an end, which must have one when nobody reads it.
ENDLESS = f"{SWEEP} -N 0"
#: Commands that wait at a pipe: interrupted there.
WAITING = (
    "collectives import PIPE",
    "reports html PIPE --out FOLDER/page.html",
    "topology --from PIPE",
    "tune --from PIPE",
)
REFUSED: tuple[tuple[list[str], str], ...] = (
    (["topolgy"], "no command 'topolgy'; did you mean topology?"),
    (["alreduce"], "no command 'alreduce'; did you mean allreduce?\n"),
    (["RUN"], "is it busbar reports show"),
    (
        ["nothere.json"],
        "no command or file 'nothere.json'; busbar reports show FILE",
    ),
    (["reports", "a/b"], "no command or file 'a/b'; python -m reports show FILE"),
    (["osu_latency"], "did you mean busbar pt2pt --tests latency?\n"),
    (["osu_iallreduce"], "did you mean busbar allreduce --nonblocking?\n"),
    (
        ["osu_allreduce", "-m", "1024:1048576", "-i", "100", "-x", "10"],
        "the same here: busbar allreduce -A library --transport mpi -b 1024 -e 1048576 -n 100 -w"
        " 10\n",
    ),
    (
        ["osu_bw", "--message-size=1M", "-W32", "-c", "-f", "-d", "cuda"],
        "the same here: busbar pt2pt --tests bandwidth --transport mpi -b 1 -e 1M -W 32 -I"
        " (no option for -d cuda)\n",
    ),
    (
        ["osu_allgather", "-m", "8"],
        "-b 4 -e 8 (OSU's sizes are a rank's part, these all ranks' together)\n",
    ),
    (["osu_put_bw"], "did you mean busbar pt2pt --tests bandwidth -A put?\n"),
    (["all_reduce_perf"], "did you mean busbar allreduce?\n"),
    (["all_reduce_perf", "-b", "8", "-g", "8"], "the same here: busbar allreduce -b 8 -g 8\n"),
    (["reduce_scatter_perf", "-e", "8"], "the same here: busbar reduce_scatter -e 8\n"),
    (["ring_perf", "-e", "8"], "no command 'ring_perf'; there are: "),
    (["MPI_Bcast"], "did you mean busbar broadcast?\n"),
    (["reduce_scatter_perf"], "did you mean busbar reduce_scatter?\n"),
    (["sendrecv_perf"], "did you mean busbar sendrecv?\n"),
    (["ring"], "no command 'ring'; did you mean busbar allreduce -A ring?\n"),
    (["pairwise"], "did you mean busbar alltoall -A pairwise?\n"),
    (["parameter_server"], "did you mean busbar allreduce -A ps?\n"),
    (["allreduce", "-A", "ring,hub"], "did you mean ps?"),
    (["qualify", "--hosts", "a", "--transport", "tcp"], "invalid choice: 'tcp'"),
    (["reduce_scatter", "-A", "recursive_halving"], "did you mean halving?"),
    (["collectives", "cost", "butterfly"], "did you mean recursive_doubling?"),
    (["cluster", "law", "--budget", "3"], "not here: -n sets the iterations of each row"),
    (["64K"], "did you mean busbar allreduce -b 64K -e 64K?\n"),
    (["--ranks", "4", "allreduce"], "options follow the command: busbar allreduce --ranks 4; see"),
    (["allreduce", "--min", "1K"], "did you mean --minbytes?"),
    (["law"], "did you mean busbar cluster law?\n"),
    (["glossary"], "it is explained in docs/glossary.md"),
    (["busbw"], "it is explained in docs/measuring-answer.md"),
    (["trace"], "did you mean busbar step --trace FILE.json?\n"),
    (["collectives", "law"], "did you mean busbar cluster law?"),
    (["run"], "did you mean busbar allreduce --ranks 2?\n"),
    (["map"], "did you mean busbar topology?\n"),
    (["allreduce", "-A", "ring", "ps", "tree"], "did you mean -A ring,ps,tree?"),
    (["allreduce", "-A", "ring,", "ps"], "did you mean -A ring,ps?"),
    (["allreduce", "ring", "ps"], "did you mean -A ring,ps?"),
    (["allreduce", "-b", "64", "K"], "did you mean -b 64K?"),
    (["allreduce", "-b", "64", "KiB", "-e", "1", "M"], "did you mean -b 64KiB -e 1M?"),
    (["allreduce", "64K"], "did you mean -b 64K -e 64K?"),
    (["allreduce", "64K", "1M"], "did you mean -b 64K -e 1M?"),
    (["allreduce", "-b", "64K", "1M"], "did you mean -e 1M?"),
    (["allreduce", "--sizes", "4K", "1M"], "--sizes 4K,1M, or -b 4K -e 1M for the sizes between?"),
    (["--frob"], "--frob"),
    (["allreduce", "--frob"], "--frob; see python -m bench.allreduce --help"),
    (["allreduce", "--rank", "4"], "--rank 4; did you mean --ranks?"),
    (["allreduce", "--algoritm=ring"], "did you mean --algorithm?"),
    (["doctor", "--jso"], "unrecognized arguments: --jso"),
    (["topology", "check", "--form", "x"], "did you mean --from?"),
    (["collectives", "cost", "--colective", "allreduce"], "did you mean --collective?"),
    (["collectives", "show", "ring", "--minbytes", "1"], "arguments: --minbytes 1; see"),
    (["reports", "plot", "RUN", "--topolgy", "x"], "did you mean --topology?"),
    (["reports", "md", "RUN", "--out", "x.md"], "standard output: > FILE keeps it; see"),
    (["reports", "md", "RUN", "-o", "x.md"], "standard output: > FILE keeps it; see"),
    (["allreduce", "--ran", "4"], "unrecognized arguments: --ran"),
    (["pt2pt", "--tests", "lat"], "no test 'lat'; did you mean latency?"),
    (["pt2pt", "-A", "ring"], "no transfer 'ring'; there are: two_sided, put, get"),
    (["pt2pt", "--grid", "2x2"], "unrecognized arguments: --grid"),
    (["tune", "--ranks", "0", "-b", "1K"], "at least 2"),
    (["step", "--frob"], "--frob; see python -m bench.step --help"),
    (["step", "--problem", "softmx"], "did you mean softmax?"),
    (["step", "--compress", "int8", "--update", "ring", "--threads", "2"], "it adds on the way"),
    (["step", "--model", "resnet5"], "no model 'resnet5'"),
    (["step", "--compute", "exp:-1"], "write milliseconds, 0 to 3.6e+06, such as exp:50"),
    (["step", "--model", "toy", "--update", "rign"], "did you mean ring?"),
    (["step", "--threads", "4", "--model", "toy", "--update", "k-sync:4"], "K is a number from 1"),
    (["step", "--threads", "4", "--model", "toy", "--update", "k-async:0"], "from 1 to 3"),
    (["step", "--threads", "1", "--model", "toy", "--update", "async"], "none is left to learn"),
    (["step", "--learners", "2", "--threads", "2"], "leave out --ranks and --threads"),
    (["cluster", "--hosts", "2"], "no command; write it after --"),
    (["ab", "--", "allreduce"], "two commands are needed"),
    (
        ["topology", "measure", "--ranks", "2"],
        "did you mean mpirun -n 2 python -m topology measure?",
    ),
    (["topology", "measure", "--ranks"], "did you mean mpirun -n P python -m topology measure?"),
    (["topology", "pck"], "did you mean pick?"),
    (["topology", "none.txt"], "no command or file 'none.txt'; there are: check"),
    (["topology", "show", "RUN"], "no command 'show'; python -m topology "),
    (["topology", "--frob"], "--frob; did you mean --from?; see python -m topology --help"),
    (["collectives", "list", "--frob"], "--frob"),
    (["reports", "show", "RUN", "--frob"], "unrecognized arguments: --frob"),
    (["plot", "RUN"], "did you mean busbar reports plot?"),
    (["reports", "plot", "RUN", "--out", "a.png"], "--out names a folder: --out . --format png"),
    (["reports", "RUN"], "is it python -m reports show"),
    (["allreduce", "ring"], "did you mean -A ring?"),
    (["collectives", "show", "allreduce", "ring"], "collectives show ring -c allreduce"),
    (["collectives", "ring"], "did you mean busbar collectives show ring -c allreduce?"),
    (["collectives", "allgather", "ring"], "busbar collectives show ring -c allgather?"),
    (["collectives", "cost", "allreduce"], "python -m collectives cost all -c allreduce"),
    (["collectives", "list", "allreduce"], "follows -c: python -m collectives list -c allreduce"),
    (["topology", "pick", "2"], "the number of GPUs follows -k: python -m topology pick -k 2"),
    (["collectives", "show", "rnig"], "no algorithm 'rnig'; did you mean ring?"),
    (["allreduce", "--out", "a.jsonl", "--out", "a.jsonl"], "--out a.jsonl: named twice"),
    (["reports", "shwo", "RUN"], "did you mean show?"),
    (["reports", "diff", "RUN", "RUN"], "no command 'diff'; did you mean compare?"),
    (["diff", "RUN", "RUN"], "did you mean busbar reports compare?"),
    (["ab", "--runs", "3", "--", "a", "--", "b"], "did you mean --most?"),
    (["step", "--runs", "3"], "did you mean -n?"),
    (["allreduce", "--out", "x.txt", "--ranks", "2", "--dry-run"], "x.txt: no format for '.txt'"),
    (["allreduce", "--out", "RUN", "--ranks", "2", "--dry-run"], "has results already"),
    (["allreduce", "-r", "2", "--ranks", "2", "--dry-run"], "root 2"),
    (["reports", "export", "RUN"], "did you mean import RUN --out FILE.csv?"),
    (["cluster", "lwa"], "did you mean python -m bench.cluster law?"),
    (["recipe", "slurm", "allreduce"], "a command follows after --, as in: -- allreduce"),
    (["cluster", "allreduce"], "a command follows after --, as in: -- busbar allreduce"),
    (["cluster", "--", "allreduce"], "no program; did you mean -- busbar allreduce?"),
    (["allreduce", "--ranks", "2-4"], "that is no whole number; a list is 2,3,4"),
    (["allreduce", "--ranks", "2", "4"], "did you mean --ranks 2,4?"),
    (["qualify", "--hosts", "a", "b"], "did you mean --hosts a,b?"),
    (["allreduce", "-ranks", "2"], "-ranks: did you mean --ranks?"),
    (["doctor", "-V"], "did you mean --version?"),
    (["step", "resnet50"], "did you mean --model resnet50?"),
    (["step", "--compute", "100"], "did you mean fixed:100?"),
    (["allreduce", "--placement", "inplace"], "did you mean in?"),
    (["reports", "show", "--csv", "x"], "did you mean --format csv?"),
    (["tune", "--out", "."], "--out .: is a folder; name a file"),
    (["allreduce", "--placement", "otu"], "did you mean out?"),
    (["help", "alreduce"], "did you mean allreduce?"),
    (["reports", "show", "RUN", "--html"], "did you mean python -m reports html?"),
    (
        ["allreduce", "--out", "p.html", "--ranks", "2"],
        "from records busbar reports html makes the page",
    ),
)
LACKING = (
    ("matplotlib", "reports plot RUN --out FOLDER"),
    ("mpi4py", "topology measure"),
    ("mpi4py", "allreduce --ranks 2 --transport mpi"),
)


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


class Cases:
    """Commands that are carried out by one process, in whatever locale that has."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        (folder / "map.txt").write_text(MATRIX)
        (folder / "run.jsonl").write_bytes(to_jsonl(records(["ring", "tree"], [2], [1024, 4096])))
        os.mkfifo(folder / "pipe.jsonl")
        self._names = {
            "RUN": str(folder / "run.jsonl"),
            "MAP": str(folder / "map.txt"),
            "PIPE": str(folder / "pipe.jsonl"),
            "FOLDER": str(folder),
        }
        whole = environment({"COLUMNS": "160", **env})
        whole.pop("PYTHONIOENCODING", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.commands_process"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
            env=whole, cwd=REPO,
        )  # fmt: skip

    def run(self, *cases: dict[str, Any]) -> list[Ended]:
        """Each case's end: ``argv``, ``stdout`` (file, left, full or closed), ``interrupt``."""
        text = json.dumps([{"stdout": "file", "interrupt": "", "lacking": [], **c} for c in cases])
        for name, path in self._names.items():
            text = re.sub(rf'(?<=["]){name}\b|(?<= ){name}\b', path, text)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        ends = [Ended(**one) for one in json.loads(self.process.stdout.readline())]
        return [end._replace(err=without_progress(end.err)) for end in ends]

    def all(self, stdout: str) -> list[Ended]:
        """All `COMMANDS` with such a standard output."""
        return self.run(*({"argv": line.split(), "stdout": stdout} for line in COMMANDS))


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    """A process with UTF-8."""
    found = Cases(tmp_path_factory.mktemp("utf_8"), PYTHONUTF8="1")
    with found.process:
        yield found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    """A process in the C locale, which Python is kept from taking for UTF-8."""
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    found = Cases(tmp_path_factory.mktemp("plain"), **env)
    with found.process:
        yield found


def test_a_full_disk_is_one_line(cases: Cases) -> None:
    """Rule: where standard output cannot be written there is one line about it, and status 2."""
    for (line, name), done in zip(COMMANDS.items(), cases.all("full"), strict=True):
        said = f"{name}: standard output cannot be written: No space left on device"
        assert done.err.splitlines()[-1:] == [said] and done.status == status.BAD, (line, done)
        assert "Traceback" not in done.err


def test_a_reader_who_leaves_is_no_error_to_tell_of(cases: Cases) -> None:
    """Rule: `| head` ends a command without a word, with the status that a shell has for it."""
    endless = {"argv": ENDLESS.split(), "stdout": "left"}
    ended = [*cases.all("left"), *cases.run(endless)]
    for line, done in zip([*COMMANDS, ENDLESS], ended, strict=True):
        assert done.status == status.CLOSED, (line, done)
        assert "Error" not in done.err and "written" not in done.err, (line, done)


def test_closed_streams_are_no_matter(cases: Cases) -> None:
    """Rule: with all three streams closed a command does what it did."""
    assert {done.status for done in cases.all("closed")} == {status.GOOD}


def test_a_terminal_without_utf_8_gets_plain_characters(cases: Cases, plain: Cases) -> None:
    """Rule: what an encoding lacks is shown by what it has, column for column."""
    for line, rich, poor in zip(COMMANDS, cases.all("file"), plain.all("file"), strict=True):
        assert rich.status == poor.status == status.GOOD, (line, rich, poor)
        assert poor.out.isascii() and poor.err.isascii() and "Traceback" not in poor.err
        if line in TIMED:
            continue
        wide, narrow = (text.splitlines() for text in (rich.out, poor.out))
        assert list(map(len, narrow)) == list(map(len, wide)), line
        lost = sum(map(rich.out.count, "ᵢ²Σ█▉▊▋▌▍▎▏▁▂▃▄▅▆▇"))
        assert poor.out.count("?") <= rich.out.count("?") + lost, line


def test_ctrl_c_while_modules_load(cases: Cases) -> None:
    """Rule: an interrupt before a command has begun ends it silently with 130."""
    targets = [target for _, target in DOORS.values()] + ["bench.launch.control_socket:command"]
    for target, done in zip(
        targets, cases.run(*({"argv": [], "interrupt": one} for one in targets)), strict=True
    ):
        assert done == (status.INTERRUPTED, "", ""), target


def test_ctrl_c_while_it_reads(cases: Cases) -> None:
    """Rule: an interrupt ends a command silently with 130, and no half file is left."""
    found = cases.run(*({"argv": line.split(), "interrupt": "PIPE"} for line in WAITING))
    for line, done in zip(WAITING, found, strict=True):
        assert done == (status.INTERRUPTED, "", ""), line
    assert not [path for path in cases.folder.iterdir() if "page" in path.name]


def test_bad_input_is_one_line(cases: Cases) -> None:
    """Rule: status 2, nothing on standard output, one line that says what; no abbreviations."""
    found = cases.run(*({"argv": argv} for argv, _ in REFUSED))
    for (argv, said), done in zip(REFUSED, found, strict=True):
        assert (done.status, done.out, done.err.count("\n")) == (status.BAD, "", 1), (argv, done)
        assert said in done.err, done


def test_every_command_is_listed_under_one_heading(cases: Cases) -> None:
    """Rule: --help lists each command once, below a heading; all collectives under one."""
    (done,) = cases.run({"argv": ["--help"]})
    under: dict[str, list[str]] = {}
    for line in done.out.partition("Begin with")[2].splitlines():
        if line.endswith(":"):
            listed = under.setdefault(line, [])
        elif line.startswith("  "):
            listed.append(line.split()[0])
    assert sorted(chain(*under.values())) == sorted([*DOORS, *commands()])
    assert under["Measure a collective:"] == [*names(), ALL]


def test_every_door_tells_its_version(cases: Cases) -> None:
    """Rule: whichever door or command of one is asked, the version is the same line."""
    inside = (
        ["topology", "check"],
        ["reports", "show"],
        ["collectives", "cost"],
        ["cluster", "law"],
    )
    doors = [[], *([name] for name in (*DOORS, *names(), ALL)), *inside]
    lines = [*([*door, "--version"] for door in doors), ["-V"], ["version"]]
    found = cases.run(*({"argv": line} for line in lines))
    for door, done in zip(lines, found, strict=True):
        assert done == found[0], door
    assert re.fullmatch(r"busbar \S+( \([0-9a-f]{12}\))?\n", found[0].out) and not found[0].err


def test_what_is_not_here_is_status_3(cases: Cases) -> None:
    """Rule: a missing library is one line with the remedy."""
    found = cases.run(
        *(
            {"argv": line.split(), "lacking": [library, f"{library}.backends", f"{library}.figure"]}
            for library, line in LACKING
        )
    )
    for (library, line), done in zip(LACKING, found, strict=True):
        assert done.status == status.MISSING, (line, done)
        assert library in done.err and "pip install" in done.err, done


def test_findings_are_status_1(cases: Cases) -> None:
    """Rule: what a command looked for and found is a status of its own."""
    limit = ["reports", "show", "RUN", "--expect"]
    found = cases.run(
        {"argv": [*limit, "busbw >= 1 MB/s"]}, {"argv": [*limit, "busbw >= 999999 GB/s"]}
    )
    assert [done.status for done in found] == [status.GOOD, status.FOUND], found


def test_a_process_of_its_own(tmp_path: Path) -> None:
    """Rule: python -m and the console script lead to the same doors, whatever the stream.

    What `commands_process` makes of streams is what an interpreter makes of them.
    """
    env = environment({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    env.pop("PYTHONIOENCODING", None)
    with Path("/dev/full").open("w") as full:
        line = [sys.executable, "-m", "bench.allreduce", "--help"]
        done = subprocess.run(
            line, stdout=full, stderr=subprocess.PIPE, text=True, env=env, cwd=REPO, timeout=60,
            check=False,
        )  # fmt: skip
    said = "busbar: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (status.BAD, said)


def test_the_console_script_is_busbar_cli() -> None:
    """Rule: an installation has `busbar`, and its doors are those of python -m."""
    project = (REPO / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.scripts]\nbusbar = "busbar.door:busbar"\n' in project
    for name, file in (
        ("topology", "topology/__main__.py"),
        ("collectives", "collectives/__main__.py"),
        ("reports", "reports/__main__.py"),
        ("tune", "bench/tune.py"),
        ("step", "bench/step.py"),
        ("cluster", "bench/cluster/__main__.py"),
        ("doctor", "bench/doctor.py"),
        ("recipe", "bench/recipe.py"),
    ):
        door = (
            "bench.launch.control_socket:step" if name == "step" else f'busbar.cli:main", "{name}'
        )
        prefix = name if name in ROOMS else "busbar"
        assert f'leave("{prefix}", "{door}")' in (REPO / file).read_text(encoding="utf-8")
        assert name in DOORS


def test_every_error_has_a_status_that_is_explained() -> None:
    """Rule: docs/launching.md, `busbar.status` and the errors agree on every exit status."""
    page = (REPO / "docs" / "launching.md").read_text(encoding="utf-8")
    table = {int(n): text for n, text in re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE)}
    assert table == status.MEANING
    for module in (errors, process):
        for found in vars(module).values():
            if isinstance(found, type) and issubclass(found, errors.BusbarError):
                assert found.exit_status in status.MEANING
