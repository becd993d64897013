"""Command lines whose complaints are our errors, of one line; what they mean is the callers' matter."""

from __future__ import annotations

import argparse
from typing import NoReturn

from collectives.errors import Unsupported

__all__ = ["Parser"]


class Parser(argparse.ArgumentParser):
    """A parser that raises Unsupported where argparse would print its usage and leave."""

    def error(self, message: str) -> NoReturn:
        """Raise Unsupported, with where to find help."""
        raise Unsupported(f"{message}; see {self.prog} --help")
