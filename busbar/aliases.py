"""`busbar.bench` is `bench`: our other packages under a name that nobody else's package has.

Either name gives the same module object, of every module below them, too. This module is loaded
with `busbar` and imports nothing before somebody asks for an alias.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as typing has it, which takes longer to load than this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Any

#: The top-level names beside `busbar`.
ROOMS = ("bench", "collectives", "native", "reports", "topology")


class AliasFinder:
    """Finds ``busbar.bench.options`` where ``bench.options`` is; one of `sys.meta_path`."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module of that name; None for a name that is no alias, or where there is none.

        Raises ImportError where somebody else's package has the real name.
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
        """The module itself."""
        from importlib import import_module

        module = import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back, which the import of the alias has replaced."""
        module.__spec__ = self._spec
        if self._real == "topology":
            module.__class__ = _callable_module()

    def get_code(self, name: str) -> CodeType | None:
        """The module's code, which ``python -m`` runs. Raises ImportError where there is none."""
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
        load("busbar.rooms:check_rooms")()  # by name, since that module knows this one
    except Unavailable as error:
        raise ImportError(str(error), name=alias) from None


def _callable_module() -> type[ModuleType]:
    """The class of a module that is called as the function of its name, `busbar.topology`."""
    from types import ModuleType

    class CallableModule(ModuleType):
        """A package that stands where `busbar` has a function."""

        def __call__(self, *args: Any, **keywords: Any) -> Any:
            """Call the function."""
            return sys.modules["busbar"].__getattr__(self.__name__)(*args, **keywords)

    return CallableModule


def install() -> None:
    """Make the aliases known to ``import``, before the finder of files looks for them."""
    if AliasFinder not in sys.meta_path:
        sys.meta_path.insert(0, AliasFinder)
