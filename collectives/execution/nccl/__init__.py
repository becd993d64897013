"""The transport over NCCL between GPUs."""
