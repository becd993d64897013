"""What the transports of GPU memory share: the device facade over CuPy, streams, kernels."""
