"""Every name of CuPy that we use exists in the CuPy that is installed, with our signature.

Runs wherever CuPy imports, GPU or none. Other tests go by a stand-in with these names; this one
keeps the stand-in honest.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from collectives.gpu.load import load_cupy, load_nccl
from tests import gpu_standin, nccl_standin

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


def _parameters(function: Any) -> list[str] | None:
    """The names of a function's parameters; of a compiled one from its first line of help."""
    try:
        found = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        text = (function.__doc__ or "").strip().splitlines()
        match = re.match(r"[\w.]+\((.*?)\)", text[0]) if text else None
        if match is None:
            return None
        parts = [part.split("=")[0].split() for part in match[1].split(",")]
        found = [part[-1] for part in parts if part]
    return [name for name in found if name not in ("self", "*", "/", "\\*")]


def _public(kind: type) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]


@pytest.mark.parametrize("name", _public(gpu_standin.Runtime))
def test_runtime_functions(name: str) -> None:
    """Rule: cupy.cuda.runtime has what the stand-in has, with as many parameters."""
    real = getattr(cupy.cuda.runtime, name)
    theirs, ours = _parameters(real), getattr(gpu_standin.Runtime, name)
    if callable(ours) and not isinstance(ours, type) and theirs is not None:
        needed = list(inspect.signature(ours).parameters.values())[1:]
        assert len(theirs) >= len([p for p in needed if p.default is p.empty])
        assert len(theirs) == len(needed)


@pytest.mark.parametrize(
    ("kind", "of"),
    [
        ("Stream", gpu_standin.Stream),
        ("Event", gpu_standin.Event),
        ("Graph", gpu_standin.Graph),
    ],
)
def test_objects(kind: str, of: type) -> None:
    """Rule: streams, events and graphs have the methods that we call."""
    real = getattr(cupy.cuda, kind)
    ours = [name for name in _public(of) if name not in ("items", "capturing", "launches", "timed")]
    assert [name for name in ours if not hasattr(real, name)] == []


def test_functions_beside_the_runtime() -> None:
    """Rule: what we call of CuPy itself is there."""
    assert callable(cupy.cuda.get_elapsed_time) and callable(cupy.cuda.alloc_pinned_memory)
    assert callable(cupy.RawModule) and cupy.__version__
    assert load_cupy() is cupy


@pytest.fixture
def nccl() -> Any:
    """CuPy's NCCL module, where NCCL's library is installed too."""
    pytest.importorskip("cupy.cuda.nccl")
    from collectives.errors import Unavailable

    try:
        return load_nccl()
    except Unavailable as error:
        return pytest.skip(str(error))


def test_nccl_module(nccl: Any) -> None:
    """Rule: groups, versions and unique ids work without a GPU, as the transport uses them."""
    assert nccl.get_version() > 20000
    unique = nccl.get_unique_id()
    assert isinstance(unique, (bytes, tuple)) and len(unique) == 128
    nccl.groupStart()
    nccl.groupEnd()
    assert issubclass(nccl.NcclError, RuntimeError)


@pytest.mark.parametrize("name", _public(nccl_standin.Communicator))
def test_communicator_methods(nccl: Any, name: str) -> None:
    """Rule: NcclCommunicator's methods have the parameters that the stand-in's have, in order."""
    real = getattr(nccl.NcclCommunicator, name)
    ours = list(inspect.signature(getattr(nccl_standin.Communicator, name)).parameters)[1:]
    assert _parameters(real) == ours


def test_numbers_of_types_and_operations(nccl: Any) -> None:
    """Rule: the numbers that we pass are NCCL's own, as far as CuPy names them."""
    from collectives.transports import nccl_library

    names = {"NCCL_INT8": "int8", "NCCL_UINT8": "uint8", "NCCL_INT32": "int32"}
    names |= {"NCCL_UINT32": "uint32", "NCCL_INT64": "int64", "NCCL_UINT64": "uint64"}
    names |= {"NCCL_HALF": "float16", "NCCL_FLOAT": "float32", "NCCL_DOUBLE": "float64"}
    names |= {"NCCL_BFLOAT16": "bfloat16"}
    for theirs, ours in names.items():
        assert getattr(nccl, theirs) == nccl_library.TYPES[ours]
    for name, number in nccl_library.OPS.items():
        assert getattr(nccl, f"NCCL_{name.upper()}") == number


def test_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: every type and operation compiles by NVRTC, for the oldest and newest GPUs it knows."""
    from cupy.cuda import nvrtc

    from collectives.dtypes import DTYPES, FLOAT8, dtype
    from collectives.gpu.kernels import options, source
    from collectives.ops import OPS, op

    try:
        archs = nvrtc.getSupportedArchs()
    except ImportError as error:
        pytest.skip(f"no NVRTC: {error}")
    kinds = [*DTYPES, *FLOAT8]
    for i, kind in enumerate(kinds):
        name = OPS[i % len(OPS)]
        arch = archs[-1] if kind in FLOAT8 or i % 2 else archs[0]
        program = nvrtc.createProgram(source(), "busbar.cu", (), ())
        try:
            nvrtc.compileProgram(program, (*options(dtype(kind), op(name)), f"-arch=sm_{arch}"))
        except nvrtc.NVRTCError:
            pytest.fail(f"{kind} {name} for sm_{arch}: {nvrtc.getProgramLog(program)}")
        assert nvrtc.getProgramLog(program).strip("\0\n ") == "", f"{kind}: warnings"
