"""Names and texts of others reach no terminal and no page with their control characters."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bench.cli import doctor
from bench.cli.main import commands
from bench.launch.recipes import TABLE as RECIPES
from bench.links import measure as measuring
from bench.qualify.decide import decide
from bench.qualify.model import (
    Cluster,
    Ending,
    HostReport,
    Limits,
    Observation,
)
from bench.qualify.store import FILE as QUALIFIED
from bench.qualify.store import FORMAT as QUALIFY_FORMAT
from bench.qualify.store import VERSION as QUALIFY_VERSION
from bench.qualify.store import Entry, Header, Settings
from bench.run import tuning_file
from bench.steps import workloads as model
from busbar.cli import COMMANDS as DOORS
from busbar.cli import main
from busbar.errors import Unavailable
from busbar.terminal import open_console, plain_streams, print_note, shorten, styled_stream
from collectives.commands import TABLE as COLLECTIVES
from collectives.formats.msccl import parse as parse_msccl
from reports.commands import TABLE as REPORTS
from reports.page.markup import text
from reports.readers.codec import measurements
from reports.records.steps import Step
from tests.collectives.msccl_files import CHAIN
from tests.conftest import REPO
from tests.reports.logs import BITWISE
from tests.reports.runs import MEASURED, TOPO, allreduce, to_jsonl
from tests.topology.test_exports import cores
from topology.commands import TABLE as TOPOLOGY
from topology.exports import EXPORTS
from topology.sources import own_json

#: What shows that a text of others was printed, and that text: OSC, CSI, C1, bidi, line ends.
MARK = "evil"
EVIL = f"{MARK}\x1b]0;t\x07\x1b[2J\x1b[31m\r\x08\x9b1m\x85\u202e\u2066\u2028\x7f"

EVERY = [
    ["topology"],
    *(["topology", name] for name in TOPOLOGY.entries),
    *(["collectives", name] for name in COLLECTIVES.entries),
    *(["reports", name] for name in REPORTS.entries),
    *([name] for name in DOORS if name not in ("topology", "collectives", "reports", "recipe")),
    *(["recipe", name] for name in RECIPES.entries),
    ["cluster", "law"],
    *([name] for name in commands()),
]
ONE_ROW = "--threads 2 -b 8 -e 8 -n 1"
#: What each command prints of others. Words in capitals are the files of `files`.
CASES: Mapping[str, tuple[str, ...]] = {
    "topology": (
        *(f"topology MAP{more}" for more in ("", " --json", " --csv", " --tree")),
        "topology SMI --svg FOLDER/a.svg --html FOLDER/a.html",
        "topology NONE",
        "topology GARBLED",
    ),
    "topology check": ("topology check MAP", "topology check MAP --json"),
    "topology pick": ("topology pick -k 2 MAP", "topology pick -k 2 MAP --json"),
    "topology export": tuple(f"topology export {name} --from MAP" for name in EXPORTS),
    "topology measure": ("topology measure --from MATRIX", "topology measure --from MATRIX --json"),
    "collectives list": ("collectives list -c EVIL",),
    "collectives show": ("collectives show XML", "collectives show XML --svg FOLDER/s.svg"),
    "collectives verify": ("collectives verify XML", "collectives verify WRONG"),
    "collectives cost": (
        "collectives cost XML",
        "collectives cost XML --format csv",
        "collectives cost ring -c allreduce -n 2 --topology MAP",
        "collectives cost ring -c allreduce -n 2 --fit GARBLED",
    ),
    "collectives fit": ("collectives fit MATRIX", "collectives fit GARBLED"),
    "collectives simulate": (
        "collectives simulate XML --machine full",
        "collectives simulate ring -n 2 --machine MAP",
        "collectives simulate ring -n 2 --machine EVIL",
    ),
    "collectives import": ("collectives import XML", "collectives import WRONG"),
    "collectives export": ("collectives export XML", "collectives export XML -F goal"),
    "reports import": tuple(f"reports import {file}" for file in ("RECORD", "LOG", "GARBLED")),
    "reports show": (
        *(f"reports show {file}" for file in ("RECORD", "LOG", "STEPS")),
        "reports show RECORD --rules --fit GARBLED",
        "reports show RECORD --expect-file GARBLED",
        "reports show RECORD --expect EVIL",
    ),
    "reports compare": ("reports compare RECORD LOG", "reports compare RECORD RECORD --rules"),
    "reports history": ("reports history RECORD RECORD", "reports history RECORD --format csv"),
    "reports scaling": ("reports scaling RECORD MORE",),
    "reports culprit": (
        "reports culprit RECORD",
        "reports culprit --matrix MATRIX",
        "reports culprit NONE",
    ),
    "reports outliers": (
        "reports outliers RECORD LOG MORE NONE",
        "reports outliers RECORD RECORD RECORD RECORD NONE",
    ),
    "reports plot": (
        "reports plot RECORD --out FOLDER --format svg",
        "reports plot RECORD --topology NONE",
    ),
    "reports warmup": ("reports warmup RECORD",),
    "reports html": (
        "reports html RECORD LOG STEPS --topology MAP --title EVIL --out FOLDER/a.html",
    ),
    "reports md": ("reports md RECORD", "reports md RECORD LOG"),
    "reports model": ("reports model RECORD MORE", "reports model RECORD --fit NONE"),
    "reports accuracy": (
        "reports accuracy RECORD --nccl-log GARBLED",
        "reports accuracy RECORD --fit NONE",
    ),
    "cluster": ("cluster --dry-run --hosts 2 --slow EVIL:1Mbit -- true",),
    "cluster law": ("cluster law --show --out NONE",),
    "qualify": (
        "qualify --hosts EVIL,b",
        "qualify --hostfile GARBLED",
        "qualify --resume FOLDER --page FOLDER/q.html --drain FOLDER/d.txt --metrics FOLDER/m.txt",
    ),
    "step": (
        "step --threads 2 --model MODEL --update ring -n 2 --compute DELAYS --out FOLDER/s.jsonl",
        "step --threads 2 --model GARBLED --update ring -n 2",
        "step --threads 2 --model toy --update auto --tuning TUNING -n 2",
    ),
    "ab": ("ab --most 1 -- cat LOG -- cat LOG", "ab --most 1 -- cat GARBLED -- cat LOG"),
    "selfcheck": ("selfcheck --transport EVIL",),
    "tune": ("tune --from RECORD --out FOLDER/t.json", "tune --from GARBLED"),
    "recipe slurm": (
        "recipe slurm --apptainer EVIL -- allreduce EVIL",
        "recipe slurm --name EVIL -- allreduce",
    ),
    "recipe mpijob": ("recipe mpijob -- allreduce EVIL", "recipe mpijob --image EVIL -- all"),
    "recipe container": ("recipe container --cuda EVIL", "recipe container"),
    "doctor": ("doctor",),
    **{name: (f"{name} {ONE_ROW} -A EVIL",) for name in commands()},
    "allreduce": (
        "allreduce --threads 3 -b 24 -e 24 -n 1 -A XML --out FOLDER/",
        f"allreduce {ONE_ROW} -A ring --out NONE/a.jsonl",
        f"allreduce {ONE_ROW} -A auto --tuning TUNING",
        f"allreduce {ONE_ROW} -A ring --arrival GARBLED",
        "allreduce --threads 3 -b 24 -e 24 --dry-run -A XML",
    ),
    "alltoallv": (f"alltoallv {ONE_ROW} --counts GARBLED",),
}


def _clean(said: str) -> bool:
    return all(c.isprintable() or c in "\n\t" for c in said)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The words of `CASES`; every file's name and text, and the environment, have escapes."""
    folder = tmp_path / EVIL
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("HOSTNAME", "NCCL_DEBUG", "MPICH_CC"):
        monkeypatch.setenv(name, EVIL)
    monkeypatch.setattr(measuring, "world", _no_mpi)
    monkeypatch.setattr(doctor, "cpu_model", lambda: EVIL)
    found = {"NONE": str(folder / f"none{EVIL}"), "EVIL": EVIL, "FOLDER": str(folder)}
    (folder / QUALIFIED).write_bytes(_campaign())
    for name, (ending, content) in _texts().items():
        path = folder / f"{name}{EVIL}{ending}"
        path.write_text(content, encoding="utf-8", newline="")
        found[name] = str(path)
    return found


