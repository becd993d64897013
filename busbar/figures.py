"""Drawings as files, written whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from busbar.errors import Unavailable, Unsupported
from busbar.files import check, write
from busbar.installation import extra
from busbar.terminal import make_lines_printable

_ENDINGS = (".svg", ".png", ".pdf")


def checked(path: Path) -> None:
    """Refuse a file name that could not be written later.

    Raises Unsupported, StoreError, and Unavailable without matplotlib.
    """
    if path.suffix not in _ENDINGS:
        raise Unsupported(f"cannot draw to {path}: it should end in {', '.join(_ENDINGS)}")
    check(path)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Unavailable(f"drawing needs matplotlib: {extra('reports')}") from None


def save(figure: Any, path: Path, dpi: int) -> None:
    """Write matplotlib's figure in the format of the name's ending. Raises StoreError."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "busbar"}):
        drawn = encoded(figure, path.suffix[1:], dpi)
    write(path, drawn)


def encoded(figure: Any, form: str, dpi: int) -> bytes:
    """Return matplotlib's figure as svg, png or pdf, its texts made printable."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if (plain := make_lines_printable(text.get_text())) != text.get_text():
            text.set_text(plain)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=form, dpi=dpi)
    return drawn.getvalue()
