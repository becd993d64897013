"""Every name of CuPy that we use exists in the CuPy that is installed, with our signature.

Runs wherever CuPy imports, GPU or none. Other tests go by a stand-in with these names; this one
keeps the stand-in honest.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from collectives.execution.gpu.take import load_cupy, load_nccl
from tests import gpu_runtime, gpu_standin, nccl_standin

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


MODULES = {"runtime": gpu_runtime.Runtime, "driver": gpu_runtime.Driver, "nvrtc": gpu_runtime.Nvrtc}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, of in MODULES.items() for name in _public(of)]
)
def test_functions_of_modules(module: str, name: str) -> None:
    """Rule: cupy.cuda's modules have what the stand-ins have, with as many parameters."""
    if name == "archs":
        return
    real, ours = getattr(getattr(cupy.cuda, module), name), getattr(MODULES[module], name)
    theirs = _parameters(real)
    if callable(ours) and not isinstance(ours, type) and theirs is not None:
        needed = list(inspect.signature(ours).parameters.values())[1:]
        assert len(theirs) == len(needed)


def test_an_error_has_its_number_and_its_name() -> None:
    """Rule: CUDA's errors are RuntimeErrors made from a number, and say their name."""
    error = cupy.cuda.runtime.CUDARuntimeError(700)
    assert isinstance(error, RuntimeError) and error.status == 700
    assert str(error).startswith(gpu_standin.CUDARuntimeError(700).args[0].rstrip(": "))


def test_numbers_of_attributes() -> None:
    """Rule: the numbers by which we ask a device are CUDA's, as far as CuPy names them."""
    from collectives.execution.gpu import device

    for name, number in {
        "cudaDevAttrMultiProcessorCount": device._MULTIPROCESSORS,
        "cudaDevAttrL2CacheSize": device._L2_BYTES,
        "cudaDevAttrMaxSharedMemoryPerMultiprocessor": device._SHARED_IN_ALL,
        "cudaDevAttrReservedSharedMemoryPerBlock": device._RESERVED,
    }.items():
        assert getattr(cupy.cuda.runtime, name) == number


@pytest.mark.parametrize(
    ("kind", "of"),
    [
        ("Stream", gpu_standin.Stream),
        ("Event", gpu_standin.Event),
        ("Graph", gpu_standin.Graph),
        ("Module", gpu_standin.Module),
        ("Function", gpu_standin.Function),
    ],
)
def test_objects(kind: str, of: type) -> None:
    """Rule: streams, events, graphs and kernels have the methods that we call."""
    real = getattr(cupy.cuda, kind)
    ours = [name for name in _public(of) if name not in ("loaded", "launcher")]
    assert [name for name in ours if not hasattr(real, name)] == []


def test_functions_beside_the_runtime() -> None:
    """Rule: what we call of CuPy itself is there."""
    assert callable(cupy.cuda.get_elapsed_time) and callable(cupy.cuda.alloc_pinned_memory)
    assert callable(cupy.cuda.Module) and cupy.__version__
    assert hasattr(cupy.cuda.Function, "ptr")
    assert load_cupy() is cupy


@pytest.fixture
def nccl() -> Any:
    """CuPy's NCCL module, where NCCL's library is installed too."""
    pytest.importorskip("cupy.cuda.nccl")
    from busbar.errors import Unavailable

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
    from collectives.execution.nccl import transport as nccl_library

    names = {"NCCL_INT8": "int8", "NCCL_UINT8": "uint8", "NCCL_INT32": "int32"}
    names |= {"NCCL_UINT32": "uint32", "NCCL_INT64": "int64", "NCCL_UINT64": "uint64"}
    names |= {"NCCL_HALF": "float16", "NCCL_FLOAT": "float32", "NCCL_DOUBLE": "float64"}
    names |= {"NCCL_BFLOAT16": "bfloat16"}
    for theirs, ours in names.items():
        assert getattr(nccl, theirs) == nccl_library.TYPES[ours]
    for name, number in nccl_library.OPS.items():
        assert getattr(nccl, f"NCCL_{name.upper()}") == number


def _archs() -> tuple[int, ...]:
    try:
        found: tuple[int, ...] = cupy.cuda.nvrtc.getSupportedArchs()
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"no NVRTC: {error}")
    return found


def test_kernels_compile() -> None:
    """Rule: every type and operation compiles by NVRTC alone, for its oldest and newest GPU."""
    from collectives.execution.gpu.device import Compiler
    from collectives.execution.gpu.kernels import options, source
    from collectives.schedule.dtypes import DTYPES, FLOAT8, dtype
    from collectives.schedule.ops import OPS, op

    archs, made = _archs(), Compiler(cupy.cuda.nvrtc)
    for i, kind in enumerate([*DTYPES, *FLOAT8]):
        arch = archs[-1] if kind in FLOAT8 or i % 2 else archs[0]
        given = options(dtype(kind), op(OPS[i % len(OPS)]))
        assert made.binary(source(), given, divmod(arch, 10)).startswith(b"\x7fELF")


def test_the_executor_compiles() -> None:
    """Rule: so does the executor."""
    from collectives.execution.gpu.device import Compiler
    from collectives.execution.ipc.plan import options, source
    from collectives.schedule.dtypes import dtype
    from collectives.schedule.ops import op

    assert 90 in _archs()
    given = options(dtype("bfloat16"), op("sum"))
    made = Compiler(cupy.cuda.nvrtc)
    assert made.binary(source(), given, (9, 0)).startswith(b"\x7fELF")
    assert b".target sm_" in made.binary(source(), given, (20, 0))  # a GPU to come: PTX


def test_what_does_not_compile_is_one_line() -> None:
    """Rule: NVRTC's own first complaint is what our error says."""
    from busbar.errors import Unavailable
    from collectives.execution.gpu.device import Compiler

    _archs()
    with pytest.raises(Unavailable, match=r"do not compile for sm_90: .*error") as caught:
        Compiler(cupy.cuda.nvrtc).binary("__global__ void f() { x = 1; }", (), (9, 0))
    assert "\n" not in str(caught.value)