def _campaign() -> bytes:
    """A qualification that is over, of two hosts that crashed and printed escapes."""
    header = Header(
        format=QUALIFY_FORMAT,
        version=QUALIFY_VERSION,
        started="2026-11-20T12:00:00+00:00",
        cluster=Cluster(("a", "b")),
        limits=Limits(),
        settings=Settings(launcher="ssh"),
    )
    known: list[Observation] = []
    while batch := decide(header.cluster, header.limits, known).launches:
        for launch in batch:
            reports = (HostReport(host, Ending.CRASHED, f"x{EVIL}", 3) for host in launch.hosts)
            known.append(Observation(launch, tuple(reports)))
    entries = [Entry(observation=one) for one in known]
    return b"".join(msgspec.json.encode(one) + b"\n" for one in (header, *entries))


def _no_mpi(threads: str | None = None) -> None:
    raise Unavailable("no MPI in this process")


def _texts() -> dict[str, tuple[str, str]]:
    """The files of `CASES`, each with the ending of its name."""
    escaped = json.dumps(EVIL)[1:-1]
    known = {"busbar": "1", "hosts": [f"n0{EVIL}"], "library": f"MPI{EVIL}"}
    step = Step(update=EVIL)
    rows = {
        n: [
            allreduce(f"{name}{EVIL}", n, size, [took] * 30, [took] * 30, environment=known, **more)
            for name, took, more in (("ring", 1e-3, {}), ("tree", 2e-3, {"step": step}))
            for size in (1024, 2048)
        ]
        for n in (2, 4)
    }
    machine = cores()
    devices = tuple(replace(one, name=EVIL) for one in machine.devices)
    map_text = own_json.dump(replace(machine, devices=devices, sources=(EVIL,)))
    device = f"#   Rank  {{}} Group  0 Pid  1 on n0{EVIL} device  0 [0x07] H100{EVIL}\n"
    tensors = f'[{{"name": "{escaped}", "shape": "4x4"}}]'
    return {
        "RECORD": (".jsonl", to_jsonl([row for row in rows[2] if not row.every[0].step]).decode()),
        "MORE": (".jsonl", to_jsonl([row for row in rows[4] if not row.every[0].step]).decode()),
        "STEPS": (".jsonl", to_jsonl([row for row in rows[2] if row.every[0].step]).decode()),
        "LOG": (".txt", device.format(0) + device.format(1) + BITWISE.replace("_perf", EVIL)),
        "MAP": (".json", map_text.replace("GPU0", f"GPU0{escaped}")),
        "SMI": (".txt", TOPO.replace("0-7", f"0-7{EVIL}")),
        "MATRIX": (".json", MEASURED.replace("HOST", f"HOST{escaped}")),
        "XML": (".xml", CHAIN.replace("chain", f"chain{MARK}&#x9b;&#x202e;&#x7f;")),
        "WRONG": (".xml", CHAIN.replace('coll="allreduce"', 'coll="&#x9b;&#x202e;evil"')),
        "MODEL": (".json", f'{{"name": "{escaped}", "tensors": {tensors}}}'),
        "DELAYS": (".csv", "1,2\n3,4\n"),
        "TUNING": (".json", json.dumps({"format": tuning_file.FORMAT, "rules": 1})),
        "GARBLED": (".json", f'{{"format": "{escaped}", "{escaped}": [\x1b[2J\n'),
    }


