"""gpu_one.py on a bare machine with a driver: a folder of wheels, a checkout, no network.

    python benchmarks/gpu_bare.py WHEELS [options of gpu_one.py]

The wheels are had, on a machine with a network, by

    pip download -d WHEELS --only-binary :all: numpy ml_dtypes networkx rich \
        cupy-cuda13x 'nvidia-cuda-nvrtc>=13' nvidia-nccl-cu13 nvidia-ml-py \
        pytest pytest-timeout hypothesis

for the same Python (--python-version, --platform manylinux2014_x86_64 where that differs). They are
installed into an environment of their own beside them, once.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

SCRIPT = Path(__file__).resolve().with_name("gpu_one.py")


def environment(wheels: Path) -> Path:
    """The Python of an environment with all wheels of a folder; made where it is not there yet."""
    folder = wheels / "environment"
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        files = sorted(map(str, wheels.glob("*.whl")))
        if not files:
            sys.exit(f"gpu_bare: no wheels in {wheels}")
        venv.create(folder, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "-q", "--no-index", "--no-deps", *files]
        subprocess.run(install, check=True)
        ready.touch()
    return python


def main() -> None:
    """gpu_one.py in that environment; its exit status is this one's."""
    if len(sys.argv) < 2:
        sys.exit((__doc__ or "").split("\n\n")[1].strip())
    python = environment(Path(sys.argv[1]).resolve())
    sys.exit(subprocess.run([str(python), str(SCRIPT), *sys.argv[2:]], check=False).returncode)


if __name__ == "__main__":
    main()
