"""Aliases of our packages, such as `busbar.bench` for `bench`, which no other package can have.

Both names give the same module object, and so do the modules inside the packages. This module is
loaded with `busbar`. It imports nothing else until an alias is imported.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # type checkers take it for True; typing itself is slow to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Any

#: Our top-level packages other than `busbar`.
ROOMS = ("bench", "collectives", "native", "reports", "topology")


class AliasFinder:
    """A finder for `sys.meta_path` that finds ``bench.options`` as ``busbar.bench.options``."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of an alias's module; None if the name is no alias or the module does not exist.

        Raises ImportError if another project's package has the real name.
        """
        house, _, real = name.partition(".")
        if house != "busbar" or real.partition(".")[0] not in ROOMS:
            return None
        from importlib.machinery import ModuleSpec
        from importlib.util import find_spec

        if real in ROOMS:
            _check(name)
        spec = find_spec(real)
        if spec is None:
            return None
        package = spec.submodule_search_locations is not None
        loader: Any = _AliasLoader(real)
        alias = ModuleSpec(name, loader, origin=spec.origin, is_package=package)
        alias.has_location = spec.has_location
        return alias


class _AliasLoader:
    """Loads a module by its real name."""

    def __init__(self, real: str) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module with the real name."""
        from importlib import import_module

        module = import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec, which the import of the alias has replaced."""
        module.__spec__ = self._spec
        if self._real == "topology":
            module.__class__ = _callable_module()

    def get_code(self, name: str) -> CodeType | None:
        """The module's code, for ``python -m``. Raises ImportError if the module has none."""
        from importlib.util import find_spec

        spec = find_spec(self._real)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            raise ImportError(f"{self._real} has no code", name=name)
        code: CodeType | None = loader.get_code(self._real)
        return code


def _check(alias: str) -> None:
    from busbar.errors import Unavailable
    from busbar.process import load

    try:
        load("busbar.rooms:check_rooms")()  # by name, since that module imports this one
    except Unavailable as error:
        raise ImportError(str(error), name=alias) from None


def _callable_module() -> type[ModuleType]:
    """A module class that can be called: `busbar.topology` is both a package and a function."""
    from types import ModuleType

    class CallableModule(ModuleType):
        """A package with the name of a function of `busbar`."""

        def __call__(self, *args: Any, **keywords: Any) -> Any:
            """Call the function of `busbar` that has the module's name."""
            return sys.modules["busbar"].__getattr__(self.__name__)(*args, **keywords)

    return CallableModule


def install() -> None:
    """Put `AliasFinder` before the other finders of ``import``."""
    if AliasFinder not in sys.meta_path:
        sys.meta_path.insert(0, AliasFinder)
