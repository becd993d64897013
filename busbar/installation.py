"""This installation of Busbar: version, revision, and the command that adds an extra.

The distribution is called `busbw`, since the package index has another project's `busbar`. This
module imports none of our modules, since `busbar.errors` imports it.
"""

from __future__ import annotations

import contextlib
import re
import sys
from functools import cache
from pathlib import Path

DISTRIBUTION = "busbw"
#: The folder that our packages are in.
HOME = Path(__file__).resolve().parent.parent


@cache
def busbar_version() -> str:
    """Busbar's version: from the checkout that holds this file, else of the installed package.

    ``unknown`` if neither states a version.
    """
    if (declared := _declared()) is not None:
        return declared
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


def _declared() -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = (HOME / "pyproject.toml").read_text()
        project = text.partition("[project]")[2].partition("\n[")[0]
        fields = dict(re.findall(r'^(name|version) = "([^"]+)"$', project, re.MULTILINE))
        if fields.get("name") == DISTRIBUTION:
            return fields.get("version")
    return None


def checkout() -> Path | None:
    """The folder of the checkout or sources that hold this file; None for an installed copy."""
    return None if _declared() is None else HOME


def revision() -> str | None:
    """The git revision of the checkout, or of the sources of this wheel; None if unknown."""
    if not (HOME / ".git").exists():
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return (HOME / "busbar" / "REVISION").read_text().strip() or None
        return None
    import subprocess

    try:
        done = subprocess.run(
            ["git", "-C", str(HOME), "rev-parse", "HEAD"],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


# -- what is missing


def extra(name: str) -> str:
    """The command that adds an extra, such as ``reports``, to this copy."""
    return f"{_pip()} install {_source(name)}"


def reinstall() -> str:
    """The command that builds and installs this copy again, such as after adding a compiler."""
    again = f"{_pip()} install --force-reinstall --no-deps"
    if checkout() is not None:
        return f"{again} {_source('')}"
    origin = _origin()
    if origin is None:
        return f"{again} --no-binary {DISTRIBUTION} {_source('')}"
    if origin.endswith(".whl"):  # `make wheel` puts the sources into the same folder
        origin = f"{origin.rpartition('/')[0]}/{DISTRIBUTION}-{busbar_version()}.tar.gz"
    return f"{again} {_quoted(origin)}"


def _origin() -> str | None:
    """The file, folder or URL from which pip installed this copy; None for a package index."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote

    with contextlib.suppress(PackageNotFoundError, ValueError, KeyError, TypeError):
        text = distribution(DISTRIBUTION).read_text("direct_url.json")
        return unquote(str(json.loads(text or "{}")["url"])).removeprefix("file://")
    return None


def _pip() -> str:
    """``pip`` if that is this environment's pip in the shell, else ``PYTHON -m pip``."""
    from shutil import which

    pip = which("pip")
    own = pip is not None and Path(pip).parent == Path(sys.prefix) / "bin"
    return "pip" if own else f"{_quoted(sys.executable)} -m pip"


def _source(name: str) -> str:
    """The argument of ``pip install`` for this copy: the checkout, else the distribution's name.

    If the distribution is installed, pip reads its extras there and looks for no other version.
    """
    home, wanted = checkout(), f"[{name}]" if name else ""
    if home is None:
        return f"'{DISTRIBUTION}{wanted}'"
    with contextlib.suppress(OSError):
        if Path.cwd() == home:
            home = Path()
    return f"-e {_quoted(f'{home}{wanted}')}"


def _quoted(text: str) -> str:
    """Quote a word for a shell. Unlike shlex, this also quotes characters special to zsh."""
    plain = re.fullmatch(r"[\w./+-]+", text) is not None
    return text if plain else "'" + text.replace("'", "'\"'\"'") + "'"
