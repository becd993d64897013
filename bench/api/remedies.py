"""Remedies for readers of Python: calls and keywords in place of commands and their options."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from functools import cache

_OPTIONS = r"(?:\s+--?[A-Za-z][\w-]*(?:\s+(?!-)[^\s;),]+(?:,[^\s;),]+)*)?)+"
_CALLS = re.compile(rf"\bbusbar\s+([a-z]+)({_OPTIONS})")
# A command keeps its options; it ends where its clause or line does.
_COMMANDS = re.compile(r"(\b(?:busbar(?:\s|\.[a-z]+\()|mpirun\s|python3? )[^;\n]*)")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z]")
_WITH_VALUE = re.compile(r"(?<![\w-])(--[a-z][\w-]*) (N|[a-z]+|[0-9][\w.]*)(?![\w.])")
# As `busbar.arguments.program` names commands in a process that is none of them.
_MODULES = re.compile(r"\bpython -m (?:bench\.(?=[a-z])|(?=(?:topology|reports|collectives)\b))")


def in_keywords(text: str) -> str:
    """A text with ``busbar.run(...)`` in place of a command, and keywords in place of options.

    Commands that are no function, such as ``busbar pt2pt``, are left. An option with a number or a
    word that it takes is a keyword with its value: ``wait_quiet="10m"``.
    """
    text = _MODULES.sub("busbar ", text)
    if _FLAG.search(text) is None:
        return text
    from bench.api.calls import between, in_python  # loads slowly, and few texts name options

    text = _CALLS.sub(_call, text)
    return between(
        _COMMANDS,
        text,
        lambda part: in_python(_WITH_VALUE.sub(_keyword, part), _parser("allreduce")),
    )


def _keyword(option: re.Match[str]) -> str:
    """An option and its value as a keyword; unchanged if the next word is none of its values."""
    from bench.api.calls import in_python

    parser = _parser("allreduce")
    assert parser is not None
    action = parser._option_string_actions.get(option[1])
    if action is None or action.nargs is not None:
        return option[0]
    value = option[2]
    if value != "N" and not value[0].isdigit() and value not in (action.choices or ()):
        return option[0]
    return f"{in_python(option[1], parser)}={value if value == 'N' else written(value)}"


def _call(command: re.Match[str]) -> str:
    """The call of `busbar.run` or `busbar.step` that does what a command does; else the command."""
    from bench.api.calls import RENAMED, in_python

    name, words = command[1], command[2].split()
    parser = _parser(name)
    if parser is None:
        return command[0]
    keywords = {}
    for flag, value in zip(words, [*words[1:], "-"], strict=True):
        if flag.startswith("-"):
            keyword = in_python(flag, parser, {} if name == "step" else RENAMED)
            keywords[keyword] = written(value)
    first = keywords.pop("model", '"resnet50"') if name == "step" else f'"{name}"'
    function = "step" if name == "step" else "run"
    return f"busbar.{function}({', '.join([first, *(f'{k}={v}' for k, v in keywords.items())])})"


def written(value: str) -> str:
    """An option's value in Python; ``value``: the word behind the option, which may be another."""
    if value.startswith("-"):
        return "True"
    if "," in value and ":" not in value:  # exp:5,1 is one value
        return f"[{', '.join(map(written, value.split(',')))}]"
    return value if _NUMBER.fullmatch(value) else f'"{value}"'


@cache
def _parser(name: str) -> ArgumentParser | None:
    """The options of a command that is a function here; None for another command."""
    from bench.cli.main import names
    from bench.options.options import make_parser
    from bench.steps.main import StepCommand

    if name == "step":
        return StepCommand.make_parser(prog="busbar step")
    return make_parser(name) if name in names() else None
