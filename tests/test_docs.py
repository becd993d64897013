"""What README and docs/ name is there: links, commands, options."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import runpy
import shlex
import subprocess
import sys
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.cli.main import commands
from bench.options.options import parse
from bench.qualify.model import State, Verdict
from bench.qualify.text import metrics
from busbar.aliases import ROOMS
from busbar.cli import COMMANDS as DOORS
from busbar.cli import main as busbar_main
from busbar.commands import CommandTable
from busbar.process import load
from tests.conftest import Run
from tests.reports.browser import LIMIT_S, chromium

HOME = Path(__file__).parents[1]
PAGES = [HOME / "README.md", HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").glob("*.md"))]
COMMAND = re.compile(r"python -m (bench|collectives|reports|topology)(\.\w+)?((?: [^#|`\n]+)?)")
SHORT = re.compile(r"(?<![\w./-])busbar ([a-z_]+)((?: [^#|`\n]+)?)")
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z_-]*|-[A-Za-z])(?![\w-])")


def _heads() -> set[str]:
    """The heads of columns in all tables: the first word of (head, side, ...) in the code."""
    heads = set()
    for path in (one for room in ROOMS for one in (HOME / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Tuple(elts=[ast.Constant(head), ast.Constant("left" | "right"), _, *_]):
                    heads.add(str(head))
    return heads - {"", "top"}  # a side of a figure


def test_the_glossary_has_every_head_of_a_column() -> None:
    """Rule: a word above a column is explained in docs/glossary.md; units explain themselves."""
    glossary = " ".join((HOME / "docs" / "glossary.md").read_text(encoding="utf-8").split())
    heads = _heads()
    assert len(heads) > 60
    missing = {
        head for head in heads if not re.search(rf"(?<!\w){re.escape(head)}(?!\w)", glossary)
    }
    assert missing <= {"GB/s"}


# Commands whose own commands have options that pages show.
_COMMANDS = {"cluster": ([], ["law"]), "recipe": (["slurm"], ["mpijob"], ["container"])}


@cache
def _help(program: str, command: str) -> str:
    """What a command's --help prints."""
    words = [command] if program == "bench" else [program, *command.split()]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        for more in _COMMANDS.get(command, ([],)):
            busbar_main([*words, *more, "--help"])
    return out.getvalue()


def _commands(page: Path) -> list[tuple[str, str, list[str]]]:
    """(program, command, options) of all command lines on a page, continued ones joined."""
    found = []
    text = page.read_text().replace("\\\n", " ")
    lines = COMMAND.findall(text)
    for name, rest in SHORT.findall(text):
        if name in (*DOORS, *commands()):
            house = name in ("collectives", "reports", "topology")
            lines.append((name, "", rest) if house else ("bench", f".{name}", rest))
    for program, module, rest in lines:
        words = rest.partition(" -- ")[0].split()  # what follows is another command's
        first = words[0] if words and re.fullmatch(r"[a-z]+", words[0]) else ""
        command = module[1:] or first
        if command or program == "topology":
            found.append((program, command, OPTION.findall(" ".join(["", *words]))))
    return found


def _anchors(page: Path) -> set[str]:
    """What links to a page may name: its headings, as GitHub writes them, and its `<a id>`."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    named = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return named | set(re.findall(r'<a id="([^"]+)"></a>', text))


def test_links_lead_somewhere() -> None:
    """Rule: every link between pages leads to a file, and to a heading or an anchor in it."""
    wrong = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]*)(#[^)]*)?\)", page.read_text()):
            if target[0].startswith("http"):
                continue
            there = page.parent / target[0] if target[0] else page
            if not there.exists() or (target[1] and target[1][1:] not in _anchors(there)):
                wrong.append(f"{page.name}: {''.join(target)}")
    assert not wrong


def test_links_say_what_a_page_is_about() -> None:
    """Rule: the text of a link is words, never the name of a page's file, which the site lacks."""
    named = [
        f"{page.name}: [{text}]"
        for page in PAGES
        for text in re.findall(r"(?<!!)\[([^\]\[]+)\]\(", page.read_text(encoding="utf-8"))
        if re.search(r"\.(md|ipynb|txt)`?$", text)
    ]
    assert not named


