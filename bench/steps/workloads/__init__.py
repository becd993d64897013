"""Models as lists of tensors: generated from an architecture's parameters, or read from a file."""
