"""What is known of the transport ``inproc`` without loading it."""

from collectives.execution.registry import Entry

ENTRY = Entry("inproc", worlds=("inproc",))
