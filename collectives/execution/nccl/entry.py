"""What is known of the transport ``nccl`` without loading it."""

from collectives.execution.registry import Entry, Option

ENTRY = Entry(
    "nccl",
    worlds=("mpi", "inproc"),
    on_gpu=True,
    options=(
        Option(
            "--graph",
            ("on", "off", "compare"),
            None,  # nccl-tests' -G says it, too
            "replay plans on GPUs from CUDA graphs (default on, where capture works); compare"
            " shows what that is worth",
        ),
        Option(
            "--cache",
            ("cold", "warm"),
            "cold",
            "on GPUs let buffers take turns, so that none is in the cache (default cold)",
        ),
    ),
)
