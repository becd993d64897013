"""The meaning of measurements: records, statistics, tables and pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["load"]


def load(path: Path | str, ranks: int | None = None) -> DataFrame:
    """A log of nccl-tests, OSU, IMB or Busbar as a pandas DataFrame; see docs/logs.md.

    `busbar.load` returns rows with the answer, warnings and plots instead, from several files.

    ``ranks``: rank count of a log that does not state it. Raises ``busbar.errors.ReportError``.
    """
    from reports.readers.reading import load as load_  # keeps `import reports` instant

    return load_(path, ranks)
