"""Models as lists of tensors: generated from an architecture's few numbers, or read from a file."""
