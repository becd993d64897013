"""Run gpu_one.py on a machine with only a driver and no network, from a checkout.

    python3 benchmarks/gpu_bare.py [--wheels WHEELS] [options of gpu_one.py]

If this Python has CuPy, NCCL, NumPy and msgspec, gpu_one.py runs on it from the checkout (5 MB
without its history; neither an installation nor the extension is needed). Otherwise it needs a
folder with the wheels of the missing packages. On a machine with a network, this downloads all:

    pip download -d WHEELS --only-binary :all: numpy ml_dtypes rich msgspec \
        cupy-cuda13x 'nvidia-cuda-nvrtc>=13' nvidia-nccl-cu13 nvidia-ml-py \
        pytest pytest-timeout hypothesis

for the same Python (if it differs: --python-version, --platform manylinux2014_x86_64). They are
installed once, into an environment in their folder that also has this Python's packages.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

SCRIPT = Path(__file__).resolve().with_name("gpu_one.py")
# What gpu_one.py imports, NCCL's and NVRTC's libraries behind CuPy's modules included.
NEEDED = (
    "import numpy, ml_dtypes, rich, msgspec, cupy\n"
    "from cupy.cuda import nccl, nvrtc\n"
    "nccl.get_version(), nvrtc.getVersion()\n"
)


def missing(python: str) -> str:
    """Why a Python cannot run gpu_one.py by itself; empty if it can."""
    done = subprocess.run(
        [python, "-c", NEEDED], capture_output=True, text=True, errors="replace", check=False
    )
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return lines[-1] if done.returncode else ""


def environment(wheels: Path) -> Path:
    """The Python of an environment with the folder's wheels, which the first call creates."""
    folder = wheels / "environment"
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        files = sorted(map(str, wheels.glob("*.whl")))
        if not files:
            sys.exit(f"gpu_bare: no wheels in {wheels}")
        venv.create(folder, system_site_packages=True, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "-q", "--no-index", "--no-deps", *files]
        subprocess.run(install, check=True)
        ready.touch()
    return python


def main(argv: list[str]) -> int:
    """Run gpu_one.py with a Python that has its requirements. Returns its exit status."""
    python = sys.executable
    if argv[:1] == ["--wheels"] and len(argv) > 1:
        python, argv = str(environment(Path(argv[1]).resolve())), argv[2:]
    elif why := missing(python):
        print(f"gpu_bare: {python} cannot run gpu_one.py: {why}; give --wheels WHEELS (its"
              " docstring says how they are had)", file=sys.stderr)  # fmt: skip
        return 3
    return subprocess.run([python, str(SCRIPT), *argv], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
