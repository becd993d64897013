"""The transport for GPUs of one host that read and write each other's memory."""
