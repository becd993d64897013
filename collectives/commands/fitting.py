"""``fit``: costs of links, fitted to the files of ``topology measure --sweep``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from busbar.commands import Command
from busbar.errors import Unsupported
from busbar.files import write
from busbar.options import option
from busbar.tables import new_table
from busbar.units import format_size_argument, without_exponent
from collectives.commands.command import show

if TYPE_CHECKING:
    from collectives.predict.machine import Costs, Curve


class FitCommand(Command):
    """Costs of links from measured times, for predictions."""

    files: tuple[str, ...] = option(
        "MATRIX.json  saved by mpirun -n P busbar topology measure --sweep 16M -o MATRIX.json;"
        " give several files for several rank counts or repeated measurements",
        nargs="+",
    )
    out: Path | None = option("--out FILE  write the fit here, for --fit")

    def run(self) -> int:
        """Print the costs, and write them with ``--out``."""
        from collectives.predict.fit import dump_fit
        from collectives.predict.maps import fit_maps

        costs = fit_maps(self.files)
        if len({c.transport for c in costs}) > 1:
            raise Unsupported("the files were measured over several transports; fit each by itself")
        if self.out is not None:
            write(self.out, dump_fit(costs).encode())
            print(f"wrote {self.out}", file=sys.stderr)
        for each in costs:
            show(*_shown(each))
        return 0


def _shown(costs: Costs) -> Iterator[object]:
    title = f"{costs.ranks} ranks over {costs.transport or '?'}, alpha + beta x size"
    columns = ("link", "kind", "sizes to", "alpha us", "95 %", "beta ns/KiB", "95 %", "GB/s")
    table = new_table(title, *columns, text=2)
    for name, link in costs.links.items():
        curves = {kind: getattr(link, kind) for kind in _KINDS}
        # Over shared memory, times are also fitted separately by how messages were transferred.
        curves |= vars(link.shared) if link.shared is not None else {}
        for kind, curve in curves.items():
            if curve is not None:
                for row in _rows(curve):
                    table.add_row(name, kind, *row)
                table.add_section()
    yield table
    for name, link in costs.links.items():
        known = [getattr(link, kind) for kind in _KINDS]
        errors = [curve.error for curve in known if curve is not None and curve.error]
        if errors:
            texts = ", ".join(f"{100 * error:.1f} %" for error in errors)
            yield f"{name}: median relative error of the fits {texts}; {link.source}"
    yield f"start of a collective: {costs.start * 1e6:.3g} us"
    yield from (f"note: {note}" for note in costs.notes)


def _rows(curve: Curve) -> Iterator[tuple[str, ...]]:
    n = len(curve.alpha)
    for k, (alpha, beta) in enumerate(zip(curve.alpha, curve.beta, strict=True)):
        spans = (curve.intervals[k], curve.intervals[n + k]) if curve.intervals else ()
        texts = [
            f"{without_exponent(low * s)}-{without_exponent(high * s)}"
            for (low, high), s in zip(spans, _UNITS, strict=False)
        ]
        first, second = texts or ["", ""]
        rate = f"{1e-9 / beta:.3g}" if beta else ""
        to = format_size_argument(int(curve.edges[k])) if k < n - 1 else ""
        yield (
            to,
            without_exponent(alpha * 1e6),
            first,
            without_exponent(beta * _UNITS[1]),
            second,
            rate,
        )


_KINDS = ("trip", "swap", "add", "burst", "still", "sum")


# Seconds to microseconds; seconds a byte to nanoseconds a KiB.
_UNITS = (1e6, 1024e9)
