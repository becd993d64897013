"""What is known of the transport ``ipc`` without loading it."""

from collectives.execution.registry import Entry, Option

__all__ = ["ENTRY", "EXECUTORS"]

EXECUTORS = ("program", "steps", "engine")
ENTRY = Entry(
    "ipc",
    worlds=("mpi", "inproc"),
    on_gpu=True,
    options=(
        Option(
            "--executor",
            EXECUTORS,
            "program",
            "with --transport ipc: one kernel for a whole plan (program), one a part of it (steps),"
            " or copies by the copy engines (engine) (default program)",
        ),
    ),
)
