"""Every parser of the project as a function of bytes, with the errors that it may raise.

The result of a parser is shown and saved, too: a text that breaks the display is a failure as well.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple

from bench.options.options import parse_choice
from bench.run import tuning_file as tuning
from bench.run.contenders import read_counts
from busbar import cpulist, units
from busbar.errors import BusbarError, ProbeError, ReportError
from collectives.execution.nccl import debug_log
from collectives.formats import msccl, mscclpp, mscclpp_prove, own
from collectives.formats.convert import proven
from collectives.formats.proof import prove
from collectives.predict import nccl
from collectives.predict.fit import load_fit, read_fit
from collectives.schedule import catalogue
from reports.analysis import expect
from reports.analysis.expect import parse_rate, parse_share
from reports.readers import codec
from reports.readers.reading import read
from reports.records.table import as_mapping
from tests.command import reports_main
from tests.torture import seeds
from topology.diagnostics import check
from topology.model import device
from topology.sources import own_json
from topology.views import terminal

#: The errors that a user may see: one line each.
OURS = (ProbeError, ReportError, BusbarError)
_SOURCES = (
    "gather", "smi_topo", "smi_p2p", "smi_nvlink", "smi_xml", "nccl_xml", "hwloc", "sysfs",
    "bandwidth", "own_json", "amd",
)  # fmt: skip
#: Commands of ``python -m reports`` that take one file.
COMMANDS: dict[str, Sequence[str]] = {
    "show": ["show"],
    "md": ["md"],
    "import-csv": ["import", "--format", "csv"],
    "import-jsonl": ["import", "--format", "jsonl"],
    "culprit": ["culprit"],
    "scaling": ["scaling"],
    "history": ["history"],
    "expect": ["show", "--expect", "busbw >= 0.1*limit", "--limit", "9GB/s"],
}


class Broken(AssertionError):
    """A parser returned a result that it must not return."""


@dataclass(frozen=True)
class Target:
    """A parser, its good texts, and the most characters of its messages (``longest``).

    An option's message may repeat the option, a file's may not repeat the file.
    """

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[int], Sequence[bytes]]
    longest: float = 4000


class Printed(NamedTuple):
    """The exit status and the output of a command."""

    status: int
    text: str


def source(name: str, data: bytes) -> None:
    """Read a map: it is shown and checked, and our JSON gives the same map back.

    A refusal names a line of the text, or none.
    """
    module = importlib.import_module(f"topology.sources.{name}")
    text = data.decode("utf-8", "replace")
    try:
        topology = module.parse(text)
    except ProbeError as error:
        if error.line is not None and not 1 <= error.line <= text.count("\n") + 1:
            raise Broken(f"line {error.line}: {error}") from error
        raise
    shown = [
        terminal.matrix_text(topology),
        terminal.matrix_csv(topology),
        terminal.tree_text(topology),
    ]
    shown.append(terminal.findings_text(topology, check(topology)))
    for text in shown:
        printable(text)
    try:
        again = own_json.parse(own_json.dump(topology))
    except ProbeError as error:
        raise Broken(f"our JSON is refused: {error}") from error
    if again != topology:
        raise Broken("our JSON gives another map")


def log(data: bytes) -> None:
    """Read a log or records, every row of it."""
    with _file(data) as path:
        found = read(path)
        for row in found.rows:
            as_mapping(row)
        for note in found.notes:
            str(note)


def command(words: Sequence[str], data: bytes) -> None:
    """Run a command of reports on a file: a documented status, and printable text only."""
    with _file(data) as path:
        status, text = _printed([*words, str(path)])
    if status not in (0, 1, 2, 3):
        raise Broken(f"status {status}")
    printable(text)


def printable(text: str) -> None:
    """Raise Broken if a text has a character that a terminal would act on."""
    odd = next((c for c in text if not (c.isprintable() or c in "\n\t\r" or c == "\ufffd")), None)
    if odd is not None:
        raise Broken(f"{odd!r} in {text[max(0, text.index(odd) - 40) :][:80]!r}")


def _printed(words: Sequence[str]) -> Printed:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = reports_main(words)
        out.flush()
    return Printed(status, out.buffer.getvalue().decode("utf-8"))  # type: ignore[attr-defined]


@contextlib.contextmanager
def _file(data: bytes):  # type: ignore[no-untyped-def]
    with tempfile.TemporaryDirectory(prefix="torture") as folder:
        path = Path(folder) / "case"
        path.write_bytes(data)
        yield path


def _text(parse: Callable[[str], object], data: bytes) -> None:
    parse(data.decode("utf-8", "replace"))


def _path(parse: Callable[[Path], object], data: bytes) -> None:
    with _file(data) as path:
        parse(path)


def _own(data: bytes) -> None:
    with contextlib.suppress(ValueError):  # what its one caller expects
        codec.measurements(data.decode("utf-8", "replace"))


def _counts(path: Path) -> object:
    return read_counts(path, 4)


def _targets() -> dict[str, Target]:
    found = [
        Target(f"map-{name}", partial(source, name), partial(seeds.topology, name))
        for name in _SOURCES
    ]
    found += [
        Target(f"reports-{name}", partial(command, words), lambda _: seeds.records())
        for name, words in COMMANDS.items()
    ]
    plain: dict[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
        "log": (log, seeds.records),
        "parquet": (log, lambda: [seeds.parquet()]),
        "records": (_own, seeds.records),
        "msccl": (lambda data: void(prove(msccl.parse(data))), seeds.msccl),
        "mscclpp": (lambda data: void(mscclpp_prove.prove(mscclpp.parse(data))), seeds.mscclpp),
        "schedule": (lambda data: void(proven(*own.parse(data))), seeds.schedules),
        "fit": (partial(_text, load_fit), seeds.fits),
        "fit-file": (partial(_path, read_fit), seeds.fits),
        "rules": (lambda data: void(tuning.parse(data, Path("rules.json"))), seeds.tuned),
        "expect": (partial(_text, expect.parse_rule), seeds.expectations),
        "expect-file": (partial(_path, expect.from_file), seeds.expectation_files),
        "nccl-graphs": (partial(_text, nccl.parse_graphs), seeds.nccl_graphs),
        "nccl-said": (partial(_text, debug_log.parse), seeds.nccl_said),
        "counts": (partial(_path, _counts), seeds.counts),
    }
    words = {
        "size": units.parse_size, "algorithm": catalogue.parse, "choice": parse_choice,
        "rate": parse_rate, "share": parse_share, "busid": device.canonical,
        "cpulist": cpulist.members, "cpumask": cpulist.from_mask,
    }  # fmt: skip
    plain |= {name: (partial(_text, parse), seeds.words) for name, parse in words.items()}
    options = {"expect", *words}
    for name, (run, begin) in plain.items():
        longest = inf if name in options else 4000
        found.append(Target(name, run, partial(_ignoring, begin), longest))
    return {target.name: target for target in found}


def _ignoring(begin: Callable[[], list[bytes]], seed: int) -> list[bytes]:
    return begin()


def void(_: object) -> None:
    """Forget a result."""


def quiet() -> None:
    """Fix the terminal's width and Arrow's threads, so that a case always costs the same."""
    os.environ.update(COLUMNS="100", NO_COLOR="1", ARROW_DEFAULT_MEMORY_POOL="system")
    with contextlib.suppress(ImportError):
        import pyarrow

        pyarrow.set_cpu_count(1)
        pyarrow.set_io_thread_count(1)
    sys.setrecursionlimit(1000)


TARGETS = _targets()
