"""The terminal that tables are printed to, by rich."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def terminal(**options: Any) -> Console:
    """Rich's Console with these options.

    It leaves it to `busbar.process` what a closed pipe means.
    """
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would leave with status 1

    return Terminal(**options)
