"""What is known of the transport ``mpi`` without loading it."""

from collectives.execution.registry import Entry, Option

ENTRY = Entry(
    "mpi",
    worlds=("mpi",),
    on_gpu_with="--buffers device or staged",
    options=(
        Option(
            "--buffers",
            ("host", "device", "staged"),
            "host",
            "with --transport mpi: GPU buffers, handed to an MPI that takes them (device), or"
            " through pinned host memory (staged) (default host)",
        ),
    ),
)
