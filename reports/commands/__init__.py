"""The commands of ``python -m reports``: one module each, found by this table.

A module's docstring is what ``--help`` says of it; ``add(parser)`` declares its options and
``run(options)`` does it and gives the exit status. Modules import what is heavy inside functions,
because the table is walked whenever the command line starts.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["COMMANDS"]

COMMANDS: Mapping[str, str] = {
    "import": "reports.commands.import_",
    "show": "reports.commands.show",
    "compare": "reports.commands.compare",
    "history": "reports.commands.history",
    "scaling": "reports.commands.scaling",
    "culprit": "reports.commands.culprit",
    "plot": "reports.commands.plot",
    "warmup": "reports.commands.warmup",
    "html": "reports.commands.html",
    "md": "reports.commands.md",
    "model": "reports.commands.model",
    "accuracy": "reports.commands.accuracy",
}
