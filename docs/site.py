"""MkDocs hook: README, notebook and laboratory notes are pages of the site; links lead there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

_HOME = Path(__file__).parent.parent
_NOTES = "benchmarks/results"
_CODE = re.compile(r"(?<!<pre>)<code>([^<]*)</code>")
_CELL = re.compile(r"<td\b[^>]*>.*?</td>", re.DOTALL)
_FLAG = re.compile(r"(?<!\S)--?\w[\w-]*")
_NAMES = re.compile(r",(?=[a-z][^<>]*<)")


def on_config(config: MkDocsConfig) -> None:
    """Headings have the anchors that they have on GitHub, so that links lead to both.

    There is no 404.html, which only a server would need, and whose links need the site's address.
    """
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    config.theme.static_templates.discard("404.html")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README as the first page, the notebook, and what pages link to outside docs/."""
    readme = (_HOME / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=readme))
    files.append(File.generated(config, "notebook.md", content="\n\n".join(_notebook())))
    for note in sorted((_HOME / _NOTES).iterdir()):
        if note.suffix in (".md", ".txt"):
            files.append(File.generated(config, f"{_NOTES}/{note.name}", abs_src_path=str(note)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they are in the repository, to where they lead in the site; tabs as blanks.

    Python-Markdown has tabs of four columns, and a terminal's tables have eight.
    """
    markdown = markdown.expandtabs(8)
    # The search has the glossary first, and laboratory notes last.
    boost = {"glossary.md": 4.0}.get(page.file.src_uri, 1.0)
    page.meta["search"] = {"boost": 0.1 if page.file.src_uri.startswith(_NOTES) else boost}
    if page.file.src_uri.startswith(_NOTES):
        return markdown.replace("](../../docs/", "](../../")
    markdown = re.sub(r"\]\(\.\./benchmarks/", "](benchmarks/", markdown)
    markdown = markdown.replace("](notebook.ipynb", "](notebook.md")
    return markdown.replace("](../README.md", "](index.md")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Names of options stay on one line, where a browser would break them behind a hyphen.

    A bar in a cell's code loses the backslash that GitHub needs before it. Names in a cell may
    be broken behind the commas between them.
    """
    whole = r'<span style="white-space: nowrap">\g<0></span>'
    html = _CELL.sub(lambda cell: cell[0].replace(r"\|", "|"), html)
    html = _CODE.sub(lambda code: f"<code>{_FLAG.sub(whole, code[1])}</code>", html)
    return _CELL.sub(lambda cell: _NAMES.sub(r"\g<0><wbr>", cell[0]), html)


def _notebook() -> Iterator[str]:
    """The cells of the notebook and their outputs as Markdown, in order."""
    text = (_HOME / "docs" / "notebook.ipynb").read_text(encoding="utf-8")
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        yield source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
        for output in cell.get("outputs", []):
            shown = output.get("data", {})
            if "text/html" in shown:
                yield f'<div style="overflow-x: auto">{"".join(shown["text/html"])}</div>'
            elif lines := "".join(output.get("text") or shown.get("text/plain", [])).rstrip():
                yield f"```text\n{lines}\n```"  # a bar that is over leaves an empty text
