"""Shared by the parsers: bounds on sizes, and clean-up of pasted text."""

from __future__ import annotations

import json
from typing import Any

from busbar.errors import ProbeError
from busbar.terminal import strip_escapes

MAX_BYTES = 32 * 1024 * 1024
#: A row of a thousand devices has about 8000 characters.
MAX_LINE = 16384


def bounded(source: str, text: str) -> str:
    """Return the text, or raise ProbeError when it is longer than any machine's could be."""
    if len(text) > MAX_BYTES:
        raise ProbeError(source, f"{len(text)} characters; no machine's map is above {MAX_BYTES}")
    return text


def lines(source: str, text: str) -> list[str]:
    """Return the lines without terminal escapes, carriage returns, byte order mark or hard spaces.

    Raises ProbeError for a text or a line that is longer than any machine's.
    """
    clean = strip_escapes(bounded(source, text))
    clean = clean.replace("\ufeff", "").replace("\xa0", " ")
    found = [line.rstrip("\r") for line in clean.split("\n")]
    long = next((n for n, line in enumerate(found, 1) if len(line) > MAX_LINE), None)
    if long is not None:
        raise ProbeError(source, f"a line of more than {MAX_LINE} characters", long)
    return found


def loaded(source: str, text: str, skipped: int = 0) -> Any:
    """Return what a JSON text holds. Raises ProbeError; ``skipped`` lines stand before the text.

    Whole numbers have 64 bits: no count, size or index of a machine needs more.
    """
    try:
        return json.loads(bounded(source, text), parse_int=_whole)
    except json.JSONDecodeError as error:
        raise ProbeError(source, f"not JSON: {error.msg}", error.lineno + skipped) from None
    except (RecursionError, ValueError) as error:
        raise ProbeError(source, f"not JSON that can be read: {error}") from None


def _whole(digits: str) -> int:
    if len(digits) > 20 or not -(1 << 63) <= int(digits) < 1 << 63:
        raise ValueError(f"{digits[:24]}… is more than 64 bits")
    return int(digits)
