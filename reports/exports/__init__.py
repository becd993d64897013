"""Writers: records and rows to files, and nccl-tests' table."""