def _names(words: list[str]) -> str:
    return " ".join(words)


def test_a_text_is_cut_between_words() -> None:
    """Rule: a text that is too long ends behind a whole word, unless one word fills most of it."""
    assert shorten("no end of it", 12) == "no end of it"
    assert shorten("no end of it", 9) == "no end of …"
    assert shorten("no end of it", 8) == "no end …"
    assert shorten("an " + "x" * 90, 20) == "an " + "x" * 17 + "…"


@pytest.mark.parametrize("command", map(_names, EVERY))
def test_no_command_prints_a_control_character(
    command: str, files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: whatever files, hosts, algorithms and values are called, output is plain text.

    So are the pages, drawings and run directories that a command writes. A command that is not in
    `CASES` fails here.
    """
    wholly = ""
    for line in CASES[command]:
        argv = [_filled(word, files) for word in line.split()]
        before = set(Path(files["FOLDER"]).rglob("*"))
        main(argv)
        out, err = capsys.readouterr()
        assert out + err and _clean(out) and _clean(err), (line, out, err)
        wholly += out + err
        for path in set(Path(files["FOLDER"]).rglob("*")) - before:
            if path.suffix in (".html", ".svg", ".txt", ".json", ".jsonl"):
                assert _clean(path.read_text(encoding="utf-8")), (line, path)
    assert MARK in wholly, wholly


def _filled(word: str, files: Mapping[str, str]) -> str:
    name = re.match(r"[A-Z]{3,}", word)
    return word if name is None else files[name[0]] + word[name.end() :]


#: The options of the other benchmarks are those of allreduce.
_ALIKE = {*commands()} - {"allreduce", "pt2pt"}


@pytest.mark.parametrize("command", [_names(one) for one in EVERY if one[0] not in _ALIKE])
def test_no_option_prints_a_control_character(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: the value of any option of any command is plain text in the error that names it."""
    words = command.split()
    main([*words, "--help"])
    known = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", capsys.readouterr().out))
    wholly = ""
    for option in ("", *sorted(known - {"-h", "--help", "--version"})):
        given = [option, EVIL] if option else [EVIL]
        assert main([*words, *given, f"--{EVIL}"]), (words, option)
        out, err = capsys.readouterr()
        assert err and _clean(out) and _clean(err), (words, option, out, err)
        wholly += err
    assert MARK in wholly, wholly


def test_records_of_results_are_plain(files: dict[str, str]) -> None:
    """Rule: records that are read whole have plain texts, too; their numbers are untouched."""
    (first, *_) = measurements(Path(files["RECORD"]).read_text())
    assert _clean(first.algorithm + str(first.run.environment))
    assert first.times_s == (1e-3,) * 30


@pytest.mark.parametrize("command", ["topology MAP --json", "topology pick -k 2 MAP --json"])
def test_json_keeps_names_as_they_are(
    command: str, files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: in JSON a name's control characters are escaped, not replaced: nothing is lost."""
    assert main([files.get(word, word) for word in command.split()]) == 0
    assert f"GPU0{EVIL}" in _strings(json.loads(capsys.readouterr().out))


def _strings(document: object) -> set[str]:
    if isinstance(document, dict | list):
        parts = document.values() if isinstance(document, dict) else document
        return {text for part in parts for text in _strings(part)}
    return {str(document)}


def test_an_msccl_algorithms_name_is_plain(files: dict[str, str]) -> None:
    """Rule: the name in an MSCCL file is plain from where it is read."""
    name = parse_msccl(Path(files["XML"]).read_bytes()).name
    assert name.startswith(f"chain{MARK}") and _clean(name)


@pytest.mark.parametrize("ending", ["json", "csv"])
def test_a_models_names_are_plain(ending: str, tmp_path: Path) -> None:
    """Rule: the name of a model, from its file or in it, and its tensors' names are plain."""
    texts = {
        "json": '{"name": "m\\u001b[2J", "tensors": [{"name": "t\\u001b", "shape": "4x4"}]}',
        "csv": "name,shape\nt\x1b,4x4\n",
    }
    path = tmp_path / f"m{EVIL}.{ending}"
    path.write_text(texts[ending])
    found = model.read(path)
    assert _clean(found.name + found.tensors[0].name)


def test_notes_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: a note on standard error is one line of plain text."""
    print_note(f"a{EVIL}\nb")
    err = capsys.readouterr().err
    assert _clean(err) and err.count("\n") == 1 and _clean(text(EVIL))


def test_a_terminal_gets_styles_and_no_escape_of_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: on a terminal colours are Busbar's own; those in a name are not carried out."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with plain_streams():
        shown = open_console(force_terminal=True, color_system="standard", highlight=False)
        shown.print(EVIL, style="bold", markup=False)
        print(EVIL)
        print("\x1b[4mheader\x1b[0m", file=styled_stream(sys.stdout))
    *bold, plain, header, _ = capsys.readouterr().out.split("\n")
    assert bold[0].startswith(f"\x1b[1m{MARK}") and _clean(re.sub(r"\x1b\[[01]m", "", *bold))
    assert _clean(plain) and header == "\x1b[4mheader\x1b[0m"


#: Who writes terminal escapes: rich's tables and bars, the underlined matrix, a round's number.
STYLED = {"busbar/terminal.py", "topology/cli.py", "bench/links/cli.py"}


def test_nothing_of_others_goes_round_the_plain_streams() -> None:
    """Rule: terminal escapes have three writers; all else passes the plain streams."""
    found = set()
    for room in ("busbar", "bench", "topology", "collectives", "reports"):
        for file in sorted((REPO / room).rglob("*.py")):
            names = {
                getattr(node, "id", getattr(node, "attr", ""))
                for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            }
            if names & {"styled", "styled_stream", "__stdout__", "__stderr__"}:
                found.add(str(file.relative_to(REPO)))
    assert found == STYLED
