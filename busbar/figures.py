"""Drawings as files, written whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from busbar.errors import Unavailable, Unsupported
from busbar.files import check, write
from busbar.installation import extra

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

    drawn = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "busbar"}):
        figure.savefig(drawn, format=path.suffix[1:], dpi=dpi)
    write(path, drawn.getvalue())
