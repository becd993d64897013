"""GPUs: the device facade over CuPy, memory of a device, kernels, and which rank takes which GPU."""
