"""CSV cells: an apostrophe before texts that a spreadsheet would take for a formula.

OWASP's list ("CSV injection"): ``=``, ``+``, ``-``, ``@``, a tab or a carriage return at the
beginning.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(rows: Iterable[Iterable[Any]], end: str = "\n") -> str:
    """Rows as CSV (RFC 4180 quoting), each cell made safe by `celled`; None is empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator=end).writerows(map(celled, row) for row in rows)
    return text.getvalue()


def celled(value: Any) -> Any:
    """A value of a cell: texts made safe, numbers and None as they are."""
    return f"'{value}" if isinstance(value, str) and _is_formula(value) else value


def uncelled(text: str) -> str:
    """The text that `celled` was given."""
    return text[1:] if text[:1] == "'" and _is_formula(text) else text


def _is_formula(text: str) -> bool:
    """Whether it is one, or one behind apostrophes, which would be taken for ours."""
    return text.lstrip("'").startswith(_FORMULA)
