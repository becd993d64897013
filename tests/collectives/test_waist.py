"""The waist between schedules and hardware is one that types can see."""

from __future__ import annotations

import ast
import inspect
from functools import partial
from pathlib import Path

import pytest

from bench.cli.start import transport_request
from bench.options.options import parse
from busbar.errors import Unsupported
from collectives import execution
from collectives.execution.inproc.transport import InprocTransport
from collectives.execution.inproc.world import run
from collectives.execution.ipc.transport import IpcTransport
from collectives.execution.mpi.device import MpiDeviceTransport
from collectives.execution.mpi.transport import MpiTransport
from collectives.execution.nccl.transport import NcclTransport
from collectives.execution.plan import Plan
from collectives.execution.registry import open_transports, transports
from collectives.execution.shm.transport import ShmTransport
from collectives.execution.shm_mpi.transport import ShmMpiTransport
from collectives.execution.transport import Action, Transport
from tests.conftest import REPO

TRANSPORTS = (
    InprocTransport,
    IpcTransport,
    MpiDeviceTransport,
    MpiTransport,
    NcclTransport,
    ShmMpiTransport,
    ShmTransport,
)
#: What may be asked for an attribute by a name: modules, other people's objects, options of a
#: command line, and the fields of data that are named in a table.
ASKED = {
    "row",  # for a column by its name
    "given",  # argparse's
    "function",  # a user's
    "inner",
    "path",
    "side",
    "options",
    "world.comm",  # mpi4py's
    "self._world.comm",
    "bound",
    "ctypes.CDLL(library)",  # a C library's
    "mmap",  # modules
    "os",
    "ml_dtypes",
    "module",
    "self.mpi",
    "import_module(module)",
    "world",  # of MPI, which has a communicator, or of threads
    "self.comm",  # CuPy's, of whatever version
    "array",  # NumPy's or a GPU's
    "error",
    "link",  # data
    "p",
    "s",
    "self",
    "self.curves",
}


def test_nobody_asks_a_transport_by_name() -> None:
    """Rule: getattr and hasattr are for what is not ours.

    A transport, a plan, an action has methods.
    """
    wrong = []
    for room in ("collectives", "bench"):
        for path in sorted((REPO / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id in ("getattr", "hasattr")
                    and ast.unparse(node.args[0]) not in ASKED
                ):
                    wrong.append(f"{path.relative_to(REPO)}:{node.lineno} {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_transport_offers_nothing_beside_the_waist(transport: type[Transport]) -> None:
    """Rule: what bench may ask of a transport is in `Transport`, with a default that says no."""
    assert issubclass(transport, Transport) and not inspect.isabstract(transport)
    assert "name" in vars(transport)


def test_every_transport_has_an_entry() -> None:
    """Rule: what `--transport` knows is what there is, each by its own name."""
    assert set(transports()) == {transport.name for transport in TRANSPORTS}
    on_gpu = {t.name for t in TRANSPORTS if t is not MpiDeviceTransport and ".gpu" in _source(t)}
    assert {name for name, entry in transports().items() if entry.on_gpu} == on_gpu


def _source(transport: type[Transport]) -> str:
    return inspect.getsource(inspect.getmodule(transport))  # type: ignore[arg-type]


def test_a_transport_is_found_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a folder with an entry is a transport, with its name, options and opening."""
    folder = tmp_path / "pigeon"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "entry.py").write_text(
        "from collectives.execution.registry import OpenTransports, Entry, Option\n"
        "breeds = Option('--breed', ('homer', 'roller'), 'homer', 'which bird')\n"
        "def fly(world, request):\n"
        "    return OpenTransports(breeds.of(request.chosen), None)\n"
        "ENTRY = Entry('pigeon', worlds=('inproc',), open=fly, options=(breeds,))\n"
    )
    monkeypatch.setattr(execution, "__path__", [*execution.__path__, str(tmp_path)])
    options = parse(["--transport", "pigeon", "--breed", "roller"], "allreduce")
    assert (options.transport, options.chosen) == ("pigeon", {"breed": "roller"})
    for words, breed in ((["--breed", "roller"], "roller"), ([], "homer")):
        requested = transport_request(parse(["--transport", "pigeon", *words], "allreduce"))
        assert run(1, partial(open_transports, request=requested)) == [(breed, None)]
    with pytest.raises(Unsupported, match="--gpus has no effect with --transport pigeon"):
        parse(["--transport", "pigeon", "--gpus", "0"], "allreduce")


def test_a_plan_is_an_action() -> None:
    """Rule: what is timed is an action, whoever carries it out."""
    assert issubclass(Plan, Action)
    assert not Action.divides
