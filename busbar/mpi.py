"""Import mpi4py and start MPI; no other module does. Errors are one sentence with the remedy.

MPI is started at the lowest thread level that a run needs (MPI 4.1, section 11.6), as C programs
start it. mpi4py's default, MPI_THREAD_MULTIPLE, makes MPICH's small collectives several times as
slow. If ranks share cores, that level is faster instead (docs/launching.md, thread levels).
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
from busbar.launchers import local_size, share_cores

#: MPI's thread levels, the lowest first.
LEVELS = ("single", "funneled", "serialized", "multiple")
OPTION = "--mpi-threads"
#: The level that every run needs: a process has the watchdog's thread, which does not call MPI.
NEEDED = "funneled"
_LEVEL, _THREADS = "MPI4PY_RC_THREAD_LEVEL", "MPI4PY_RC_THREADS"
_NO = ("0", "n", "no", "f", "false", "off")


class ThreadLevel(NamedTuple):
    """A thread level of MPI, one of `LEVELS`, and why it was chosen."""

    name: str
    why: str


def load_mpi() -> Any:
    """The module ``mpi4py.MPI``, without starting MPI. Raises Unavailable with the remedy."""
    with _hangups():
        return _loaded()


def start_mpi(asked: str | None = None, needed: str = NEEDED) -> tuple[Any, ThreadLevel]:
    """The module ``mpi4py.MPI`` with MPI started, and its thread level.

    ``asked``: the level that the user requests, one of `LEVELS`; ``needed``: the lowest level that
    suffices. If MPI has been started already, its level stays. Raises Unavailable as `load_mpi`
    does, and Unsupported if mpi4py's environment variables name no level.
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
    """The thread level to start MPI at: by the user's option, mpi4py's settings, or the run's need.

    ``library``: the MPI library's version text; ``rc``: ``mpi4py.rc``, which a program may have
    set. Raises Unsupported if mpi4py's environment variables name no level.
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
    """True if this library polls in collectives at thread levels below MPI_THREAD_MULTIPLE."""
    return "MPICH" in library


def remarks(
    level: ThreadLevel, library: str, shared: bool, env: Mapping[str, str] = os.environ
) -> list[str]:
    """The lines above a table: MPI's thread level, the reason for it, and a faster level if any.

    ``shared``: True if ranks share cores. Without another rank on its host, as on emulated hosts, a
    rank does not poll shared memory, and no level is faster.
    """
    lines = [f"MPI thread level {level.name}: {level.why}"]
    if shared and _polls(library) and level.name != LEVELS[-1] and local_size(env) != 1:
        lines.append(
            f"ranks share cores: {OPTION} multiple makes MPICH's collectives many times as fast"
        )
    return lines


@contextmanager
def _hangups() -> Iterator[None]:
    """A context in which UCX, which both MPIs use, is loaded without handling SIGHUP.

    UCX would debug instead of end at SIGHUP. The user's choice (UCX_DEBUG_SIGNO) stays.
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
    """The module ``mpi4py.MPI``, loaded without starting MPI."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        with warnings.catch_warnings():
            # A warning about the wrong launcher: callers check for that and explain it.
            warnings.filterwarnings("ignore", message=r"\s*suspicious MPI execution environment")
            # A warning about an unknown level: `wanted` raises an error for it.
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
    """The MPI library's name and version in a few words. MPI need not have started."""
    first = str(mpi.Get_library_version()).splitlines()[0].strip("\0 ")
    return " ".join(first.replace("Version:", "").split(",")[0].split())


if __name__ == "__main__":  # for `busbar doctor`, which does not start MPI itself
    print("level", *start_mpi()[1])
