"""Functions that make HTML. Everything that comes from a file is escaped by ``text``."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

from busbar.terminal import make_lines_printable


def text(value: object) -> str:
    """Escape a value as text of an element or of a quoted attribute."""
    return html.escape(make_lines_printable(str(value)), quote=True)


def section(id: str, heading: str, *content: str) -> str:
    """A section of the page with a heading; empty if there is no content."""
    inner = "\n".join(c for c in content if c)
    if not inner:
        return ""
    return (
        f'<section aria-labelledby="{id}">\n<h2 id="{id}">{text(heading)}</h2>\n{inner}\n</section>'
    )


def items(lines: Iterable[str]) -> str:
    """A list of lines that are HTML; empty without lines."""
    inner = "".join(f"<li>{line}</li>" for line in lines)
    return f"<ul>{inner}</ul>" if inner else ""


def details(summary: str, inner: str) -> str:
    """A folded part with a summary; ``inner`` is HTML."""
    return f"<details><summary>{text(summary)}</summary>\n{inner}\n</details>"


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts with its first column as row headers, in a scrolling box."""
    return grid(caption, head, (list(map(text, row)) for row in rows))


def grid(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table like `table`, from cells that are HTML already."""
    heads = "".join(f'<th scope="col">{text(h)}</th>' for h in head)
    lines = (
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f"<td>{cell}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}"><table>'
        f"<caption>{text(caption)}</caption><thead><tr>{heads}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def json_script(id: str, value: Any) -> str:
    """An element with JSON data, escaped so that no text can end the element or open a comment."""
    data = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for mark in "<>&\u2028\u2029":
        data = data.replace(mark, f"\\u{ord(mark):04x}")
    return f'<script type="application/json" id="{id}">{data}</script>'


def packed(id: str, script: str) -> str:
    """An element with a compressed script; the same script always gives the same bytes."""
    data = base64.b64encode(gzip.compress(script.encode(), 9, mtime=0)).decode()
    return f'<script type="application/gzip" id="{id}">{data}</script>'


def hash_of(script: str) -> str:
    """The hash of an inline script for a Content-Security-Policy."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
