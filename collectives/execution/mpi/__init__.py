"""The transport over MPI: between buffers of hosts, or of GPUs."""