def test_every_word_of_the_glossary_has_an_anchor() -> None:
    """Rule: each word of docs/glossary.md has an anchor of its own, and links lead to words."""
    page = HOME / "docs" / "glossary.md"
    text = page.read_text(encoding="utf-8")
    anchors = re.findall(r'<a id="([^"]+)"></a>(?=\*\*)', text)
    words = re.findall(r"\*\*(?:\\\*|[^*])+\*\*", text)
    headings = _anchors(page) - set(anchors)
    assert len(words) == len(anchors) == len(set(anchors)) > 150
    for other in PAGES:
        targets = re.findall(r"glossary\.md#([\w-]+)", other.read_text(encoding="utf-8"))
        assert not headings & set(targets), other.name


def test_the_glossary_is_alphabetic() -> None:
    """Rule: below the symbols, words stand in the order of the alphabet, under their letters.

    The line of letters on top leads to every heading.
    """
    text = (HOME / "docs" / "glossary.md").read_text(encoding="utf-8")
    top, *sections = re.split(r"^## (.+)$", text, flags=re.M)
    letters = dict(zip(sections[::2], sections[1::2], strict=True))
    assert re.findall(r"\[([^]]+)\](?=\(#[a-z-]+\)(?: ·|\n\n$))", top) == list(letters)
    del letters["Symbols"]
    words = []
    for heading, entries in letters.items():
        first = re.findall(r"^- (?:<a id=\S+></a>\*\*(.+?)\*\*|(.+?): see)", entries, re.M)
        here = ["".join(pair).casefold().removeprefix("the ") for pair in first]
        assert len(here) == entries.count("\n- ")
        assert {word[0] for word in here} <= {*heading.casefold().split(", ")}
        words += here
    assert words == sorted(words)
    assert len(words) > 150


def test_the_sites_menu_has_the_groups_of_the_list_of_pages() -> None:
    """Rule: docs/pages.md lists every page once, in the groups and the order of the site's menu."""
    groups: dict[str, list[str]] = {}
    for line in (HOME / "docs" / "pages.md").read_text().splitlines():
        if line.startswith("## "):
            listed = groups.setdefault(line[3:], [])
        elif line.startswith("| ["):
            listed += re.findall(r"\]\(([\w-]+\.md)\)", line.split("|")[1])
    menu = yaml.safe_load((HOME / "mkdocs.yml").read_text())["nav"]
    sections = [one for entry in menu for one in entry.items() if isinstance(one[1], list)]
    assert sections == [(heading, pages) for heading, pages in groups.items() if pages]
    pages = {page.name for page in (HOME / "docs").glob("*.md")} - {"pages.md"}
    assert sorted(chain(*groups.values())) == sorted(pages)


# The page of options is made from the parsers; what stands in it are no command lines.
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "options.md"], ids=lambda page: page.name
)
def test_every_command_has_the_options_that_it_is_shown_with(page: Path) -> None:
    """Rule: a command on a page exists, and its --help names every option that stands after it."""
    for program, command, options in _commands(page):
        text = _help(program, command)
        assert text, f"python -m {program} {command}"
        if command == "tune":  # what it does not know goes to every run
            text += _help("bench", "allreduce")
        for option in options:
            known = re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text)
            assert known, f"{page.name}: {program} {command} has no {option}"


def test_commands_are_found() -> None:
    """Rule: the walk sees the commands of the pages, with their options."""
    assert ("bench", "allreduce", ["--ranks", "-A", "-e"]) in _commands(HOME / "README.md")
    assert sum(len(_commands(page)) for page in PAGES) > 60


