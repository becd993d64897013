"""Shared by the parsers: limits on sizes, and clean-up of pasted text.

``nvidia-smi`` and ``lstopo`` name an external DTD in their DOCTYPE; it is never fetched. A DOCTYPE
with declarations of its own, and any entity, is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from busbar.errors import ProbeError
from busbar.terminal import strip_escapes

MAX_BYTES = 32 * 1024 * 1024
#: A row of a thousand devices has about 8000 characters.
MAX_LINE = 16384


def bounded(source: str, text: str) -> str:
    """The text itself. Raises ProbeError if it is longer than any machine's map could be."""
    if len(text) > MAX_BYTES:
        raise ProbeError(source, f"{len(text)} characters; no machine's map is above {MAX_BYTES}")
    return text


def lines(source: str, text: str) -> list[str]:
    """The lines without terminal escapes, carriage returns, byte order mark and hard spaces.

    Raises ProbeError for a text or a line that is longer than any machine's.
    """
    clean = strip_escapes(bounded(source, text))
    clean = clean.replace("\ufeff", "").replace("\xa0", " ")
    rows = [line.rstrip("\r") for line in clean.split("\n")]
    long = next((n for n, line in enumerate(rows, 1) if len(line) > MAX_LINE), None)
    if long is not None:
        raise ProbeError(source, f"a line of more than {MAX_LINE} characters", long)
    return rows


def loaded(source: str, text: str, skipped: int = 0) -> Any:
    """Parse JSON. Raises ProbeError, also for an integer of more than 64 bits.

    ``skipped``: the number of lines before the text, for line numbers in messages.
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


MAX_DEPTH = 128
_RETURN = re.compile(r"\r(?!\n)")
MAX_NODES = 500_000


@dataclass
class Node:
    """An XML element: its attributes, children and text, and the line at which it starts."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Node] = field(default_factory=list)
    text: str = ""

    def get(self, name: str, default: str = "") -> str:
        """An attribute without surrounding blanks."""
        return self.attributes.get(name, default).strip()

    def all(self, *tags: str) -> list[Node]:
        """The children with one of these tags."""
        return [child for child in self.children if child.tag in tags]

    def at(self, path: str) -> str | None:
        """The text of the descendant at a path like a/b/c, or None."""
        here: Node | None = self
        for tag in path.split("/"):
            here = (
                next((child for child in here.children if child.tag == tag), None) if here else None
            )
        return None if here is None else here.text.strip()

    def walk(self) -> Iterator[Node]:
        """The element and all its descendants."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    def number(self, name: str, source: str) -> int | None:
        """An attribute as an integer (0x allowed); None if it is empty.

        Raises ProbeError for other text, and for numbers beyond 64 bits.
        """
        value = self.get(name)
        if not value:
            return None
        parsed = None
        with suppress(ValueError):
            parsed = int(value, 0) if len(value) <= 32 else None
        if parsed is None or not -(1 << 63) <= parsed < 1 << 63:
            reason = f"<{self.tag}> has {name}={value[:40]!r}, which is no number of 64 bits"
            raise ProbeError(source, reason, self.line)
        return parsed


def tree(source: str, text: str, above: int = 0) -> Node:
    """Parse plain XML; returns the root element. Raises ProbeError, with the line.

    ``above``: the number of lines before the text, for line numbers.
    """
    # Prompts, log lines or blank lines may be before and after it; lines keep their numbers.
    start, end = bounded(source, text).find("<"), text.rfind(">") + 1
    if start < 0:
        raise ProbeError(source, "no XML element")
    skipped = above + text.count("\n", 0, start)
    builder = _Builder(source, skipped)
    try:
        # expat counts a single carriage return as a line, unlike other programs.
        plain = _RETURN.sub(" ", text[start : end or len(text)])
        builder.parser.Parse(plain.encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        reason = f"not well-formed XML: {expat.ErrorString(error.code)}"
        raise ProbeError(source, reason, error.lineno + skipped) from None
    if builder.root is None:
        raise ProbeError(source, "no XML element")
    return builder.root


class _Builder:
    def __init__(self, source: str, skipped: int) -> None:
        self.source, self.skipped = source, skipped
        self.root: Node | None = None
        self.open: list[Node] = []
        self.texts: list[list[str]] = []
        self.count = 0
        self.parser = expat.ParserCreate("utf-8")
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.EntityDeclHandler = self._entity
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._data

    def _line(self) -> int:
        return self.parser.CurrentLineNumber + self.skipped

    def _doctype(self, name: str, system: str | None, public: str | None, internal: int) -> None:
        if internal:
            raise ProbeError(self.source, "a DTD with declarations is not read", self._line())

    def _entity(self, *_: object) -> None:
        raise ProbeError(self.source, "entities are not read", self._line())

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > MAX_NODES or len(self.open) >= MAX_DEPTH:
            raise ProbeError(self.source, "more or deeper XML than any machine's", self._line())
        node = Node(tag, attributes, self._line())
        if self.open:
            self.open[-1].children.append(node)
        elif self.root is None:
            self.root = node
        self.open.append(node)
        self.texts.append([])

    def _end(self, tag: str) -> None:
        self.open.pop().text = "".join(self.texts.pop())

    def _data(self, data: str) -> None:
        if self.open:
            self.texts[-1].append(data)
