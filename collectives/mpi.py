"""The one place that imports mpi4py, and says in a sentence why it cannot."""

from __future__ import annotations

from typing import Any

from collectives.errors import Unavailable

__all__ = ["load_mpi"]


def load_mpi(*, initialize: bool = True) -> Any:
    """The module ``mpi4py.MPI``. Raises Unavailable with the remedy.

    ``initialize=False`` loads the library without starting MPI, to ask for its version.
    """
    try:
        import mpi4py

        mpi4py.rc.initialize = initialize
        from mpi4py import MPI
    except ImportError as error:
        raise Unavailable(
            f"mpi4py cannot be used ({error}); install it with an MPI: pip install 'busbar[mpi]'"
        ) from None
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise Unavailable(
            f"mpi4py finds no MPI library ({reason}); pip install mpich, or load an MPI module"
        ) from None
    if initialize and not MPI.Is_initialized():
        MPI.Init_thread()
    return MPI
