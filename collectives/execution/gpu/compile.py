"""Compiles CUDA C++ with NVRTC only.

``cupy.RawModule`` is not used. It needs a header of the CUDA runtime, which a machine with only a
driver lacks, and it flushes subnormal floats to zero (``-ftz=true``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from threading import Lock
from typing import Any

from busbar.errors import Unavailable

Capability = tuple[int, int]
_INCLUDE = re.compile(r'^#include "([a-z_]+\.cuh)"$', re.MULTILINE)


def cuda_source(name: str) -> str:
    """A file of ``native/cuda`` with all that it includes, each file once: NVRTC knows no folders.

    Raises Unavailable where the sources were not installed.
    """
    folder = files("native").joinpath("cuda")
    seen: set[str] = set()

    def text(name: str) -> str:
        try:
            found = folder.joinpath(name).read_text(encoding="utf-8")
        except OSError as error:
            raise Unavailable(f"the CUDA sources are not installed: {error}") from None
        return _INCLUDE.sub(lambda match: once(match[1]), found.replace("#pragma once\n", ""))

    def once(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        return text(name)

    return text(name)


class Compiler:
    """``cupy.cuda.nvrtc``, and what it has compiled so far: ranks that are threads share it."""

    def __init__(self, nvrtc: Any) -> None:
        self._nvrtc, self._lock = nvrtc, Lock()
        self._found: dict[tuple[str, tuple[str, ...], Capability], bytes] = {}

    def binary(self, source: str, options: Sequence[str], capability: Capability) -> bytes:
        """The machine code of a source for a compute capability, or PTX where NVRTC is older.

        Raises Unavailable, in one line, when it does not compile or there is no NVRTC.
        """
        key = source, tuple(options), capability
        with self._lock:
            if key not in self._found:
                self._found[key] = self._compiled(*key)
            return self._found[key]

    def _compiled(self, source: str, options: tuple[str, ...], capability: Capability) -> bytes:
        nvrtc, mine = self._nvrtc, 10 * capability[0] + capability[1]
        try:
            known = [arch for arch in nvrtc.getSupportedArchs() if arch <= mine]
            program = nvrtc.createProgram(source, "busbar.cu", (), ())
        except (RuntimeError, ImportError, OSError) as error:
            raise Unavailable(f"NVRTC cannot be used: {_first(str(error))}") from None
        try:
            if not known:
                raise Unavailable(f"this NVRTC compiles nothing for compute capability {mine / 10}")
            if mine in known:
                nvrtc.compileProgram(program, (*options, f"-arch=sm_{mine}"))
                return bytes(nvrtc.getCUBIN(program))
            nvrtc.compileProgram(program, (*options, f"-arch=compute_{max(known)}"))
            return bytes(nvrtc.getPTX(program))
        except RuntimeError as error:
            said = _first(nvrtc.getProgramLog(program)) or str(error)
            raise Unavailable(f"our CUDA kernels do not compile for sm_{mine}: {said}") from None
        finally:
            nvrtc.destroyProgram(program)


@cache
def compiler(nvrtc: Any) -> Compiler:
    """The compiler of this process."""
    return Compiler(nvrtc)


def _first(text: str) -> str:
    """The line that says what is wrong."""
    lines = [line.strip(" \0") for line in text.splitlines() if line.strip(" \0")]
    return next((line for line in lines if "error" in line), lines[0] if lines else "")
