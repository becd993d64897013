"""The one place that imports mpi4py and starts MPI, and says in a sentence why it cannot.

MPI is started at the lowest thread level that a run needs (MPI 4.1, section 11.6), as C programs
start it: mpi4py's own default, MPI_THREAD_MULTIPLE, makes MPICH's small collectives several times
as slow. Where ranks share cores it is the other way round (docs/measuring.md, thread levels).
"""

from __future__ import annotations

import atexit
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from busbar.errors import Unavailable, Unsupported
from busbar.installation import extra
from busbar.launchers import share_cores

#: MPI's thread levels, the lowest first.
LEVELS = ("single", "funneled", "serialized", "multiple")
OPTION = "--mpi-threads"
#: What every run needs: a process has the watchdog's thread, which does not speak MPI.
NEEDED = "funneled"
_LEVEL, _THREADS = "MPI4PY_RC_THREAD_LEVEL", "MPI4PY_RC_THREADS"
_NO = ("0", "n", "no", "f", "false", "off")


class ThreadLevel(NamedTuple):
    """The thread level that MPI provides, one of `LEVELS`, and why it was asked for."""

    name: str
    why: str


def load_mpi() -> Any:
    """The module ``mpi4py.MPI``, without starting MPI. Raises Unavailable with the remedy."""
    with _hangups():
        return _loaded()


def start_mpi(asked: str | None = None, needed: str = NEEDED) -> tuple[Any, ThreadLevel]:
    """The module ``mpi4py.MPI`` with MPI started, and its thread level.

    ``asked``: one of `LEVELS` that the user asks for; ``needed``: the lowest that serves. What has
    been started already stays as it is. Raises Unavailable as `load_mpi` does, and Unsupported
    where mpi4py's variables name no level.
    """
    with _hangups():
        mpi = _loaded()
        why = "MPI was started before Busbar"
        if not mpi.Is_initialized():
            import mpi4py

            level, why = wanted(library_version(mpi), asked, needed, rc=mpi4py.rc)
            provided = mpi.Init_thread(getattr(mpi, f"THREAD_{level.upper()}"))
            atexit.register(mpi.Finalize)
            if provided != getattr(mpi, f"THREAD_{level.upper()}"):
                why = f"this MPI has no {level} ({why})"
    names = {getattr(mpi, f"THREAD_{name.upper()}"): name for name in LEVELS}
    return mpi, ThreadLevel(names[mpi.Query_thread()], why)


def wanted(
    library: str,
    asked: str | None = None,
    needed: str = NEEDED,
    *,
    rc: Any = None,
    env: Mapping[str, str] = os.environ,
) -> ThreadLevel:
    """The level to start MPI at, and why: the user's word, mpi4py's settings, then the run's need.

    ``library``: its version text; ``rc``: ``mpi4py.rc``, which a program may have set. MPI is not
    asked, since it has not started. Raises Unsupported where mpi4py's variables name no level.
    """
    if asked is not None:
        return ThreadLevel(asked, OPTION)
    if env.get(_THREADS, "").lower() in _NO:
        return ThreadLevel("single", f"{_THREADS}={env[_THREADS]}")
    if _LEVEL in env:
        level = env[_LEVEL].lower()
        if level not in LEVELS:
            raise Unsupported(f"{_LEVEL}={env[_LEVEL][:80]!r}: MPI has {', '.join(LEVELS)}")
        return ThreadLevel(level, f"{_LEVEL}={level}")
    if rc is not None and not rc.threads:
        return ThreadLevel("single", "mpi4py.rc.threads is False")
    if rc is not None and rc.thread_level != type(rc).thread_level:
        return ThreadLevel(str(rc.thread_level), f"mpi4py.rc.thread_level is {rc.thread_level!r}")
    if _polls(library) and share_cores(env):
        return ThreadLevel(
            "multiple",
            "ranks share cores, and below it MPICH's collectives are many times as slow"
            f" ({OPTION})",
        )
    return ThreadLevel(needed, f"the lowest that this run needs ({OPTION})")


def _polls(library: str) -> bool:
    """Whether ranks of this library poll shared memory in collectives below MPI_THREAD_MULTIPLE."""
    return "MPICH" in library


def remarks(level: ThreadLevel, library: str, shared: bool) -> list[str]:
    """The lines above a table of rows over MPI: its thread level, why, and what would be faster.

    ``shared``: ranks share cores.
    """
    lines = [f"MPI thread level {level.name}: {level.why}"]
    if shared and _polls(library) and level.name != LEVELS[-1]:
        lines.append(
            f"ranks share cores: {OPTION} multiple makes MPICH's collectives many times as fast"
        )
    return lines


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


def _loaded() -> Any:
    """The module, loaded; MPI is not started."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        with warnings.catch_warnings():
            # The wrong launcher, which callers check for and explain themselves.
            warnings.filterwarnings("ignore", message=r"\s*suspicious MPI execution environment")
            # A level that there is not: `wanted` refuses it.
            warnings.filterwarnings("ignore", message=r"mpi4py\.rc\.thread_level")
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
    return MPI


def library_version(mpi: Any) -> str:
    """The MPI library's name and version in a few words; MPI need not have started."""
    first = str(mpi.Get_library_version()).splitlines()[0].strip("\0 ")
    return " ".join(first.replace("Version:", "").split(",")[0].split())


if __name__ == "__main__":  # for `busbar doctor`, which does not start MPI itself
    print("level", *start_mpi()[1])
