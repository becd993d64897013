"""The CUDA sources compile, warnings as errors, for every architecture that a compiler knows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import pytest

from collectives.execution.gpu import kernels
from collectives.execution.gpu.device import cuda_source
from collectives.execution.ipc.plan import BLOCKS, HEADER, STATUS, THREADS, options
from collectives.schedule.dtypes import DTYPES, FLOAT8, dtype
from collectives.schedule.ops import OPS, op
from tests.conftest import thorough

HOME = Path(__file__).resolve().parents[2]
CUDA = HOME / "native" / "cuda"
ALL = HOME / "tests" / "native" / "all_kernels.cu"
NVCC = shutil.which("nvcc")
LIMIT_S = 600 if "BUSBAR_CUDA_ALL" not in os.environ else 1800
# Every type with every operation on every architecture takes minutes: asked for by this.
WHOLE = "BUSBAR_CUDA_ALL"

needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc here")


def _nvcc(*arguments: str) -> str:
    done = subprocess.run(
        [str(NVCC), *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert not done.returncode, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def architectures() -> list[str]:
    """What the compiler knows from Volta on, as ``sm_90``."""
    numbers = [int(n) for n in re.findall(r"compute_(\d+)", _nvcc("--list-gpu-arch"))]
    return [f"sm_{n}" for n in sorted(numbers) if n >= 70]


def _compile(text: Path, arch: str, kind: str, name: str, out: Path) -> str:
    """What the compiler says of a file, for a type and an operation as NVRTC gets them."""
    strict = ["-Werror", "all-warnings", "-Xptxas", "-v", f"-I{CUDA}"]
    given = [*options(dtype(kind), op(name)), *["-DFLOAT8"] * (int(arch[3:]) >= 89)]
    return _nvcc(f"-arch={arch}", "-cubin", *strict, *given, str(text), "-o", str(out))


def _registers(said: str) -> list[int]:
    return [int(n) for n in re.findall(r"Used (\d+) registers", said)]


@needs_nvcc
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("every", [False, *thorough(True)])
def test_every_architecture(tmp_path: Path, every: bool) -> None:
    """Rule: the kernels compile from Volta or Turing to Blackwell, types and operations in turn."""
    turns = zip(cycle((*DTYPES, *FLOAT8)), cycle(OPS), strict=False)
    whole, common = WHOLE in os.environ, ("sm_75", "sm_80", "sm_90", "sm_100")
    jobs = [
        (ALL if whole else CUDA / "busbar.cu", arch, *turn, tmp_path / f"{arch}.cubin")
        for arch, turn in zip(architectures(), turns, strict=False)
        if every or whole or arch in common
    ]
    assert {*common} <= {arch for _, arch, *_ in jobs}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for said in pool.map(lambda job: _compile(*job), jobs):
            # Two blocks of 512 threads share 65536 registers: what the host sizes its grids by.
            assert _registers(said) and max(_registers(said)) * THREADS * BLOCKS <= 65536


@needs_nvcc
@pytest.mark.parametrize("text", ["busbar.cu", "between.cu"])
def test_no_subnormal_is_flushed(tmp_path: Path, text: str) -> None:
    """Rule: float sums and products keep subnormal numbers, by the options that NVRTC gets, too."""
    given = options if text == "busbar.cu" else kernels.options
    told = given(dtype("bfloat16"), op("prod"))
    out = tmp_path / "text.ptx"
    _nvcc("-ptx", "-arch=compute_90", f"-I{CUDA}", *told, str(CUDA / text), "-o", str(out))
    assert "mul.f32" in (said := out.read_text()) and ".ftz" not in said


@needs_nvcc
@pytest.mark.skipif(WHOLE not in os.environ, reason=f"{WHOLE} is not set (make check-cuda sets it)")
@pytest.mark.timeout(LIMIT_S)
def test_every_type_with_every_operation(tmp_path: Path) -> None:
    """Rule: each of them compiles, and what it works on stays in registers: spills are few."""
    said = _compile(ALL, "sm_90", "float", "sum", tmp_path / "all.cubin")
    spilled = [int(n) for n in re.findall(r"(\d+) bytes spill stores", said)]
    assert len(spilled) >= len(kernels.ELEMENTS) * len(kernels.OPERATIONS) and max(spilled) <= 128


@needs_nvcc
@pytest.mark.timeout(LIMIT_S)
def test_the_kernels_between_messages(tmp_path: Path) -> None:
    """Rule: what plans over NCCL enqueue compiles too, on the oldest, a common and the newest."""
    known, kinds = architectures(), cycle(DTYPES)
    for arch in known if WHOLE in os.environ else (known[0], "sm_90", known[-1]):
        text, out = CUDA / "between.cu", tmp_path / "between.cubin"
        said = _registers(_compile(text, arch, next(kinds), "max", out))
        assert said and max(said) * THREADS <= 65536


@needs_nvcc
@pytest.mark.parametrize("text", ["busbar.cu", "between.cu"])
def test_accesses_are_sixteen_bytes_wide_and_ordered(tmp_path: Path, text: str) -> None:
    """Rule: 16 bytes at a time and not by the read-only cache; words have system-wide order."""
    out = tmp_path / "text.ptx"
    given = [*options(dtype("float"), op("sum")), f"-I{CUDA}", str(CUDA / text)]
    _nvcc("-ptx", "-arch=compute_75", *given, "-o", str(out))
    said = out.read_text()
    assert "ld.global.v4.u32" in said and "st.global.v4.u32" in said
    assert ".nc." not in said
    assert text == "between.cu" or ("ld.acquire.sys" in said and "st.release.sys" in said)


@pytest.mark.parametrize("text", ["busbar.cu", "between.cu"])
def test_the_runtime_compiler_takes_the_source(text: str) -> None:
    """Rule: in one piece, with no header, the source compiles with NVRTC's wheel alone."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="no cuda-bindings here")
    for kind, name in (("half", "max"), ("int8", "sum"), ("double", "prod")):
        code = cuda_source(text).encode()
        error, program = nvrtc.nvrtcCreateProgram(code, b"busbar.cu", 0, [], [])
        if error:
            pytest.skip(f"NVRTC cannot be loaded: {error}")
        given = [o.encode() for o in (*options(dtype(kind), op(name)), "--gpu-architecture=sm_90")]
        (error,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        assert not int(error), log.decode()
        assert not log.strip(b" \0"), log.decode()


@pytest.mark.parametrize("name", ["busbar.cu", "between.cu"])
def test_a_source_is_in_one_piece(name: str) -> None:
    """Rule: each file once, and nothing left to include but the host's half, which is skipped."""
    text = cuda_source(name)
    assert re.findall(r'#include [<"](.*)[>"]', text) == ["platform_host.hpp"]
    assert text.count("struct Lanes") == text.count("struct Team") == 1


def test_each_type_has_its_elements() -> None:
    """Rule: Python, the kernels and their build for the host count types and operations alike."""
    built = (HOME / "tests" / "native" / "cuda_host.cpp").read_text()
    assert re.findall(r"kernels_of<(\w+)>[,}]", built) == [*kernels.ELEMENTS.values()]
    assert [dtype(kind).name for kind in (*DTYPES, *FLOAT8)] == [*kernels.ELEMENTS]
    text = (CUDA / "elements.cuh").read_text()
    names = [*kernels.OPERATIONS.values(), kernels.AVERAGE]
    assert f"enum Operation {{ {', '.join(names)} }};" in text


def test_the_table_has_the_names_of_the_source() -> None:
    """Rule: Python writes a plan's words in the order in which the executor reads them."""
    text = (CUDA / "plan.cuh").read_text()

    def names(enumeration: str) -> tuple[str, ...]:
        body = re.search(rf"enum {enumeration} {{(.*?)}};", text, re.DOTALL)
        assert body is not None
        return tuple(re.findall(r"\bk([A-Z]\w*)", re.sub(r"//.*", "", body[1])))

    assert names("Header") == (*HEADER, "Header")
    assert names("Status") == (*STATUS, "StatusWords")
