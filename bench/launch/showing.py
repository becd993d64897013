"""Progress of a run in a notebook or on a terminal; elsewhere nothing is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from html import escape
from typing import Any

from bench.launch.progress import Far, far
from busbar.terminal import open_console

Heard = Callable[[str], object]
Show = Callable[[Far], object]


@contextmanager
def showing(title: str, wanted: bool | None) -> Iterator[Heard]:
    """What to call with every line that a run says; the display goes when the run has ended."""
    display = None if wanted is False else _notebook()
    here: AbstractContextManager[Show] = nullcontext(lambda at: None)
    if display is not None:
        here = _in_notebook(display, title)
    elif wanted is not False and sys.stderr is not None and sys.stderr.isatty():
        here = _on_terminal(title)
    with here as show:
        yield lambda line: (at := far(line)) and show(at)


def _notebook() -> Any:
    """IPython's ``display`` where this process is a notebook's kernel; else None."""
    if "ipykernel" not in sys.modules or "IPython" not in sys.modules:
        return None
    from IPython import get_ipython
    from IPython.display import display

    here = get_ipython()
    return display if here is not None and type(here).__module__.startswith("ipykernel.") else None


@contextmanager
def _in_notebook(display: Any, title: str) -> Iterator[Show]:
    def html(done: int, of: int, doing: str) -> dict[str, str]:
        bar = f'<progress value="{done}" max="{max(1, of)}"></progress>'
        return {
            "text/html": f"{escape(title)} {bar} {done} of {of or '?'} {escape(doing)}",
            "text/plain": f"{title}: {done} of {of or '?'} {doing}",
        }

    handle = display(html(0, 0, ""), raw=True, display_id=True)
    try:
        yield lambda at: handle.update(html(*at), raw=True)
    finally:
        handle.update({"text/plain": ""}, raw=True)


@contextmanager
def _on_terminal(title: str) -> Iterator[Show]:
    from rich.progress import Progress

    with Progress(console=open_console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda at: bar.update(
            task, completed=at.done, total=at.of or None, description=f"{title}: {at.doing}"
        )
