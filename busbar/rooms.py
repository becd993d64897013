"""Check that `bench`, `reports` and so on are our packages, since such names are common."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

from busbar.aliases import ROOMS
from busbar.errors import Unavailable
from busbar.installation import DISTRIBUTION, HOME


def check_rooms() -> None:
    """Raise Unavailable if this process would import another package instead of one of ours.

    Examples are a ``bench.py`` in the working directory, or another distribution's ``reports``.
    """
    for name in ROOMS:
        where = _elsewhere(name)
        if where is not None:
            raise Unavailable(_in_the_way(name, where))


def _elsewhere(name: str) -> Path | None:
    """Where a package of ours would be loaded from; None if from our own folder or nowhere."""
    spec = _spec(name)
    if spec is None:
        return None
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    for place in places:
        path = Path(place).resolve()
        if path != HOME / name and HOME / name not in path.parents:
            return path
    return None


def _spec(name: str) -> ModuleSpec | None:
    """The spec that importing a top-level name would use. Nothing is loaded."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(name, None, None)
        if spec is not None:
            return spec
    return None


def _in_the_way(name: str, where: Path) -> str:
    folder = where.parent.parent if where.name == "__init__.py" else where.parent
    problem = f"{name} is loaded from {where} and not from {HOME}"
    who = owners(name, folder)
    if who:
        return (
            f"{problem}: the distribution {who[0]} put it there; pip uninstall {who[0]}, or install"
            f" {DISTRIBUTION} in an environment without it"
        )
    searched = ""
    if sys.version_info >= (3, 11) and not sys.flags.safe_path and _is_first(folder):
        searched = ", or set PYTHONSAFEPATH=1, so that Python does not search that folder"
    return f"{problem}: rename it, or work in another folder than {folder}{searched}"


def _is_first(folder: Path) -> bool:
    """True if Python searches a folder first, as it does with a script's, or the working one."""
    return bool(sys.path) and Path(sys.path[0]).resolve() == folder


def owners(name: str, folder: Path) -> list[str]:
    """The distributions in a folder that have files of a top-level name; reads all file lists."""
    from importlib.metadata import distributions

    return sorted(
        {
            str(one.metadata["Name"])
            for one in distributions(path=[str(folder)])
            if any(file.parts[0] in (name, f"{name}.py") for file in one.files or ())
        }
    )
