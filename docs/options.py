"""Writes what is made from the code: ``make docs``.

That is docs/options.md and the keywords of `busbar.run` for editors, from the classes that declare
the options, and the reference in docs/python.md, from docstrings.
"""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from bench.api import calls, comparing, machine, measured, predicting, results, running
from bench.api.calls import in_python
from bench.api.running import run
from bench.cli.main import names
from bench.options.options import PT2PT, make_parser
from bench.steps.main import StepCommand
from busbar import errors
from busbar.arguments import JoinLists
from busbar.cli import COMMANDS
from busbar.commands import Command, CommandTable
from busbar.process import load
from collectives.execution.registry import transports
from topology.diagnostics import Finding
from topology.placement.pick import Pick

PAGE = Path(__file__).with_suffix(".md")
PYTHON = PAGE.with_name("python.md")
_REFERENCE = "## Reference\n"
_WIDE = 88
KEYWORDS = Path(__file__).parents[1] / "bench" / "api" / "keywords.py"
KEYWORDS_HEAD = '''"""Options as keywords of `busbar.run` and `busbar.step`: ``make docs``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, TypedDict

from collectives.schedule.schedule import Schedule

Algorithm = str | Callable[..., Schedule]
"""A name as for ``-A``, or a function of a rank count like those in `collectives.algorithms`."""

Sizes = int | str | Iterable[int | str]
"""Bytes, or texts such as ``"64K"``: one, several, or an array."""

DataTypes = str | type | Sequence[str | type]
"""Element types as the command names them, or numpy's scalar types: one or several."""

Collective = Literal[
    {collectives}
]  # fmt: skip
"""The collectives that `busbar.run` measures."""

Transport = Literal[{transports}]
"""What moves the bytes of a row."""

Placement = Literal["out", "in"]
"""Whether the result of a row is apart from the input, or overwrites it."""
'''
_CLASS = '''

class {options_name}(TypedDict, total=False):
    """Every option that `busbar.{function}` takes beside its own parameters.

{options}
    """

{option_fields}


class {name}({options_name}, total=False):
    """Every keyword of `busbar.{function}` but ``{first}``, for functions that pass them on."""

{fields}
'''
HEAD = """# Options of every command

Made by `make docs` from the classes that declare the options; `--help` of a command shows the same.
"""


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command as it is written behind ``busbar``, with its parser."""
    for name in (*names(), PT2PT):
        yield name, make_parser(name)
    for name, (_, target) in COMMANDS.items():
        found = load(target)
        if isinstance(found, CommandTable):
            for one in ("", *found.entries) if found.default else found.entries:
                yield f"{name} {one}".strip(), found.load(one).make_parser()
        elif issubclass(found, Command):
            yield name, found.make_parser()


def rows(parser: argparse.ArgumentParser) -> dict[str, tuple[str, str]]:
    """The group and the help of each option, by its names and value, in the order of ``--help``.

    The group is a heading of ``--help``, empty for options without one.
    """
    formatter = argparse.HelpFormatter("")
    bare = ("options", "positional arguments")
    return {
        formatter._format_action_invocation(action): (
            "" if group.title in bare else group.title or "",
            formatter._expand_help(action),
        )
        for group in parser._action_groups
        for action in group._group_actions
        if action.help not in (None, argparse.SUPPRESS) and action.dest not in ("help", "version")
    }


def page() -> str:
    """The page: what all collectives share once, then what each command has beside it."""
    every = {name: rows(parser) for name, parser in parsers()}
    shared = dict.fromkeys(every["allreduce"])
    lines = [HEAD]
    for name, options in every.items():
        if name in names():
            own = {shown: text for shown, text in options.items() if shown not in shared}
            options = own if name != "allreduce" else options
        if not options:
            continue
        title = "busbar allreduce and all collectives" if name == "allreduce" else f"busbar {name}"
        lines.append(f"## {title}\n")
        for group, mine in groupby(options.items(), key=lambda option: option[1][0]):
            lines += [f"### {group} ({name})\n"] * bool(group)
            lines += ["| option | |", "|---|---|"]
            for shown, (_, text) in mine:
                both = (f"`{shown}`", text)
                cells = (cell.replace("|", "\\|").replace("<", "&lt;") for cell in both)
                lines.append(f"| {' | '.join(cells)} |")
            lines.append("")
    return "\n".join(lines)


def keywords() -> str:
    """The module of the keywords of `busbar.run` and `busbar.step`, as editors read it."""
    collectives = textwrap.fill(_quoted(names()) + ",", 92).replace("\n", "\n    ")
    return "".join(
        [
            KEYWORDS_HEAD.format(collectives=collectives, transports=_quoted(transports())),
            _keywords("", map(make_parser, names()), run, ("algorithm", *running.NOT_RUN)),
            _keywords(
                "Step",
                [StepCommand.make_parser()],
                running.step,
                ("quiet", *running.NOT_STEP),
            ),
        ]
    )


def _keywords(
    name: str,
    every: Iterable[argparse.ArgumentParser],
    function: Callable[..., object],
    without: Sequence[str],
) -> str:
    """The classes of a function's keywords, without and with its own parameters.

    ``name``: the beginning of the classes' names. ``without``: options that are no keywords.
    """
    own = inspect.signature(inspect.unwrap(function)).parameters
    options: dict[str, tuple[argparse.Action, argparse.ArgumentParser]] = {}
    for parser in every:
        for action in parser._actions:
            long = [flag for flag in action.option_strings if flag.startswith("--")]
            if long and action.help != argparse.SUPPRESS:
                options.setdefault(long[-1][2:].replace("-", "_"), (action, parser))
    known = {
        keyword: one
        for keyword, one in sorted(options.items())
        if keyword not in own and keyword not in ("help", "version", *without)
    }
    lines = [_help_line(keyword, *one) for keyword, one in known.items()]
    fields = [f"    {keyword}: {_type(keyword, action)}" for keyword, (action, _) in known.items()]
    first, *others = own.values()
    parameters = [
        f"    {one.name}: {one.annotation}" for one in others if one.kind is one.KEYWORD_ONLY
    ]
    return _CLASS.format(
        name=f"{name}Keywords",
        options_name=f"{name}OptionKeywords",
        function=function.__name__,
        first=first.name,
        options="\n".join(lines),
        option_fields="\n".join(fields),
        fields="\n".join(parameters),
    )


def _help_line(keyword: str, action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """A line on a keyword, with its help in Python's names."""
    text = in_python(argparse.HelpFormatter("")._expand_help(action), parser)
    shown = f"- ``{keyword}``: {text}".replace("\\", "\\\\")
    return textwrap.indent(
        textwrap.fill(shown, 94, subsequent_indent="  ", break_on_hyphens=False), "    "
    )


