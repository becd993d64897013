"""What is known of the transport ``ipc`` without loading it."""

from collectives.execution.registry import Entry

ENTRY = Entry("ipc", worlds=("mpi", "inproc"), on_gpu=True)
