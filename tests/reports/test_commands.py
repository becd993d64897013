"""The table of commands: what stands in it works, and costs nothing to list."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from reports.cli import main
from reports.commands import COMMANDS

REPO = Path(__file__).parents[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: an entry of the table is a module with a line of help, options and a function."""
    module = import_module(COMMANDS[name])
    assert module.__doc__ and callable(module.add) and callable(module.run)
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    assert module.__doc__.split("\n", 1)[0].rstrip(".") in " ".join(capsys.readouterr().out.split())


def test_listing_the_commands_is_light() -> None:
    """Rule: the command line starts without the libraries that single commands need."""
    heavy = "{'pandas', 'matplotlib', 'mpi4py', 'plotly', 'scipy', 'yaml', 'rich'}"
    code = (
        "import sys\nfrom reports.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize(
    ("command", "library"),
    [
        (["plot", "RUN"], "matplotlib"),
        (["html", "RUN", "--out", "page.html"], "plotly"),
        (["show", "RUN", "--expect-file", "rules.yaml"], "PyYAML"),
    ],
)
def test_a_missing_library_is_a_sentence(
    command: list[str],
    library: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rule: what is not installed costs one line with the remedy, status 3, and no file."""
    from reports.exports import to_jsonl
    from tests.reports.browser import records

    monkeypatch.chdir(tmp_path)
    for name in ("matplotlib", "matplotlib.figure", "plotly", "plotly.offline", "yaml"):
        monkeypatch.setitem(sys.modules, name, None)
    Path("RUN").write_bytes(to_jsonl(records(["ring"], [4], [1024])))
    assert main(command) == 3
    said = capsys.readouterr().err.splitlines()
    assert f"{library} is not installed; pip install 'busbar[reports]'" in said[-1]
    assert [p.name for p in tmp_path.iterdir()] == ["RUN"]
