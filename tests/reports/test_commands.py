"""The table of commands: what stands in it works, and costs nothing to list."""

import json
import subprocess
import sys
from inspect import getdoc
from pathlib import Path

import pytest

from busbar.installation import extra
from reports.analysis.answer import conclusions
from reports.commands import TABLE
from reports.readers.reading import read
from tests.conftest import REPO
from tests.reports.runs import changed, cli, records, saved, to_jsonl


@pytest.mark.parametrize("name", TABLE.entries)
def test_every_command_says_what_it_does(name: str) -> None:
    """Rule: an entry of the table is a command, whose help begins with its docstring."""
    about = " ".join((getdoc(TABLE.load(name)) or "").split())
    assert about in " ".join(cli(name, "--help").out.split())


def test_listing_the_commands_is_light() -> None:
    """Rule: the command line starts without the libraries that single commands need."""
    heavy = (
        "{'pandas', 'matplotlib', 'mpi4py', 'plotly', 'scipy', 'yaml', 'rich', 'urllib.request'}"
    )
    code = (
        "import sys\nfrom tests.command import reports_main as main\n"
        "main(['--help'])\n"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert all(name in done.stdout for name in TABLE.entries)


@pytest.mark.parametrize(
    ("command", "library"),
    [
        (["plot", "RUN", "--out", "plots"], "matplotlib"),
        (["html", "RUN", "--out", "page.html"], "plotly"),
        (["show", "RUN", "--expect-file", "rules.yaml"], "PyYAML"),
    ],
)
def test_a_missing_library_is_a_sentence(
    command: list[str], library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: what is not installed costs one line with the remedy, status 3, and no file."""
    monkeypatch.chdir(tmp_path)
    for name in ("matplotlib", "matplotlib.figure", "plotly", "plotly.offline", "yaml"):
        monkeypatch.setitem(sys.modules, name, None)
    Path("RUN").write_bytes(to_jsonl(records(["ring"], [4], [1024])))
    said = cli(*command, status=3).err.splitlines()
    assert f"{library} is not installed; {extra('reports')}" in said[-1]
    assert [p.name for p in tmp_path.iterdir()] == ["RUN"]


def test_the_table_alone_lists_its_commands() -> None:
    """Rule: `busbar reports` is its help, as `busbar` is, and no error."""
    assert cli().out == cli("--help").out


def test_quiet_prints_the_answer_alone(run_file: Path) -> None:
    """Rule: `show --quiet` prints the sentences that a run with --quiet ends with, and no table."""
    answer = cli("show", str(run_file), "--quiet").out
    rows = read(run_file).rows
    assert answer == "\n".join(conclusions(rows)) + "\n" and "ring was" in answer


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A record of a dozen rows."""
    return saved(tmp_path / "run.jsonl", records(["ring", "tree"], [4], [1024, 4096, 1 << 20]))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["shw"], "'shw'"),
        (["show"], "required: RUN; see python -m reports show --help"),
        (
            ["show", "RUN", "--foo"],
            "unrecognized arguments: --foo; see python -m reports show",
        ),
        (["history", "RUN", "RUN", "--fail", "5%"], "unrecognized arguments: --fail"),
        (["plot", "RUN", "--format", "gif"], "'gif'"),
        (["plot", "RUN"], "give --out DIR, the folder of the figures"),
        (["show", "RUN", "--limit", "fast"], "'fast' is no rate"),
        (["show", "RUN", "--expect", "foo"], "--expect 'foo'"),
        (["show", "RUN", "--expect-file", "RUN"], "run.jsonl:2: no YAML"),
        (["compare", "RUN", "RUN", "--expect", "busbw >= 3 ms"], "busbw is in GB/s or MB/s"),
        (["compare", "RUN", "RUN", "--fail-slower", "5"], "it would be 500 %: write 5% or 0.05"),
    ],
)
def test_a_wrong_option_is_one_line_before_anything_is_printed(
    command: list[str], said: str, run_file: Path
) -> None:
    """Rule: status 2, nothing on stdout, one line that says what and where help is.

    No abbreviations.
    """
    out, err = cli(*[str(run_file) if word == "RUN" else word for word in command], status=2)
    assert out == "" and err.count("\n") == 1 and err.startswith("reports: ") and said in err


def test_documents_say_what_tables_say(tmp_path: Path) -> None:
    """Rule: --format json of compare, history and show --expect has their verdicts and status."""
    slow = [changed(one, times_s=tuple(2 * t for t in one.out.times_s)) for one in records()]
    base, new = saved(tmp_path / "a.jsonl", records()), saved(tmp_path / "b.jsonl", slow)
    gate = ("compare", base, new, "--fail-slower", "5%", "--expect", "time < 1ns")
    document = json.loads(cli(*gate, "--format", "json", status=1).out)
    cli(*gate, status=1)
    assert {one["verdict"] for one in document["comparisons"]} == {"cannot tell"}
    assert "slower by more than 5%; one launch a side cannot tell" in document["failed"][0]
    assert not document["expectations"]["kept"]
    out = [one for one in document["comparisons"] if one["placement"] == "out"]
    assert out and all(one["ratio"] == pytest.approx(2, rel=0.01) for one in out)
    last = saved(tmp_path / "c.jsonl", records())
    past = json.loads(cli("history", base, new, last, base, "--format", "json").out)
    assert past["runs"] == [str(base), str(new), str(last)]  # a launch counts once
    values = [point["value"] for point in past["series"][0]["points"]]
    assert values[1] == pytest.approx(2 * values[0], rel=0.01)
    rule = ("show", base, "--format", "json", "--expect")
    assert json.loads(cli(*rule, "time > 0us").out)["kept"]
    (failure, *_) = json.loads(cli(*rule, "time < 1ns", status=1).out)["failures"]
    assert failure["row"]["size"] and "wanted" in failure["text"]
