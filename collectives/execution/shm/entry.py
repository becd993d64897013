"""What is known of the transport ``shm`` without loading it."""

from collectives.execution.registry import Entry

ENTRY = Entry("shm", worlds=("mpi",))
