"""Make the JSON schema of the record, and its page of the docs, from the types.

``make docs`` writes both files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from reports.readers.codec import Line
from reports.records.measurement import FORMAT

#: The paths of both files in a checkout.
SCHEMA = Path("reports/records") / f"format-{FORMAT}.schema.json"
PAGE = Path("docs/record.md")

_INTRODUCTION = f"""\
# The record, format {FORMAT}

This page has the fields of a record, for programs that read records without Busbar. Records are
JSON lines (`--out run.jsonl`); everything else is made from them. A line is one measurement: one
placement of one row. The lines of a row are one write. The environment stands
once, in a line of its own before the first measurement that names it as its `run`:

    {{"format":{FORMAT},"run":"1f0c5d2a9b3e","environment":{{"busbar":"0.1.0","hosts":["n0"]}}}}

`"ends":true` beside it says that the run will state its end in a last line. A run without one was
killed, or goes on; of a file without `ends` nothing is known:

    {{"format":{FORMAT},"run":"1f0c5d2a9b3e","end":"complete"}}
    {{"format":{FORMAT},"run":"1f0c5d2a9b3e","end":"early","reason":"interrupted by SIGINT"}}

The environment has [versions, hosts and options](reports.md#the-record). Times are in seconds,
sizes in bytes. A field that holds its default is left out, and unknown fields are ignored. Every
line has `format`, `run`, `collective`, `algorithm`, `transport`, `dtype`, `op`, `ranks`, `size`,
`count`, `root` and `bus_factor`. The JSON schema of a line is in the package:
`{SCHEMA}`.

This page is made from the types in `reports/records/`.
"""


def schema() -> str:
    """The JSON schema of a line."""
    return json.dumps(msgspec.json.schema(Line)) + "\n"


def page() -> str:
    """The page: a table of the fields of a line, and a table for each nested object."""
    types = json.loads(schema())["$defs"]
    return "\n".join([_INTRODUCTION, *_table(types["Line"]), *_parts(types)]) + "\n"


def _parts(types: dict[str, Any]) -> Iterator[str]:
    for name, one in types.items():
        if name != "Line":
            yield f"\n## {name}\n"
            yield one.get("description", "").replace("``", "`")
            yield ""
            yield from _table(one)


def _table(one: dict[str, Any]) -> Iterator[str]:
    described = any("description" in field for field in one["properties"].values())
    yield "| field | type | default |" + " |" * described
    yield "|---|---|---|" + "---|" * described
    for name, field in one["properties"].items():
        default = json.dumps(field["default"]) if "default" in field else ""
        cells = [f"`{name}`", _type(field), default, *[field.get("description", "")] * described]
        yield f"| {' | '.join(cells)} |"


def _type(field: dict[str, Any]) -> str:
    """A JSON type in words."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in field:
        return ", ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    if "anyOf" in field:
        return " or ".join(map(_type, field["anyOf"]))
    if field.get("type") == "array" and isinstance(field.get("items"), dict):
        return f"list of {_type(field['items'])}"
    return str(field.get("type", "any"))


if __name__ == "__main__":
    SCHEMA.write_text(schema())
    PAGE.write_text(page())
