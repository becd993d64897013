"""The one place that imports mpi4py, and says in a sentence why it cannot."""

from __future__ import annotations

import atexit
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from busbar.errors import Unavailable
from busbar.installation import extra


def load_mpi(*, initialize: bool = True) -> Any:
    """The module ``mpi4py.MPI``. Raises Unavailable with the remedy.

    ``initialize=False`` loads the library without starting MPI, to ask for its version.
    """
    with _hangups():
        return _loaded(initialize)


@contextmanager
def _hangups() -> Iterator[None]:
    """Keep UCX, which both MPIs have, from handling SIGHUP, unless the user has chosen a signal.

    UCX takes the signal for a request to debug: a rank that is told to end would go on.
    """
    name = "UCX_DEBUG_SIGNO"
    if name in os.environ:
        yield
        return
    os.environ[name] = "0"
    try:
        yield
    finally:
        del os.environ[name]


def _loaded(initialize: bool) -> Any:
    """The module, loaded, and MPI started."""
    try:
        import mpi4py

        mpi4py.rc.initialize = initialize
        with warnings.catch_warnings():
            # The wrong launcher, which callers check for and explain themselves.
            warnings.filterwarnings("ignore", message=r"\s*suspicious MPI execution environment")
            from mpi4py import MPI
    except ImportError as error:
        raise Unavailable(
            f"mpi4py cannot be used ({error}); install it with an MPI: {extra('mpi')}"
        ) from None
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise Unavailable(
            f"mpi4py finds no MPI library ({reason}); {extra('mpi')}, or load an MPI module"
        ) from None
    if initialize and not MPI.Is_initialized():
        # Loaded for its version only before: then starting and ending it is ours.
        MPI.Init_thread()
        atexit.register(MPI.Finalize)
    return MPI


def library_version(mpi: Any) -> str:
    """The MPI library's name and version in a few words; MPI need not have started."""
    first = str(mpi.Get_library_version()).splitlines()[0].strip("\0 ")
    return " ".join(first.replace("Version:", "").split(",")[0].split())
