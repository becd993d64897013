"""What one GPU is enough to show: results over peer memory and NCCL, speed, and what plans cost.

    python benchmarks/gpu_one.py

Prints Markdown. Each section runs in a process of its own: one that fails or hangs is reported, and
the rest goes on. Without a GPU: one line, exit status 3. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parents[1]
# From the repository's root without an installation, and its own parts beside it.
sys.path[:0] = [str(HOME), str(HOME / "benchmarks")]
# Streams of several ranks on one GPU must not share a queue of the hardware's.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import gpu_processes as processes  # noqa: E402
import gpu_right as right  # noqa: E402
import gpu_speed as speed  # noqa: E402

from collectives.errors import BusbarError, Unavailable  # noqa: E402
from collectives.gpu.device import Device  # noqa: E402
from collectives.gpu.load import count_gpus, load_cupy, load_nccl  # noqa: E402

QUICK = (4, 64 * right.KB, 4 * right.MB)
SECTIONS = ("threads", "processes", "nccl", "two_shot", "small", "overhead", "baseline")


def section(name: str, cupy: Any, quick: bool) -> list[str]:
    """A section's lines of Markdown."""
    sizes = QUICK if quick else right.SIZES
    large = tuple(size for size in sizes if size >= right.MB)
    if name == "threads":
        return right.right(cupy, sizes)
    if name == "processes":
        return processes.right([__file__, "--process"])
    if name == "nccl":
        return right.right_over_nccl(cupy, load_nccl(), sizes)
    if name == "two_shot":
        return speed.two_shot(cupy, (64 * right.MB,) if quick else speed.SIZES)
    if name == "small":
        return speed.small(cupy)
    if name == "overhead":
        return speed.overhead(cupy)
    return speed.baseline(cupy, load_nccl(), large)


def header(cupy: Any) -> list[str]:
    """Date, GPU, driver, CuPy and NCCL."""
    device = Device(cupy, 0)
    device.use()
    versions = device.versions()
    try:
        code = int(load_nccl().get_version())
        nccl = f"{code // 10000}.{code % 10000 // 100}.{code % 100}"
    except Unavailable as error:
        nccl = f"none ({error})"
    today = datetime.now(timezone.utc).date().isoformat()
    return [
        f"{today}, {device.name} ({device.memory()[1] >> 30} GiB, compute capability"
        f" {'.'.join(map(str, device.capability))}), driver {driver()}, CUDA"
        f" {versions['cuda_runtime']} (driver takes {versions['cuda_driver']}), CuPy"
        f" {versions['cupy']}, NCCL {nccl}.",
        "",
    ]


def driver() -> str:
    """The driver's version as NVML says it."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception as error:  # noqa: BLE001  (a figure's footnote: whatever fails is said instead)
        return f"unknown ({error})"


def apart(name: str, quick: bool, limit: float) -> bool:
    """Run a section in a process of its own and print it; whether it succeeded."""
    command = [sys.executable, __file__, "--section", name, *(["--quick"] if quick else [])]
    print(f"gpu_one: {name}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        said, status = done.stdout, done.returncode
        reason = (done.stderr.strip() or f"exit status {status}").splitlines()[-1]
    except subprocess.TimeoutExpired:
        said, status, reason = "", 1, f"not done after {limit:g} s"
    print(said if not status else f"**Section `{name}` failed:** {reason}\n", flush=True)
    return not status


def main() -> int:
    """Parse, run, print; gives the exit status: 1 when a section failed, 3 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sections", default=",".join(SECTIONS), help="joined by commas")
    parser.add_argument("--quick", action="store_true", help="few sizes: minutes become one")
    parser.add_argument("--limit", type=float, default=900, help="seconds for a section")
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    parser.add_argument("--process", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    wanted = given.sections.split(",")
    if unknown := set(wanted) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are: {', '.join(SECTIONS)}")
    try:
        cupy = load_cupy()
        count_gpus(cupy)
        if given.process:
            rank, size, address = given.process
            processes.play(cupy, int(rank), int(size), address)
        elif given.section:
            print("\n".join(section(given.section, cupy, given.quick)), end="\n\n")
        else:
            print("\n".join(header(cupy)), flush=True)
            failed = [name for name in wanted if not apart(name, given.quick, given.limit)]
            return int(bool(failed))
    except BusbarError as error:
        print(f"gpu_one: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