def _code(page: Path) -> list[str]:
    """The lines of a page's blocks of code, and its code within sentences."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    blocks += re.findall(r"^\n((?:    .+\n)+)", text, re.M)
    inline = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return lines + [" ".join(span.split()) for span in inline]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_run_beside_our_commands_is_there(page: Path) -> None:
    """Rule: a target of make, an extra of pip, a module or a script that a page names exists.

    So does the command behind each `busbar`.
    """
    targets = set(re.findall(r"^([a-z-]+):", (HOME / "Makefile").read_text(), re.M))
    project = (HOME / "pyproject.toml").read_text()
    extras = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    known = set(re.findall(r"^([\w-]+) = \[", extras, re.M))
    for line in _code(page):
        if called := re.match(r"make ([a-z-]+)", line):
            assert called[1] in targets, line
        for listed in re.findall(r"pip install.*?\[([\w,-]+)\]", line):
            assert set(listed.split(",")) <= known, line
        for script in re.findall(r"(?<![\w/.])(?:benchmarks|tests)/[\w/.]+\.py", line):
            assert (HOME / script).is_file(), line
        for module in re.findall(r"python -m (tests(?:\.[a-z]\w*)*)", line):
            path = HOME / module.replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), line
        if called := re.match(r"busbar ([a-z][\w-]*)(?= |$)", line):
            assert called[1] in (*DOORS, *commands()), line


def test_make_help_lists_every_target() -> None:
    """Rule: `make help` has a line on each target; options after ARGS= reach `make bench`."""
    make = ["make", "-C", str(HOME), "--no-print-directory"]
    targets = re.findall(r"^\.PHONY: (.+)$", (HOME / "Makefile").read_text(), re.M)[0].split()
    for asked in ([], ["help"]):
        shown = subprocess.run([*make, *asked], capture_output=True, text=True, check=True).stdout
        assert re.findall(r"^make ([a-z-]+) +\S", shown, re.M) == targets, shown
        assert max(map(len, shown.splitlines())) <= 80
    words = [*make, "-n", "bench", "ARGS=--launches 7 --ranks 2"]
    recipe = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    options = recipe.rstrip().rpartition(" -m bench.allreduce ")[2].split()
    parsed = parse(options, "allreduce")
    assert (parsed.launches, parsed.ranks, parsed.budget) == (7, 2, 0.5)


def _parsed(words: list[str]) -> list[str]:
    """Parse a command of `busbar` with its own parser; returns the command after ``--``, if any."""
    target, words = load(DOORS[words[0]][1]), words[1:]
    if isinstance(target, CommandTable):
        target, words = target.load(words[0]), words[1:]
    options = target.parse(words, target.make_parser())
    return list(getattr(options, "command", ()))


def test_operators_commands_and_alerts_are_right() -> None:
    """Rule: every command of docs/operations.md parses, and its alerts name metrics that exist."""
    page = HOME / "docs" / "operations.md"
    found = [
        shlex.split(called)
        for line in _code(page)
        for called in re.findall(r"(?:^|(?<=30 ))busbar ([a-z][^#>]*)", line)
    ]
    for words in found:
        while words := _parsed(words):
            pass
    assert len(found) >= 9
    (rules,) = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.M | re.S)
    alerts = [rule for group in yaml.safe_load(rules)["groups"] for rule in group["rules"]]
    written = metrics([Verdict("host", ("a",), State.GOOD)], 1.0, 2.0)
    for rule in alerts:
        assert set(re.findall(r"busbar_\w+", rule["expr"])) <= set(re.findall(r"\w+", written))
        labels = re.findall(r"(\w+)[!=]=?[\"~]|labels\.(\w+)", str(rule))
        assert all(f'{"".join(label)}="' in written for label in labels), rule
    assert len(alerts) == 5


def test_the_figure_of_the_page_on_reports_is_of_the_command_below_it() -> None:
    """Rule: docs/reports-plot.svg has the algorithms and sizes that the command below it measures.

    The file is small, as a page shows it.
    """
    page = (HOME / "docs" / "reports.md").read_text(encoding="utf-8")
    command = page.partition("](reports-plot.svg)")[2].replace("\\\n", " ").split("\n")[2]
    asked = parse(command.split()[2:], "allreduce")
    figure = HOME / "docs" / "reports-plot.svg"
    drawn = re.findall(r"<!-- (.+?) -->", figure.read_text(encoding="utf-8"))
    names = [text.split()[0] for text in drawn if re.search(r" (shm|mpi)$", text)]
    assert names == asked.algorithm.split(",")
    sizes = [text for text in drawn if re.fullmatch(r"\d+[KM]", text)]
    assert sizes == ["1K", "8K", "64K", "512K", "4M", "32M"]
    assert (asked.minbytes, asked.maxbytes, asked.factor) == ("1K", "64M", 8)
    assert figure.stat().st_size < 64_000


def test_every_command_calls_its_output_out() -> None:
    """Rule: the option for what a command writes is --out, and -o where it is short.

    -o of a benchmark is nccl-tests' operation.
    """
    page = (HOME / "docs" / "options.md").read_text(encoding="utf-8")
    short = re.findall(r"^\| `-o [A-Z]+, (--[\w-]+)", page, re.MULTILINE)
    assert len(short) > 8 and {*short} == {"--out", "--op"}
    assert "--output " not in page


def test_the_page_of_options_is_that_of_the_classes() -> None:
    """Rule: docs/options.md, and the keywords of `busbar.run`, have every option as declared.

    docs/python.md has every function and class of `busbar` with its docstring. `make docs` writes
    all three.
    """
    made = runpy.run_path(str(HOME / "docs" / "options.py"))
    assert (HOME / "docs" / "options.md").read_text(encoding="utf-8") == made["page"]()
    assert (HOME / "docs" / "python.md").read_text(encoding="utf-8") == made["python_page"]()
    keywords = HOME / "bench" / "api" / "keywords.py"
    assert keywords.read_text(encoding="utf-8") == made["keywords"]()


def _transcripts(page: Path) -> list[tuple[str, list[str]]]:
    """The commands of a page's console blocks, each with the output that is shown below it."""
    found: list[tuple[str, list[str]]] = []
    text = page.read_text().replace("\\\n", " ")
    for block in re.findall(r"^```console\n(.*?)^```", text, re.M | re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/topology-pick.md", "README.md"])
def test_a_page_shows_what_its_commands_print(run: Run, tmp_path: Path, page: str) -> None:
    """Rule: each command of the tutorial, and what has output in README, prints the lines shown.

    Of schedules, and of files that the page shows by `cat`, exactly, but for spaces. Of what is
    measured by the first two words of a line; the figures, and the sentences on the fastest and
    on launches, depend on the machine. Of a map its title.
    """
    answer = ("64K", "ring", "ps", "hosts", "7")
    commands = _transcripts(HOME / page)
    shown_commands = [(c, lines) for c, lines in commands if lines or page != "README.md"]
    assert any(lines for _, lines in shown_commands)
    for command, shown in shown_commands:
        words = command.split()
        if words[0] == "cat":
            (tmp_path / words[1]).write_text("\n".join(shown) + "\n")
            continue
        assert words[0] == "busbar"
        quick = ["--budget", "0.05"] if "--ranks" in words else []
        done = run(sys.executable, "-m", "busbar", *words[1:], *quick, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        exact = words[1] == "collectives" or "--from" in words
        of_machine = words[1] == "topology" and not exact
        printed = [line.removeprefix("#").split() for line in done.stdout.splitlines()]
        for line in (text.removeprefix("#").split() for text in shown[: 1 if of_machine else None]):
            if line == ["…"]:  # lines that the page leaves out
                continue
            known = (one == line if exact else one[:2] == line[:2] for one in printed)
            assert any(known) or (not exact and line[0] in answer), line


def test_the_site_is_made_and_all_its_links_lead_somewhere(run: Run, tmp_path: Path) -> None:
    """Rule: `make site` makes a page of every page of docs/, without a warning.

    The notebook is one, with its outputs as a notebook shows them. MkDocs warns of a link whose
    page or anchor is not there. A browser does not break the name of an option that stands in a
    sentence or a cell, and breaks a list of names behind its commas. Nothing is loaded
    from elsewhere or from the root of a server.
    """
    done = run(sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site"))
    assert done.returncode == 0, done.stderr
    for page in (HOME / "docs").glob("*.md"):
        assert (tmp_path / "site" / f"{page.stem}.html").is_file()
    flags = (tmp_path / "site" / "nccl-tests.html").read_text(encoding="utf-8")
    assert '<code><span style="white-space: nowrap">--statistic</span> mean</code>' in flags
    options = (tmp_path / "site" / "options.html").read_text(encoding="utf-8")
    assert "{none,<wbr>core,<wbr>numa}</code>" in options
    assert not (tmp_path / "site" / "404.html").exists()
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r'(?:<script[^>]* src|<link[^>]* href)="(?:https?:/|)/[^"]*', index)
    notebook = (tmp_path / "site" / "notebook.html").read_text(encoding="utf-8")
    assert 'src="data:image/svg+xml' in notebook and "next takes (95 %)" in notebook
    assert 'href="notebook.html"' in (tmp_path / "site" / "python.html").read_text(encoding="utf-8")


def test_the_site_opens_from_a_folder(run: Run, tmp_path: Path) -> None:
    """Rule: on pages of file:// the search finds, and 1280 pixels show 100 columns of code.

    On a phone what is wider than the page scrolls and shows it, and no button covers text.
    """
    with chromium(tmp_path / "profile") as browser:
        from selenium.webdriver.support.ui import WebDriverWait

        done = run(sys.executable, "-m", "mkdocs", "build", "-d", str(tmp_path / "site"))
        assert done.returncode == 0, done.stderr
        browser.get(f"{(tmp_path / 'site' / 'tutorial.html').as_uri()}?q=roofline")
        found = "return [...document.querySelectorAll('.md-search-result__item')].length"
        WebDriverWait(browser, LIMIT_S).until(lambda b: b.execute_script(found) > 3)
        columns = """
          const code = document.querySelector('.md-typeset pre code');
          const text = code.appendChild(document.createElement('span'));
          text.textContent = '0'.repeat(100);
          const room = code.clientWidth - 2 * parseFloat(getComputedStyle(code).paddingLeft);
          return 100 * room / text.getBoundingClientRect().width"""
        assert browser.execute_script(columns) >= 100
        assert not _cut(browser, tmp_path / "site")


def _cut(browser: Any, site: Path) -> list[str]:
    """What of the site's pages a phone of 420 pixels cuts, or covers by a button."""
    phone = {"width": 420, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    cut = """
      const scrolls = e => e && (['auto', 'scroll'].includes(getComputedStyle(e).overflowX)
        || scrolls(e.parentElement));
      const cut = e => e.matches('.md-code__nav')
        || e.getBoundingClientRect().right > innerWidth + 1 && !scrolls(e.parentElement)
        || e.matches('pre > code, [class*=scrollwrap]') && e.scrollWidth > e.clientWidth
        && !getComputedStyle(e).backgroundImage.includes('gradient');
      return [...document.querySelectorAll('.md-content *')].filter(e => e.clientWidth && cut(e))
        .map(e => `${document.title}: ${e.outerHTML.slice(0, 100)}`)"""
    found = []
    for page in sorted(site.glob("*.html")):
        browser.get(page.as_uri())
        found += browser.execute_script(cut)
    return found
