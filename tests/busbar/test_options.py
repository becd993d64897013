"""Options are declared once: parser, help, default and value follow from a field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from busbar.commands import list_commands
from busbar.errors import Unsupported
from busbar.options import OptionGroup, Self, option, redefine, switch


class _Base(OptionGroup):
    iterations: int = option("-n --iters N  iterations", 20, title="how long")
    files: tuple[Path, ...] = option("--from FILE  read these", (), nargs="+")
    loud: bool = switch("--loud  say more", alternatives="voice")
    silent: bool = switch("--silent  say less", alternatives="voice")
    inner: str | None = option("--inner", title="voice")
    near: str | None = option("--near TEXT  in the group that is called as the alternatives are")

    def checked(self) -> Self:
        """Refuse what does not go together."""
        if self.iterations > 99 and self.loud:
            raise Unsupported("--loud is for a few iterations")
        return self


class _Derived(_Base):
    iterations: int = redefine(_Base, "iterations", 5)
    share: float = option("--share F  50 % of it (default: none)", 0.5)


def _parse(*words: str) -> _Derived:
    return _Derived.parse(words, _Derived.make_parser(prog="p"))


def test_values_have_the_types_of_their_fields_and_their_defaults_once() -> None:
    """Rule: a field's type reads the text; what is not given has the class's default."""
    options = _parse("-n", "7", "--from", "a", "b", "--loud")
    assert (options.iterations, options.files) == (7, (Path("a"), Path("b")))
    assert options.loud and not options.silent and options.share == 0.5
    assert options.given == {"iterations", "files", "loud"} and options.argv[0] == "-n"
    assert _parse().iterations == 5 and _Base().iterations == 20
    assert _parse("-n", "5") == _parse()  # how it was written is no part of what it is


def test_help_states_each_default_and_hides_what_has_no_text() -> None:
    """Rule: a default is appended unless the text speaks of one; per cent signs are plain."""
    text = " ".join(_Derived.make_parser(prog="p").format_help().split())
    assert "iterations (default 5)" in text and "50 % of it (default: none)" in text
    assert "--inner" not in text and "how long:" in text


def test_hyphens_and_underscores_in_a_long_name_are_the_same() -> None:
    """Rule: an option is found by either; a value and the words after ``--`` keep theirs."""

    class Options(OptionGroup):
        warmup: str = option("--warmup_iters TEXT  before", "")
        level: str = option("--mpi-level TEXT  of it", "")
        words: tuple[str, ...] = option("words  more", (), nargs="*")

    words = ("--warmup-iters=a-b", "--mpi_level", "c_d", "--", "--warmup-iters")
    options = Options.parse(words, Options.make_parser(prog="p"))
    assert (options.warmup, options.level, options.words) == ("a-b", "c_d", ("--warmup-iters",))
    with pytest.raises(Unsupported, match="did you mean --mpi-level"):
        Options.parse(["--mpi_levl", "1"], Options.make_parser(prog="p"))


def test_a_group_may_be_called_as_alternatives_are() -> None:
    """Rule: options exclude each other by their alternatives alone, whatever their group's title.

    `busbar qualify --hosts a,b --racks FILE` was refused: the alternatives and the title were
    both called hosts.
    """
    options = _parse("--loud", "--near", "x", "--inner", "y")
    assert (options.loud, options.near, options.inner) == (True, "x", "y")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--loud --silent", "not allowed with argument"),
        ("-n x", "'x' is no whole number: iterations"),
        ("-n 100 --loud", "for a few iterations"),
        ("--lod", "did you mean --loud?; see p --help"),
    ],
)
def test_what_is_wrong_is_one_error(words: str, says: str) -> None:
    """Rule: values, alternatives, names and combinations are refused by the same error."""
    with pytest.raises(Unsupported, match=re.escape(says)):
        _parse(*words.split())


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_list_of_commands_fits(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: no line of ``busbar -h`` is wider than the terminal; a wrapped line is indented."""
    monkeypatch.setenv("COLUMNS", str(width))
    lines = ["Begin with it.", "", f"  {'measure':<16}say which hosts, links and racks are good"]
    with pytest.raises(SystemExit):
        list_commands("busbar", "COMMAND", lines, ["measure"], ["--help"])
    shown = capsys.readouterr().out.split("Begin with it.\n\n")[1].splitlines()
    assert max(map(len, shown)) <= width and shown[0].startswith("  measure         say which")
    assert all(line.startswith(" " * 18) for line in shown[1:]) and "good" in shown[-1]
