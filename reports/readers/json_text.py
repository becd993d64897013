"""Reads JSON that is complete, cut short or damaged, or several documents in a row."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

_GAP = re.compile(r"[\s,]*")
_RESULTS = re.compile(r'"results"\s*:\s*\[')
# With what a row of ours, of nccl-tests, of rccl-tests begins.
_ROW = re.compile(r'\{\s*"(?:format|collective|size|numCycle)"')
# The last word of a text that was cut: a literal, a number, an escape.
_LONGEST_REST = 8
_MOST_SAID = 5


class Found(NamedTuple):
    """A document, or what could be saved of it (None: nothing), and remarks: (line, text)."""

    value: object
    notes: tuple[tuple[int, str], ...] = ()


def documents(text: str) -> list[Found]:
    """The JSON documents of a text, in order.

    Of one that is cut or damaged the rows are kept that are whole: the elements of a list, or of
    what stands under ``results``; then it is the last, for where the next begins cannot be told.
    """
    decoder, values, position = json.JSONDecoder(), list[Found](), 0
    while True:
        gap = _GAP.match(text, position)
        position = gap.end() if gap else position
        if position >= len(text):
            return values
        try:
            value, position = decoder.raw_decode(text, position)
        except RecursionError:
            return [*values, Found(None, ((_line(text, position), "JSON too deep to be read"),))]
        except json.JSONDecodeError as error:
            return [*values, _saved(text, position, error)]
        except ValueError:
            note = "JSON with a number of more digits than can be read"
            return [*values, Found(None, ((_line(text, position), note),))]
        values.append(Found(value))


def _saved(text: str, start: int, error: json.JSONDecodeError) -> Found:
    """The complete parts of a damaged document."""
    listed = text[start] == "["
    results = None if listed else _RESULTS.search(text, start)
    if not listed and results is None:
        before = ", before any result" if _ended(text, error) else ""
        return Found(None, ((_line(text, error.pos), _what(text, error) + before),))
    rows, notes = _rows(text, start + 1 if results is None else results.end())
    if not notes:  # the rows are whole, so it is something behind them
        notes = [(_line(text, error.pos), f"{_what(text, error)}, behind the last result")]
    if results is None:
        return Found(rows, tuple(notes))
    head = _head(text[start : results.start()])
    if not head:
        at = (
            _line(text, start),
            "what stands before the results is damaged: program and ranks are lost",
        )
        notes.insert(0, at)
    return Found({**head, "results": rows}, tuple(notes))


def _rows(text: str, position: int) -> tuple[list[object], list[tuple[int, str]]]:
    """The elements from a place on that can be read, and remarks on the others."""
    decoder, rows, notes, more = json.JSONDecoder(), list[object](), list[tuple[int, str]](), 0
    while True:
        gap = _GAP.match(text, position)
        position = gap.end() if gap else position
        if text[position : position + 1] == "]":
            break
        try:
            one, position = decoder.raw_decode(text, position)
            rows.append(one)
        except (ValueError, RecursionError) as error:
            if isinstance(error, json.JSONDecodeError) and len(notes) < _MOST_SAID:
                notes.append(
                    (_line(text, error.pos), f"{_what(text, error)}; this row is left out")
                )
            else:
                more += 1
            following = _ROW.search(text, position + 1)
            if following is None:
                break
            position = following.start()
    if more:
        notes.append((0, f"{more} more places where the JSON is damaged"))
    return rows, notes


def _head(text: str) -> Mapping[str, object]:
    """The fields of an object before its results; empty if they are damaged."""
    try:
        value = json.loads(text.rstrip().rstrip(",") + "}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _ended(text: str, error: json.JSONDecodeError) -> bool:
    """Whether the text ended too early, rather than being wrong in the middle."""
    rest = text[error.pos :].rstrip()
    cut = len(rest) <= _LONGEST_REST and not rest.endswith(("}", "]"))
    return cut or error.msg.startswith("Unterminated string")


def _what(text: str, error: json.JSONDecodeError) -> str:
    """The error, with its byte offset in the file (as UTF-8)."""
    if _ended(text, error):
        return f"the JSON ends early, at byte {len(text.encode(errors='replace'))}"
    byte = len(text[: error.pos].encode(errors="replace"))
    return f"the JSON is damaged at byte {byte} ({error.msg})"


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
