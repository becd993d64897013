"""The extension's passes give what NumPy gives, for every type, operation, tail and alignment."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import native
from collectives.execution.shm.pass_plans import type_number
from collectives.schedule.dtypes import DTYPES, dtype
from tests.native.passes import every_value, expected, shifted, values

core = native.load()
if core is None:
    pytest.skip(native.why_not(), allow_module_level=True)

UFUNCS = [np.add, np.multiply, np.minimum, np.maximum]
COUNTS = [1, 3, 64, 1023, 4099]
# Sources and targets: either side of every number from which on passes are written otherwise.
PLACES = [
    (2, 1),
    (2, 2),
    (2, 3),
    (3, 3),
    (4, 4),
    (4, 1),
    (5, 3),
    (3, 5),
    (9, 3),
    (16, 16),
    (16, 17),
    (17, 2),
]


@pytest.mark.parametrize("isa", core.isas())
@pytest.mark.parametrize("number", range(4), ids=["sum", "prod", "min", "max"])
@pytest.mark.parametrize("name", DTYPES)
def test_pass_equals_numpy(isa, number, name):
    """Rule: a pass equals NumPy's, whatever the sources, targets, count, alignment and store."""
    kind = dtype(name)
    for seed, count in enumerate(COUNTS):
        for sources, ntargets in PLACES:
            rows = values(kind, sources, count, seed)
            inputs = [shifted(row, (i + seed) % 5) for i, row in enumerate(rows)]
            targets = [shifted(np.zeros(count, kind), i) for i in range(ntargets)]
            core.reduce(
                type_number(kind),
                number,
                [t.ctypes.data for t in targets],
                [s.ctypes.data for s in inputs],
                count,
                bool(seed % 2),
                isa,
            )
            for target in targets:
                np.testing.assert_array_equal(target, expected(UFUNCS[number], rows))


@pytest.mark.parametrize("isa", core.isas())
@pytest.mark.parametrize("name", ["half", "bfloat16"])
def test_two_byte_floats_round_once_to_nearest_even(isa, name):
    """Rule: half and bfloat16 are joined in float and rounded once, subnormals and NaN included."""
    kind = dtype(name)

    def add(target, rows):
        places = [row.ctypes.data for row in rows]
        core.reduce(type_number(kind), 0, [target.ctypes.data], places, len(target), False, isa)

    every_value(kind, add)


@pytest.mark.parametrize("isa", core.isas())
@pytest.mark.parametrize("name", DTYPES)
def test_one_target_may_be_either_of_two_sources(isa, name):
    """Rule: in place, few elements and many are joined alike, whichever source they replace."""
    kind = dtype(name)
    for count in (*range(1, 9), 31, 63, 64, 127, 128, 129, 511, 513):
        for replaced in (0, 1):
            rows = values(kind, 2, count, count)
            buffers = [row.copy() for row in rows]
            places = [b.ctypes.data for b in buffers]
            core.reduce(type_number(kind), 0, [places[replaced]], places, count, False, isa)
            np.testing.assert_array_equal(buffers[replaced], expected(np.add, rows))
            np.testing.assert_array_equal(buffers[1 - replaced], rows[1 - replaced])


@pytest.mark.parametrize("isa", core.isas())
@pytest.mark.parametrize("sources", [2, 4, 7, 16, 20])
def test_targets_may_be_sources(isa, sources):
    """Rule: in place, all sources of a block are read before any target of it is written."""
    rows = values(np.dtype(np.float32), sources, 5000, 1)
    buffers = [row.copy() for row in rows]
    places = [b.ctypes.data for b in buffers]
    core.reduce(8, 0, places[::-1], places, 5000, False, isa)
    for buffer in buffers:
        np.testing.assert_array_equal(buffer, expected(np.add, rows))


@pytest.mark.parametrize("count", [0, 1, 100, 9999])
@pytest.mark.parametrize("stream", [False, True])
def test_one_source_is_a_copy(count, stream):
    """Rule: a pass with one source copies it, to every target."""
    source = np.arange(count, dtype=np.int16)
    targets = [shifted(np.zeros(count, np.int16), i) for i in range(2)]
    places = [t.ctypes.data for t in targets]
    core.reduce(6, 0, places, [source.ctypes.data], count, stream, "")
    for target in targets:
        np.testing.assert_array_equal(target, source)


def test_unknown_kernels_are_refused():
    """Rule: an instruction set that this CPU lacks is an error, not another one in silence."""
    with pytest.raises(ValueError, match="no kernels named z80"):
        core.reduce(0, 0, [], [], 0, False, "z80")


@pytest.mark.parametrize("isa", core.isas())
@pytest.mark.parametrize("places", [(1, 3), (3, 3), (5, 6), (16, 16)])
def test_targets_that_begin_alike_are_streamed(isa, places):
    """Rule: with non-temporal stores no element is left out, wherever targets begin."""
    kind, pitch = np.dtype(np.float32), 4096
    sources, ntargets = places
    for offset in (0, 4, 60, 64, 100):
        for count in (1, 31, 700):
            rows = values(kind, sources, count, offset)
            raw = np.full((ntargets + 1) * pitch + 128, 77, np.uint8)
            start = -raw.ctypes.data % 128 + offset
            at = [raw[start + i * pitch :][: 4 * count].view(kind) for i in range(ntargets)]
            where = [row.ctypes.data for row in rows]
            core.reduce(type_number(kind), 0, [t.ctypes.data for t in at], where, count, True, isa)
            for target in at:
                np.testing.assert_array_equal(target, expected(np.add, rows))
                target.view(np.uint8)[:] = 77
            assert (raw == 77).all(), "beside the targets"


def test_other_cpus_get_no_builtin_of_x86(tmp_path):
    """Rule: without x86-64 the kernels name no function that only its compilers know."""
    compiler = shutil.which("c++") or pytest.skip("no C++ compiler")
    sources = sorted((Path(native.__file__).parent / "src").glob("kernels*"))
    for name in re.findall(r"#include <(.*)>", "".join(one.read_text() for one in sources)):
        (tmp_path / name).touch()  # the system's headers are of this CPU
    for source in (one for one in sources if one.suffix == ".cpp"):
        words = ["-std=c++20", "-E", "-U__x86_64__", "-U__SSE2__", "-nostdinc", "-nostdinc++"]
        words = [compiler, *words, "-I", str(tmp_path), str(source)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert not re.findall(r"__builtin_cpu_\w+|_mm\w+", done.stdout), source
