"""Drawings as files: which can be written, and writing them whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from busbar.errors import Unavailable, Unsupported
from collectives.files import write

__all__ = ["checked", "save"]

_ENDINGS = (".svg", ".png", ".pdf")


def checked(path: Path) -> None:
    """Raise Unsupported for a file that could not be written, Unavailable without matplotlib."""
    if path.suffix not in _ENDINGS:
        raise Unsupported(f"cannot draw to {path}: it should end in {', '.join(_ENDINGS)}")
    if path.is_dir() or not path.parent.is_dir():
        raise Unsupported(f"cannot write {path}: no such folder, or a folder itself")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Unavailable("drawing needs matplotlib: pip install 'busbar[reports]'") from None


def save(figure: Any, path: Path, dpi: int) -> None:
    """Write matplotlib's figure in the format of the name's ending. Raises Unsupported."""
    import matplotlib as mpl

    drawn = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "busbar"}):
        figure.savefig(drawn, format=path.suffix[1:], dpi=dpi)
    write({path: drawn.getvalue()})