# The types of values, by what `--help` calls them; others are texts.
_TYPES = {
    "FILE": "str | Path", "SIZE": "int | str", "SECONDS|10m": "float | str", "TIME": "float | str",
    "N|timed": 'bool | int | Literal["timed"]', "N": "int", "S": "int", "F": "float", "R": "float",
    "RANK": 'int | Literal["all"]',
}  # fmt: skip
_OWN_TYPES = {
    "arrival": "str | Path", "datatype": "DataTypes", "segment": "int | str",
    "gpus": "int | str | Sequence[int | str]", "compress": "str | Sequence[str]",
    "overlap": 'Literal["on", "off", "on,off"] | Sequence[Literal["on", "off"]]',
}  # fmt: skip


def _type(keyword: str, action: argparse.Action) -> str:
    return f"{_value(keyword, action)} | None"


def _value(keyword: str, action: argparse.Action) -> str:
    if action.nargs == 0:
        return "bool"
    if keyword in _OWN_TYPES:
        return _OWN_TYPES[keyword]
    if not action.choices:
        kind = _TYPES.get(str(action.metavar).partition(".")[0], "str")
        many = isinstance(action, (JoinLists, argparse._AppendAction)) or action.nargs == "+"
        return f"{kind} | Sequence[{kind}]" if many else kind
    return f"Literal[{_quoted(action.choices)}]"


def _quoted(values: Iterable[object]) -> str:
    """Values as they are written in Python, with commas between them."""
    return ", ".join(f'"{one}"' if isinstance(one, str) else repr(one) for one in values)


def python_page() -> str:
    """docs/python.md: what is written by hand, then the reference, from docstrings."""
    lines = [PYTHON.read_text(encoding="utf-8").partition(_REFERENCE)[0].rstrip(), ""]
    lines.append(_REFERENCE)
    lines += ["Made by `make docs` from the docstrings; `help(busbar.run)` shows the same.", ""]
    for function in (
        run,
        running.plan,
        measured.load,
        comparing.compare,
        running.step,
        predicting.predict,
        predicting.simulate,
        machine.topology,
        machine.pick,
        calls.verify,
    ):
        lines += _entry("###", f"busbar.{function.__name__}", function)
    for made_by, cls in (
        ("`run` and `load`", measured.MeasuredRows),
        ("`rows.best`", results.BestAlgorithm),
        ("`compare`", comparing.ComparedRow),
        ("`predict`", predicting.PredictedTime),
        ("`simulate`", predicting.SimulatedTime),
        ("`rows.best`, `compare`, `predict` and `simulate`", results.ResultTable),
        ("`plan`", running.RunPlan),
        ("`topology`", machine.MachineMap),
        ("`pick`", machine.Picked),
        ("`best` and `alternatives` of `Picked`", Pick),
        ("`findings` of `MachineMap`", Finding),
    ):
        lines += [f"### {cls.__name__}\n", f"From {made_by}. {_text(cls)}", ""]
        for name, member in vars(cls).items():
            if not name.startswith("_") and inspect.getdoc(member):
                lines += _entry("####", f"{cls.__name__}.{name}", member)
    lines += ["### Errors\n", "All are `busbar.errors.BusbarError`.\n"]
    for name, cls in vars(errors).items():
        if inspect.isclass(cls) and cls.__module__ == errors.__name__ and cls.__doc__:
            lines.append(f"- `{name}`: {' '.join(_text(cls).split())}")
    return "\n".join([*lines, ""])


def _entry(level: str, name: str, member: object) -> list[str]:
    """A heading, the signature of what can be called, and the docstring."""
    lines = [f"{level} {name}\n"]
    if inspect.isfunction(member):
        signature = str(inspect.signature(inspect.unwrap(member)))
        shown = re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature)
        shown = name.rpartition(".")[2] + re.sub(r"\(self(, )?", "(", shown)
        if len(shown) > _WIDE:  # a parameter a line
            head, _, rest = shown.partition("(")
            inner, _, end = rest.rpartition(") -> ")
            parameters = re.split(r", (?=\w+:|\*)", inner)
            shown = "\n".join([f"{head}(", *(f"    {one}," for one in parameters), f") -> {end}"])
        lines.append(f"```python\n{shown}\n```\n")
    return [*lines, _text(member), ""]


def _text(member: object) -> str:
    """A docstring as Markdown."""
    written = inspect.unwrap(member) if callable(member) else member
    return (inspect.getdoc(written) or "").replace("``", "`")


if __name__ == "__main__":
    PYTHON.write_text(python_page(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    KEYWORDS.write_text(keywords(), encoding="utf-8")
