"""MSCCL XML in and out: read, prove, convert to a schedule and write; other formats out."""
