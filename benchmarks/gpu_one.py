"""All tests and measurements that one GPU allows: results over peer memory and NCCL, and speed.

    python benchmarks/gpu_one.py --out FOLDER

Needs a checkout, CuPy and a GPU; on a bare machine, `gpu_bare.py` installs wheels first. Sections
run in order, each in its own process with its own time limit. FOLDER has the output of a section,
its exit status and its rows; after each call FOLDER.tar.gz has them too. A call takes --piece
seconds at most, if a section is not longer. Exit status 75 says that sections are left: the same
command then continues. Status 1: a section failed; 3: there is no GPU. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
# Import from the repository without an installation, and from this folder.
sys.path[:0] = [str(HOME), str(HOME / "benchmarks")]
# Before CUDA starts. Streams of several ranks on one GPU must not share a queue of the hardware's,
# and no kernel may wait to be loaded behind one that waits for it.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")

import gpu_processes as processes  # noqa: E402
from gpu_page import Page  # noqa: E402
from gpu_right import KB, MB, SIZES, Sizes  # noqa: E402
from gpu_run import Part, piece  # noqa: E402
from gpu_sections import SECTIONS  # noqa: E402

from busbar.errors import BusbarError  # noqa: E402
from collectives.execution.gpu.take import count_gpus, load_cupy  # noqa: E402

SCRIPT = __file__
QUICK = Sizes(
    right=(4, 64 * KB, 4 * MB), some=(4, 64 * KB), large=(64 * MB,), ranks=(2, 4), repeats=3
)
MORE = 75  # EX_TEMPFAIL


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def parsed(argv: list[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """The parser, and the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for what was found; needed")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="joined by commas")
    parser.add_argument("--ranks", type=_counts, help="rank counts, such as 8 or 2,4")
    parser.add_argument("--again", action="store_true", help="also those that have a result")
    parser.add_argument("--quick", action="store_true", help="few sizes, all in one piece")
    parser.add_argument("--piece", type=float, default=540, help="seconds of one call")
    parser.add_argument("--section", choices=tuple(SECTIONS), help=argparse.SUPPRESS)
    parser.add_argument("--process", nargs=4, help=argparse.SUPPRESS)
    return parser, parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the sections that the command line asks for. Returns the exit status."""
    parser, given = parsed(argv)
    wanted = given.sections.split(",")
    if unknown := set(wanted) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are: {', '.join(SECTIONS)}")
    if given.out is None and not given.process:
        parser.error("--out FOLDER: where the results go, and what has one already")
    sizes = QUICK if given.quick else SIZES
    if given.ranks:
        sizes = replace(sizes, ranks=given.ranks)
    try:
        cupy = load_cupy()
        count_gpus(cupy)
        if given.process:
            processes.play(cupy, *given.process)
            return 0
        if given.section:
            return inside(given, cupy, sizes)
    except BusbarError as error:
        print(f"gpu_one: {error}", file=sys.stderr)
        return error.exit_status
    given.out.mkdir(parents=True, exist_ok=True)
    parts = [
        Part(name, SECTIONS[name].quick if given.quick else SECTIONS[name].limit) for name in wanted
    ]
    command = [sys.executable, SCRIPT, "--out", str(given.out), *(["--quick"] * given.quick)]
    command += ["--ranks", ",".join(map(str, given.ranks))] if given.ranks else []
    found = piece(parts, command, given.out, time.monotonic() + given.piece, again=given.again)
    with tarfile.open(given.out.with_name(f"{given.out.name}.tar.gz"), "w:gz") as archive:
        archive.add(given.out, given.out.name)
    if found.left:
        print(f"gpu_one: still to do: {', '.join(found.left)}", file=sys.stderr, flush=True)
        return MORE
    return int(bool(found.failed))


def inside(given: argparse.Namespace, cupy: object, sizes: Sizes) -> int:
    """Run one section in this process. Returns the exit status."""
    section = SECTIONS[given.section]
    limit = section.quick if given.quick else section.limit
    # Print a traceback before the process is ended from outside.
    faulthandler.dump_traceback_later(max(1.0, 0.95 * limit - 2), exit=True)
    page = Page(given.out / f"{given.section}.rows.jsonl")
    section.run(page, cupy, sizes, given.out, SCRIPT)
    faulthandler.cancel_dump_traceback_later()
    for failure in page.failures:
        print(f"gpu_one: {given.section}: {failure}", file=sys.stderr)
    return int(bool(page.failures))


if __name__ == "__main__":
    sys.exit(main())
